// The arithmetic of the optimizers, and the only place that has it. The loops of
// sparse_optimizer.h's RowUpdate are inline here, for callers that know the optimizer and perhaps
// `dim` when they are compiled. The GPU's kernels call the functions of one element.
//
// The bits are the same with any compiler, dim known or not: there is no FMA contraction, no
// reassociation, and no libm beyond the exactly rounded sqrt.
#ifndef THERMOCLINE_COMMON_MATH_ROW_UPDATE_H_
#define THERMOCLINE_COMMON_MATH_ROW_UPDATE_H_

#include <cmath>

#include "common/base/host_device.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {

// The functions of one element update one weight and its optimizer state, if the optimizer has any.

THERMOCLINE_HOST_DEVICE inline void DescendElement(float rate, float gradient, float* weight) {
  *weight -= rate * gradient;
}

// Duchi, Hazan, Singer (JMLR 2011), diagonal form.
THERMOCLINE_HOST_DEVICE inline void AdagradElement(float rate, float epsilon, float gradient,
                                                   float* weight, float* sum_of_squares) {
  const float sum = *sum_of_squares + gradient * gradient;
  *sum_of_squares = sum;
  *weight -= rate * gradient / (std::sqrt(sum) + epsilon);
}

// Row-wise Adagrad has one accumulator a row, which sums the mean squared gradients (Gupta et al.
// 2014; FBGEMM's rowwise_adagrad). RowWiseAccumulator returns it after this step; RowWiseRate
// returns the rate of all the row's weights, given that.
THERMOCLINE_HOST_DEVICE inline float RowWiseAccumulator(float before, float sum_of_squares,
                                                        int dim) {
  return before + sum_of_squares / static_cast<float>(dim);
}
THERMOCLINE_HOST_DEVICE inline float RowWiseRate(const UpdateScalars& scalars, float accumulator) {
  return scalars.learning_rate / (std::sqrt(accumulator) + scalars.epsilon);
}

// Kingma, Ba (ICLR 2015), lazily: a row's moments move only in steps that touch it.
THERMOCLINE_HOST_DEVICE inline void AdamElement(const UpdateScalars& s, float gradient,
                                                float* weight, float* first, float* second) {
  const float m = s.beta1 * *first + s.one_minus_beta1 * gradient;
  const float v = s.beta2 * *second + s.one_minus_beta2 * (gradient * gradient);
  *first = m;
  *second = v;
  *weight -= s.learning_rate * m / (std::sqrt(v) / s.sqrt_bias2 + s.epsilon);
}

// UpdateRow<kind>: see RowUpdate in sparse_optimizer.h.
template <OptimizerKind kKind>
inline void UpdateRow(const UpdateScalars& scalars, const float* __restrict gradient,
                      float* __restrict weights, float* __restrict state, int dim);

template <>
inline void UpdateRow<OptimizerKind::kSgd>(const UpdateScalars& scalars,
                                           const float* __restrict gradient,
                                           float* __restrict weights, float* __restrict, int dim) {
  const float rate = scalars.learning_rate;
  for (int i = 0; i < dim; ++i) DescendElement(rate, gradient[i], &weights[i]);
}

template <>
inline void UpdateRow<OptimizerKind::kAdagrad>(const UpdateScalars& scalars,
                                               const float* __restrict gradient,
                                               float* __restrict weights, float* __restrict state,
                                               int dim) {
  const float rate = scalars.learning_rate;
  const float epsilon = scalars.epsilon;
  for (int i = 0; i < dim; ++i) AdagradElement(rate, epsilon, gradient[i], &weights[i], &state[i]);
}

// The sum of squares has one canonical order: 16 lanes, then a tree.
inline float SumOfSquares(const float* gradient, int dim) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= dim; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += gradient[i + lane] * gradient[i + lane];
  }
  for (int lane = 0; lane < dim % 16; ++lane) {
    lanes[lane] += gradient[i + lane] * gradient[i + lane];
  }
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

template <>
inline void UpdateRow<OptimizerKind::kRowWiseAdagrad>(const UpdateScalars& scalars,
                                                      const float* __restrict gradient,
                                                      float* __restrict weights,
                                                      float* __restrict state, int dim) {
  state[0] = RowWiseAccumulator(state[0], SumOfSquares(gradient, dim), dim);
  const float rate = RowWiseRate(scalars, state[0]);
  for (int i = 0; i < dim; ++i) DescendElement(rate, gradient[i], &weights[i]);
}

template <>
inline void UpdateRow<OptimizerKind::kAdam>(const UpdateScalars& scalars,
                                            const float* __restrict gradient,
                                            float* __restrict weights, float* __restrict state,
                                            int dim) {
  const UpdateScalars s = scalars;
  float* __restrict first = state;
  float* __restrict second = state + dim;
  for (int i = 0; i < dim; ++i) AdamElement(s, gradient[i], &weights[i], &first[i], &second[i]);
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_ROW_UPDATE_H_
