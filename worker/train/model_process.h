// What a run does around its steps with the process that computes the model.
#ifndef THERMOCLINE_WORKER_TRAIN_MODEL_PROCESS_H_
#define THERMOCLINE_WORKER_TRAIN_MODEL_PROCESS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/train/evaluation.h"

namespace thermocline {

// This class stands for the worker itself, which computes the model and knows all of it: its calls
// do nothing. A job's script is a ScriptRun (script_run.h). Not thread-safe.
class ModelProcess {
 public:
  virtual ~ModelProcess() = default;

  // Training is over, or there was none.
  virtual absl::Status EndTraining() { return absl::OkStatus(); }
  // Returns whether the held-out rows are to be scored now with the trained model; asked again
  // after each time. is_due: they have no score of it yet. REQUIRES: EndTraining
  virtual absl::StatusOr<bool> WantsScores(bool is_due) { return is_due; }
  // The held-out rows are scored: completes the result with what the process has computed of it.
  // Errors: kInvalidArgument (its own metric is not finite).
  virtual absl::Status CompleteEvaluation(EvaluationResult* /*result*/) { return absl::OkStatus(); }
  // Waits for the end of the process. REQUIRES: WantsScores has returned false.
  virtual absl::Status AwaitEnd() { return absl::OkStatus(); }
  // The run ends with this error.
  virtual void OnError(const absl::Status& /*error*/) {}
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_MODEL_PROCESS_H_
