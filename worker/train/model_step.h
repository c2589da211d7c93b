// A model that is fed with the contexts of steps: what the trainer, the evaluation and `predict`
// share.
#ifndef THERMOCLINE_WORKER_TRAIN_MODEL_STEP_H_
#define THERMOCLINE_WORKER_TRAIN_MODEL_STEP_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/job/resolved_job.h"
#include "kernels/device.h"
#include "proto/job.pb.h"
#include "worker/dense/dense_parameters.h"
#include "worker/model/dense_arena.h"
#include "worker/model/model.h"
#include "worker/rows/step_context.h"

namespace thermocline {

// Not thread-safe.
class ModelStep {
 public:
  // Makes the model of a spec (worker/model/model.h).
  using MakeModelFunction = std::unique_ptr<Model> (*)(const ModelSpec&, const ModelParts&);

  // The model of the job. `device` outlives it. max_batch: samples of the largest batch of this
  // worker, in training or evaluation.
  ModelStep(const Job& job, const JobTables& tables, Device* device, int max_batch)
      : ModelStep(job, DescribeModel(job), tables, device, max_batch, &MakeModel) {}
  // Another model. REQUIRES: tables.dense are those of `spec`.
  ModelStep(const Job& job, const ModelSpec& spec, const JobTables& tables, Device* device,
            int max_batch, MakeModelFunction make);

  // Where the model has the vectors of each feature: the plans of steps say so to it.
  const std::vector<VectorPlace>& vector_places() const { return model_->vector_places(); }

  // The following queue work on the device and return.
  // Computes the logits of the batch. REQUIRES: context->tables is filled.
  void Forward(StepContext* context);
  // Fills the gradients of context->tables and outcome()->loss_sum; after Forward of the same
  // context.
  void BackwardToRows(StepContext* context);
  // Fills the dense gradients. `context` stays untouched since BackwardToRows.
  void BackwardDense() { model_->BackwardDense(); }
  // transfers->finished stands for all that was queued so far.
  void RecordFinished(StepContext* context) {
    device_->Record(Stream::kCompute, context->transfers->finished.get());
  }

  // The following wait for the device and report what went wrong on it.
  absl::Status Synchronize() { return device_->Synchronize(); }
  absl::Status CopyLogits(std::vector<float>* logits);  // [batch] of the last Forward

  // The model's dense parameters, without their initial values, and their gradients.
  DenseArenas dense() const {
    return {parameters_.weights(), parameters_.state(), parameters_.gradients()};
  }

  // Operations return before the device has finished them, so that steps can be pipelined.
  bool is_asynchronous() const { return !device_->is_host_memory(); }

 private:
  const SparseBatch& Describe(StepContext* context);

  const JobTables tables_;
  // A sample's loss is multiplied with this before it is differentiated: 1 / batch_size, also in a
  // shorter last batch, so that every sample weighs the same. (The mean over a last batch of 33
  // rows instead of 256 cost 0.002 of AUC on Criteo's log.)
  const float gradient_scale_;
  Device* const device_;
  const DenseArena parameters_;
  const std::unique_ptr<DeviceBuffer> loss_sum_;  // [1] double
  const std::unique_ptr<Model> model_;
  SparseBatch batch_;  // It and the two below belong to the last Forward.
  std::vector<Matrix> row_gradients_;
  Matrix logits_;
};

// How stale the rows were that a worker computed with. The staleness of step t is t - 1 - c, where
// the pushes of every worker up to c were in all of its rows. Thread-safe and wait-free.
class StalenessMeter {
 public:
  // The rows of `step` are complete through `complete_through`. One thread at a time.
  void Record(Step step, Step complete_through) {
    const int64_t missing = std::max<int64_t>(0, step - 1 - complete_through);
    max_.store(std::max(max(), static_cast<uint64_t>(missing)), std::memory_order_relaxed);
    sum_.fetch_add(missing, std::memory_order_relaxed);
    steps_.fetch_add(1, std::memory_order_relaxed);
  }

  uint64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const {
    const uint64_t steps = steps_.load(std::memory_order_relaxed);
    return steps == 0 ? 0 : static_cast<double>(sum_.load(std::memory_order_relaxed)) / steps;
  }

 private:
  std::atomic<uint64_t> max_{0};
  std::atomic<uint64_t> sum_{0};
  std::atomic<uint64_t> steps_{0};
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_MODEL_STEP_H_
