#include "worker/model/dlrm.h"

#include <numeric>

#include "common/base/check.h"

namespace thermocline {
namespace {

// The parts of a step that are captured. Between them come the operations on embeddings, whose
// shapes change with the data.
enum Part { kForward, kBackwardData, kBackwardParameters };

// Three parts for each place that a batch may come to lie in: as many as there are steps under way,
// and some for what comes rarely, a shorter last batch and those of evaluation.
constexpr size_t kMaxGraphs = 3 * 64;

constexpr int kBottom = 0, kTop = 1;  // In ModelSpec::mlps.

std::vector<int32_t> AllFeatures(const ModelSpec& spec) {
  std::vector<int32_t> features(spec.inputs.num_vectors());
  std::iota(features.begin(), features.end(), 0);
  return features;
}

int32_t DimOf(const ModelSpec& spec) {
  return spec.inputs.vector_dims.empty() ? spec.mlps[kBottom].widths.back()
                                         : spec.inputs.vector_dims[0];
}

MlpPrecision PrecisionOf(const ModelSpec& spec) {
  switch (spec.precision) {
    case TF32:
      return MlpPrecision::kTf32;
    case BFLOAT16:
      return MlpPrecision::kBfloat16;
    default:
      return MlpPrecision::kFloat32;
  }
}

}  // namespace

DlrmModel::DlrmModel(const ModelSpec& spec, const ModelParts& parts)
    : device_(parts.device),
      parameters_(*parts.parameters),
      loss_sum_(parts.loss_sum),
      max_batch_(parts.max_batch),
      numeric_(spec.inputs.numeric),
      num_features_(spec.inputs.num_vectors()),
      dim_(DimOf(spec)),
      z_(device_, AllFeatures(spec), dim_, numeric_ > 0 ? 1 : 0, max_batch_),
      top_input_(device_, max_batch_, spec.mlps[kTop].widths[0],
                 PaddedColumns(spec.mlps[kTop].widths[0])),
      top_input_gradient_(device_, max_batch_, spec.mlps[kTop].widths[0],
                          PaddedColumns(spec.mlps[kTop].widths[0])),
      logits_(device_, max_batch_, 1),
      logits_gradient_(device_, max_batch_, 1),
      places_(z_.places()),
      graphs_(device_, kMaxGraphs) {
  CHECK_GE(z_.vectors(), 1);
  CHECK_GE(max_batch_, 1);
  MlpConfig bottom = parameters_.ConfigOf(spec.mlps[kBottom]);
  MlpConfig top = parameters_.ConfigOf(spec.mlps[kTop]);
  bottom.relu_after_last = true;
  top.input_gradient = true;
  bottom.max_batch = top.max_batch = max_batch_;
  bottom.precision = top.precision = PrecisionOf(spec);
  if (numeric_ > 0) bottom_ = device_->CreateMlp(bottom);
  top_ = device_->CreateMlp(top);
}

Matrix DlrmModel::Forward(Matrix numeric, const SparseBatch& batch) {
  CHECK_LE(batch.batch_size, max_batch_);
  CHECK_EQ(numeric.rows, batch.batch_size);
  CHECK_EQ(numeric.cols, numeric_);
  CHECK_EQ(static_cast<int32_t>(batch.features.size()), num_features_);
  numeric_values_ = numeric;
  batch_size_ = batch.batch_size;
  const Matrix z = z_.values(batch_size_);
  const Matrix top_input = top_input_.Rows(batch_size_);
  const Matrix logits = logits_.Rows(batch_size_);
  const DeviceSpan<const float> weights = parameters_.weights().AsConst();
  z_.Forward(batch);
  graphs_.Run({kForward, numeric.rows, numeric.data, nullptr, numeric.ld, 0}, [&] {
    if (bottom_) bottom_->Forward(weights, numeric, BottomPart(z));
    device_->InteractionForward(z, z_.vectors(), top_input);
    top_->Forward(weights, top_input, logits);
  });
  return logits;
}

void DlrmModel::BackwardToRows(const BatchLabels& labels, absl::Span<const Matrix> row_gradients) {
  const Matrix logits = logits_.Rows(batch_size_);
  const Matrix logits_gradient = logits_gradient_.Rows(batch_size_);
  const Matrix top_input_gradient = top_input_gradient_.Rows(batch_size_);
  const auto key =
      std::make_tuple(int{kBackwardData}, batch_size_, static_cast<const void*>(labels.labels.data),
                      static_cast<const void*>(labels.weights.data), int64_t{1}, labels.scale);
  graphs_.Run(key, [&] {
    device_->BceWithLogits(logits, labels.labels, labels.weights, labels.scale, logits_gradient,
                           loss_sum_);
    top_->BackwardData(parameters_.weights().AsConst(), logits, logits_gradient,
                       top_input_gradient);
    device_->InteractionBackward(z_.values(batch_size_), z_.vectors(), top_input_gradient,
                                 z_.gradients(batch_size_));
  });
  z_.Backward(row_gradients);
}

void DlrmModel::BackwardDense() {
  const Matrix bottom_output = BottomPart(z_.values(batch_size_));
  const Matrix bottom_gradient = BottomPart(z_.gradients(batch_size_));
  const DeviceSpan<float> gradients = parameters_.gradients();
  const auto key = std::make_tuple(int{kBackwardParameters}, batch_size_,
                                   static_cast<const void*>(numeric_values_.data),
                                   static_cast<const void*>(nullptr), numeric_values_.ld, 0.0f);
  graphs_.Run(key, [&] {
    if (bottom_) {
      bottom_->BackwardData(parameters_.weights().AsConst(), bottom_output, bottom_gradient,
                            Matrix());
    }
    top_->BackwardParameters(top_input_.Rows(batch_size_), logits_gradient_.Rows(batch_size_),
                             gradients);
    if (bottom_) bottom_->BackwardParameters(numeric_values_, bottom_gradient, gradients);
  });
}

std::unique_ptr<Model> MakeDlrm(const ModelSpec& spec, const ModelParts& parts) {
  return std::make_unique<DlrmModel>(spec, parts);
}

}  // namespace thermocline
