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
#include "worker/dense/dense_tensors.h"
#include "worker/model/dense_arena.h"
#include "worker/model/model.h"
#include "worker/rows/step_context.h"

namespace thermocline {

// Implementations: DeviceModelStep; ScriptStep (script_step.h). Not thread-safe.
class ModelStep {
 public:
  virtual ~ModelStep() = default;

  // Where the model has the vectors of each feature: the plans of steps say so to it. Empty: side
  // by side.
  virtual std::vector<VectorPlace> vector_places() const = 0;

  // The following queue work and return, where the model computes on a device.
  // Computes the logits of the batch. REQUIRES: context->tables is filled.
  virtual absl::Status Forward(StepContext* context) = 0;
  // Fills the gradients of context->tables and outcome(); after Forward of the same context.
  virtual absl::Status BackwardToRows(StepContext* context) = 0;
  // Fills the dense gradients. The context of BackwardToRows stays untouched since.
  virtual void BackwardDense() = 0;
  // transfers->finished stands for all that was queued so far.
  virtual void RecordFinished(StepContext* context) = 0;

  // The following wait for the model and report what went wrong.
  virtual absl::Status Synchronize() = 0;
  // Computes the logits of a batch that is not trained: [tasks, batch].
  virtual absl::Status Score(StepContext* context, std::vector<float>* logits) = 0;
  // [tasks, batch] of the last Forward; empty: the model tells them of no batch that is trained.
  virtual absl::Status CopyLogits(std::vector<float>* logits) = 0;

  // Operations return before they are finished, so that steps can be pipelined.
  virtual bool is_asynchronous() const = 0;
};

// A model of worker/model on a device.
class DeviceModelStep final : public ModelStep {
 public:
  // The model of the job. `device` outlives it. room: for batches of this worker, in training or
  // evaluation
  DeviceModelStep(const Job& job, const JobTables& tables, Device* device, const BatchRoom& room);

  std::vector<VectorPlace> vector_places() const override { return model_.vector_places(); }
  absl::Status Forward(StepContext* context) override;
  absl::Status BackwardToRows(StepContext* context) override;
  void BackwardDense() override { model_.BackwardDense(); }
  void RecordFinished(StepContext* context) override {
    device_->Record(Stream::kCompute, context->transfers->finished.get());
  }
  absl::Status Synchronize() override { return device_->Synchronize(); }
  absl::Status Score(StepContext* context, std::vector<float>* logits) override;
  absl::Status CopyLogits(std::vector<float>* logits) override;
  bool is_asynchronous() const override { return !device_->is_host_memory(); }

  // The model's dense parameters, without their initial values, and their gradients.
  DenseArenas dense() const {
    return {parameters_.weights(), parameters_.state(), parameters_.gradients()};
  }

 private:
  const SparseBatch& Describe(StepContext* context);
  absl::Status Compute(StepContext* context, DeviceSpan<const SamplePlace> place);
  DeviceSpan<double> LossSums() { return {static_cast<double*>(loss_sums_->data()), num_tasks_}; }

  const JobTables tables_;
  const int num_tasks_;
  // A sample's loss is multiplied with this before it is differentiated: 1 / batch_size, also in a
  // shorter last batch, so that every sample weighs the same. (The mean over a last batch of 33
  // rows instead of 256 cost 0.002 of AUC on Criteo's log.)
  const float gradient_scale_;
  Device* const device_;
  const DenseArena parameters_;
  const std::unique_ptr<DeviceBuffer> loss_sums_;  // [tasks] double
  Model model_;
  SparseBatch batch_;  // It and the one below belong to the last Forward.
  std::vector<Matrix> row_gradients_;
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
