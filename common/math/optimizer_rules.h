// The arithmetic of the optimizers, element by element, and the only place that has it:
// row_update.h has the loops of the CPU, and the GPU's kernels call these functions themselves.
//
// An optimizer is one OptimizerRule, a name in OptimizerKind, a line of VisitOptimizer, and its
// fields (sparse_optimizer.cc). All else follows: servers, devices, checkpoints.
//
// The bits are the same with any compiler: there is no FMA contraction, no reassociation, and no
// libm beyond the exactly rounded sqrt.
#ifndef THERMOCLINE_COMMON_MATH_OPTIMIZER_RULES_H_
#define THERMOCLINE_COMMON_MATH_OPTIMIZER_RULES_H_

#include <cmath>
#include <type_traits>

#include "common/base/host_device.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {

// The rules
// ------------------------------------------------------------------------------------------------

// A rule has
//   kStatesPerWeight  floats of state for each weight, 0 to 2: those of all weights of a row stand
//                     one after the other, first before second
//   kStatesPerRow     1: one float of state for the whole row (RowWiseAccumulator)
//   kAccumulates      whether the first of these states begins with initial_accumulator; all
//                     others begin at 0
//   Update            updates one weight and its state. rate: s.learning_rate, or with
//                     kStatesPerRow what RowWiseRate gives. first, second: the weight's state,
//                     where it has some.
template <OptimizerKind kKind>
struct OptimizerRule;

template <>
struct OptimizerRule<OptimizerKind::kSgd> {
  static constexpr int kStatesPerWeight = 0, kStatesPerRow = 0;
  static constexpr bool kAccumulates = false;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars&, float rate, float gradient,
                                             float* weight, float*, float*) {
    *weight -= rate * gradient;
  }
};

// Duchi, Hazan, Singer (JMLR 2011), diagonal form.
template <>
struct OptimizerRule<OptimizerKind::kAdagrad> {
  static constexpr int kStatesPerWeight = 1, kStatesPerRow = 0;
  static constexpr bool kAccumulates = true;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars& s, float rate, float gradient,
                                             float* weight, float* sum_of_squares, float*) {
    const float sum = *sum_of_squares + gradient * gradient;
    *sum_of_squares = sum;
    *weight -= rate * gradient / (std::sqrt(sum) + s.epsilon);
  }
};

// Row-wise Adagrad has one accumulator a row, which sums the mean squared gradients (Gupta et al.
// 2014; FBGEMM's rowwise_adagrad). RowWiseAccumulator returns it after this step; RowWiseRate
// returns the rate of all the row's weights, given that.
template <>
struct OptimizerRule<OptimizerKind::kRowWiseAdagrad> {
  static constexpr int kStatesPerWeight = 0, kStatesPerRow = 1;
  static constexpr bool kAccumulates = true;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars&, float rate, float gradient,
                                             float* weight, float*, float*) {
    *weight -= rate * gradient;
  }
};
THERMOCLINE_HOST_DEVICE inline float RowWiseAccumulator(float before, float sum_of_squares,
                                                        int dim) {
  return before + sum_of_squares / static_cast<float>(dim);
}
THERMOCLINE_HOST_DEVICE inline float RowWiseRate(const UpdateScalars& scalars, float accumulator) {
  return scalars.learning_rate / (std::sqrt(accumulator) + scalars.epsilon);
}

// Kingma, Ba (ICLR 2015), lazily: a row's moments move only in steps that touch it.
template <>
struct OptimizerRule<OptimizerKind::kAdam> {
  static constexpr int kStatesPerWeight = 2, kStatesPerRow = 0;
  static constexpr bool kAccumulates = false;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars& s, float rate, float gradient,
                                             float* weight, float* first, float* second) {
    const float m = s.beta1 * *first + (1.0f - s.beta1) * gradient;
    const float v = s.beta2 * *second + (1.0f - s.beta2) * (gradient * gradient);
    *first = m;
    *second = v;
    *weight -= rate * m / (std::sqrt(v) / s.sqrt_bias2 + s.epsilon);
  }
};

// Loshchilov, Hutter (ICLR 2019). As torch.optim.AdamW, the weight decays before Adam's step.
template <>
struct OptimizerRule<OptimizerKind::kAdamW> {
  static constexpr int kStatesPerWeight = 2, kStatesPerRow = 0;
  static constexpr bool kAccumulates = false;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars& s, float rate, float gradient,
                                             float* weight, float* first, float* second) {
    *weight -= s.weight_decay * *weight;
    OptimizerRule<OptimizerKind::kAdam>::Update(s, rate, gradient, weight, first, second);
  }
};

// As torch.optim.SGD with momentum and no dampening.
template <>
struct OptimizerRule<OptimizerKind::kMomentum> {
  static constexpr int kStatesPerWeight = 1, kStatesPerRow = 0;
  static constexpr bool kAccumulates = false;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars& s, float rate, float gradient,
                                             float* weight, float* velocity, float*) {
    const float v = s.beta1 * *velocity + gradient;
    *velocity = v;
    *weight -= rate * (s.nesterov ? gradient + s.beta1 * v : v);
  }
};

// McMahan et al. (KDD 2013), as TensorFlow's ApplyFtrl with the learning rate's power -0.5. The
// linear term is 0 at first, whatever the weight is: the first update moves the weight to the
// closed form, and so does TensorFlow's. With a rate of 0 nothing changes.
template <>
struct OptimizerRule<OptimizerKind::kFtrl> {
  static constexpr int kStatesPerWeight = 2, kStatesPerRow = 0;
  static constexpr bool kAccumulates = true;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars& s, float rate, float gradient,
                                             float* weight, float* sum_of_squares, float* linear) {
    if (rate == 0) return;
    const float sum = *sum_of_squares + gradient * gradient;
    const float root = std::sqrt(sum);
    const float sigma = (root - std::sqrt(*sum_of_squares)) / rate;
    const float z = *linear + (gradient - sigma * *weight);
    const float size = z < 0 ? -z : z;
    const float shrunk = z < 0 ? size - s.l1 : s.l1 - size;
    *sum_of_squares = sum;
    *linear = z;
    *weight = size > s.l1 ? shrunk / (root / rate + s.twice_l2) : 0.0f;
  }
};

// Tieleman, Hinton (2012), as torch.optim.RMSprop without momentum.
template <>
struct OptimizerRule<OptimizerKind::kRmsProp> {
  static constexpr int kStatesPerWeight = 1, kStatesPerRow = 0;
  static constexpr bool kAccumulates = false;
  THERMOCLINE_HOST_DEVICE static void Update(const UpdateScalars& s, float rate, float gradient,
                                             float* weight, float* mean_square, float*) {
    const float v = s.beta2 * *mean_square + (1.0f - s.beta2) * (gradient * gradient);
    *mean_square = v;
    *weight -= rate * gradient / (std::sqrt(v) + s.epsilon);
  }
};

// Returns visit(std::integral_constant<OptimizerKind, kind>()).
#ifdef __CUDACC__
#pragma nv_exec_check_disable
#endif
template <typename Visit>
THERMOCLINE_HOST_DEVICE inline auto VisitOptimizer(OptimizerKind kind, Visit&& visit) {
  switch (kind) {
    case OptimizerKind::kSgd:
      break;
    case OptimizerKind::kAdagrad:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kAdagrad>());
    case OptimizerKind::kRowWiseAdagrad:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kRowWiseAdagrad>());
    case OptimizerKind::kAdam:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kAdam>());
    case OptimizerKind::kMomentum:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kMomentum>());
    case OptimizerKind::kFtrl:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kFtrl>());
    case OptimizerKind::kRmsProp:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kRmsProp>());
    case OptimizerKind::kAdamW:
      return visit(std::integral_constant<OptimizerKind, OptimizerKind::kAdamW>());
  }
  return visit(std::integral_constant<OptimizerKind, OptimizerKind::kSgd>());
}

// What happens to a gradient before the rule
// ------------------------------------------------------------------------------------------------

THERMOCLINE_HOST_DEVICE inline float ClipValue(const UpdateScalars& s, float gradient) {
  if (!(s.clip_value > 0)) return gradient;
  return gradient > s.clip_value    ? s.clip_value
         : gradient < -s.clip_value ? -s.clip_value
                                    : gradient;
}

// What clipped values of a row are multiplied with, given the sums of their squares and, for
// cow_clip, of the weights'.
THERMOCLINE_HOST_DEVICE inline float ClipScale(const UpdateScalars& s, uint32_t lookups,
                                               float gradient_squares, float weight_squares) {
  const float length = std::sqrt(gradient_squares);
  float most = length;
  if (s.clip_norm > 0 && s.clip_norm < most) most = s.clip_norm;
  if (s.has_cow_clip()) {
    const float of_row = s.cow_clip_ratio * std::sqrt(weight_squares);
    const float bound =
        static_cast<float>(lookups) * (of_row > s.cow_clip_floor ? of_row : s.cow_clip_floor);
    if (bound < most) most = bound;
  }
  return most < length ? most / length : 1.0f;
}

// The gradient that the rule gets.
template <OptimizerKind kKind>
THERMOCLINE_HOST_DEVICE inline float ClippedAndDecayed(const UpdateScalars& s, float scale,
                                                       float gradient, float weight) {
  const float clipped = scale * ClipValue(s, gradient);
  return kKind == OptimizerKind::kAdamW ? clipped : clipped + s.weight_decay * weight;
}

// The sum of squares of all clipped values has one canonical order: SumOfSquares of each block of
// kDenseBlockFloats, in float; then these in kGlobalLanes lanes and a tree, in double.
inline constexpr int kGlobalLanes = 256;

// What clipped values are multiplied with.
THERMOCLINE_HOST_DEVICE inline float GlobalClipScale(float clip_global_norm,
                                                     double sum_of_squares) {
  const double length = std::sqrt(sum_of_squares);
  return length > clip_global_norm ? static_cast<float>(clip_global_norm / length) : 1.0f;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_OPTIMIZER_RULES_H_
