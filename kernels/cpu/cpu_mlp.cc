#include "kernels/cpu/cpu_mlp.h"

#include <algorithm>

#include "common/check.h"
#include "kernels/cpu/lane_sum.h"

namespace thermocline {
namespace {

// Samples of one block of the chained passes: a block's widest activations and a weight panel fit
// L2.
constexpr int64_t kBlockRows = 168;
// Samples of one step of the weight gradients' sum over the batch.
constexpr int64_t kGradientChunk = 256;
constexpr int32_t kGradientColumns = 4 * kGemmPanel;

// A leading dimension with which the rows of a tile fall into different cache sets.
int64_t ActivationStride(int32_t columns) {
  const int64_t padded = PaddedColumns(columns);
  return padded % 128 == 0 ? padded + 16 : padded;
}

// The grid of a pass over the batch: blocks are whole tiles of rows, and enough of them that no
// thread waits long for the last. (The bits don't depend on the grid; see gemm.h.)
struct RowGrid {
  int64_t rows, tiles, cells;

  RowGrid(int64_t rows, int num_threads) : rows(rows) {
    tiles = (rows + kGemmRows - 1) / kGemmRows;
    cells = (rows + kBlockRows - 1) / kBlockRows;
    cells = (cells + num_threads - 1) / num_threads * num_threads;
    cells = std::min(cells, tiles);
  }
  int64_t Begin(int64_t cell) const { return std::min(cell * tiles / cells * kGemmRows, rows); }
};

GemmCall RowMajorCall(const float* a, int64_t lda, const float* packed_b, float* c, int64_t ldc,
                      int64_t m, int64_t n, int64_t k) {
  GemmCall call;
  call.m = m;
  call.n = n;
  call.k = k;
  call.a = a;
  call.a_row_stride = lda;
  call.a_column_stride = 1;
  call.packed_b = packed_b;
  call.c = c;
  call.ldc = ldc;
  return call;
}

}  // namespace

CpuMlp::CpuMlp(const MlpConfig& config, GemmFunction gemm, ThreadPool* pool)
    : gemm_(gemm), pool_(pool) {
  const int num_layers = static_cast<int>(config.widths.size()) - 1;
  CHECK_GE(num_layers, 1);
  CHECK_EQ(static_cast<int>(config.weight_offsets.size()), num_layers);
  CHECK_EQ(static_cast<int>(config.bias_offsets.size()), num_layers);
  layers_.resize(num_layers);
  for (int i = 0; i < num_layers; ++i) {
    Layer& layer = layers_[i];
    layer.in = config.widths[i];
    layer.out = config.widths[i + 1];
    CHECK_GT(layer.in, 0);
    CHECK_GT(layer.out, 0);
    layer.relu = i + 1 < num_layers || config.relu_after_last;
    layer.input_gradient = i > 0 || config.input_gradient;
    layer.weight_offset = config.weight_offsets[i];
    layer.bias_offset = config.bias_offsets[i];
    if (layer.out > 1) {
      layer.packed.resize(PackedFloats(layer.in, layer.out));
      if (layer.input_gradient) layer.packed_transposed.resize(PackedFloats(layer.out, layer.in));
    }
    if (i + 1 < num_layers) {
      const int64_t ld = ActivationStride(layer.out);
      layer.output_buffer.assign(config.max_batch * ld, 0.0f);
      layer.gradient_buffer.assign(config.max_batch * ld, 0.0f);
      layer.output = FloatMatrix(layer.output_buffer.data(), config.max_batch, layer.out, ld);
      layer.gradient = FloatMatrix(layer.gradient_buffer.data(), config.max_batch, layer.out, ld);
    }
    for (int32_t column = 0; column < layer.out; column += kGradientColumns) {
      gradient_cells_.push_back({i, column, std::min(kGradientColumns, layer.out - column)});
    }
  }
  // The longest first, so that no thread is left alone with one at the end.
  std::stable_sort(gradient_cells_.begin(), gradient_cells_.end(),
                   [this](const GradientCell& a, const GradientCell& b) {
                     return layers_[a.layer].in * a.num_columns >
                            layers_[b.layer].in * b.num_columns;
                   });
  packed_gradients_.resize(pool->num_threads());
  for (Buffer& buffer : packed_gradients_) {
    buffer.resize(PackedFloats(kGradientChunk, kGradientColumns));
  }
}

Matrix CpuMlp::OutputOf(int layer, Matrix output) const {
  return layer + 1 < num_layers() ? layers_[layer].output : output;
}

void CpuMlp::PackWeights(DeviceSpan<const float> parameters, bool transposed) {
  struct Cell {
    Layer* layer;
    int64_t panel;
  };
  int64_t num_cells = 0;
  const auto panels_of = [transposed](const Layer& layer) -> int64_t {
    if (layer.out == 1 || (transposed && !layer.input_gradient)) return 0;
    return PackedPanels(transposed ? layer.in : layer.out);
  };
  for (const Layer& layer : layers_) num_cells += panels_of(layer);
  pool_->ParallelFor(num_cells, [&](int64_t cell, int) {
    Layer* layer = layers_.data();
    for (; cell >= panels_of(*layer); ++layer) cell -= panels_of(*layer);
    const float* weights = parameters.data + layer->weight_offset;
    if (transposed) {
      PackPanelsTransposed(weights, layer->out, layer->out, layer->in, cell, cell + 1,
                           layer->packed_transposed.data() + cell * layer->out * kGemmPanel);
    } else {
      PackPanels(weights, layer->out, layer->in, layer->out, cell, cell + 1,
                 layer->packed.data() + cell * layer->in * kGemmPanel);
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
  for (int i = 0; i < num_layers(); ++i) {
    const Layer& layer = layers_[i];
    const Matrix y = OutputOf(i, output);
    const float* bias = parameters + layer.bias_offset;
    if (layer.out == 1) {
      for (int64_t r = begin; r < end; ++r) {
        const float* weights = parameters + layer.weight_offset;
        const float value = LaneDot(input.row(r), weights, layer.in) + bias[0];
        *y.row(r) = layer.relu ? std::max(value, 0.0f) : value;
      }
    } else {
      GemmCall call = RowMajorCall(input.row(begin), input.ld, layer.packed.data(), y.row(begin),
                                   y.ld, end - begin, layer.out, layer.in);
      call.bias = bias;
      call.relu = layer.relu;
      gemm_(call);
    }
    input = y;
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
  if (layers_.back().relu) {
    for (int64_t r = begin; r < end; ++r) {
      for (int32_t j = 0; j < output.cols; ++j) {
        if (!(output.row(r)[j] > 0)) output_gradient.row(r)[j] = 0;
      }
    }
  }
  Matrix dy = output_gradient;
  for (int i = num_layers() - 1; i >= 0 && layers_[i].input_gradient; --i) {
    const Layer& layer = layers_[i];
    const Matrix dx = i > 0 ? layers_[i - 1].gradient : input_gradient;
    const Matrix x = i > 0 ? layers_[i - 1].output : Matrix();  // A ReLU's output, or the input.
    if (layer.out == 1) {
      const float* weights = parameters + layer.weight_offset;
      for (int64_t r = begin; r < end; ++r) {
        const float g = *dy.row(r);
        float* to = dx.row(r);
        for (int32_t j = 0; j < layer.in; ++j) to[j] = g * weights[j];
        if (i == 0) continue;
        const float* activation = x.row(r);
        for (int32_t j = 0; j < layer.in; ++j) to[j] = activation[j] > 0 ? to[j] : 0.0f;
      }
    } else {
      GemmCall call = RowMajorCall(dy.row(begin), dy.ld, layer.packed_transposed.data(),
                                   dx.row(begin), dx.ld, end - begin, layer.in, layer.out);
      if (i > 0) {
        call.keep_if_positive = x.row(begin);
        call.keep_ld = x.ld;
      }
      gemm_(call);
    }
    dy = dx;
  }
}

void CpuMlp::BackwardParameters(Matrix input, Matrix output_gradient, DeviceSpan<float> gradients) {
  pool_->ParallelFor(static_cast<int64_t>(gradient_cells_.size()), [&](int64_t cell, int thread) {
    ComputeGradient(gradient_cells_[cell], input, output_gradient, gradients.data,
                    packed_gradients_[thread].data());
  });
}

void CpuMlp::ComputeGradient(const GradientCell& cell, Matrix input, Matrix output_gradient,
                             float* gradients, float* packed_gradient) const {
  const Layer& layer = layers_[cell.layer];
  const Matrix x = cell.layer > 0 ? layers_[cell.layer - 1].output : input;
  const Matrix dy = cell.layer + 1 < num_layers() ? layer.gradient : output_gradient;
  float* weight_gradient = gradients + layer.weight_offset + cell.first_column;
  float* bias_gradient = gradients + layer.bias_offset + cell.first_column;
  const int64_t batch = output_gradient.rows;
  std::fill_n(bias_gradient, cell.num_columns, 0.0f);
  for (int64_t begin = 0; begin == 0 || begin < batch; begin += kGradientChunk) {
    const int64_t samples = std::min(kGradientChunk, batch - begin);
    const float* dy_chunk = dy.row(begin) + cell.first_column;
    float bias_sum[kGradientColumns] = {};
    for (int64_t s = 0; s < samples; ++s) {
      const float* from = dy_chunk + s * dy.ld;
      for (int32_t j = 0; j < cell.num_columns; ++j) bias_sum[j] += from[j];
    }
    for (int32_t j = 0; j < cell.num_columns; ++j) bias_gradient[j] += bias_sum[j];

    PackPanels(dy_chunk, dy.ld, samples, cell.num_columns, 0, PackedPanels(cell.num_columns),
               packed_gradient);
    GemmCall call;
    call.m = layer.in;
    call.n = cell.num_columns;
    call.k = samples;
    call.a = x.row(begin);
    call.a_row_stride = 1;
    call.a_column_stride = x.ld;
    call.packed_b = packed_gradient;
    call.c = weight_gradient;
    call.ldc = layer.out;
    call.accumulate = begin > 0;
    gemm_(call);
  }
}

}  // namespace thermocline
