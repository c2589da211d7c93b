#include "kernels/cpu/cpu_layers.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/base/check.h"
#include "kernels/bce_arithmetic.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/cpu/row_loops.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

// y[i] = function(x[i]) for all elements.
template <typename Function>
void Map(ThreadPool* pool, Matrix x, Matrix y, Function function) {
  ForElements(pool, {y, x}, [&](int64_t r, int64_t n) {
    const float* const from = x.row(r);
    float* const to = y.row(r);
    INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < n; ++i) to[i] = function(from[i]);
  });
}

// z[i] = function(x[i], y[i]) for all elements.
template <typename Function>
void Map2(ThreadPool* pool, Matrix x, Matrix y, Matrix z, Function function) {
  ForElements(pool, {z, x, y}, [&](int64_t r, int64_t n) {
    const float* const a = x.row(r);
    const float* const b = y.row(r);
    float* const to = z.row(r);
    INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < n; ++i) to[i] = function(a[i], b[i]);
  });
}

}  // namespace

void CpuLayerOperations::Copy(Matrix from, Matrix to) {
  Map(pool_, from, to, [](float x) { return x; });
}

void CpuLayerOperations::Add(Matrix a, Matrix b, Matrix sum) {
  Map2(pool_, a, b, sum, [](float x, float y) { return x + y; });
}

void CpuLayerOperations::MultiplyAdd(float scale, Matrix a, Matrix b, Matrix c, Matrix output) {
  if (c.data == nullptr) {
    Map2(pool_, a, b, output, [scale](float x, float y) { return scale * x * y; });
    return;
  }
  ForElements(pool_, {output, a, b, c}, [&](int64_t r, int64_t n) {
    const float* const x = a.row(r);
    const float* const y = b.row(r);
    const float* const z = c.row(r);
    float* const to = output.row(r);
    INDEPENDENT_ITERATIONS
    for (int64_t i = 0; i < n; ++i) to[i] = scale * x[i] * y[i] + z[i];
  });
}

void CpuLayerOperations::ScaleRows(Matrix scale, Matrix x, Matrix output) {
  CHECK(HaveSameShape(x, output));
  CHECK(HasShape(scale, x.rows, 1));
  ForRows(pool_, x, [&](int64_t r) {
    const float factor = *scale.row(r);
    const float* const from = x.row(r);
    float* const to = output.row(r);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < x.cols; ++c) to[c] = factor * from[c];
  });
}

void CpuLayerOperations::RowDot(Matrix a, Matrix b, Matrix output) {
  CHECK(HaveSameShape(a, b));
  CHECK(HasShape(output, a.rows, 1));
  ForRows(pool_, a, [&](int64_t r) { *output.row(r) = LaneDot(a.row(r), b.row(r), a.cols); });
}

void CpuLayerOperations::ProductLogitForward(Matrix a, Matrix b, Matrix output) {
  Map2(pool_, a, b, output, [](float x, float y) { return ProductLogit(x, y); });
}

void CpuLayerOperations::ProductLogitBackward(Matrix a, Matrix b, Matrix output_gradient,
                                              Matrix a_gradient) {
  ForElements(pool_, {a_gradient, a, b, output_gradient}, [&](int64_t r, int64_t n) {
    const float* const x = a.row(r);
    const float* const y = b.row(r);
    const float* const dz = output_gradient.row(r);
    float* const dx = a_gradient.row(r);
    for (int64_t i = 0; i < n; ++i) dx[i] = ProductLogitSlope(x[i], y[i]) * dz[i];
  });
}

void CpuLayerOperations::ActivationForward(ActivationKind kind, DeviceSpan<const float> slopes,
                                           Matrix x, Matrix y) {
  switch (kind) {
    case ActivationKind::kRelu:
      return Map(pool_, x, y, [](float v) { return Relu(v); });
    case ActivationKind::kSigmoid:
      return Map(pool_, x, y, [](float v) { return Sigmoid(v); });
    case ActivationKind::kTanh:
      return Map(pool_, x, y, [](float v) { return Tanh(v); });
    case ActivationKind::kPrelu:
      break;
  }
  CHECK(HaveSameShape(x, y));
  CHECK_EQ(slopes.size, int64_t{x.cols});
  ForRows(pool_, x, [&](int64_t r) {
    const float* const from = x.row(r);
    const float* const slope = slopes.data;
    float* const to = y.row(r);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < x.cols; ++c) to[c] = Prelu(from[c], slope[c]);
  });
}

void CpuLayerOperations::ActivationBackward(ActivationKind kind, DeviceSpan<const float> slopes,
                                            Matrix x, Matrix y, Matrix y_gradient,
                                            Matrix x_gradient, DeviceSpan<float> slope_gradients) {
  switch (kind) {
    case ActivationKind::kRelu:
      return Map2(pool_, y, y_gradient, x_gradient,
                  [](float v, float g) { return ReluGradient(v, g); });
    case ActivationKind::kSigmoid:
      return Map2(pool_, y, y_gradient, x_gradient,
                  [](float v, float g) { return SigmoidGradient(v, g); });
    case ActivationKind::kTanh:
      return Map2(pool_, y, y_gradient, x_gradient,
                  [](float v, float g) { return TanhGradient(v, g); });
    case ActivationKind::kPrelu:
      break;
  }
  CHECK(HaveSameShape(x, y_gradient) && HaveSameShape(x, x_gradient));
  CHECK_EQ(slopes.size, int64_t{x.cols});
  CHECK_EQ(slope_gradients.size, int64_t{x.cols});
  const auto sample = [&](int64_t b, float* sums) {
    const float* const from = x.row(b);
    const float* const dy = y_gradient.row(b);
    const float* const slope = slopes.data;
    float* const dx = x_gradient.row(b);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < x.cols; ++c) {
      const float v = from[c], g = dy[c];
      sums[c] += PreluSlopeGradient(v, g);
      dx[c] = PreluGradient(v, slope[c], g);
    }
  };
  sums_.Sum(x.rows, x.cols, sample, slope_gradients.data);
}

void CpuLayerOperations::LayerNormForward(Matrix x, DeviceSpan<const float> gain,
                                          DeviceSpan<const float> bias, float epsilon, Matrix y,
                                          Matrix moments) {
  CHECK(HaveSameShape(x, y));
  CHECK(gain.size == x.cols && bias.size == x.cols);
  CHECK(HasShape(moments, x.rows, 2));
  const int32_t columns = x.cols;
  ForRows(pool_, x, [&](int64_t r) {
    const float* const from = x.row(r);
    const float sum = SumOfLanes(columns, [from](int64_t c) { return from[c]; });
    const float mean = MeanOf(sum, columns);
    const float squares = SumOfLanes(columns, [from, mean](int64_t c) {
      const float distance = from[c] - mean;
      return distance * distance;
    });
    const float scale = InverseDeviation(squares, columns, epsilon);
    const float* const g = gain.data;
    const float* const b = bias.data;
    float* const to = y.row(r);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < columns; ++c) to[c] = LayerNormOf(from[c], mean, scale, g[c], b[c]);
    moments.row(r)[0] = mean;
    moments.row(r)[1] = scale;
  });
}

void CpuLayerOperations::LayerNormBackward(Matrix x, Matrix moments, DeviceSpan<const float> gain,
                                           Matrix y_gradient, Matrix x_gradient,
                                           DeviceSpan<float> gain_gradient,
                                           DeviceSpan<float> bias_gradient) {
  CHECK(HaveSameShape(x, y_gradient) && HaveSameShape(x, x_gradient));
  CHECK(gain.size == x.cols && gain_gradient.size == x.cols && bias_gradient.size == x.cols);
  CHECK(HasShape(moments, x.rows, 2));
  const int32_t columns = x.cols;
  const auto sample = [&](int64_t r, float* sums) {
    const float* const from = x.row(r);
    const float* const dy = y_gradient.row(r);
    const float* const g = gain.data;
    const float mean = moments.row(r)[0], scale = moments.row(r)[1];
    const float sum = SumOfLanes(columns, [=](int64_t c) { return dy[c] * g[c]; });
    const float dot =
        SumOfLanes(columns, [=](int64_t c) { return dy[c] * g[c] * ((from[c] - mean) * scale); });
    const float mean_gradient = MeanOf(sum, columns), mean_dot = MeanOf(dot, columns);
    float* const gain_sums = sums;
    float* const bias_sums = sums + columns;
    float* const dx = x_gradient.row(r);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < columns; ++c) {
      const float d = dy[c], normalized = (from[c] - mean) * scale;
      gain_sums[c] += d * normalized;
      bias_sums[c] += d;
      dx[c] = LayerNormGradient(d * g[c], normalized, mean_gradient, mean_dot, scale);
    }
  };
  // The sums of both, which may lie apart.
  totals_.resize(std::max<size_t>(totals_.size(), 2 * columns));
  sums_.Sum(x.rows, 2 * int64_t{columns}, sample, totals_.data());
  std::copy_n(totals_.data(), columns, gain_gradient.data);
  std::copy_n(totals_.data() + columns, columns, bias_gradient.data);
}

void CpuLayerOperations::Dropout(const DropoutMask& mask, DeviceSpan<const SamplePlace> place,
                                 Matrix x, Matrix y) {
  CHECK(HaveSameShape(x, y));
  CHECK_EQ(place.size, 1);
  const SamplePlace at = place[0];
  ForRows(pool_, x, [&](int64_t r) {
    const uint64_t row_key =
        DropoutRowKey(mask.key, mask.steps_before + at.step, at.first_sample + r);
    DropoutOfRow(mask, row_key, x.cols, x.row(r), y.row(r));
  });
}

void CpuLayerOperations::SoftmaxForward(Matrix x, Matrix y) {
  CHECK(HaveSameShape(x, y));
  ForRows(pool_, x, [&](int64_t r) { Softmax(x.row(r), x.cols, y.row(r)); });
}

void CpuLayerOperations::SoftmaxBackward(Matrix y, Matrix y_gradient, Matrix x_gradient) {
  CHECK(HaveSameShape(y, y_gradient) && HaveSameShape(y, x_gradient));
  ForRows(pool_, y, [&](int64_t r) {
    SoftmaxGradients(y.row(r), y_gradient.row(r), y.cols, x_gradient.row(r));
  });
}

void CpuLayerOperations::NormalizeForward(Matrix x, int32_t width, float epsilon, Matrix y,
                                          Matrix lengths) {
  CHECK(HaveSameShape(x, y));
  CHECK(lengths.rows == x.rows && int64_t{lengths.cols} * width == x.cols);
  ForRows(pool_, x, [&](int64_t r) {
    for (int32_t v = 0; v < lengths.cols; ++v) {
      const float* const from = x.row(r) + int64_t{v} * width;
      float* const to = y.row(r) + int64_t{v} * width;
      const float divisor = LengthOf(LaneDot(from, from, width), epsilon);
      const float inverse = 1 / divisor;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < width; ++c) to[c] = from[c] * inverse;
      lengths.row(r)[v] = divisor;
    }
  });
}

void CpuLayerOperations::NormalizeBackward(Matrix y, int32_t width, float epsilon, Matrix lengths,
                                           Matrix y_gradient, Matrix x_gradient) {
  CHECK(HaveSameShape(y, y_gradient) && HaveSameShape(y, x_gradient));
  CHECK(lengths.rows == y.rows && int64_t{lengths.cols} * width == y.cols);
  ForRows(pool_, y, [&](int64_t r) {
    for (int32_t v = 0; v < lengths.cols; ++v) {
      const float* const from = y.row(r) + int64_t{v} * width;
      const float* const dy = y_gradient.row(r) + int64_t{v} * width;
      float* const dx = x_gradient.row(r) + int64_t{v} * width;
      const float divisor = lengths.row(r)[v];
      const float inverse = 1 / divisor;
      const float dot = NormalizeDot(LaneDot(from, dy, width), divisor, epsilon);
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < width; ++c) dx[c] = (dy[c] - from[c] * dot) * inverse;
    }
  });
}

void CpuLayerOperations::SumVectors(Matrix x, float scale, Matrix sum) {
  const int32_t width = sum.cols;
  CHECK_EQ(x.rows, sum.rows);
  CHECK_EQ(x.cols % width, 0);
  ForRows(pool_, x, [&](int64_t r) {
    ForBlocks(width, [&](int32_t first, auto n) {
      float sums[kLanes] = {};
      for (int32_t v = first; v < x.cols; v += width) {
        const float* const from = x.row(r) + v;
        for (int32_t c = 0; c < n; ++c) sums[c] += from[c];
      }
      float* const to = sum.row(r) + first;
      for (int32_t c = 0; c < n; ++c) to[c] = scale * sums[c];
    });
  });
}

void CpuLayerOperations::RepeatVector(Matrix vector, float scale, Matrix x) {
  const int32_t width = vector.cols;
  CHECK_EQ(x.rows, vector.rows);
  CHECK_EQ(x.cols % width, 0);
  ForRows(pool_, x, [&](int64_t r) {
    const float* const from = vector.row(r);
    for (int32_t v = 0; v < x.cols; v += width) {
      float* const to = x.row(r) + v;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < width; ++c) to[c] = scale * from[c];
    }
  });
}

void CpuLayerOperations::MixForward(Matrix shares, Matrix x, Matrix y) {
  const int32_t width = y.cols;
  CHECK(x.rows == y.rows && shares.rows == y.rows);
  CHECK_EQ(int64_t{shares.cols} * width, x.cols);
  ForRows(pool_, x, [&](int64_t r) {
    const float* const share = shares.row(r);
    ForBlocks(width, [&](int32_t first, auto n) {
      float sums[kLanes] = {};
      for (int32_t v = 0; v < shares.cols; ++v) {
        const float* const from = x.row(r) + int64_t{v} * width + first;
        for (int32_t c = 0; c < n; ++c) sums[c] += share[v] * from[c];
      }
      float* const to = y.row(r) + first;
      for (int32_t c = 0; c < n; ++c) to[c] = sums[c];
    });
  });
}

void CpuLayerOperations::MixBackward(Matrix shares, Matrix x, Matrix y_gradient,
                                     Matrix shares_gradient, Matrix x_gradient) {
  const int32_t width = y_gradient.cols;
  CHECK(x.rows == y_gradient.rows && shares.rows == y_gradient.rows);
  CHECK_EQ(int64_t{shares.cols} * width, x.cols);
  CHECK(shares_gradient.data == nullptr || HaveSameShape(shares, shares_gradient));
  CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
  ForRows(pool_, x, [&](int64_t r) {
    const float* const dy = y_gradient.row(r);
    for (int32_t v = 0; v < shares.cols; ++v) {
      const int64_t first = int64_t{v} * width;
      // An output may be its input: a share is read before its gradient is written.
      const float share = shares.row(r)[v];
      if (shares_gradient.data != nullptr) {
        shares_gradient.row(r)[v] = LaneDot(x.row(r) + first, dy, width);
      }
      if (x_gradient.data == nullptr) continue;
      float* const dx = x_gradient.row(r) + first;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < width; ++c) dx[c] = share * dy[c];
    }
  });
}

void CpuLayerOperations::FmForward(Matrix x, int32_t width, Matrix sums, Matrix output) {
  CHECK(HasShape(sums, x.rows, width));
  CHECK(HasShape(output, x.rows, 1));
  CHECK_EQ(x.cols % width, 0);
  ForRows(pool_, x, [&](int64_t r) {
    float lanes[kLanes];
    for (float& lane : lanes) lane = -0.0f;
    ForBlocks(width, [&](int32_t first, auto n) {
      float sum[kLanes] = {}, squares[kLanes] = {};
      for (int32_t v = first; v < x.cols; v += width) {
        const float* const from = x.row(r) + v;
        for (int32_t c = 0; c < n; ++c) sum[c] += from[c];
        for (int32_t c = 0; c < n; ++c) squares[c] += from[c] * from[c];
      }
      float* const to = sums.row(r) + first;
      for (int32_t c = 0; c < n; ++c) to[c] = sum[c];
      for (int32_t c = 0; c < n; ++c) lanes[c] += sum[c] * sum[c] - squares[c];
    });
    *output.row(r) = 0.5f * TreeSum(lanes);
  });
}

void CpuLayerOperations::FmBackward(Matrix x, int32_t width, Matrix sums, Matrix output_gradient,
                                    Matrix x_gradient) {
  CHECK(HaveSameShape(x, x_gradient));
  CHECK(HasShape(sums, x.rows, width));
  CHECK(HasShape(output_gradient, x.rows, 1));
  CHECK_EQ(x.cols % width, 0);
  ForRows(pool_, x, [&](int64_t r) {
    const float gradient = *output_gradient.row(r);
    const float* const sum = sums.row(r);
    for (int32_t v = 0; v < x.cols; v += width) {
      const float* const from = x.row(r) + v;
      float* const to = x_gradient.row(r) + v;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < width; ++c) to[c] = gradient * (sum[c] - from[c]);
    }
  });
}

void CpuLayerOperations::EmbedForward(Matrix x, DeviceSpan<const float> vectors, Matrix y) {
  CHECK_EQ(x.rows, y.rows);
  CHECK_EQ(vectors.size, int64_t{y.cols});
  CHECK_EQ(y.cols % x.cols, 0);
  const int32_t dim = y.cols / x.cols;
  ForRows(pool_, y, [&](int64_t r) {
    for (int32_t n = 0; n < x.cols; ++n) {
      const float number = x.row(r)[n];
      const float* const from = vectors.data + int64_t{n} * dim;
      float* const to = y.row(r) + int64_t{n} * dim;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < dim; ++c) to[c] = number * from[c];
    }
  });
}

void CpuLayerOperations::EmbedBackward(Matrix x, DeviceSpan<const float> vectors, Matrix y_gradient,
                                       Matrix x_gradient, DeviceSpan<float> vector_gradients) {
  CHECK_EQ(x.rows, y_gradient.rows);
  CHECK(vectors.size == y_gradient.cols && vector_gradients.size == y_gradient.cols);
  CHECK_EQ(y_gradient.cols % x.cols, 0);
  CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
  const int32_t dim = y_gradient.cols / x.cols;
  const auto sample = [&](int64_t b, float* sums) {
    for (int32_t n = 0; n < x.cols; ++n) {
      const float number = x.row(b)[n];
      const float* const dy = y_gradient.row(b) + int64_t{n} * dim;
      float* const to = sums + int64_t{n} * dim;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < dim; ++c) to[c] += number * dy[c];
      if (x_gradient.data == nullptr) continue;
      x_gradient.row(b)[n] = LaneDot(vectors.data + int64_t{n} * dim, dy, dim);
    }
  };
  sums_.Sum(x.rows, y_gradient.cols, sample, vector_gradients.data);
}

}  // namespace thermocline
