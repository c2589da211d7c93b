// The loops behind sparse_optimizer.h's RowUpdate, inline: for a caller that knows the optimizer
// and perhaps `dim` when it is compiled. The arithmetic of every optimizer stands here, once.
//
// The same bits with any compiler, dim known or not: no FMA contraction, no reassociation, no libm
// beyond the exactly rounded sqrt.
#ifndef THERMOCLINE_COMMON_ROW_UPDATE_H_
#define THERMOCLINE_COMMON_ROW_UPDATE_H_

#include <cmath>

#include "common/sparse_optimizer.h"

namespace thermocline {

// UpdateRow<kind>: see RowUpdate in sparse_optimizer.h.
template <OptimizerKind kKind>
inline void UpdateRow(const UpdateScalars& scalars, const float* __restrict gradient,
                      float* __restrict weights, float* __restrict slots, int dim);

template <>
inline void UpdateRow<OptimizerKind::kSgd>(const UpdateScalars& scalars,
                                           const float* __restrict gradient,
                                           float* __restrict weights, float* __restrict, int dim) {
  const float rate = scalars.learning_rate;
  for (int i = 0; i < dim; ++i) weights[i] -= rate * gradient[i];
}

// Duchi, Hazan, Singer (JMLR 2011), diagonal form.
template <>
inline void UpdateRow<OptimizerKind::kAdagrad>(const UpdateScalars& scalars,
                                               const float* __restrict gradient,
                                               float* __restrict weights, float* __restrict slots,
                                               int dim) {
  const float rate = scalars.learning_rate;
  const float epsilon = scalars.epsilon;
  for (int i = 0; i < dim; ++i) {
    const float sum = slots[i] + gradient[i] * gradient[i];
    slots[i] = sum;
    weights[i] -= rate * gradient[i] / (std::sqrt(sum) + epsilon);
  }
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

// One accumulator a row, of the mean squared gradient (Gupta et al. 2014; FBGEMM's
// rowwise_adagrad).
template <>
inline void UpdateRow<OptimizerKind::kRowWiseAdagrad>(const UpdateScalars& scalars,
                                                      const float* __restrict gradient,
                                                      float* __restrict weights,
                                                      float* __restrict slots, int dim) {
  const float sum = slots[0] + SumOfSquares(gradient, dim) / static_cast<float>(dim);
  slots[0] = sum;
  const float rate = scalars.learning_rate / (std::sqrt(sum) + scalars.epsilon);
  for (int i = 0; i < dim; ++i) weights[i] -= rate * gradient[i];
}

// Kingma, Ba (ICLR 2015), lazily: a row's moments move only in steps that touch it.
template <>
inline void UpdateRow<OptimizerKind::kAdam>(const UpdateScalars& scalars,
                                            const float* __restrict gradient,
                                            float* __restrict weights, float* __restrict slots,
                                            int dim) {
  const UpdateScalars s = scalars;
  float* __restrict first = slots;
  float* __restrict second = slots + dim;
  for (int i = 0; i < dim; ++i) {
    const float g = gradient[i];
    const float m = s.beta1 * first[i] + s.one_minus_beta1 * g;
    const float v = s.beta2 * second[i] + s.one_minus_beta2 * (g * g);
    first[i] = m;
    second[i] = v;
    weights[i] -= s.learning_rate * m / (std::sqrt(v) / s.sqrt_bias2 + s.epsilon);
  }
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_ROW_UPDATE_H_
