// The dense parameters of a job, as one worker's steps use them: beside the rows of its row
// source (worker/rows/row_source.h), with which they share a step's pull and push.
//
// They have one of three homes. With one worker they live on its device: every step updates them
// there, and a step that writes back brings them to the servers. Several workers in sync mode each
// update a slice of them, on the host, and send it to all (dense_slices.h); a step that writes back
// brings every slice to the servers. Else they live on the servers: every step pulls them and
// pushes their gradients. This class hides the difference; the calls of a step are the same, in
// this order:
//
//   AddPulls    beside the rows' pulls
//   Receive     once the pulls are over, before the forward pass
//   Update      after the backward pass
//   AddPush     beside what the rows push; the wave is the push's last
//   FinishPush  once the push has started and the device has the step's gradients
//
// Steps come in order. Where the parameters are updated here, a pipelined trainer (trainer.h) calls
// Update of the next step before AddPush, unless the step writes back. What must wait is added as
// tasks (worker/rows/step_tasks.h), and a call is over when its tasks have run.
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_DENSE_DENSE_PARAMETERS_H_
#define THERMOCLINE_WORKER_DENSE_DENSE_PARAMETERS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "kernels/device.h"
#include "worker/dense/dense_blocks.h"
#include "worker/dense/dense_slices.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_pulls.h"
#include "worker/rows/step_tasks.h"
#include "worker/session/ps_session.h"

namespace thermocline {

// The model's dense parameters in device memory, block by block (dense_blocks.h).
struct DenseArenas {
  DeviceSpan<float> weights;    // [blocks, 256]
  DeviceSpan<float> state;      // [blocks, state_floats]
  DeviceSpan<float> gradients;  // [blocks, 256]
};

class DenseParameters {
 public:
  enum class Home { kHere, kServers, kSlices };

  // All that is pointed to, and the arenas, outlive it. num_workers: of the job. slices: null where
  // the workers do not exchange blocks.
  DenseParameters(const DenseBlocks* blocks, const DenseArenas& arenas, uint32_t num_workers,
                  DenseSlices* slices, Device* device, PsSession* session);

  Home home() const { return home_; }

  // Gives them their initial values.
  void Initialize(uint64_t seed);
  // Reads them as they are once every worker's pushes up to step - 1 are in them. Where they do not
  // live on the servers, a run that doesn't begin at step 0 with initial values does so before its
  // first step, with the optimizer's state (of the own slice); scoring needs the weights alone.
  void Load(Step step, bool with_state, StepTasks* tasks);

  // Adds what the step pulls, if anything.
  void AddPulls(StepContext* context) const;
  // Takes to the device what was pulled, or what the other workers have made of the last step.
  // Errors: of DenseSlices.
  void Receive(StepContext* context, StepTasks* tasks);
  // Where they are updated here: queues the update with the model's gradients and
  // context->learning_rate, and looks for a gradient that is not finite (outcome()->bad_gradient).
  void Update(StepContext* context);
  // Adds what the step pushes, if anything, as the last wave: gradients, or, where
  // context->writes_back, rows.
  void AddPush(StepContext* context) const;
  // Releases that wave, with the values that the device has now; slices are updated before. Errors:
  // kInvalidArgument (a gradient is not finite; names the tensor), the device's, the session's,
  // those of DenseSlices.
  void FinishPush(StepContext* context, StepTasks* tasks);
  // Before an evaluation, and at the end: the device has the parameters as the last step leaves
  // them (where they live on the servers: as Load brings them). Errors: of DenseSlices.
  void Settle(StepTasks* tasks);

 private:
  struct HostCopy {
    std::unique_ptr<DeviceBuffer> buffer;  // null: the device's memory is the host's
    absl::Span<float> floats;
  };

  HostCopy MakeHostCopy(DeviceSpan<float> span) const;
  void CopyToHost(DeviceSpan<float> from, const HostCopy& to);
  void CopyToDevice(const HostCopy& from, DeviceSpan<float> to);
  // The blocks whose optimizer state this worker has.
  const DenseBlocks& state_blocks() const;
  absl::Status TakeLoaded(bool with_state);
  absl::Status ExchangeSlices(StepContext* context, StepTasks* tasks);
  absl::Status ReceiveSlices();
  absl::Status Release(StepContext* context);
  absl::Status CheckGradients(const StepContext& context, int64_t bad_gradient) const;

  const DenseBlocks* const blocks_;
  const DenseArenas arenas_;
  const Home home_;
  DenseSlices* const slices_;  // Null: home_ is another.
  Device* const device_;
  PsSession* const session_;
  const std::unique_ptr<DeviceBuffer> bad_gradient_;  // [1] int64, device
  const HostCopy weights_, state_, gradients_;        // of the arenas
  const std::unique_ptr<DeviceEvent> copied_;         // what FinishPush copies to the host
  Step owed_weights_ = kNoStep;  // The step whose weights others still send; kNoStep: none.

  // What Load pulls.
  StepPulls loads_;
  UninitializedVector<float> loaded_weights_, loaded_rows_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DENSE_DENSE_PARAMETERS_H_
