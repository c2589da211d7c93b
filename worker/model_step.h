// The model of a job on its device, fed with step works: what the trainer and the evaluation share.
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_MODEL_STEP_H_
#define THERMOCLINE_WORKER_MODEL_STEP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/job/job_tables.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/model/dlrm.h"
#include "worker/sparse/dense_blocks.h"
#include "worker/sparse/embedding_source.h"
#include "worker/sparse/step_work.h"

namespace thermocline {

class ModelStep {
 public:
  // `device` outlives it. The dense parameters start at their initial values.
  // max_batch: samples in the largest batch of this worker, evaluation included.
  ModelStep(const Job& job, const JobTables& tables, const DenseBlocks& blocks, Device* device,
            int max_batch);

  // All of these queue work on the device and return.
  // The logits of the batch. REQUIRES: work->tables is filled.
  void Forward(StepWork* work);
  // Fills the gradients of work->tables and outcome()->loss_sum; after Forward of the same work.
  void BackwardToEmbeddings(StepWork* work);
  // Fills the dense gradients. `work` stays untouched since BackwardToEmbeddings.
  void BackwardDense();
  // Updates the dense parameters; outcome()->bad_gradient tells of a gradient that is not finite.
  void ApplyDense(StepWork* work, float job_learning_rate);
  // transfers->finished stands for all that was queued so far.
  void RecordFinished(StepWork* work) {
    device_->Record(Stream::kCompute, work->transfers->finished.get());
  }

  // kInvalidArgument where bad_gradient, of an outcome that the host has, is one; names the tensor.
  absl::Status CheckDenseGradients(int64_t bad_gradient) const;

  // Wait for the device and report what went wrong on it.
  absl::Status Synchronize() { return device_->Synchronize(); }
  absl::Status CopyLogits(std::vector<float>* logits);  // [batch] of the last Forward

  // The dense parameters on the host. Where the device's memory is the host's that is where they
  // are; else a copy, fresh after ReadDense(), and the device's after WriteDense().
  const DenseArenas& arenas() const { return arenas_; }
  absl::Status ReadDense();
  void WriteDense();

  // The device may lag behind the host: what was queued isn't done yet.
  bool is_asynchronous() const { return !device_->is_host_memory(); }

 private:
  const SparseBatch& Describe(StepWork* work);
  DenseArenas MakeArenas();

  const JobTables tables_;
  // What a sample's loss is multiplied with before it is differentiated: 1 / batch_size, also in a
  // shorter last batch, so that every sample weighs the same. (The mean over a last batch of 33
  // rows instead of 256 cost 0.002 of AUC on Criteo's log.)
  const float gradient_scale_;
  Device* const device_;
  DlrmModel model_;
  std::unique_ptr<DeviceBuffer> bad_gradient_;                                // [1] int64, device
  std::unique_ptr<DeviceBuffer> host_weights_, host_slots_, host_gradients_;  // of an own device
  DenseArenas arenas_;
  SparseBatch batch_;  // of the last Forward
  std::vector<Matrix> embedding_gradients_;
  Matrix logits_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_STEP_H_
