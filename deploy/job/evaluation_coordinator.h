// Takes the evaluations of a generation one after the other: the checkpoint of a new best model is
// made, and then every worker learns whether training goes on. Workers wait for that at the
// evaluation's step, so no later step is pushed meanwhile. A part of the job machine.
#ifndef THERMOCLINE_DEPLOY_JOB_EVALUATION_COORDINATOR_H_
#define THERMOCLINE_DEPLOY_JOB_EVALUATION_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "deploy/job/evaluation_board.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// Not thread-safe.
class EvaluationCoordinator {
 public:
  // `before`: as EvaluationBoard takes it. `keeps_best`: whether the best model has a checkpoint.
  EvaluationCoordinator(const Evaluate& policy, uint64_t generation, const EvaluationState& before,
                        bool keeps_best)
      : keeps_best_(keeps_best), board_(policy, generation, before) {}

  void Take(const EvaluationReport& report) { reports_.push_back(report); }

  // Takes the next report up, if none is under way. Returns the step of which a checkpoint is
  // wanted before anything else.
  std::optional<Step> Begin();
  // The answer to that.
  void OnCheckpoint(const absl::StatusOr<std::string>& name);
  // What was decided: once for each report, and before any worker learns of it.
  std::optional<EvaluationEvent> TakeDecided(const std::vector<uint32_t>& running_ranks);

  // The workers that have still to answer; those that have ended don't count.
  std::vector<uint32_t> Unanswered(const std::vector<uint32_t>& running_ranks);
  bool is_deciding() const { return stage_ == Stage::kDeciding; }
  // REQUIRES: is_deciding()
  Step step() const { return event_.report.step; }
  bool stops() const { return event_.verdict.stops; }
  void OnAnswered(uint32_t rank);

  const EvaluationBoard& board() const { return board_; }

 private:
  enum class Stage { kIdle, kMakingCheckpoint, kDecided, kDeciding };

  const bool keeps_best_;
  EvaluationBoard board_;
  std::deque<EvaluationReport> reports_;
  Stage stage_ = Stage::kIdle;
  EvaluationEvent event_;          // Of the report under way.
  std::set<uint32_t> unanswered_;  // By rank.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_EVALUATION_COORDINATOR_H_
