#include "kernels/cpu/cpu_steps.h"

#include <algorithm>

#include "common/base/check.h"
#include "kernels/cpu/lane_sum.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

int64_t NumSamples(const StepRanges& ranges) { return ranges.offsets.size - 1; }
int64_t NumSteps(const StepRanges& ranges) { return ranges.offsets[NumSamples(ranges)]; }

bool IsByStep(const StepRanges& ranges, const Matrix& matrix) {
  return matrix.rows >= NumSteps(ranges) && ranges.samples.size >= NumSteps(ranges);
}
bool IsBySample(const StepRanges& ranges, const Matrix& matrix) {
  return matrix.rows == NumSamples(ranges);
}

void ClearRow(Matrix matrix, int64_t row) { std::fill_n(matrix.row(row), matrix.cols, 0.0f); }
void ClearRowsBeyond(const StepRanges& ranges, Matrix matrix) {
  for (int64_t t = NumSteps(ranges); t < matrix.rows; ++t) ClearRow(matrix, t);
}

// Calls body(step, its sample) for every step, and clears the rows of `y` beyond the last one.
template <typename Body>
void ForSteps(ThreadPool* pool, const StepRanges& ranges, Matrix y, Body body) {
  CHECK(IsByStep(ranges, y));
  const int64_t steps = NumSteps(ranges);
  ForRows(pool, y, [&](int64_t t) {
    if (t < steps) {
      body(t, ranges.samples[t]);
    } else {
      ClearRow(y, t);
    }
  });
}

// Calls body(sample, its first step, the step behind its last, thread) for every sample. columns:
// of the matrix of steps that it works on
template <typename Body>
void ForSamples(ThreadPool* pool, const StepRanges& ranges, int64_t columns, Body body) {
  const int64_t samples = NumSamples(ranges);
  const int64_t floats = std::max<int64_t>(NumSteps(ranges), samples) * columns;
  const int64_t cells = floats / kCellFloats + 1;
  const int64_t cell_samples = (samples + cells - 1) / cells;
  if (samples == 0) return;
  pool->ParallelFor((samples + cell_samples - 1) / cell_samples, [&](int64_t cell, int thread) {
    const int64_t end = std::min((cell + 1) * cell_samples, samples);
    for (int64_t b = cell * cell_samples; b < end; ++b) {
      body(b, ranges.offsets[b], ranges.offsets[b + 1], thread);
    }
  });
}

// The position of step t of a sample that ends before `end`.
int64_t PositionOf(int64_t t, int64_t end, int64_t count) {
  return std::min(end - 1 - t, count - 1);
}

// Copies n floats of a column, `stride` apart.
void CopyColumn(const float* from, int64_t from_stride, int64_t n, float* to, int64_t to_stride) {
  for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
}

}  // namespace

CpuStepOperations::CpuStepOperations(ThreadPool* pool)
    : pool_(pool), sums_(pool), columns_(pool->num_threads()), heads_(pool->num_threads()) {}

void CpuStepOperations::Repeat(const StepRanges& ranges, Matrix x, Matrix y) {
  CHECK(IsBySample(ranges, x));
  CHECK_EQ(x.cols, y.cols);
  ForSteps(pool_, ranges, y,
           [&](int64_t t, int64_t sample) { std::copy_n(x.row(sample), x.cols, y.row(t)); });
}

void CpuStepOperations::Pool(const StepRanges& ranges, StepPooling pooling, Matrix x, Matrix y) {
  CHECK(IsByStep(ranges, x) && IsBySample(ranges, y));
  CHECK_EQ(x.cols, y.cols);
  ForSamples(pool_, ranges, x.cols, [&](int64_t b, int64_t begin, int64_t end, int) {
    if (begin == end) return ClearRow(y, b);
    if (pooling == StepPooling::kLast) begin = end - 1;
    const bool is_mean = pooling == StepPooling::kMean;
    const auto count = static_cast<int32_t>(end - begin);
    ForBlocks(x.cols, [&](int32_t first, auto n) {
      float sums[kLanes] = {};
      for (int64_t t = begin; t < end; ++t) {
        const float* const from = x.row(t) + first;
        for (int32_t c = 0; c < n; ++c) sums[c] += from[c];
      }
      float* const to = y.row(b) + first;
      for (int32_t c = 0; c < n; ++c) to[c] = is_mean ? MeanOf(sums[c], count) : sums[c];
    });
  });
}

void CpuStepOperations::PoolBackward(const StepRanges& ranges, StepPooling pooling,
                                     Matrix y_gradient, Matrix x_gradient) {
  CHECK(IsBySample(ranges, y_gradient));
  CHECK_EQ(x_gradient.cols, y_gradient.cols);
  ForSteps(pool_, ranges, x_gradient, [&](int64_t t, int64_t sample) {
    const int32_t begin = ranges.offsets[sample], end = ranges.offsets[sample + 1];
    if (pooling == StepPooling::kLast && t + 1 < end) return ClearRow(x_gradient, t);
    const int32_t divisor = pooling == StepPooling::kMean ? end - begin : 1;
    const float* const from = y_gradient.row(sample);
    float* const to = x_gradient.row(t);
    for (int32_t c = 0; c < x_gradient.cols; ++c) to[c] = MeanOf(from[c], divisor);
  });
}

void CpuStepOperations::PoolWeighted(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y) {
  CHECK(IsByStep(ranges, x) && IsBySample(ranges, y));
  CHECK(HasShape(weights, x.rows, 1));
  CHECK_EQ(x.cols, y.cols);
  ForSamples(pool_, ranges, x.cols, [&](int64_t b, int64_t begin, int64_t end, int) {
    ForBlocks(x.cols, [&](int32_t first, auto n) {
      float sums[kLanes] = {};
      for (int64_t t = begin; t < end; ++t) {
        const float weight = *weights.row(t);
        const float* const from = x.row(t) + first;
        for (int32_t c = 0; c < n; ++c) sums[c] += weight * from[c];
      }
      std::copy_n(sums, n, y.row(b) + first);
    });
  });
}

void CpuStepOperations::PoolWeightedBackward(const StepRanges& ranges, Matrix weights, Matrix x,
                                             Matrix y_gradient, Matrix weights_gradient,
                                             Matrix x_gradient) {
  CHECK(IsByStep(ranges, x) && IsBySample(ranges, y_gradient));
  CHECK(HasShape(weights, x.rows, 1));
  CHECK_EQ(x.cols, y_gradient.cols);
  CHECK(weights_gradient.data == nullptr || HaveSameShape(weights, weights_gradient));
  CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
  ForSamples(pool_, ranges, x.cols, [&](int64_t b, int64_t begin, int64_t end, int) {
    const float* const dy = y_gradient.row(b);
    for (int64_t t = begin; t < end; ++t) {
      // An output may be its input: a weight is read before its gradient is written.
      const float weight = *weights.row(t);
      if (weights_gradient.data != nullptr) {
        *weights_gradient.row(t) = LaneDot(dy, x.row(t), x.cols);
      }
      if (x_gradient.data == nullptr) continue;
      float* const dx = x_gradient.row(t);
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < x.cols; ++c) dx[c] = weight * dy[c];
    }
  });
  for (const Matrix& gradient : {weights_gradient, x_gradient}) {
    if (gradient.data != nullptr) ClearRowsBeyond(ranges, gradient);
  }
}

void CpuStepOperations::Compare(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y) {
  CHECK(IsBySample(ranges, queries));
  CHECK(x.rows == y.rows && x.cols == queries.cols && y.cols == 4 * x.cols);
  const int32_t width = x.cols;
  ForSteps(pool_, ranges, y, [&](int64_t t, int64_t sample) {
    const float* const q = queries.row(sample);
    const float* const from = x.row(t);
    float* const to = y.row(t);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < width; ++c) {
      const float query = q[c], value = from[c];
      to[c] = query;
      to[width + c] = value;
      to[2 * width + c] = query - value;
      to[3 * width + c] = query * value;
    }
  });
}

void CpuStepOperations::CompareBackward(const StepRanges& ranges, Matrix queries, Matrix x,
                                        Matrix y_gradient, Matrix query_gradients, bool adds,
                                        Matrix x_gradient) {
  CHECK(IsByStep(ranges, x) && IsBySample(ranges, queries));
  CHECK(x.cols == queries.cols && HasShape(y_gradient, x.rows, 4 * x.cols));
  CHECK(query_gradients.data == nullptr || HaveSameShape(queries, query_gradients));
  CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
  const int32_t width = x.cols;
  ForSamples(pool_, ranges, 4 * width, [&](int64_t b, int64_t begin, int64_t end, int) {
    if (query_gradients.data != nullptr) ClearRow(query_gradients, b);
    for (int64_t t = begin; t < end; ++t) {
      const float* const dy = y_gradient.row(t);
      if (query_gradients.data != nullptr) {
        const float* const from = x.row(t);
        float* const dq = query_gradients.row(b);
        INDEPENDENT_ITERATIONS
        for (int32_t c = 0; c < width; ++c) {
          dq[c] += CompareQueryGradient(from[c], dy[c], dy[2 * width + c], dy[3 * width + c]);
        }
      }
      if (x_gradient.data == nullptr) continue;
      const float* const q = queries.row(b);
      float* const dx = x_gradient.row(t);
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < width; ++c) {
        const float first = adds ? dx[c] + dy[width + c] : dy[width + c];
        dx[c] = CompareStepGradient(q[c], first, dy[2 * width + c], dy[3 * width + c]);
      }
    }
  });
  if (x_gradient.data != nullptr && !adds) ClearRowsBeyond(ranges, x_gradient);
}

void CpuStepOperations::SoftmaxForward(const StepRanges& ranges, bool without_last, Matrix x,
                                       Matrix y) {
  CHECK(IsByStep(ranges, x) && HaveSameShape(x, y));
  ForSamples(pool_, ranges, x.cols, [&](int64_t, int64_t begin, int64_t end, int thread) {
    if (begin == end) return;
    const int64_t counted = end - begin - (without_last ? 1 : 0);
    std::vector<float>& column = columns_[thread];
    column.resize(std::max<size_t>(column.size(), counted));
    for (int32_t c = 0; c < x.cols; ++c) {
      CopyColumn(x.row(begin) + c, x.ld, counted, column.data(), 1);
      Softmax(column.data(), counted, column.data());
      CopyColumn(column.data(), 1, counted, y.row(begin) + c, y.ld);
    }
    if (without_last) ClearRow(y, end - 1);
  });
  ClearRowsBeyond(ranges, y);
}

void CpuStepOperations::SoftmaxBackward(const StepRanges& ranges, Matrix y, Matrix y_gradient,
                                        Matrix x_gradient) {
  CHECK(IsByStep(ranges, y));
  CHECK(HaveSameShape(y, y_gradient) && HaveSameShape(y, x_gradient));
  ForSamples(pool_, ranges, y.cols, [&](int64_t, int64_t begin, int64_t end, int thread) {
    const int64_t n = end - begin;
    std::vector<float>& columns = columns_[thread];
    columns.resize(std::max<size_t>(columns.size(), 2 * n));
    float* const of_y = columns.data();
    float* const gradients = of_y + n;
    for (int32_t c = 0; c < y.cols && n > 0; ++c) {
      CopyColumn(y.row(begin) + c, y.ld, n, of_y, 1);
      CopyColumn(y_gradient.row(begin) + c, y_gradient.ld, n, gradients, 1);
      SoftmaxGradients(of_y, gradients, n, gradients);
      CopyColumn(gradients, 1, n, x_gradient.row(begin) + c, x_gradient.ld);
    }
  });
  ClearRowsBeyond(ranges, x_gradient);
}

void CpuStepOperations::ClearLast(const StepRanges& ranges, Matrix x, Matrix y) {
  CHECK(HaveSameShape(x, y));
  ForSteps(pool_, ranges, y, [&](int64_t t, int64_t sample) {
    if (t + 1 == ranges.offsets[sample + 1]) return ClearRow(y, t);
    if (x.row(t) != y.row(t)) std::copy_n(x.row(t), x.cols, y.row(t));
  });
}

void CpuStepOperations::Dropout(const StepRanges& ranges, const DropoutMask& mask,
                                DeviceSpan<const SamplePlace> place, Matrix x, Matrix y) {
  CHECK(HaveSameShape(x, y));
  CHECK_EQ(place.size, 1);
  const SamplePlace at = place[0];
  ForSteps(pool_, ranges, y, [&](int64_t t, int64_t sample) {
    const int64_t behind = ranges.offsets[sample + 1] - 1 - t;
    const int64_t row = DropoutRowOfStep(at.first_sample + sample, behind);
    const uint64_t row_key = DropoutRowKey(mask.key, mask.steps_before + at.step, row);
    DropoutOfRow(mask, row_key, x.cols, x.row(t), y.row(t));
  });
}

// Calls body(head at work, steps, a head's width, its columns of a matrix, its statistics) for
// every head of every sample that has steps.
template <typename Body>
void CpuStepOperations::ForHeads(const StepRanges& ranges, int32_t heads, Matrix q,
                                 Matrix statistics, Body body) {
  CHECK(IsByStep(ranges, q) && HasShape(statistics, q.rows, 2 * heads));
  CHECK_EQ(q.cols % heads, 0);
  const int32_t width = q.cols / heads;
  ForSamples(pool_, ranges, q.cols, [&](int64_t, int64_t begin, int64_t end, int thread) {
    for (int32_t h = 0; h < heads && begin < end; ++h) {
      const auto columns = [&](Matrix m) { return RowsOfHead{m.row(begin) + h * width, m.ld}; };
      body(&heads_[thread], end - begin, width, columns,
           RowsOfHead{statistics.row(begin) + h, statistics.ld});
    }
  });
}

void CpuStepOperations::AttentionForward(const StepRanges& ranges, int32_t heads, Matrix q,
                                         Matrix k, Matrix v, Matrix y, Matrix statistics) {
  CHECK(HaveSameShape(q, k) && HaveSameShape(q, v) && HaveSameShape(q, y));
  ForHeads(ranges, heads, q, statistics,
           [&](AttentionHead* head, int64_t steps, int32_t width, auto columns, RowsOfHead kept) {
             head->Forward(steps, width, columns(q), columns(k), columns(v), columns(y), kept,
                           heads);
           });
  ClearRowsBeyond(ranges, y);
  ClearRowsBeyond(ranges, statistics);
}

void CpuStepOperations::AttentionBackward(const StepRanges& ranges, int32_t heads, Matrix q,
                                          Matrix k, Matrix v, Matrix y, Matrix statistics,
                                          Matrix y_gradient, Matrix q_gradient, Matrix k_gradient,
                                          Matrix v_gradient) {
  for (const Matrix& m : {k, v, y, y_gradient, q_gradient, k_gradient, v_gradient}) {
    CHECK(HaveSameShape(q, m));
  }
  ForHeads(ranges, heads, q, statistics,
           [&](AttentionHead* head, int64_t steps, int32_t width, auto columns, RowsOfHead kept) {
             head->Backward(steps, width, columns(q), columns(k), columns(v), columns(y), kept,
                            heads, columns(y_gradient), columns(q_gradient), columns(k_gradient),
                            columns(v_gradient));
           });
  for (const Matrix& m : {q_gradient, k_gradient, v_gradient}) ClearRowsBeyond(ranges, m);
}

void CpuStepOperations::AddPositions(const StepRanges& ranges, DeviceSpan<const float> positions,
                                     Matrix x, Matrix y) {
  CHECK(HaveSameShape(x, y));
  CHECK(positions.size > 0 && positions.size % x.cols == 0);
  const int64_t count = positions.size / x.cols;
  ForSteps(pool_, ranges, y, [&](int64_t t, int64_t sample) {
    const int64_t position = PositionOf(t, ranges.offsets[sample + 1], count);
    const float* const vector = positions.data + position * x.cols;
    const float* const from = x.row(t);
    float* const to = y.row(t);
    INDEPENDENT_ITERATIONS
    for (int32_t c = 0; c < x.cols; ++c) to[c] = from[c] + vector[c];
  });
}

void CpuStepOperations::PositionGradients(const StepRanges& ranges, Matrix y_gradient,
                                          DeviceSpan<float> gradients) {
  CHECK(IsByStep(ranges, y_gradient));
  const int32_t columns = y_gradient.cols;
  CHECK(gradients.size > 0 && gradients.size % columns == 0);
  const int64_t count = gradients.size / columns;
  const auto sample = [&](int64_t b, float* sums) {
    const int64_t end = ranges.offsets[b + 1];
    for (int64_t t = ranges.offsets[b]; t < end; ++t) {
      const float* const from = y_gradient.row(t);
      float* const to = sums + PositionOf(t, end, count) * columns;
      INDEPENDENT_ITERATIONS
      for (int32_t c = 0; c < columns; ++c) to[c] += from[c];
    }
  };
  sums_.Sum(NumSamples(ranges), gradients.size, sample, gradients.data);
}

}  // namespace thermocline
