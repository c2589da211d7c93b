#include "worker/model/dlrm.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

// What is captured of a step: between these come the sparse operations, whose shapes change with
// the data.
enum Part { kForward, kBackwardData, kBackwardParameters };

// Three parts for each place that a batch may come to lie in: as many as there are steps under way,
// and some for what comes rarely, a shorter last batch and those of evaluation.
constexpr size_t kMaxGraphs = 3 * 64;

int64_t BlocksOf(int64_t floats) { return (floats + kDenseBlockFloats - 1) / kDenseBlockFloats; }

int32_t Pairs(int32_t vectors) { return vectors * (vectors - 1) / 2; }

std::vector<int32_t> Widths(int32_t input, const std::vector<int32_t>& hidden, int32_t output) {
  std::vector<int32_t> widths = {input};
  widths.insert(widths.end(), hidden.begin(), hidden.end());
  widths.push_back(output);
  return widths;
}

// The first vector of every sample.
Matrix FirstVector(Matrix z, int32_t dim) { return FloatMatrix(z.floats(), z.rows, dim, z.ld); }

}  // namespace

int64_t DenseTensor::num_blocks() const { return BlocksOf(size); }

Matrix DlrmModel::Activation::Rows(int32_t rows) const {
  return FloatMatrix(buffer->floats(), rows, columns, ld);
}

DlrmModel::Activation DlrmModel::MakeActivation(int32_t columns, int64_t ld) {
  return {device_->Allocate(sizeof(float) * ld * max_batch_), columns, ld};
}

DlrmModel::DlrmModel(Device* device, const DlrmShape& shape, const OptimizerConfig& dense_optimizer,
                     int32_t max_batch, MlpPrecision precision)
    : device_(device),
      shape_(shape),
      optimizer_(dense_optimizer),
      max_batch_(max_batch),
      graphs_(device, kMaxGraphs) {
  CHECK_GE(shape.num_dense, 0);
  CHECK_GE(shape.num_features, 0);
  CHECK_GE(vectors(), 1);
  CHECK_GE(shape.dim, 1);
  CHECK_GE(max_batch, 1);
  MlpConfig bottom, top;
  if (shape.num_dense > 0) bottom.widths = Widths(shape.num_dense, shape.bottom_hidden, shape.dim);
  bottom.relu_after_last = true;
  top.widths = Widths(shape.dim + Pairs(vectors()), shape.top_hidden, 1);
  top.input_gradient = true;
  bottom.max_batch = top.max_batch = max_batch;
  bottom.precision = top.precision = precision;
  LayOutTensors(&bottom, &top);
  if (shape.num_dense > 0) bottom_ = device->CreateMlp(bottom);
  top_ = device->CreateMlp(top);
  AllocateBuffers();
}

DlrmModel::~DlrmModel() = default;

void DlrmModel::LayOutTensors(MlpConfig* bottom, MlpConfig* top) {
  LayOutMlp("bottom", bottom, &arena_floats_);
  LayOutMlp("top", top, &arena_floats_);
}

void DlrmModel::LayOutMlp(const std::string& name, MlpConfig* config, int64_t* next_offset) {
  for (size_t i = 0; i + 1 < config->widths.size(); ++i) {
    const int64_t in = config->widths[i], out = config->widths[i + 1];
    const auto add = [&](const char* kind, int64_t size) {
      DenseTensor tensor;
      tensor.name = absl::StrCat(name, ".", i, ".", kind);
      tensor.offset = *next_offset;
      tensor.size = size;
      *next_offset += tensor.num_blocks() * kDenseBlockFloats;
      tensors_.push_back(tensor);
      return tensor.offset;
    };
    config->weight_offsets.push_back(add("weight", in * out));
    config->bias_offsets.push_back(add("bias", out));
  }
}

void DlrmModel::AllocateBuffers() {
  const int64_t blocks = arena_floats_ / kDenseBlockFloats;
  std::vector<float> state(blocks * StateFloats(optimizer_, kDenseBlockFloats));
  InitState(optimizer_, absl::MakeSpan(state));
  weights_ = device_->Allocate(sizeof(float) * arena_floats_);
  gradients_ = device_->Allocate(sizeof(float) * arena_floats_);
  state_ = device_->Allocate(sizeof(float) * state.size());
  device_->CopyToDevice(state_->data(), state.data(), sizeof(float) * state.size(),
                        Stream::kCompute);
  loss_sum_ = device_->Allocate(sizeof(double));

  const int32_t z_columns = vectors() * shape_.dim;
  z_ = MakeActivation(z_columns, z_columns);
  z_gradient_ = MakeActivation(z_columns, z_columns);
  const int32_t top_columns = shape_.dim + Pairs(vectors());
  top_input_ = MakeActivation(top_columns, PaddedColumns(top_columns));
  top_input_gradient_ = MakeActivation(top_columns, PaddedColumns(top_columns));
  logits_ = MakeActivation(1, 1);
  logits_gradient_ = MakeActivation(1, 1);
}

DeviceSpan<float> DlrmModel::weights() { return {weights_->floats(), arena_floats_}; }
DeviceSpan<float> DlrmModel::gradients() { return {gradients_->floats(), arena_floats_}; }
DeviceSpan<float> DlrmModel::state() {
  return {state_->floats(),
          arena_floats_ / kDenseBlockFloats * StateFloats(optimizer_, kDenseBlockFloats)};
}
DeviceSpan<double> DlrmModel::loss_sum() { return {static_cast<double*>(loss_sum_->data()), 1}; }

Matrix DlrmModel::Forward(Matrix dense, const SparseBatch& batch) {
  CHECK_LE(batch.batch_size, max_batch_);
  CHECK_EQ(dense.rows, batch.batch_size);
  CHECK_EQ(dense.cols, shape_.num_dense);
  CHECK_EQ(static_cast<int32_t>(batch.features.size()), shape_.num_features);
  dense_ = dense;
  batch_ = &batch;
  pool_inputs_.clear();
  for (const FeatureBatch& feature : batch.features) {
    const Matrix& rows = batch.tables[feature.table].rows;
    CHECK_EQ(rows.cols, shape_.dim);
    pool_inputs_.push_back(
        {feature.pooling, rows, feature.row_indices, feature.offsets, feature.weights});
  }
  const Matrix z = z_.Rows(batch.batch_size);
  const Matrix top_input = top_input_.Rows(batch.batch_size);
  const Matrix logits = logits_.Rows(batch.batch_size);
  device_->PoolForward(pool_inputs_, shape_.dim, dense_vectors(), z);
  graphs_.Run({kForward, dense.rows, dense.data, nullptr, dense.ld, 0}, [&] {
    if (bottom_) bottom_->Forward(weights().AsConst(), dense, FirstVector(z, shape_.dim));
    device_->InteractionForward(z, vectors(), top_input);
    top_->Forward(weights().AsConst(), top_input, logits);
  });
  return logits;
}

void DlrmModel::BackwardToEmbeddings(DeviceSpan<const float> labels,
                                     DeviceSpan<const float> sample_weights,
                                     float inverse_global_batch,
                                     absl::Span<const Matrix> embedding_gradients) {
  CHECK_EQ(embedding_gradients.size(), batch_->tables.size());
  const int32_t batch_size = batch_->batch_size;
  const Matrix logits = logits_.Rows(batch_size);
  const Matrix logits_gradient = logits_gradient_.Rows(batch_size);
  const Matrix top_input_gradient = top_input_gradient_.Rows(batch_size);
  const Matrix z_gradient = z_gradient_.Rows(batch_size);
  const auto key = std::make_tuple(
      int{kBackwardData}, batch_size, static_cast<const void*>(labels.data),
      static_cast<const void*>(sample_weights.data), int64_t{1}, inverse_global_batch);
  graphs_.Run(key, [&] {
    device_->BceWithLogits(logits, labels, sample_weights, inverse_global_batch, logits_gradient,
                           loss_sum());
    top_->BackwardData(weights().AsConst(), logits, logits_gradient, top_input_gradient);
    device_->InteractionBackward(z_.Rows(batch_size), vectors(), top_input_gradient, z_gradient);
  });
  device_->PoolBackward(pool_inputs_, shape_.dim, dense_vectors(), z_gradient);

  segment_groups_.clear();
  for (size_t t = 0; t < batch_->tables.size(); ++t) {
    const TableBatch& table = batch_->tables[t];
    segment_groups_.push_back(
        {table.segment_bags, table.segment_offsets, embedding_gradients[t], table.segment_weights});
  }
  const Matrix bag_gradients = FloatMatrix(z_gradient.floats(), batch_size * vectors(), shape_.dim);
  device_->SegmentSum(bag_gradients, segment_groups_);
}

void DlrmModel::BackwardDense() {
  const int32_t batch_size = batch_->batch_size;
  const Matrix bottom_output = FirstVector(z_.Rows(batch_size), shape_.dim);
  const Matrix bottom_gradient = FirstVector(z_gradient_.Rows(batch_size), shape_.dim);
  graphs_.Run({kBackwardParameters, batch_size, dense_.data, nullptr, dense_.ld, 0}, [&] {
    if (bottom_) {
      bottom_->BackwardData(weights().AsConst(), bottom_output, bottom_gradient, Matrix());
    }
    top_->BackwardParameters(top_input_.Rows(batch_size), logits_gradient_.Rows(batch_size),
                             gradients());
    if (bottom_) bottom_->BackwardParameters(dense_, bottom_gradient, gradients());
  });
}

}  // namespace thermocline
