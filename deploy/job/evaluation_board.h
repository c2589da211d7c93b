// What the evaluations of a job mean for it: which is the best so far, and whether training ends.
// All of it is decided here, from what worker 0 reports.
#ifndef THERMOCLINE_DEPLOY_JOB_EVALUATION_BOARD_H_
#define THERMOCLINE_DEPLOY_JOB_EVALUATION_BOARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// The held-out rows scored with the model after `step`.
struct EvaluationReport {
  Step step = kNoStep;
  uint32_t pass = 0;  // That the step was of, from 1.
  // Of those that evaluate.every_steps or every_passes ask for, not only the one after the last
  // step: it counts for the patience.
  bool is_scheduled = false;
  double auc = 0;  // NaN: the rows have one class only.
  double logloss = 0;
};

// Not thread-safe.
class EvaluationBoard {
 public:
  // `before`: how the evaluations stood at the checkpoint that the generation begins with. They
  // don't count where the metric is another one now.
  EvaluationBoard(const Evaluate& policy, uint64_t generation, const EvaluationState& before);

  struct Verdict {
    bool is_best = false;
    bool stops = false;  // The step was the last that is trained.
  };
  // Takes an evaluation in. One of a step that was taken already (by the generation before, up to
  // its checkpoint) changes nothing, and gets the verdict that followed from it.
  Verdict Take(const EvaluationReport& report);

  // What became of the checkpoint of the best step: its name, or why it can't be made. Then the one
  // of the best step before stands.
  void SetBestCheckpoint(const absl::StatusOr<std::string>& name);

  // After all evaluations of steps up to `cut`. REQUIRES: those before `cut` have been taken.
  EvaluationState Through(Step cut) const;
  EvaluationState latest() const;

 private:
  bool IsBetter(const EvaluationReport& report, const EvaluationState& state) const;
  bool Stops(const EvaluationState& state) const;

  const Evaluate policy_;
  const uint64_t generation_;
  // The first is that of the checkpoint; one more for each evaluation.
  std::vector<EvaluationState> states_;
  std::string best_checkpoint_before_;
};

// What was decided, for people to see.
struct EvaluationEvent {
  EvaluationReport report;
  EvaluationBoard::Verdict verdict;
  EvaluationState state;          // With this evaluation.
  absl::Status checkpoint_error;  // Why the best model's checkpoint can't be made.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_EVALUATION_BOARD_H_
