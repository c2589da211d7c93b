#include "kernels/cpu/bf16_mlp.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace thermocline {
namespace {

constexpr Bf16Pair kOnes = 0x3F803F80;

}  // namespace

void Bf16Scratch::Fit(int32_t width) {
  if (NumPairs(width) <= pairs_) return;
  pairs_ = NumPairs(width);
  for (OfThread& thread : threads_) {
    thread.taken.Allocate(kBlockRows, pairs_);
    thread.made.Allocate(kBlockRows, pairs_);
  }
}

Bf16Mlp::Bf16Mlp(const MlpConfig& config, Bf16GemmFunction gemm, ThreadPool* pool,
                 std::shared_ptr<Bf16Scratch> scratch)
    : gemm_(gemm), pool_(pool), scratch_(std::move(scratch)) {
  const std::vector<MlpLayer> layers = LayersOf(config);
  for (const MlpLayer& layer : layers) layers_.emplace_back(layer);
  gradient_cells_ = GradientCellsOf(layers);
  for (Layer& layer : layers_) {
    layer.weights.Allocate(NumPairs(layer.in), layer.out);
    if (layer.input_gradient) layer.weights_transposed.Allocate(NumPairs(layer.out), layer.in);
    layer.input.Allocate(NumPairs(config.max_batch), layer.in);
    if (&layer != &layers_.front()) layer.input_is_positive.Allocate(config.max_batch, layer.in);
    layer.output_gradient.Allocate(NumPairs(config.max_trained), layer.out);
  }
  ones_.Allocate(NumPairs(kGradientChunk), 1);
  for (int64_t r = 0; r < NumPairs(kGradientChunk); ++r) *ones_.View().Row(r) = kOnes;
  scratch_->Fit(*std::max_element(config.widths.begin(), config.widths.end()));
}

void Bf16Mlp::PackWeights(DeviceSpan<const float> parameters) {
  std::vector<int64_t> panels;
  for (const Layer& layer : layers_) panels.push_back(NumPanels(layer.out));
  const PanelGrid grid(std::move(panels));
  pool_->ParallelFor(grid.cells(), [&](int64_t cell, int) {
    const auto [index, panel] = grid.Find(cell);
    const Layer& layer = layers_[index];
    const int64_t column = panel * kGemmPanel;
    const auto weights = RowMajorView(parameters.data + layer.weight_offset, layer.out);
    Bf16GemmCall call = RoundingCall(weights.FromColumn(column), layer.in,
                                     std::min<int64_t>(kGemmPanel, layer.out - column));
    call.row_pairs = layer.weights.View().FromColumn(column);
    gemm_(call);
  });
}

// The pairs of a panel's rows of W are those of columns of W^T.
void Bf16Mlp::PackTransposedWeights(DeviceSpan<const float> parameters) {
  std::vector<int64_t> panels;
  for (const Layer& layer : layers_) {
    panels.push_back(layer.input_gradient ? NumPanels(layer.in) : 0);
  }
  const PanelGrid grid(std::move(panels));
  pool_->ParallelFor(grid.cells(), [&](int64_t cell, int thread) {
    const auto [index, panel] = grid.Find(cell);
    const Layer& layer = layers_[index];
    const int64_t row = panel * kGemmPanel;
    const int64_t rows = std::min<int64_t>(kGemmPanel, layer.in - row);
    const auto weights = RowMajorView(parameters.data + layer.weight_offset, layer.out);
    const PanelView<Bf16Pair> pairs = scratch_->Of(thread)->made.View();
    Bf16GemmCall call = RoundingCall(weights.FromRow(row), rows, layer.out);
    call.column_pairs = pairs;
    gemm_(call);
    Bf16Pair* to = layer.weights_transposed.Panel(panel);
    for (int64_t first = 0; first < NumPairs(layer.out); first += kGemmPanel) {
      const int64_t k = std::min<int64_t>(kGemmPanel, NumPairs(layer.out) - first);
      PackPanelTransposed(pairs.At(0, first), pairs.row_stride, k, rows, 0,
                          to + first * kGemmPanel);
    }
  });
}

void Bf16Mlp::RoundRows(Matrix x, int64_t begin, int64_t end, const Pairs& to,
                        Scratch* scratch) const {
  Bf16GemmCall call = RoundingCall(ViewOf(x).AsConst().FromRow(begin), end - begin, x.cols);
  call.row_pairs = to.View().FromRow(begin / 2);
  call.column_pairs = scratch->taken.View();
  gemm_(call);
}

void Bf16Mlp::Forward(DeviceSpan<const float> parameters, Matrix input, Matrix output) {
  CHECK_EQ(input.cols, layers_.front().in);
  CHECK_EQ(output.cols, layers_.back().out);
  PackWeights(parameters);
  const RowGrid grid(input.rows, pool_->num_threads());
  pool_->ParallelFor(grid.cells, [&](int64_t cell, int thread) {
    ForwardRows(parameters.data, input, output, grid.Begin(cell), grid.Begin(cell + 1),
                scratch_->Of(thread));
  });
}

void Bf16Mlp::ForwardRows(const float* parameters, Matrix input, Matrix output, int64_t begin,
                          int64_t end, Scratch* scratch) const {
  RoundRows(input, begin, end, layers_.front().input, scratch);
  for (int i = 0; i < num_layers(); ++i) {
    const Layer& layer = layers_[i];
    Bf16GemmCall call;
    call.m = end - begin;
    call.n = layer.out;
    call.k = NumPairs(layer.in);
    call.a = scratch->taken.View().AsConst();
    call.b = layer.weights.View().AsConst();
    if (layer.has_bias()) call.bias = parameters + layer.bias_offset;
    call.relu = layer.relu;
    if (i + 1 < num_layers()) {
      call.row_pairs = layers_[i + 1].input.View().FromRow(begin / 2);
      call.kept = layers_[i + 1].input_is_positive.View().FromRow(begin);
      call.column_pairs = scratch->made.View();
    } else {
      call.c = ViewOf(output).FromRow(begin);
    }
    gemm_(call);
    std::swap(scratch->taken, scratch->made);
  }
}

void Bf16Mlp::BackwardData(DeviceSpan<const float> parameters, Matrix output,
                           Matrix output_gradient, Matrix input_gradient) {
  PackTransposedWeights(parameters);
  const RowGrid grid(output_gradient.rows, pool_->num_threads());
  pool_->ParallelFor(grid.cells, [&](int64_t cell, int thread) {
    BackwardRows(output, output_gradient, input_gradient, grid.Begin(cell), grid.Begin(cell + 1),
                 scratch_->Of(thread));
  });
}

void Bf16Mlp::BackwardRows(Matrix output, Matrix output_gradient, Matrix input_gradient,
                           int64_t begin, int64_t end, Scratch* scratch) const {
  if (layers_.back().relu) ZeroWhereNotPositive(output, begin, end, output_gradient);
  RoundRows(output_gradient, begin, end, layers_.back().output_gradient, scratch);
  for (int i = num_layers() - 1; i >= 0 && layers_[i].input_gradient; --i) {
    const Layer& layer = layers_[i];
    Bf16GemmCall call;
    call.m = end - begin;
    call.n = layer.in;
    call.k = NumPairs(layer.out);
    call.a = scratch->taken.View().AsConst();
    call.b = layer.weights_transposed.View().AsConst();
    if (i > 0) {
      // The layer's input is the output of the ReLU below.
      call.keeps = layer.input_is_positive.View().AsConst().FromRow(begin);
      call.row_pairs = layers_[i - 1].output_gradient.View().FromRow(begin / 2);
      if (layers_[i - 1].input_gradient) call.column_pairs = scratch->made.View();
    } else {
      call.c = ViewOf(input_gradient).FromRow(begin);
    }
    gemm_(call);
    std::swap(scratch->taken, scratch->made);
  }
}

void Bf16Mlp::BackwardParameters(Matrix, Matrix output_gradient, DeviceSpan<float> gradients) {
  pool_->ParallelFor(static_cast<int64_t>(gradient_cells_.size()), [&](int64_t cell, int) {
    ComputeGradient(gradient_cells_[cell], output_gradient.rows, gradients.data);
  });
}

void Bf16Mlp::ComputeGradient(const GradientCell& cell, int64_t batch, float* gradients) const {
  const Layer& layer = layers_[cell.layer];
  const auto x = layer.input.View().AsConst().FromColumn(cell.first_row);
  const auto dy = layer.output_gradient.View().AsConst().FromColumn(cell.first_column);
  Bf16GemmCall weights;
  weights.m = cell.num_rows;
  weights.n = cell.num_columns;
  weights.a_transposed = true;
  weights.c = RowMajorView(
      gradients + layer.weight_offset + int64_t{cell.first_row} * layer.out + cell.first_column,
      layer.out);
  Bf16GemmCall bias = weights;  // A product with ones.
  bias.m = 1;
  bias.a = ones_.View().AsConst();
  if (layer.has_bias()) {
    bias.c = RowMajorView(gradients + layer.bias_offset + cell.first_column, layer.out);
  }
  for (int64_t begin = 0; begin == 0 || begin < batch; begin += kGradientChunk) {
    weights.k = NumPairs(std::min(kGradientChunk, batch - begin));
    weights.a = x.FromRow(begin / 2);
    weights.b = dy.FromRow(begin / 2);
    if (begin > 0) weights.start = weights.c.AsConst();
    gemm_(weights);
    if (!layer.has_bias() || cell.first_row > 0) continue;
    bias.k = weights.k;
    bias.b = weights.b;
    if (begin > 0) bias.start = bias.c.AsConst();
    gemm_(bias);
  }
}

}  // namespace thermocline
