#include "worker/model_step.h"

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

DlrmShape ShapeOf(const Job& job, const JobTables& tables) {
  DlrmShape shape;
  shape.num_dense = static_cast<int32_t>(job.data().num_dense());
  shape.num_features = static_cast<int32_t>(tables.features.size());
  shape.dim = EmbeddingDim(job);
  shape.bottom_hidden.assign(job.dlrm().bottom().begin(), job.dlrm().bottom().end());
  shape.top_hidden.assign(job.dlrm().top().begin(), job.dlrm().top().end());
  return shape;
}

MlpPrecision PrecisionOf(const Job& job) {
  switch (job.dlrm().precision()) {
    case Dlrm::TF32:
      return MlpPrecision::kTf32;
    case Dlrm::BFLOAT16:
      return MlpPrecision::kBfloat16;
    default:
      return MlpPrecision::kFloat32;
  }
}

}  // namespace

ModelStep::ModelStep(const Job& job, const JobTables& tables, const DenseBlocks& blocks,
                     Device* device, int max_batch)
    : tables_(tables),
      gradient_scale_(1.0f / static_cast<float>(job.train().batch_size())),
      device_(device),
      model_(device, ShapeOf(job, tables), tables.dense.at(0).layout.optimizer, max_batch,
             PrecisionOf(job)),
      bad_gradient_(device->Allocate(sizeof(int64_t))),
      arenas_(MakeArenas()) {
  CHECK_EQ(model_.weights().size, blocks.arena_floats());
  blocks.Initialize(job.seed(), arenas_.weights, arenas_.slots);
  WriteDense();
  batch_.tables.resize(tables.sparse.size());
  batch_.features.resize(tables.features.size());
  embedding_gradients_.resize(tables.sparse.size());
}

DenseArenas ModelStep::MakeArenas() {
  const auto on_host = [&](DeviceSpan<float> span, std::unique_ptr<DeviceBuffer>* copy) {
    if (device_->is_host_memory()) return absl::MakeSpan(span.data, span.size);
    *copy = device_->AllocateHost(sizeof(float) * span.size);
    return absl::MakeSpan((*copy)->floats(), span.size);
  };
  return {on_host(model_.weights(), &host_weights_), on_host(model_.slots(), &host_slots_),
          on_host(model_.gradients(), &host_gradients_)};
}

absl::Status ModelStep::ReadDense() {
  if (!device_->is_host_memory()) {
    const auto read = [&](DeviceSpan<float> from, DeviceBuffer* to) {
      device_->CopyToHost(to->data(), from.data, sizeof(float) * from.size, Stream::kCompute);
    };
    read(model_.weights(), host_weights_.get());
    read(model_.slots(), host_slots_.get());
    read(model_.gradients(), host_gradients_.get());
  }
  return device_->Synchronize();
}

void ModelStep::WriteDense() {
  if (device_->is_host_memory()) return;
  const auto write = [&](DeviceBuffer* from, DeviceSpan<float> to) {
    device_->CopyToDevice(to.data, from->data(), sizeof(float) * to.size, Stream::kCompute);
  };
  write(host_weights_.get(), model_.weights());
  write(host_slots_.get(), model_.slots());
}

const SparseBatch& ModelStep::Describe(StepWork* work) {
  const auto upload = [work](const auto& values) {
    return work->upload().Add(absl::MakeConstSpan(values));
  };
  batch_.batch_size = work->batch->size;
  for (size_t t = 0; t < tables_.sparse.size(); ++t) {
    const TablePlan& plan = work->plan.tables[t];
    batch_.tables[t].rows = work->tables[t].rows;
    batch_.tables[t].segment_offsets = upload(plan.segment_offsets);
    batch_.tables[t].segment_bags = upload(plan.segment_bags);
    embedding_gradients_[t] = work->tables[t].gradients;
  }
  for (size_t f = 0; f < tables_.features.size(); ++f) {
    const FeaturePlan& plan = work->plan.features[f];
    FeatureBatch& feature = batch_.features[f];
    feature.table = plan.table;
    feature.pooling = tables_.features[f].pooling == MEAN ? PoolingMode::kMean : PoolingMode::kSum;
    feature.slots = upload(plan.slots);
    feature.offsets =
        plan.single ? DeviceSpan<const int32_t>{} : upload(work->batch->features[f].offsets);
  }
  return batch_;
}

void ModelStep::Forward(StepWork* work) {
  const Batch& batch = *work->batch;
  const SparseBatch& sparse = Describe(work);
  SendUploads(device_, work);
  // Only read.
  logits_ = model_.Forward(FloatMatrix(const_cast<float*>(work->dense.data), batch.size,
                                       batch.num_dense, batch.dense_stride),
                           sparse);
}

void ModelStep::BackwardToEmbeddings(StepWork* work) {
  model_.BackwardToEmbeddings(work->labels, gradient_scale_, embedding_gradients_);
  device_->CopyToHost(&work->outcome()->loss_sum, model_.loss_sum().data, sizeof(double),
                      Stream::kCompute);
}

void ModelStep::BackwardDense() { model_.BackwardDense(); }

void ModelStep::ApplyDense(StepWork* work, float job_learning_rate) {
  auto* bad_gradient = static_cast<int64_t*>(bad_gradient_->data());
  device_->FindNonFinite(model_.gradients().AsConst(), {bad_gradient, 1});
  device_->CopyToHost(&work->outcome()->bad_gradient, bad_gradient, sizeof(int64_t),
                      Stream::kCompute);
  model_.ApplyDense(job_learning_rate, work->step());
}

absl::Status ModelStep::CopyLogits(std::vector<float>* logits) {
  logits->resize(logits_.rows);
  if (logits_.rows == 0) return device_->Synchronize();
  const auto ld = static_cast<size_t>(logits_.ld);
  std::vector<float> rows(ld * (logits->size() - 1) + 1);
  device_->CopyToHost(rows.data(), logits_.floats(), rows.size() * sizeof(float), Stream::kCompute);
  RETURN_IF_ERROR(device_->Synchronize());
  for (size_t b = 0; b < logits->size(); ++b) (*logits)[b] = rows[b * ld];
  return absl::OkStatus();
}

absl::Status ModelStep::CheckDenseGradients(int64_t bad_gradient) const {
  if (bad_gradient == static_cast<int64_t>(arenas_.gradients.size())) return absl::OkStatus();
  int64_t block = bad_gradient / kDenseBlockFloats;
  for (const DenseTable& tensor : tables_.dense) {
    if (block < tensor.num_blocks()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a gradient of '", tensor.layout.name, "' is not finite"));
    }
    block -= tensor.num_blocks();
  }
  return absl::InternalError("a gradient beyond the last tensor is not finite");
}

}  // namespace thermocline
