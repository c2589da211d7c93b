// What a launcher orders while a worker trains, on its way from the worker's RPCs to the training
// thread: checkpoints at named steps, and what follows from evaluations.
#ifndef THERMOCLINE_WORKER_TRAIN_LAUNCHER_ORDERS_H_
#define THERMOCLINE_WORKER_TRAIN_LAUNCHER_ORDERS_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/ids.h"

namespace thermocline {

class Evaluate;  // proto/job.proto

// The steps that the launcher has named for a checkpoint: with the push of such a step the worker
// writes back what it alone holds. Thread-safe.
class NamedCheckpoints {
 public:
  // No push of `start_step` or later has begun.
  explicit NamedCheckpoints(Step start_step) : begun_(start_step - 1) {}

  // Names `step`. May be repeated. Errors: kFailedPrecondition (its push has begun: says which step
  // the worker is at; training is over).
  absl::Status Name(Step step);
  // Takes the name back. Does nothing if the step's push has begun, or if it was not named.
  void CallOff(Step step);
  // Whether `step` was named; from now on it is too late to name it. REQUIRES: the steps ascend.
  bool BeginPush(Step step);
  // Whether a checkpoint waits for a step to come.
  bool AwaitsStep() const;
  // Refuses every name from now on.
  void EndTraining();
  // The last step whose push has begun.
  Step begun() const;

 private:
  mutable absl::Mutex mutex_;
  Step begun_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<Step> named_ ABSL_GUARDED_BY(mutex_);  // Beyond begun_.
};

// Whether the job file asks for an evaluation of the model after `steps` steps, counted from the
// beginning of the job. pass_ended: the pass that ends with these steps, from 1; 0: none does.
bool EvaluationIsDue(const Evaluate& policy, int64_t steps, uint32_t pass_ended);

// When an evaluation takes place.
struct EvaluationPlace {
  Step step = kNoStep;      // The model after this step is evaluated.
  uint32_t pass = 0;        // The step's pass, from 1.
  float learning_rate = 0;  // The step's.
  // Job.evaluate asks for it; else it takes place because training ends, or at a break alone.
  bool is_scheduled = false;
  bool is_break = false;  // The order of the data has a break here (BatchOrder), and goes on.
};

// Held-out rows were scored at a break, for the order of the data.
struct OrderScoring {
  std::string data_place;  // Where the data go on.
  absl::Duration took;     // How long the scoring took.
};

// What the launcher decided on the step at which all workers wait.
struct LauncherDecision {
  bool goes_on = true;  // False: training ends with the step.
  // Where the data go on, if rows were scored for their order; else empty.
  std::string data_place;
};

// The launcher's decisions. Thread-safe.
class EvaluationDecisions {
 public:
  // Takes what follows from the evaluation at `step`, and from all before it.
  void Take(Step step, bool stop, std::string data_place = "");
  // Waits for the decision on `step`. (None on a later step comes before this worker has trained
  // it.)
  LauncherDecision Await(Step step);

 private:
  absl::Mutex mutex_;
  Step decided_ ABSL_GUARDED_BY(mutex_) = kNoStep;
  LauncherDecision decision_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_LAUNCHER_ORDERS_H_
