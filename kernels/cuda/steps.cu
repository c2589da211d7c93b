// What layers compute on the steps of sequences (kernels/step_operations.h), in the forms of
// row_kernels.h. How many steps there are is known to the device alone: grids have a thread for
// each row that matrices of steps have.
#include "kernels/cuda/operations.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

// StepRanges for device code.
struct Ranges {
  const int32_t* offsets;  // [batch + 1]
  const int32_t* samples;  // [steps or more]
  int32_t batch;

  explicit Ranges(const StepRanges& ranges)
      : offsets(ranges.offsets.data),
        samples(ranges.samples.data),
        batch(static_cast<int32_t>(ranges.offsets.size) - 1) {}
  __device__ bool IsStep(int64_t t) const { return t < offsets[batch]; }
  __device__ int32_t BeginOf(int64_t t) const { return offsets[samples[t]]; }
  __device__ int32_t EndOf(int64_t t) const { return offsets[samples[t] + 1]; }
};

struct ClearBeyondElement {
  Ranges ranges;
  Matrix y;
  __device__ void operator()(int64_t t, int32_t c) const {
    if (!ranges.IsStep(t)) RowOf(y, t)[c] = 0;
  }
};

cudaError_t LaunchClearBeyond(const StepRanges& ranges, Matrix y, cudaStream_t stream) {
  return LaunchElements(y, ClearBeyondElement{Ranges(ranges), y}, stream);
}

struct RepeatElement {
  Ranges ranges;
  Matrix x, y;
  __device__ void operator()(int64_t t, int32_t c) const {
    RowOf(y, t)[c] = ranges.IsStep(t) ? RowOf(x, ranges.samples[t])[c] : 0.0f;
  }
};

struct StepPoolElement {
  Ranges ranges;
  StepPooling pooling;
  Matrix x, y;
  __device__ void operator()(int64_t b, int32_t c) const {
    int32_t begin = ranges.offsets[b];
    const int32_t end = ranges.offsets[b + 1], count = end - begin;
    if (pooling == StepPooling::kLast && count > 0) begin = end - 1;
    float sum = 0;
    UNROLL(4)
    for (int32_t t = begin; t < end; ++t) sum += RowOf(x, t)[c];
    const bool is_mean = pooling == StepPooling::kMean && count > 0;
    RowOf(y, b)[c] = is_mean ? MeanOf(sum, count) : sum;
  }
};

struct StepPoolGradientElement {
  Ranges ranges;
  StepPooling pooling;
  Matrix y_gradient, x_gradient;
  __device__ void operator()(int64_t t, int32_t c) const {
    float gradient = 0;
    if (ranges.IsStep(t)) {
      const int32_t count = ranges.EndOf(t) - ranges.BeginOf(t);
      const float of_sample = RowOf(y_gradient, ranges.samples[t])[c];
      const bool counts = pooling != StepPooling::kLast || t + 1 == ranges.EndOf(t);
      if (counts) gradient = MeanOf(of_sample, pooling == StepPooling::kMean ? count : 1);
    }
    RowOf(x_gradient, t)[c] = gradient;
  }
};

struct PoolWeightedElement {
  Ranges ranges;
  Matrix weights, x, y;
  __device__ void operator()(int64_t b, int32_t c) const {
    float sum = 0;
    UNROLL(4)
    for (int32_t t = ranges.offsets[b]; t < ranges.offsets[b + 1]; ++t) {
      sum += *RowOf(weights, t) * RowOf(x, t)[c];
    }
    RowOf(y, b)[c] = sum;
  }
};

// An item is a step.
struct PoolWeightedGradientItem {
  Ranges ranges;
  Matrix weights, x, y_gradient, weights_gradient, x_gradient;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t t = has_item ? i : 0;
    const bool is_step = has_item && ranges.IsStep(t);
    const int32_t n = is_step ? x.cols : 0;
    const float* const dy = RowOf(y_gradient, is_step ? ranges.samples[t] : 0);
    const float* const from = RowOf(x, t);
    // Before lane 0 writes the gradient, which may replace it.
    const float weight = OfLane(is_step ? *RowOf(weights, t) : 0.0f, 0);
    if (weights_gradient.data != nullptr) {
      const float dot = SumOfLanes(n, lane, [=](int32_t c) { return dy[c] * from[c]; });
      if (has_item && lane == 0) *RowOf(weights_gradient, t) = is_step ? dot : 0.0f;
    }
    if (x_gradient.data == nullptr || !has_item) return;
    float* const dx = RowOf(x_gradient, t);
    for (int32_t c = lane; c < x.cols; c += kRowLanes) dx[c] = is_step ? weight * dy[c] : 0.0f;
  }
};

// An element is one of the step, of which y has four.
struct CompareElement {
  Ranges ranges;
  Matrix queries, x, y;
  __device__ void operator()(int64_t t, int32_t c) const {
    const bool is_step = ranges.IsStep(t);
    const float query = is_step ? RowOf(queries, ranges.samples[t])[c] : 0.0f;
    const float value = is_step ? RowOf(x, t)[c] : 0.0f;
    float* const to = RowOf(y, t) + c;
    to[0] = query;
    to[x.cols] = value;
    to[2 * x.cols] = query - value;
    to[3 * x.cols] = query * value;
  }
};

struct CompareQueryGradientElement {
  Ranges ranges;
  Matrix x, y_gradient, query_gradients;
  __device__ void operator()(int64_t b, int32_t c) const {
    float sum = 0;
    for (int32_t t = ranges.offsets[b]; t < ranges.offsets[b + 1]; ++t) {
      const float* const dy = RowOf(y_gradient, t) + c;
      sum += CompareQueryGradient(RowOf(x, t)[c], dy[0], dy[2 * x.cols], dy[3 * x.cols]);
    }
    RowOf(query_gradients, b)[c] = sum;
  }
};

struct CompareStepGradientElement {
  Ranges ranges;
  Matrix queries, y_gradient;
  bool adds;
  Matrix x_gradient;
  __device__ void operator()(int64_t t, int32_t c) const {
    float* const dx = RowOf(x_gradient, t) + c;
    if (!ranges.IsStep(t)) {
      if (!adds) *dx = 0;
      return;
    }
    const int32_t width = x_gradient.cols;
    const float* const dy = RowOf(y_gradient, t) + c;
    const float first = adds ? *dx + dy[width] : dy[width];
    *dx = CompareStepGradient(RowOf(queries, ranges.samples[t])[c], first, dy[2 * width],
                              dy[3 * width]);
  }
};

// An item is a column of a sample.
struct StepSoftmaxItem {
  Ranges ranges;
  bool without_last;
  Matrix x, y;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t b = has_item ? i / x.cols : 0, c = has_item ? i % x.cols : 0;
    const int32_t begin = ranges.offsets[b], end = ranges.offsets[b + 1];
    const bool has_steps = has_item && begin < end;
    const int32_t counted = has_steps ? end - begin - (without_last ? 1 : 0) : 0;
    SoftmaxOfLanes(counted, lane, RowOf(x, begin) + c, x.ld, RowOf(y, begin) + c, y.ld);
    if (has_steps && without_last && lane == 0) RowOf(y, end - 1)[c] = 0;
  }
};

struct StepSoftmaxGradientItem {
  Ranges ranges;
  Matrix y, y_gradient, x_gradient;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t b = has_item ? i / y.cols : 0, c = has_item ? i % y.cols : 0;
    const int32_t begin = ranges.offsets[b], end = has_item ? ranges.offsets[b + 1] : begin;
    SoftmaxGradientsOfLanes(end - begin, lane, RowOf(y, begin) + c, y.ld,
                            RowOf(y_gradient, begin) + c, y_gradient.ld,
                            RowOf(x_gradient, begin) + c, x_gradient.ld);
  }
};

struct ClearLastElement {
  Ranges ranges;
  Matrix x, y;
  __device__ void operator()(int64_t t, int32_t c) const {
    const bool is_kept = ranges.IsStep(t) && t + 1 < ranges.EndOf(t);
    RowOf(y, t)[c] = is_kept ? RowOf(x, t)[c] : 0.0f;
  }
};

struct StepDropoutElement {
  Ranges ranges;
  DropoutMask mask;
  const SamplePlace* place;
  Matrix x, y;
  __device__ void operator()(int64_t t, int32_t c) const {
    float kept = 0;
    if (ranges.IsStep(t)) {
      const int64_t sample = place->first_sample + ranges.samples[t];
      const int64_t row = DropoutRowOfStep(sample, ranges.EndOf(t) - 1 - t);
      kept = DropoutOfUnit(mask, place->step, row, c, RowOf(x, t)[c]);
    }
    RowOf(y, t)[c] = kept;
  }
};

struct AddPositionsElement {
  Ranges ranges;
  const float* positions;
  int64_t count;
  Matrix x, y;
  __device__ void operator()(int64_t t, int32_t c) const {
    float sum = 0;
    if (ranges.IsStep(t)) {
      const int64_t behind = ranges.EndOf(t) - 1 - t;
      const int64_t position = behind < count - 1 ? behind : count - 1;
      sum = RowOf(x, t)[c] + positions[position * x.cols + c];
    }
    RowOf(y, t)[c] = sum;
  }
};

// A column is one of a position.
struct PositionTerm {
  Ranges ranges;
  int32_t count;
  Matrix y_gradient;
  __device__ void operator()(int64_t b, int32_t column, float* sums) const {
    const int32_t position = column / y_gradient.cols, c = column % y_gradient.cols;
    const int32_t begin = ranges.offsets[b], last = ranges.offsets[b + 1] - 1 - position;
    // All steps that are as far behind as the last position, or farther, have that one.
    const int32_t first = position + 1 < count && begin < last ? last : begin;
    for (int32_t t = first; t <= last; ++t) sums[0] += RowOf(y_gradient, t)[c];
  }
};

// The dot product of n floats, one after the other.
__device__ float ChainDot(const float* a, const float* b, int32_t n) {
  float sum = 0;
  UNROLL(8)
  for (int32_t c = 0; c < n; ++c) sum = fmaf(a[c], b[c], sum);
  return sum;
}

// Returns the greater of n and the n of the other item of the warp. All threads of a warp take part
// in an exchange of values, so that loops with one have as many rounds as the longer item needs.
__device__ int32_t GreaterOfWarp(int32_t n) {
  const int other = static_cast<int>(threadIdx.x % 32) ^ kRowLanes;
  const int32_t of_other = __shfl_sync(kWholeWarp, n, other, 32);
  return n < of_other ? of_other : n;
}

// One head at one step of its sample.
struct HeadStep {
  bool is_step;  // Else an item beyond the last step, or none.
  int64_t t;
  int32_t h, first_column;
  int32_t begin, steps;  // of the sample

  __device__ HeadStep(const Ranges& ranges, int64_t i, bool has_item, int32_t heads,
                      int32_t columns) {
    t = has_item ? i / heads : 0;
    h = has_item ? static_cast<int32_t>(i % heads) : 0;
    first_column = h * columns;
    is_step = has_item && ranges.IsStep(t);
    begin = is_step ? ranges.BeginOf(t) : 0;
    steps = is_step ? ranges.EndOf(t) - begin : 0;
  }
};

constexpr int kColumnsOfLane = 4;

// Sets outputs[k] to factor times the chain of weights[k] * rows[k][begin + s] over the steps s of
// the sample. weights_of(s, weights) sets the weights of one step; lanes compute them for 16 steps
// and exchange them.
template <int kSums, typename WeightsOf>
__device__ void SumWeightedRows(const HeadStep& at, int32_t columns, int lane, bool has_item,
                                const Matrix (&rows)[kSums], const Matrix (&outputs)[kSums],
                                float factor, const WeightsOf& weights_of) {
  const int32_t most_steps = GreaterOfWarp(at.steps);
  for (int32_t first = 0; first < columns; first += kColumnsOfLane * kRowLanes) {
    float sums[kSums][kColumnsOfLane] = {};
    for (int32_t block = 0; block < most_steps; block += kRowLanes) {
      float weights[kSums] = {};
      if (block + lane < at.steps) weights_of(block + lane, weights);
      for (int j = 0; j < kRowLanes; ++j) {
        for (int k = 0; k < kSums; ++k) {
          const float weight = OfLane(weights[k], j);
          if (block + j >= at.steps) continue;
          const float* const row = RowOf(rows[k], at.begin + block + j) + at.first_column;
          for (int i = 0; i < kColumnsOfLane; ++i) {
            const int32_t c = first + i * kRowLanes + lane;
            if (c < columns) sums[k][i] = fmaf(weight, row[c], sums[k][i]);
          }
        }
      }
    }
    for (int k = 0; has_item && k < kSums; ++k) {
      float* const to = RowOf(outputs[k], at.t) + at.first_column;
      for (int i = 0; i < kColumnsOfLane; ++i) {
        const int32_t c = first + i * kRowLanes + lane;
        if (c < columns) to[c] = sums[k][i] * factor;
      }
    }
  }
}

struct AttentionInputs {
  Ranges ranges;
  int32_t heads, columns;  // of a head
  float scale;
  Matrix q, k, v, y, statistics;

  __device__ const float* Of(const Matrix& matrix, const HeadStep& at, int64_t t) const {
    return RowOf(matrix, t) + at.first_column;
  }
  __device__ float Score(const HeadStep& at, int64_t query, int64_t key) const {
    return ChainDot(Of(q, at, query), Of(k, at, key), columns) * scale;
  }
};

struct AttentionItem {
  AttentionInputs in;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const AttentionInputs& a = in;
    const HeadStep at(a.ranges, i, has_item, a.heads, a.columns);
    const auto score = [&](int32_t s) { return a.Score(at, at.t, at.begin + s); };
    float most = at.is_step ? score(0) : 0.0f;
    for (int32_t s = lane; s < at.steps; s += kRowLanes) most = GreaterOf(most, score(s));
    most = GreatestOfLanes(most, lane);
    const auto e = [&](int32_t s) { return ExpOfNonPositive(score(s) - most); };
    const float sum = SumOfLanes(at.steps, lane, e);
    const float inverse = at.is_step ? 1 / sum : 0.0f;
    SumWeightedRows<1>(at, a.columns, lane, has_item, {a.v}, {a.y}, inverse,
                       [&](int32_t s, float* weights) { weights[0] = e(s); });
    if (!has_item || lane > 0) return;
    RowOf(a.statistics, at.t)[at.h] = most;
    RowOf(a.statistics, at.t)[a.heads + at.h] = inverse;
  }
};

struct AttentionGradients {
  AttentionInputs in;
  Matrix y_gradient, q_gradient, k_gradient, v_gradient;

  // What the gradients of a query's shares lose.
  __device__ float Dot(const HeadStep& at, int64_t query) const {
    return ChainDot(in.Of(y_gradient, at, query), in.Of(in.y, at, query), in.columns);
  }
  __device__ float Share(const HeadStep& at, int64_t query, int64_t key) const {
    const float* const statistics = RowOf(in.statistics, query) + at.h;
    return ExpOfNonPositive(in.Score(at, query, key) - statistics[0]) * statistics[in.heads];
  }
  __device__ float ScoreGradient(const HeadStep& at, int64_t query, int64_t key, float share,
                                 float dot) const {
    const float gradient = ChainDot(in.Of(y_gradient, at, query), in.Of(in.v, at, key), in.columns);
    return SoftmaxGradient(share, gradient, dot) * in.scale;
  }
};

// An item is a query.
struct QueryGradientItem {
  AttentionGradients gradients;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const AttentionGradients& g = gradients;
    const HeadStep at(g.in.ranges, i, has_item, g.in.heads, g.in.columns);
    const float dot = at.is_step ? g.Dot(at, at.t) : 0.0f;
    SumWeightedRows<1>(at, g.in.columns, lane, has_item, {g.in.k}, {g.q_gradient}, 1.0f,
                       [&](int32_t s, float* weights) {
                         const int64_t key = at.begin + s;
                         const float share = g.Share(at, at.t, key);
                         weights[0] = g.ScoreGradient(at, at.t, key, share, dot);
                       });
  }
};

// An item is a key and its value.
struct KeyGradientItem {
  AttentionGradients gradients;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const AttentionGradients& g = gradients;
    const HeadStep at(g.in.ranges, i, has_item, g.in.heads, g.in.columns);
    SumWeightedRows<2>(at, g.in.columns, lane, has_item, {g.in.q, g.y_gradient},
                       {g.k_gradient, g.v_gradient}, 1.0f, [&](int32_t s, float* weights) {
                         const int64_t query = at.begin + s;
                         const float share = g.Share(at, query, at.t);
                         weights[0] = g.ScoreGradient(at, query, at.t, share, g.Dot(at, query));
                         weights[1] = share;
                       });
  }
};

AttentionInputs InputsOf(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k, Matrix v,
                         Matrix y, Matrix statistics) {
  const int32_t columns = q.cols / heads;
  return {Ranges(ranges), heads, columns, AttentionScale(columns), q, k, v, y, statistics};
}

}  // namespace

cudaError_t LaunchRepeat(const StepRanges& ranges, Matrix x, Matrix y, cudaStream_t stream) {
  return LaunchElements(y, RepeatElement{Ranges(ranges), x, y}, stream);
}

cudaError_t LaunchStepPool(const StepRanges& ranges, StepPooling pooling, Matrix x, Matrix y,
                           cudaStream_t stream) {
  return LaunchElements(y, StepPoolElement{Ranges(ranges), pooling, x, y}, stream);
}

cudaError_t LaunchStepPoolBackward(const StepRanges& ranges, StepPooling pooling, Matrix y_gradient,
                                   Matrix x_gradient, cudaStream_t stream) {
  return LaunchElements(
      x_gradient, StepPoolGradientElement{Ranges(ranges), pooling, y_gradient, x_gradient}, stream);
}

cudaError_t LaunchPoolWeighted(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y,
                               cudaStream_t stream) {
  return LaunchElements(y, PoolWeightedElement{Ranges(ranges), weights, x, y}, stream);
}

cudaError_t LaunchPoolWeightedBackward(const StepRanges& ranges, Matrix weights, Matrix x,
                                       Matrix y_gradient, Matrix weights_gradient,
                                       Matrix x_gradient, cudaStream_t stream) {
  return LaunchLanes(x.rows,
                     PoolWeightedGradientItem{Ranges(ranges), weights, x, y_gradient,
                                              weights_gradient, x_gradient},
                     stream);
}

cudaError_t LaunchCompare(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y,
                          cudaStream_t stream) {
  return LaunchElements(x, CompareElement{Ranges(ranges), queries, x, y}, stream);
}

cudaError_t LaunchCompareBackward(const StepRanges& ranges, Matrix queries, Matrix x,
                                  Matrix y_gradient, Matrix query_gradients, bool adds,
                                  Matrix x_gradient, cudaStream_t stream) {
  if (query_gradients.data != nullptr) {
    const cudaError_t error = LaunchElements(
        query_gradients,
        CompareQueryGradientElement{Ranges(ranges), x, y_gradient, query_gradients}, stream);
    if (error != cudaSuccess) return error;
  }
  if (x_gradient.data == nullptr) return cudaSuccess;
  return LaunchElements(
      x_gradient, CompareStepGradientElement{Ranges(ranges), queries, y_gradient, adds, x_gradient},
      stream);
}

cudaError_t LaunchStepSoftmaxForward(const StepRanges& ranges, bool without_last, Matrix x,
                                     Matrix y, cudaStream_t stream) {
  const Ranges of_samples(ranges);
  const cudaError_t error = LaunchLanes(int64_t{of_samples.batch} * x.cols,
                                        StepSoftmaxItem{of_samples, without_last, x, y}, stream);
  return error != cudaSuccess ? error : LaunchClearBeyond(ranges, y, stream);
}

cudaError_t LaunchStepSoftmaxBackward(const StepRanges& ranges, Matrix y, Matrix y_gradient,
                                      Matrix x_gradient, cudaStream_t stream) {
  const Ranges of_samples(ranges);
  const cudaError_t error =
      LaunchLanes(int64_t{of_samples.batch} * y.cols,
                  StepSoftmaxGradientItem{of_samples, y, y_gradient, x_gradient}, stream);
  return error != cudaSuccess ? error : LaunchClearBeyond(ranges, x_gradient, stream);
}

cudaError_t LaunchClearLast(const StepRanges& ranges, Matrix x, Matrix y, cudaStream_t stream) {
  return LaunchElements(y, ClearLastElement{Ranges(ranges), x, y}, stream);
}

cudaError_t LaunchStepDropout(const StepRanges& ranges, const DropoutMask& mask,
                              const SamplePlace* place, Matrix x, Matrix y, cudaStream_t stream) {
  return LaunchElements(y, StepDropoutElement{Ranges(ranges), mask, place, x, y}, stream);
}

cudaError_t LaunchAttentionForward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k,
                                   Matrix v, Matrix y, Matrix statistics, cudaStream_t stream) {
  return LaunchLanes(int64_t{q.rows} * heads,
                     AttentionItem{InputsOf(ranges, heads, q, k, v, y, statistics)}, stream);
}

cudaError_t LaunchAttentionBackward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k,
                                    Matrix v, Matrix y, Matrix statistics, Matrix y_gradient,
                                    Matrix q_gradient, Matrix k_gradient, Matrix v_gradient,
                                    cudaStream_t stream) {
  const AttentionGradients gradients = {InputsOf(ranges, heads, q, k, v, y, statistics), y_gradient,
                                        q_gradient, k_gradient, v_gradient};
  const int64_t items = int64_t{q.rows} * heads;
  const cudaError_t error = LaunchLanes(items, QueryGradientItem{gradients}, stream);
  return error != cudaSuccess ? error : LaunchLanes(items, KeyGradientItem{gradients}, stream);
}

cudaError_t LaunchAddPositions(const StepRanges& ranges, DeviceSpan<const float> positions,
                               Matrix x, Matrix y, cudaStream_t stream) {
  const int64_t count = positions.size / x.cols;
  return LaunchElements(y, AddPositionsElement{Ranges(ranges), positions.data, count, x, y},
                        stream);
}

cudaError_t LaunchPositionGradients(const StepRanges& ranges, Matrix y_gradient,
                                    DeviceSpan<float> gradients, float* scratch,
                                    cudaStream_t stream) {
  const Ranges of_samples(ranges);
  const auto columns = static_cast<int32_t>(gradients.size);
  return LaunchSumsOverSamples<1>(of_samples.batch, columns,
                                  PositionTerm{of_samples, columns / y_gradient.cols, y_gradient},
                                  {gradients.data}, scratch, stream);
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
