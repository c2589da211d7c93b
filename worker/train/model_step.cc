#include "worker/train/model_step.h"

#include "common/base/status_macros.h"

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

ModelStep::ModelStep(const Job& job, const JobTables& tables, Device* device, int max_batch)
    : tables_(tables),
      gradient_scale_(1.0f / static_cast<float>(job.train().batch_size())),
      device_(device),
      model_(device, ShapeOf(job, tables), tables.dense.at(0).layout.optimizer, max_batch,
             PrecisionOf(job)) {
  batch_.tables.resize(tables.sparse.size());
  batch_.features.resize(tables.features.size());
  embedding_gradients_.resize(tables.sparse.size());
}

const SparseBatch& ModelStep::Describe(StepContext* context) {
  const auto upload = [context](const auto& values) {
    return context->upload().Add(absl::MakeConstSpan(values));
  };
  const auto upload_weights = [&upload](const UninitializedVector<float>& weights) {
    return weights.empty() ? DeviceSpan<const float>{} : upload(weights);
  };
  batch_.batch_size = context->batch->size;
  for (size_t t = 0; t < tables_.sparse.size(); ++t) {
    const TablePlan& plan = context->plan.tables[t];
    batch_.tables[t].rows = context->tables[t].rows;
    batch_.tables[t].segment_offsets = upload(plan.segment_offsets);
    batch_.tables[t].segment_bags = upload(plan.segment_bags);
    batch_.tables[t].segment_weights = upload_weights(plan.segment_weights);
    embedding_gradients_[t] = context->tables[t].gradients;
  }
  for (size_t f = 0; f < tables_.features.size(); ++f) {
    const FeaturePlan& plan = context->plan.features[f];
    FeatureBatch& feature = batch_.features[f];
    feature.table = plan.table;
    const FeatureLookups& lookups = context->batch->features[f];
    const bool is_mean = tables_.features[f].pooling == MEAN && lookups.weights.empty();
    feature.pooling = is_mean ? PoolingMode::kMean : PoolingMode::kSum;
    feature.row_indices = upload(plan.row_indices);
    feature.offsets = plan.single ? DeviceSpan<const int32_t>{} : upload(lookups.offsets);
    feature.weights = upload_weights(lookups.weights);
  }
  return batch_;
}

void ModelStep::Forward(StepContext* context) {
  const Batch& batch = *context->batch;
  const SparseBatch& sparse = Describe(context);
  SendUploads(device_, context);
  // Only read.
  logits_ = model_.Forward(FloatMatrix(const_cast<float*>(context->dense.data), batch.size,
                                       batch.num_dense, batch.dense_stride),
                           sparse);
}

void ModelStep::BackwardToEmbeddings(StepContext* context) {
  model_.BackwardToEmbeddings(context->labels, context->weights, gradient_scale_,
                              embedding_gradients_);
  device_->CopyToHost(&context->outcome()->loss_sum, model_.loss_sum().data, sizeof(double),
                      Stream::kCompute);
}

void ModelStep::BackwardDense() { model_.BackwardDense(); }

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

}  // namespace thermocline
