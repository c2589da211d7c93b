#include "common/math/sparse_optimizer.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/math/row_update.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

constexpr float kMinEpsilon = 1e-20f;

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
      return absl::InvalidArgumentError(
          "no optimizer is set (sgd, adagrad, row_wise_adagrad or adam)");
  }
  if (proto.has_learning_rate_scale()) config.learning_rate_scale = proto.learning_rate_scale();
  RETURN_IF_ERROR(RequireRange("learning_rate_scale", config.learning_rate_scale, 0, 1e6f));
  RETURN_IF_ERROR(RequireRange("initial_accumulator", config.initial_accumulator, 0, 1e30f));
  // With epsilon 0, a gradient of 0 would divide 0 by 0.
  RETURN_IF_ERROR(RequireRange("epsilon", config.epsilon, kMinEpsilon, 1));
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

int StateFloats(const OptimizerConfig& config, int dim) {
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

void InitState(const OptimizerConfig& config, absl::Span<float> state) {
  std::fill(state.begin(), state.end(),
            config.kind == OptimizerKind::kAdam ? 0.0f : config.initial_accumulator);
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
      return UpdateRow<OptimizerKind::kSgd>;
    case OptimizerKind::kAdagrad:
      return UpdateRow<OptimizerKind::kAdagrad>;
    case OptimizerKind::kRowWiseAdagrad:
      return UpdateRow<OptimizerKind::kRowWiseAdagrad>;
    case OptimizerKind::kAdam:
      return UpdateRow<OptimizerKind::kAdam>;
  }
  CHECK(false);
}

}  // namespace thermocline
