// What a job's model has beside its rows, as one worker's steps use it: the dense parameters of a
// model that computes on the worker's device (dense_tensors.h), or what a script keeps of its own
// (worker/train/script_state.h). It shares a step's pull and push with the rows
// (worker/rows/row_source.h). The calls of a step, in this order:
//
//   AddPulls    beside the rows' pulls
//   Receive     once the pulls are over, before the forward pass
//   Update      after the backward pass
//   AddPush     beside what the rows push; the wave is the push's last
//   FinishPush  once the push has started and the device has the step's gradients
//
// Steps come in order. What must wait is added as tasks (worker/rows/step_tasks.h), and a call is
// over when its tasks have run.
#ifndef THERMOCLINE_WORKER_DENSE_DENSE_PARAMETERS_H_
#define THERMOCLINE_WORKER_DENSE_DENSE_PARAMETERS_H_

#include "common/base/ids.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"

namespace thermocline {

// Not thread-safe.
class DenseParameters {
 public:
  // Where they are between steps: on this worker, on the servers, or a slice on each worker.
  enum class Home { kHere, kServers, kSlices };

  virtual ~DenseParameters() = default;
  virtual Home home() const = 0;

  // Reads them as they are once every worker's pushes up to step - 1 are in them. Where they do not
  // live on the servers, a run that doesn't begin at step 0 with initial values does so before its
  // first step, with the optimizer's state (of the own slice); scoring needs the weights alone.
  virtual void Load(Step step, bool with_state, StepTasks* tasks) = 0;

  // Adds what the step pulls, if anything.
  virtual void AddPulls(StepContext* context) const = 0;
  // Takes what was pulled, or what the other workers have made of the last step.
  virtual void Receive(StepContext* context, StepTasks* tasks) = 0;
  // Where they are updated here: queues the update with the model's gradients and
  // context->learning_rate.
  virtual void Update(StepContext* context) = 0;
  // Adds what the step pushes, if anything, as the last wave: gradients, or, where
  // context->writes_back, rows.
  virtual void AddPush(StepContext* context, StepTasks* tasks) = 0;
  // Releases that wave.
  virtual void FinishPush(StepContext* context, StepTasks* tasks) = 0;
  // Before an evaluation, and at the end: the model has the parameters as the last step leaves them
  // (where they live on the servers: as Load brings them).
  virtual void Settle(StepTasks* tasks) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DENSE_DENSE_PARAMETERS_H_
