// The dense parameters of a model that computes on the worker's device: tensors, as rows of tables
// (dense_blocks.h).
//
// They have one of three homes. With one worker they live on its device: every step updates them
// there, and a step that writes back brings them to the servers. Several workers in sync mode each
// update a slice of them, on the host, and send it to all (dense_slices.h); a step that writes back
// brings every slice to the servers. Else they live on the servers: every step pulls them and
// pushes their gradients. This class hides the difference.
//
// Steps come in order. Where the parameters are updated here, a pipelined trainer (trainer.h) calls
// Update of the next step before AddPush, unless the step writes back.
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_DENSE_DENSE_TENSORS_H_
#define THERMOCLINE_WORKER_DENSE_DENSE_TENSORS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "kernels/device.h"
#include "worker/dense/dense_blocks.h"
#include "worker/dense/dense_parameters.h"
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

class DenseTensors final : public DenseParameters {
 public:
  // All that is pointed to, and the arenas, outlive it. num_workers: of the job. slices: null where
  // the workers do not exchange blocks.
  DenseTensors(const DenseBlocks* blocks, const DenseArenas& arenas, uint32_t num_workers,
               DenseSlices* slices, Device* device, PsSession* session);

  Home home() const override { return home_; }

  // Gives them their initial values.
  void Initialize(uint64_t seed);
  void Load(Step step, bool with_state, StepTasks* tasks) override;

  void AddPulls(StepContext* context) const override;
  // Errors: of DenseSlices.
  void Receive(StepContext* context, StepTasks* tasks) override;
  // Looks for a gradient that is not finite, too (outcome()->bad_gradient).
  void Update(StepContext* context) override;
  void AddPush(StepContext* context, StepTasks* tasks) override;
  // The wave has the values that the device has now; slices are updated before. Errors:
  // kInvalidArgument (a gradient is not finite; names the tensor), the device's, the session's,
  // those of DenseSlices.
  void FinishPush(StepContext* context, StepTasks* tasks) override;
  // Errors: of DenseSlices.
  void Settle(StepTasks* tasks) override;

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

#endif  // THERMOCLINE_WORKER_DENSE_DENSE_TENSORS_H_
