#include "worker/model/testing/linear_model.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/base/check.h"

namespace thermocline {
namespace {

DenseTensor NumericWeight(const ModelInputs& inputs) {
  return {"numeric.weight", inputs.numeric, 1, false};
}
DenseTensor VectorsWeight(const ModelInputs& inputs) {
  const auto& dims = inputs.vector_dims;
  return {"vectors.weight", std::accumulate(dims.begin(), dims.end(), 0), 1, false};
}
DenseTensor Bias() { return {"bias", 1, 1, true}; }

}  // namespace

ModelSpec DescribeLinear(const ModelInputs& inputs) {
  ModelSpec spec;
  spec.inputs = inputs;
  if (inputs.numeric > 0) spec.tensors.push_back(NumericWeight(inputs));
  spec.tensors.push_back(VectorsWeight(inputs));
  spec.tensors.push_back(Bias());
  spec.on_cpu.per_sample = 2 * VectorsWeight(inputs).in + 2;
  return spec;
}

LinearModel::LinearModel(const ModelSpec& spec, const ModelParts& parts)
    : device_(parts.device),
      parameters_(*parts.parameters),
      loss_sum_(parts.loss_sum),
      logits_(parts.device, parts.max_batch, 1),
      logits_gradient_(parts.device, parts.max_batch, 1) {
  CHECK(device_->is_host_memory());
  if (spec.inputs.numeric > 0) numeric_weight_ = parameters_.OffsetOf(NumericWeight(spec.inputs));
  vectors_weight_ = parameters_.OffsetOf(VectorsWeight(spec.inputs));
  bias_ = parameters_.OffsetOf(Bias());
  std::map<int, std::vector<int32_t>> by_dim;
  for (int32_t f = 0; f < spec.inputs.num_vectors(); ++f) {
    by_dim[spec.inputs.vector_dims[f]].push_back(f);
  }
  places_.resize(spec.inputs.vector_dims.size());
  int64_t first_weight = 0;
  first_weights_.resize(places_.size());
  for (const auto& [dim, features] : by_dim) {
    buffers_.push_back(
        std::make_unique<PooledVectors>(device_, features, dim, /*leading=*/0, parts.max_batch));
    const std::vector<VectorPlace> places = buffers_.back()->places();
    for (size_t i = 0; i < features.size(); ++i, first_weight += dim) {
      places_[features[i]] = places[i];
      first_weights_[features[i]] = first_weight;
    }
  }
}

template <typename Use>
void LinearModel::ForEachValue(int32_t sample, const Use& use) const {
  int64_t at = vectors_weight_;
  for (const std::unique_ptr<PooledVectors>& buffer : buffers_) {
    const Matrix values = buffer->values(numeric_.rows),
                 gradients = buffer->gradients(numeric_.rows);
    for (int32_t c = 0; c < values.cols; ++c, ++at) {
      use(at, values.row(sample)[c], &gradients.row(sample)[c]);
    }
  }
}

Matrix LinearModel::Forward(Matrix numeric, const SparseBatch& batch) {
  numeric_ = numeric;
  for (const std::unique_ptr<PooledVectors>& buffer : buffers_) buffer->Forward(batch);
  const Matrix logits = logits_.Rows(numeric.rows);
  const float* const weights = parameters_.weights().data;
  for (int32_t b = 0; b < numeric.rows; ++b) {
    float logit = weights[bias_];
    for (int32_t c = 0; c < numeric.cols; ++c) {
      logit += numeric.row(b)[c] * weights[numeric_weight_ + c];
    }
    ForEachValue(b, [&](int64_t at, float value, float*) { logit += value * weights[at]; });
    *logits.row(b) = logit;
  }
  return logits;
}

void LinearModel::BackwardToRows(const BatchLabels& labels,
                                 absl::Span<const Matrix> row_gradients) {
  const Matrix gradient = logits_gradient_.Rows(numeric_.rows);
  device_->BceWithLogits(logits_.Rows(numeric_.rows), labels.labels, labels.weights, labels.scale,
                         gradient, loss_sum_);
  const float* const weights = parameters_.weights().data;
  for (int32_t b = 0; b < numeric_.rows; ++b) {
    ForEachValue(b, [&](int64_t at, float, float* value_gradient) {
      *value_gradient = *gradient.row(b) * weights[at];
    });
  }
  for (const std::unique_ptr<PooledVectors>& buffer : buffers_) buffer->Backward(row_gradients);
}

void LinearModel::BackwardDense() {
  const Matrix gradient = logits_gradient_.Rows(numeric_.rows);
  const DeviceSpan<float> sums = parameters_.gradients();
  std::fill_n(sums.data, sums.size, 0.0f);
  for (int32_t b = 0; b < numeric_.rows; ++b) {
    const float of_sample = *gradient.row(b);
    sums[bias_] += of_sample;
    for (int32_t c = 0; c < numeric_.cols; ++c) {
      sums[numeric_weight_ + c] += of_sample * numeric_.row(b)[c];
    }
    ForEachValue(b, [&](int64_t at, float value, float*) { sums[at] += of_sample * value; });
  }
}

std::unique_ptr<Model> MakeLinear(const ModelSpec& spec, const ModelParts& parts) {
  return std::make_unique<LinearModel>(spec, parts);
}

}  // namespace thermocline
