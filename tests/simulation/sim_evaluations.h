// The launcher's decisions about the evaluations of a job. At the end they are compared with a
// simple recount of the model's scores.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_EVALUATIONS_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_EVALUATIONS_H_

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/evaluations.h"
#include "proto/checkpoint.pb.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_setup.h"

namespace thermocline {

struct SimEvaluationCounters {
  uint64_t decided = 0;  // All evaluations.
  uint64_t best = 0;     // Evaluations that were better than all before.
  uint64_t unmade = 0;   // Best evaluations whose checkpoint could not be made.
  uint64_t stopped = 0;  // Evaluations that ended training.

  void Add(const SimEvaluationCounters& other);
};

class SimEvaluations {
 public:
  explicit SimEvaluations(const EvaluationSetup& setup) : setup_(setup) {}

  // `next`: the stretch that follows, where one of hot or cold batches has ended.
  EvaluationReport ReportOf(Step step, double score,
                            const std::optional<ScheduleState>& next) const;
  // What the launcher decided. `keeps_best`: the job makes checkpoints.
  void OnDecided(const EvaluationEvent& event, bool keeps_best);
  Step best_step() const { return Step(state_.best_step()); }
  SimEvaluationCounters counters() const { return counters_; }

  // Whether training ended where it should, with the right best step, and with that one's
  // checkpoint where the job makes any. What is wrong is appended to `failures`.
  void CheckEnd(const SequentialModel& model, Step last, uint64_t num_keys,
                const CheckpointStore* store, std::vector<std::string>* failures) const;

 private:
  std::string CheckBest(const CheckpointStore& store) const;

  const EvaluationSetup setup_;
  EvaluationState state_;  // After the last decision.
  bool keeps_best_ = false;
  std::set<Step> unmade_;  // Best steps of all generations without a checkpoint.
  SimEvaluationCounters counters_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_EVALUATIONS_H_
