#include "worker/model_step.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/finite.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

DlrmShape ShapeOf(const Job& job, const JobTables& tables) {
  const std::vector<int> bottom = BottomWidths(job);
  const std::vector<int> top = TopWidths(job);
  DlrmShape shape;
  shape.num_dense = bottom.front();
  shape.num_features = static_cast<int32_t>(tables.features.size());
  shape.dim = bottom.back();
  shape.bottom_hidden.assign(bottom.begin() + 1, bottom.end() - 1);
  shape.top_hidden.assign(top.begin() + 1, top.end() - 1);
  return shape;
}

template <typename T>
DeviceSpan<const T> View(const UninitializedVector<T>& values) {
  return {values.data(), static_cast<int64_t>(values.size())};
}

}  // namespace

ModelStep::ModelStep(const Job& job, const JobTables& tables, const DenseBlocks& blocks,
                     Device* device, int max_batch)
    : tables_(tables),
      gradient_scale_(1.0f / static_cast<float>(job.train().batch_size())),
      device_(device),
      model_(device, ShapeOf(job, tables), tables.dense.at(0).layout.optimizer, max_batch) {
  const DeviceSpan<float> weights = model_.weights();
  const DeviceSpan<float> slots = model_.slots();
  CHECK_EQ(weights.size, blocks.arena_floats());
  blocks.Initialize(job.seed(), absl::MakeSpan(weights.data, weights.size),
                    absl::MakeSpan(slots.data, slots.size));
  batch_.tables.resize(tables.sparse.size());
  batch_.features.resize(tables.features.size());
  embedding_gradients_.resize(tables.sparse.size());
}

// The CPU device reads the work's host memory in place.
const SparseBatch& ModelStep::Describe(StepWork* work) {
  batch_.batch_size = work->batch->size;
  for (size_t t = 0; t < tables_.sparse.size(); ++t) {
    const TablePlan& plan = work->plan.tables[t];
    const int dim = tables_.sparse[t].dim;
    batch_.tables[t].rows = FloatMatrix(work->rows[t].data(), plan.num_unique(), dim);
    batch_.tables[t].segment_offsets = View(plan.segment_offsets);
    batch_.tables[t].segment_bags = View(plan.segment_bags);
    embedding_gradients_[t] = FloatMatrix(work->gradients[t].data(), plan.num_unique(), dim);
  }
  for (size_t f = 0; f < tables_.features.size(); ++f) {
    const FeaturePlan& plan = work->plan.features[f];
    FeatureBatch& feature = batch_.features[f];
    feature.table = plan.table;
    feature.pooling = tables_.features[f].pooling == MEAN ? PoolingMode::kMean : PoolingMode::kSum;
    feature.slots = View(plan.slots);
    feature.offsets =
        plan.single ? DeviceSpan<const int32_t>{} : View(work->batch->features[f].offsets);
  }
  return batch_;
}

void ModelStep::Forward(StepWork* work) {
  const Batch& batch = *work->batch;
  const Matrix dense =
      FloatMatrix(work->batch->dense.data(), batch.size, batch.num_dense, batch.dense_stride);
  logits_ = model_.Forward(dense, Describe(work));
}

void ModelStep::BackwardToEmbeddings(StepWork* work) {
  model_.BackwardToEmbeddings(View(work->batch->labels), gradient_scale_, embedding_gradients_);
}

void ModelStep::BackwardDense() { model_.BackwardDense(); }

void ModelStep::ApplyDense(float job_learning_rate, Step step) {
  model_.ApplyDense(job_learning_rate, step);
}

absl::StatusOr<double> ModelStep::LossSum() {
  RETURN_IF_ERROR(device_->Synchronize());
  double loss = 0;
  device_->CopyToHost(&loss, model_.loss_sum().data, sizeof(loss), Stream::kCompute);
  return loss;
}

absl::Status ModelStep::CopyLogits(std::vector<float>* logits) {
  RETURN_IF_ERROR(device_->Synchronize());
  logits->resize(logits_.rows);
  if (logits_.rows == 0) return absl::OkStatus();
  const auto ld = static_cast<size_t>(logits_.ld);
  std::vector<float> rows(ld * (logits->size() - 1) + 1);
  device_->CopyToHost(rows.data(), logits_.floats(), rows.size() * sizeof(float), Stream::kCompute);
  for (size_t b = 0; b < logits->size(); ++b) (*logits)[b] = rows[b * ld];
  return absl::OkStatus();
}

absl::Status ModelStep::CheckDenseGradients() {
  const DeviceSpan<float> gradients = model_.gradients();
  const size_t bad = FindNonFinite(absl::MakeConstSpan(gradients.data, gradients.size));
  if (bad == static_cast<size_t>(gradients.size)) return absl::OkStatus();
  int64_t block = static_cast<int64_t>(bad) / kDenseBlockFloats;
  for (const DenseTable& tensor : tables_.dense) {
    if (block < tensor.num_blocks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("the gradient of '", tensor.layout.name, "' is ", gradients.data[bad]));
    }
    block -= tensor.num_blocks();
  }
  return absl::InternalError("a gradient beyond the last tensor is not finite");
}

DenseArenas ModelStep::arenas() {
  const DeviceSpan<float> weights = model_.weights();
  const DeviceSpan<float> slots = model_.slots();
  const DeviceSpan<float> gradients = model_.gradients();
  return {absl::MakeSpan(weights.data, weights.size), absl::MakeSpan(slots.data, slots.size),
          absl::MakeConstSpan(gradients.data, gradients.size)};
}

}  // namespace thermocline
