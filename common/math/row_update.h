// The updates of rows on the CPU, inline for callers that know the optimizer and perhaps `dim` when
// they are compiled. optimizer_rules.h has their arithmetic. Their bits are the same with any
// compiler, dim known or not.
#ifndef THERMOCLINE_COMMON_MATH_ROW_UPDATE_H_
#define THERMOCLINE_COMMON_MATH_ROW_UPDATE_H_

#include "common/math/optimizer_rules.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {

// The sum of squares of value(i) for i < dim has one canonical order: 16 lanes, then a tree.
template <typename Value>
inline float SumOfSquaresOf(int dim, Value value) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= dim; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += value(i + lane) * value(i + lane);
  }
  for (int lane = 0; lane < dim % 16; ++lane) {
    lanes[lane] += value(i + lane) * value(i + lane);
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}
inline float SumOfSquares(const float* values, int dim) {
  return SumOfSquaresOf(dim, [values](int i) { return values[i]; });
}

// The rule for `dim` weights. gradient(i): the gradient of weight i as it is before its update.
template <OptimizerKind kKind, typename Gradient>
inline void ApplyRule(const UpdateScalars& scalars, Gradient gradient, float* __restrict weights,
                      float* __restrict state, int dim) {
  using Rule = OptimizerRule<kKind>;
  const UpdateScalars s = scalars;
  float rate = s.learning_rate;
  if (Rule::kStatesPerRow > 0) {
    if (dim == 0) return;
    state[0] = RowWiseAccumulator(state[0], SumOfSquaresOf(dim, gradient), dim);
    rate = RowWiseRate(s, state[0]);
  }
  // Places of states that the rule doesn't have are never used.
  float* __restrict first = state;
  float* __restrict second = Rule::kStatesPerWeight > 1 ? state + dim : state;
  constexpr int kFirst = Rule::kStatesPerWeight > 0 ? 1 : 0;
  constexpr int kSecond = Rule::kStatesPerWeight > 1 ? 1 : 0;
  // GCC unrolls a short loop of known length whole, and then divides one number after the other.
#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__)
#pragma GCC unroll 1
#endif
  for (int i = 0; i < dim; ++i) {
    Rule::Update(s, rate, gradient(i), &weights[i], first + kFirst * i, second + kSecond * i);
  }
}

// Updates weights of one optimizer. kChanges: scalars.changes_gradients(), or there is a `scale`,
// which clipped values are multiplied with.
template <OptimizerKind kKind, bool kChanges = false>
inline void UpdateWeights(const UpdateScalars& scalars, const float* __restrict gradient,
                          uint32_t lookups, float* __restrict weights, float* __restrict state,
                          int dim, float scale = 1) {
  if (!kChanges) {
    return ApplyRule<kKind>(
        scalars, [gradient](int i) { return gradient[i]; }, weights, state, dim);
  }
  if (scalars.clip_norm > 0 || scalars.has_cow_clip()) {
    const float squares =
        SumOfSquaresOf(dim, [&](int i) { return ClipValue(scalars, gradient[i]); });
    scale *= ClipScale(scalars, lookups, squares,
                       scalars.has_cow_clip() ? SumOfSquares(weights, dim) : 0.0f);
  }
  ApplyRule<kKind>(
      scalars,
      [&](int i) { return ClippedAndDecayed<kKind>(scalars, scale, gradient[i], weights[i]); },
      weights, state, dim);
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_ROW_UPDATE_H_
