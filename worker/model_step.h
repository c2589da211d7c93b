// The model of a job on its device, fed with step works: what the trainer and the evaluation share.
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_MODEL_STEP_H_
#define THERMOCLINE_WORKER_MODEL_STEP_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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

  // logits() of the batch. REQUIRES: work->rows is filled.
  void Forward(StepWork* work);
  // Fills work->gradients and the loss; after Forward of the same work.
  void BackwardToEmbeddings(StepWork* work);
  // Fills arenas().gradients. `work` stays untouched since BackwardToEmbeddings.
  void BackwardDense();
  void ApplyDense(float job_learning_rate, Step step);

  // Waits for the device and reports what went wrong on it.
  absl::Status Synchronize() { return device_->Synchronize(); }
  // Of the last batch, once the device has got there. Both wait for it.
  absl::StatusOr<double> LossSum();
  absl::Status CopyLogits(std::vector<float>* logits);  // [batch]

  // kInvalidArgument where a gradient is not finite; names the tensor.
  absl::Status CheckDenseGradients();

  DenseArenas arenas();

 private:
  const SparseBatch& Describe(StepWork* work);

  const JobTables tables_;
  // What a sample's loss is multiplied with before it is differentiated: 1 / batch_size, also in a
  // shorter last batch, so that every sample weighs the same. (The mean over a last batch of 33
  // rows instead of 256 cost 0.002 of AUC on Criteo's log.)
  const float gradient_scale_;
  Device* const device_;
  DlrmModel model_;
  SparseBatch batch_;  // of the last Forward
  std::vector<Matrix> embedding_gradients_;
  Matrix logits_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_STEP_H_
