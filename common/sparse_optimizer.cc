#include "common/sparse_optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/status_macros.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

void SgdUpdate(const UpdateScalars& s, const float* __restrict gradient, float* __restrict weights,
               float*, int dim) {
  for (int i = 0; i < dim; ++i) weights[i] -= s.learning_rate * gradient[i];
}

// Duchi, Hazan, Singer (JMLR 2011), diagonal form.
void AdagradUpdate(const UpdateScalars& s, const float* __restrict gradient,
                   float* __restrict weights, float* __restrict slots, int dim) {
  for (int i = 0; i < dim; ++i) {
    const float sum = slots[i] + gradient[i] * gradient[i];
    slots[i] = sum;
    weights[i] -= s.learning_rate * gradient[i] / (std::sqrt(sum) + s.epsilon);
  }
}

// The sum of squares has one canonical order: 16 lanes, then a tree.
float SumOfSquares(const float* gradient, int dim) {
  float lanes[16] = {};
  int i = 0;
  for (; i + 16 <= dim; i += 16) {
    for (int lane = 0; lane < 16; ++lane) lanes[lane] += gradient[i + lane] * gradient[i + lane];
  }
  for (int lane = 0; i < dim; ++i, ++lane) lanes[lane] += gradient[i] * gradient[i];
  for (int half = 8; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

// One accumulator a row, of the mean squared gradient (Gupta et al. 2014; FBGEMM's rowwise_adagrad).
void RowWiseAdagradUpdate(const UpdateScalars& s, const float* __restrict gradient,
                          float* __restrict weights, float* __restrict slots, int dim) {
  const float sum = slots[0] + SumOfSquares(gradient, dim) / static_cast<float>(dim);
  slots[0] = sum;
  const float rate = s.learning_rate / (std::sqrt(sum) + s.epsilon);
  for (int i = 0; i < dim; ++i) weights[i] -= rate * gradient[i];
}

// Kingma, Ba (ICLR 2015), lazily: a row's moments move only in steps that touch it.
void AdamUpdate(const UpdateScalars& s, const float* __restrict gradient, float* __restrict weights,
                float* __restrict slots, int dim) {
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

// base^exponent by squaring: the same bits everywhere, which libm's pow doesn't promise.
double IntegerPower(double base, int64_t exponent) {
  double result = 1;
  for (; exponent > 0; exponent >>= 1, base *= base) {
    if (exponent & 1) result *= base;
  }
  return result;
}

absl::Status RequireRange(absl::string_view name, float value, float low, float high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be in [", low, ", ", high, "]"));
}

template <typename AdagradProto>
void ReadAdagrad(const AdagradProto& proto, OptimizerConfig* config) {
  config->initial_accumulator = proto.initial_accumulator();
  if (proto.has_epsilon()) config->epsilon = proto.epsilon();
}

}  // namespace

absl::string_view OptimizerKindName(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return "sgd";
    case OptimizerKind::kAdagrad:
      return "adagrad";
    case OptimizerKind::kRowWiseAdagrad:
      return "row_wise_adagrad";
    case OptimizerKind::kAdam:
      return "adam";
  }
  CHECK(false);
}

absl::StatusOr<OptimizerConfig> OptimizerFromProto(const Optimizer& proto) {
  OptimizerConfig config;
  switch (proto.kind_case()) {
    case Optimizer::kSgd:
      config.kind = OptimizerKind::kSgd;
      break;
    case Optimizer::kAdagrad:
      config.kind = OptimizerKind::kAdagrad;
      ReadAdagrad(proto.adagrad(), &config);
      break;
    case Optimizer::kRowWiseAdagrad:
      config.kind = OptimizerKind::kRowWiseAdagrad;
      ReadAdagrad(proto.row_wise_adagrad(), &config);
      break;
    case Optimizer::kAdam:
      config.kind = OptimizerKind::kAdam;
      config.epsilon = proto.adam().has_epsilon() ? proto.adam().epsilon() : 1e-8f;
      if (proto.adam().has_beta1()) config.beta1 = proto.adam().beta1();
      if (proto.adam().has_beta2()) config.beta2 = proto.adam().beta2();
      break;
    case Optimizer::KIND_NOT_SET:
      return absl::InvalidArgumentError("no optimizer is set (sgd, adagrad, row_wise_adagrad or adam)");
  }
  if (proto.has_learning_rate_scale()) config.learning_rate_scale = proto.learning_rate_scale();
  RETURN_IF_ERROR(RequireRange("learning_rate_scale", config.learning_rate_scale, 0, 1e6f));
  RETURN_IF_ERROR(RequireRange("initial_accumulator", config.initial_accumulator, 0, 1e30f));
  RETURN_IF_ERROR(RequireRange("epsilon", config.epsilon, 0, 1));
  RETURN_IF_ERROR(RequireRange("beta1", config.beta1, 0, 0.9999999f));
  RETURN_IF_ERROR(RequireRange("beta2", config.beta2, 0, 0.9999999f));
  return config;
}

Optimizer OptimizerToProto(const OptimizerConfig& config) {
  Optimizer proto;
  switch (config.kind) {
    case OptimizerKind::kSgd:
      proto.mutable_sgd();
      break;
    case OptimizerKind::kAdagrad:
      proto.mutable_adagrad()->set_initial_accumulator(config.initial_accumulator);
      proto.mutable_adagrad()->set_epsilon(config.epsilon);
      break;
    case OptimizerKind::kRowWiseAdagrad:
      proto.mutable_row_wise_adagrad()->set_initial_accumulator(config.initial_accumulator);
      proto.mutable_row_wise_adagrad()->set_epsilon(config.epsilon);
      break;
    case OptimizerKind::kAdam:
      proto.mutable_adam()->set_beta1(config.beta1);
      proto.mutable_adam()->set_beta2(config.beta2);
      proto.mutable_adam()->set_epsilon(config.epsilon);
      break;
  }
  proto.set_learning_rate_scale(config.learning_rate_scale);
  return proto;
}

int SlotFloats(const OptimizerConfig& config, int dim) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return 0;
    case OptimizerKind::kAdagrad:
      return dim;
    case OptimizerKind::kRowWiseAdagrad:
      return 1;
    case OptimizerKind::kAdam:
      return 2 * dim;
  }
  CHECK(false);
}

void InitSlots(const OptimizerConfig& config, absl::Span<float> slots) {
  std::fill(slots.begin(), slots.end(), config.kind == OptimizerKind::kAdam ? 0.0f : config.initial_accumulator);
}

UpdateScalars ScalarsForStep(const OptimizerConfig& config, float job_learning_rate, Step step) {
  UpdateScalars scalars;
  scalars.learning_rate = job_learning_rate * config.learning_rate_scale;
  scalars.epsilon = config.epsilon;
  if (config.kind == OptimizerKind::kAdam) {
    const int64_t t = step.value() + 1;
    scalars.beta1 = config.beta1;
    scalars.one_minus_beta1 = 1.0f - config.beta1;
    scalars.beta2 = config.beta2;
    scalars.one_minus_beta2 = 1.0f - config.beta2;
    scalars.learning_rate = static_cast<float>(static_cast<double>(scalars.learning_rate) /
                                               (1.0 - IntegerPower(config.beta1, t)));
    scalars.sqrt_bias2 = static_cast<float>(std::sqrt(1.0 - IntegerPower(config.beta2, t)));
  }
  return scalars;
}

RowUpdate SelectRowUpdate(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return SgdUpdate;
    case OptimizerKind::kAdagrad:
      return AdagradUpdate;
    case OptimizerKind::kRowWiseAdagrad:
      return RowWiseAdagradUpdate;
    case OptimizerKind::kAdam:
      return AdamUpdate;
  }
  CHECK(false);
}

}  // namespace thermocline
