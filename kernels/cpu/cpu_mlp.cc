#include "kernels/cpu/cpu_mlp.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "kernels/cpu/lane_sum.h"

namespace thermocline {
namespace {

// The layers of width 1 are dot products. is_positive: gets the bits of y, or null
void DotRows(PanelView<const float> x, const float* weights, int32_t in, const float* bias,
             bool relu, PanelView<float> y, BitsView<uint64_t> is_positive, int64_t begin,
             int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    LaneSum sum;
    for (int32_t k = 0; k < in; k += kGemmPanel) {
      sum.AddProducts(x.At(r, k), weights + k, std::min(kGemmPanel, in - k));
    }
    const float value = bias == nullptr ? sum.Total() : sum.Total() + *bias;
    *y.Row(r) = relu ? std::max(value, 0.0f) : value;
    if (is_positive.data != nullptr) *is_positive.At(r, 0) = value > 0 ? 1 : 0;
  }
}

// sums[j] += the sum of x(r, j) over the rows, in order: one chunk of a canonical sum.
void AddColumnSums(PanelView<const float> x, int64_t rows, int32_t columns, float* sums) {
  for (int32_t column = 0; column < columns; column += kGemmPanel) {
    const int32_t n = std::min(kGemmPanel, columns - column);
    float partial[kGemmPanel] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const float* from = x.At(r, column);
      for (int32_t j = 0; j < n; ++j) partial[j] += from[j];
    }
    for (int32_t j = 0; j < n; ++j) sums[column + j] += partial[j];
  }
}

// sums[k] = the sum of x(r, k) dy(r) over the rows, one chain of FMAs.
void WeightedColumnSums(PanelView<const float> x, PanelView<const float> dy, int64_t rows,
                        int32_t columns, float* sums) {
  for (int32_t column = 0; column < columns; column += kGemmPanel) {
    const int32_t n = std::min(kGemmPanel, columns - column);
    float partial[kGemmPanel] = {};
    for (int64_t r = 0; r < rows; ++r) {
      const float weight = *dy.Row(r);
      const float* from = x.At(r, column);
      for (int32_t j = 0; j < n; ++j) partial[j] = std::fma(weight, from[j], partial[j]);
    }
    std::copy(partial, partial + n, sums + column);
  }
}

// dx = dy w^T, kept where the bits of `keeps` are set, if there are any.
void OuterRows(PanelView<const float> dy, const float* weights, int32_t in,
               BitsView<const uint64_t> keeps, PanelView<float> dx, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const float g = *dy.Row(r);
    for (int32_t k = 0; k < in; k += kGemmPanel) {
      const int32_t columns = std::min(kGemmPanel, in - k);
      float* to = dx.At(r, k);
      const uint64_t bits = keeps.data == nullptr ? ~uint64_t{0} : *keeps.At(r, k / kGemmPanel);
      for (int32_t j = 0; j < columns; ++j) to[j] = bits >> j & 1 ? g * weights[k + j] : 0.0f;
    }
  }
}

}  // namespace

CpuMlp::CpuMlp(const MlpConfig& config, GemmFunction gemm, ThreadPool* pool)
    : gemm_(gemm), pool_(pool) {
  const std::vector<MlpLayer> layers = LayersOf(config);
  for (const MlpLayer& layer : layers) layers_.emplace_back(layer);
  gradient_cells_ = GradientCellsOf(layers);
  for (Layer& layer : layers_) {
    if (layer.out > 1) {
      layer.weights.Allocate(layer.in, layer.out);
      if (layer.input_gradient) layer.weights_transposed.Allocate(layer.out, layer.in);
    }
    if (&layer == &layers_.back()) continue;
    layer.output.Allocate(config.max_batch, layer.out);
    layer.is_positive.Allocate(config.max_batch, layer.out);
    layer.gradient.Allocate(config.max_trained, layer.out);
  }
  packs_input_ = config.widths[0] > kGemmPanel;
  if (packs_input_) packed_input_.Allocate(config.max_batch, config.widths[0]);
  packed_gradients_.resize(pool->num_threads());
  for (Panels& panels : packed_gradients_) panels.Allocate(kGradientChunk, kGradientColumns);
}

PanelView<const float> CpuMlp::InputOf(int layer, Matrix input) const {
  if (layer > 0) return layers_[layer - 1].output.View().AsConst();
  return (packs_input_ ? packed_input_.View() : ViewOf(input)).AsConst();
}

PanelView<float> CpuMlp::OutputOf(int layer, Matrix output) const {
  return layer + 1 < num_layers() ? layers_[layer].output.View() : ViewOf(output);
}

PanelView<const float> CpuMlp::GradientOf(int layer, Matrix output_gradient) const {
  return (layer + 1 < num_layers() ? layers_[layer].gradient.View() : ViewOf(output_gradient))
      .AsConst();
}

void CpuMlp::PackWeights(DeviceSpan<const float> parameters, bool transposed) {
  std::vector<int64_t> panels;
  for (const Layer& layer : layers_) {
    const bool is_packed = layer.out > 1 && (!transposed || layer.input_gradient);
    panels.push_back(is_packed ? NumPanels(transposed ? layer.in : layer.out) : 0);
  }
  const PanelGrid grid(std::move(panels));
  pool_->ParallelFor(grid.cells(), [&](int64_t cell, int) {
    const auto [index, panel] = grid.Find(cell);
    const Layer* const layer = &layers_[index];
    const float* weights = parameters.data + layer->weight_offset;
    if (transposed) {
      PackPanelTransposed(weights, layer->out, layer->out, layer->in, panel,
                          layer->weights_transposed.Panel(panel));
    } else {
      PackPanel(weights, layer->out, layer->in, layer->out, panel, layer->weights.Panel(panel));
    }
  });
}

void CpuMlp::Forward(DeviceSpan<const float> parameters, Matrix input, Matrix output) {
  CHECK_EQ(input.cols, layers_.front().in);
  CHECK_EQ(output.cols, layers_.back().out);
  PackWeights(parameters, false);
  const RowGrid grid(input.rows, pool_->num_threads());
  pool_->ParallelFor(grid.cells, [&](int64_t cell, int) {
    ForwardRows(parameters.data, input, output, grid.Begin(cell), grid.Begin(cell + 1));
  });
}

void CpuMlp::ForwardRows(const float* parameters, Matrix input, Matrix output, int64_t begin,
                         int64_t end) const {
  for (int64_t panel = 0; packs_input_ && panel < NumPanels(input.cols); ++panel) {
    PackPanel(input.row(begin), input.ld, end - begin, input.cols, panel,
              packed_input_.Panel(panel) + begin * kGemmPanel);
  }
  for (int i = 0; i < num_layers(); ++i) {
    const Layer& layer = layers_[i];
    const PanelView<const float> x = InputOf(i, input);
    const PanelView<float> y = OutputOf(i, output);
    const float* bias = layer.has_bias() ? parameters + layer.bias_offset : nullptr;
    BitsView<uint64_t> is_positive;
    if (i + 1 < num_layers()) is_positive = layer.is_positive.View();
    if (layer.out == 1) {
      DotRows(x, parameters + layer.weight_offset, layer.in, bias, layer.relu, y, is_positive,
              begin, end);
      continue;
    }
    GemmCall call;
    call.m = end - begin;
    call.n = layer.out;
    call.k = layer.in;
    call.a = x.FromRow(begin);
    call.b = layer.weights.View().AsConst();
    call.c = y.FromRow(begin);
    call.bias = bias;
    call.relu = layer.relu;
    if (is_positive.data != nullptr) call.kept = is_positive.FromRow(begin);
    gemm_(call);
  }
}

void CpuMlp::BackwardData(DeviceSpan<const float> parameters, Matrix output, Matrix output_gradient,
                          Matrix input_gradient) {
  PackWeights(parameters, true);
  const RowGrid grid(output_gradient.rows, pool_->num_threads());
  pool_->ParallelFor(grid.cells, [&](int64_t cell, int) {
    BackwardRows(parameters.data, output, output_gradient, input_gradient, grid.Begin(cell),
                 grid.Begin(cell + 1));
  });
}

void CpuMlp::BackwardRows(const float* parameters, Matrix output, Matrix output_gradient,
                          Matrix input_gradient, int64_t begin, int64_t end) const {
  if (layers_.back().relu) ZeroWhereNotPositive(output, begin, end, output_gradient);
  for (int i = num_layers() - 1; i >= 0 && layers_[i].input_gradient; --i) {
    const Layer& layer = layers_[i];
    const PanelView<const float> dy = GradientOf(i, output_gradient);
    const PanelView<float> dx = i > 0 ? layers_[i - 1].gradient.View() : ViewOf(input_gradient);
    // Where the ReLU of the layer below passes gradients; the first layer has none.
    BitsView<const uint64_t> keeps;
    if (i > 0) keeps = layers_[i - 1].is_positive.View().AsConst();
    if (layer.out == 1) {
      OuterRows(dy, parameters + layer.weight_offset, layer.in, keeps, dx, begin, end);
      continue;
    }
    GemmCall call;
    call.m = end - begin;
    call.n = layer.in;
    call.k = layer.out;
    call.a = dy.FromRow(begin);
    call.b = layer.weights_transposed.View().AsConst();
    call.c = dx.FromRow(begin);
    if (i > 0) call.keeps = keeps.FromRow(begin);
    gemm_(call);
  }
}

void CpuMlp::BackwardParameters(Matrix input, Matrix output_gradient, DeviceSpan<float> gradients) {
  pool_->ParallelFor(static_cast<int64_t>(gradient_cells_.size()), [&](int64_t cell, int thread) {
    ComputeGradient(gradient_cells_[cell], input, output_gradient, gradients.data,
                    packed_gradients_[thread].Panel(0));
  });
}

void CpuMlp::ComputeGradient(const GradientCell& cell, Matrix input, Matrix output_gradient,
                             float* gradients, float* packed_gradient) const {
  const Layer& layer = layers_[cell.layer];
  const PanelView<const float> x = InputOf(cell.layer, input).FromColumn(cell.first_row);
  const PanelView<const float> dy =
      GradientOf(cell.layer, output_gradient).FromColumn(cell.first_column);
  const bool sums_bias = layer.has_bias() && cell.first_row == 0;
  float* bias_gradient = sums_bias ? gradients + layer.bias_offset + cell.first_column : nullptr;
  float* weight_gradient =
      gradients + layer.weight_offset + int64_t{cell.first_row} * layer.out + cell.first_column;
  const int64_t batch = output_gradient.rows;
  // The output gradient of the whole has any leading dimension, the panels' own included.
  const bool is_packed = cell.layer + 1 < num_layers();
  if (sums_bias) std::fill_n(bias_gradient, cell.num_columns, 0.0f);
  GemmCall call;
  call.m = cell.num_rows;
  call.n = cell.num_columns;
  call.a_transposed = true;
  call.c = RowMajorView(weight_gradient, layer.out);
  for (int64_t begin = 0; begin == 0 || begin < batch; begin += kGradientChunk) {
    call.k = std::min(kGradientChunk, batch - begin);
    if (sums_bias) AddColumnSums(dy.FromRow(begin), call.k, cell.num_columns, bias_gradient);
    if (layer.out == 1) continue;
    call.a = x.FromRow(begin);
    call.b = dy.FromRow(begin);
    if (!is_packed) {
      for (int64_t panel = 0; panel < NumPanels(cell.num_columns); ++panel) {
        PackPanel(dy.Row(begin), dy.row_stride, call.k, cell.num_columns, panel,
                  packed_gradient + panel * call.k * kGemmPanel);
      }
      call.b = PackedView<const float>(packed_gradient, call.k);
    }
    if (begin > 0) call.start = call.c.AsConst();
    gemm_(call);
  }
  if (layer.out == 1) WeightedColumnSums(x, dy, batch, cell.num_rows, weight_gradient);
}

}  // namespace thermocline
