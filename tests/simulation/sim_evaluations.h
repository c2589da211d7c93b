// What a launcher makes of the evaluations of one epoch: the real decisions over the real keeper.
// What was decided is checked at the end against a plain recount of the model's scores.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_EVALUATIONS_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_EVALUATIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/evaluation_board.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_setup.h"

namespace thermocline {

struct SimEvaluationCounters {
  uint64_t decided = 0;
  uint64_t best = 0;     // Of those: better than all before.
  uint64_t unmade = 0;   // Of those: their checkpoint could not be made.
  uint64_t stopped = 0;  // Ended training.

  void Add(const SimEvaluationCounters& other);
};

class SimEvaluations {
 public:
  // `before`: as EvaluationBoard takes it. `old`: those of the epoch before, or null. `on_decided`
  // hears what every worker is to be told.
  using OnDecided = std::function<void(Step step, bool stop)>;
  SimEvaluations(const EvaluationSetup& setup, uint64_t epoch, const EvaluationState& before,
                 const SimEvaluations* old, OnDecided on_decided);

  // Worker 0 has scored the model after `step`. `keeper`: of the best model's checkpoints, null
  // where there are none; `launcher_ended`: nothing is decided any more.
  void Take(Step step, double score, CheckpointKeeper* keeper,
            const std::shared_ptr<const bool>& launcher_ended);
  // A planted fault: takes what `old` took last.
  void TakeOld(const SimEvaluations& old);

  const EvaluationBoard& board() const { return board_; }
  Step best_step() const { return Step(board_.latest().best_step()); }
  SimEvaluationCounters counters() const { return counters_; }  // Of all epochs so far.

  // Whether training ended where it should, with the right best step, and with that one's
  // checkpoint where the job makes any. What is wrong is appended to `failures`.
  void CheckEnd(const SequentialModel& model, Step last, uint64_t num_keys,
                const CheckpointStore* store, std::vector<std::string>* failures) const;

 private:
  EvaluationReport ReportOf(Step step, double score) const;
  std::string CheckBest(const CheckpointStore& store) const;

  const EvaluationSetup setup_;
  const OnDecided on_decided_;
  EvaluationBoard board_;
  std::optional<EvaluationReport> last_report_;
  bool keeps_best_ = false;
  std::set<Step> unmade_;  // Best steps of all epochs without a checkpoint.
  SimEvaluationCounters counters_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_EVALUATIONS_H_
