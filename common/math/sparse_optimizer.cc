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

// How each kind's message is read into its config, and written from it. Reading fills in defaults
// and checks ranges; what a message doesn't have stays as it is.

constexpr float kMost = 1e30f;

absl::Status RequireDecay(absl::string_view name, float value) {
  if (value >= 0 && value < 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, "; it must be in [0, 1)"));
}

absl::Status Read(const Sgd&, OptimizerConfig*) { return absl::OkStatus(); }
void Write(const OptimizerConfig&, Sgd*) {}

absl::Status ReadEpsilon(bool is_set, float value, float fallback, OptimizerConfig* config) {
  config->epsilon = is_set ? value : fallback;
  // With epsilon 0, a gradient of 0 would divide 0 by 0.
  return RequireRange("epsilon", config->epsilon, kMinEpsilon, 1);
}

template <typename AdagradProto>
absl::Status ReadAdagrad(const AdagradProto& proto, OptimizerConfig* config) {
  config->initial_accumulator = proto.initial_accumulator();
  RETURN_IF_ERROR(RequireRange("initial_accumulator", config->initial_accumulator, 0, kMost));
  return ReadEpsilon(proto.has_epsilon(), proto.epsilon(), 1e-10f, config);
}
absl::Status Read(const Adagrad& proto, OptimizerConfig* config) {
  return ReadAdagrad(proto, config);
}
absl::Status Read(const RowWiseAdagrad& proto, OptimizerConfig* config) {
  return ReadAdagrad(proto, config);
}
template <typename AdagradProto>
void WriteAdagrad(const OptimizerConfig& config, AdagradProto* proto) {
  proto->set_initial_accumulator(config.initial_accumulator);
  proto->set_epsilon(config.epsilon);
}
void Write(const OptimizerConfig& config, Adagrad* proto) { WriteAdagrad(config, proto); }
void Write(const OptimizerConfig& config, RowWiseAdagrad* proto) { WriteAdagrad(config, proto); }

template <typename AdamProto>
absl::Status ReadAdam(const AdamProto& proto, OptimizerConfig* config) {
  if (proto.has_beta1()) config->beta1 = proto.beta1();
  if (proto.has_beta2()) config->beta2 = proto.beta2();
  RETURN_IF_ERROR(RequireDecay("beta1", config->beta1));
  RETURN_IF_ERROR(RequireDecay("beta2", config->beta2));
  return ReadEpsilon(proto.has_epsilon(), proto.epsilon(), 1e-8f, config);
}
absl::Status Read(const Adam& proto, OptimizerConfig* config) { return ReadAdam(proto, config); }
absl::Status Read(const AdamW& proto, OptimizerConfig* config) { return ReadAdam(proto, config); }
template <typename AdamProto>
void WriteAdam(const OptimizerConfig& config, AdamProto* proto) {
  proto->set_beta1(config.beta1);
  proto->set_beta2(config.beta2);
  proto->set_epsilon(config.epsilon);
}
void Write(const OptimizerConfig& config, Adam* proto) { WriteAdam(config, proto); }
void Write(const OptimizerConfig& config, AdamW* proto) { WriteAdam(config, proto); }

absl::Status Read(const Momentum& proto, OptimizerConfig* config) {
  config->beta1 = proto.has_momentum() ? proto.momentum() : 0.9f;
  config->nesterov = proto.nesterov();
  return RequireDecay("momentum", config->beta1);
}
void Write(const OptimizerConfig& config, Momentum* proto) {
  proto->set_momentum(config.beta1);
  proto->set_nesterov(config.nesterov);
}

absl::Status Read(const Ftrl& proto, OptimizerConfig* config) {
  config->l1 = proto.l1();
  config->l2 = proto.l2();
  config->initial_accumulator =
      proto.has_initial_accumulator() ? proto.initial_accumulator() : 0.1f;
  RETURN_IF_ERROR(RequireRange("l1", config->l1, 0, kMost));
  RETURN_IF_ERROR(RequireRange("l2", config->l2, 0, kMost));
  // The closed form divides by its root.
  return RequireRange("initial_accumulator", config->initial_accumulator, kMinEpsilon, kMost);
}
void Write(const OptimizerConfig& config, Ftrl* proto) {
  proto->set_l1(config.l1);
  proto->set_l2(config.l2);
  proto->set_initial_accumulator(config.initial_accumulator);
}

absl::Status Read(const RmsProp& proto, OptimizerConfig* config) {
  config->beta2 = proto.has_decay() ? proto.decay() : 0.99f;
  RETURN_IF_ERROR(RequireDecay("decay", config->beta2));
  return ReadEpsilon(proto.has_epsilon(), proto.epsilon(), 1e-8f, config);
}
void Write(const OptimizerConfig& config, RmsProp* proto) {
  proto->set_decay(config.beta2);
  proto->set_epsilon(config.epsilon);
}

absl::Status ReadKind(const Optimizer& proto, OptimizerConfig* config) {
  const auto read = [config](OptimizerKind kind, const auto& message) {
    config->kind = kind;
    return Read(message, config);
  };
  switch (proto.kind_case()) {
    case Optimizer::kSgd:
      return read(OptimizerKind::kSgd, proto.sgd());
    case Optimizer::kAdagrad:
      return read(OptimizerKind::kAdagrad, proto.adagrad());
    case Optimizer::kRowWiseAdagrad:
      return read(OptimizerKind::kRowWiseAdagrad, proto.row_wise_adagrad());
    case Optimizer::kAdam:
      return read(OptimizerKind::kAdam, proto.adam());
    case Optimizer::kMomentum:
      return read(OptimizerKind::kMomentum, proto.momentum());
    case Optimizer::kFtrl:
      return read(OptimizerKind::kFtrl, proto.ftrl());
    case Optimizer::kRmsProp:
      return read(OptimizerKind::kRmsProp, proto.rms_prop());
    case Optimizer::kAdamW:
      return read(OptimizerKind::kAdamW, proto.adam_w());
    case Optimizer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "no optimizer is set (sgd, adagrad, row_wise_adagrad, adam, momentum, ftrl or rms_prop)");
}

void WriteKind(const OptimizerConfig& config, Optimizer* proto) {
  switch (config.kind) {
    case OptimizerKind::kSgd:
      return Write(config, proto->mutable_sgd());
    case OptimizerKind::kAdagrad:
      return Write(config, proto->mutable_adagrad());
    case OptimizerKind::kRowWiseAdagrad:
      return Write(config, proto->mutable_row_wise_adagrad());
    case OptimizerKind::kAdam:
      return Write(config, proto->mutable_adam());
    case OptimizerKind::kMomentum:
      return Write(config, proto->mutable_momentum());
    case OptimizerKind::kFtrl:
      return Write(config, proto->mutable_ftrl());
    case OptimizerKind::kRmsProp:
      return Write(config, proto->mutable_rms_prop());
    case OptimizerKind::kAdamW:
      return Write(config, proto->mutable_adam_w());
  }
}

absl::Status ReadClipping(const Optimizer& proto, OptimizerConfig* config) {
  config->clip_value = proto.clip_value();
  config->clip_norm = proto.clip_norm();
  config->clip_global_norm = proto.clip_global_norm();
  RETURN_IF_ERROR(RequireRange("clip_value", config->clip_value, 0, kMost));
  RETURN_IF_ERROR(RequireRange("clip_norm", config->clip_norm, 0, kMost));
  RETURN_IF_ERROR(RequireRange("clip_global_norm", config->clip_global_norm, 0, kMost));
  if (!proto.has_cow_clip()) return absl::OkStatus();
  const CowClip& cow_clip = proto.cow_clip();
  config->cow_clip_ratio = cow_clip.has_ratio() ? cow_clip.ratio() : 1.0f;
  config->cow_clip_floor = cow_clip.has_floor() ? cow_clip.floor() : 1e-5f;
  RETURN_IF_ERROR(RequireRange("cow_clip.ratio", config->cow_clip_ratio, 0, kMost));
  RETURN_IF_ERROR(RequireRange("cow_clip.floor", config->cow_clip_floor, 0, kMost));
  if (config->has_cow_clip()) return absl::OkStatus();
  return absl::InvalidArgumentError("cow_clip.ratio and cow_clip.floor are 0; one must be above");
}

absl::Status OnlyFor(absl::string_view what, absl::string_view field, float value) {
  if (value == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it is for ", what, " alone"));
}
absl::Status IsOnlyFor(absl::string_view what, absl::string_view field, bool is_set) {
  if (!is_set) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is set; it is for ", what, " alone"));
}

template <OptimizerKind kKind, bool kChanges>
void UpdatePlainRow(const RowScalars& scalars, const float* gradient, uint32_t lookups,
                    float* weights, float* state, int dim) {
  UpdateWeights<kKind, kChanges>(scalars.vector, gradient, lookups, weights, state, dim);
}

void UpdateWeightsOf(const UpdateScalars& scalars, const float* gradient, uint32_t lookups,
                     float* weights, float* state, int dim) {
  VisitOptimizer(scalars.kind, [&](auto kind) {
    if (scalars.changes_gradients()) {
      UpdateWeights<kind(), true>(scalars, gradient, lookups, weights, state, dim);
    } else {
      UpdateWeights<kind(), false>(scalars, gradient, lookups, weights, state, dim);
    }
  });
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
    case OptimizerKind::kMomentum:
      return "momentum";
    case OptimizerKind::kFtrl:
      return "ftrl";
    case OptimizerKind::kRmsProp:
      return "rms_prop";
    case OptimizerKind::kAdamW:
      return "adam_w";
  }
  CHECK(false);
}

absl::StatusOr<OptimizerConfig> OptimizerFromProto(const Optimizer& proto) {
  OptimizerConfig config;
  RETURN_IF_ERROR(ReadKind(proto, &config));
  if (proto.has_learning_rate_scale()) config.learning_rate_scale = proto.learning_rate_scale();
  RETURN_IF_ERROR(RequireRange("learning_rate_scale", config.learning_rate_scale, 0, 1e6f));
  config.weight_decay = proto.weight_decay();
  RETURN_IF_ERROR(RequireRange("weight_decay", config.weight_decay, 0, 1e6f));
  RETURN_IF_ERROR(ReadClipping(proto, &config));
  return config;
}

Optimizer OptimizerToProto(const OptimizerConfig& config) {
  Optimizer proto;
  WriteKind(config, &proto);
  proto.set_learning_rate_scale(config.learning_rate_scale);
  proto.set_weight_decay(config.weight_decay);
  proto.set_clip_value(config.clip_value);
  proto.set_clip_norm(config.clip_norm);
  proto.set_clip_global_norm(config.clip_global_norm);
  if (config.has_cow_clip()) {
    proto.mutable_cow_clip()->set_ratio(config.cow_clip_ratio);
    proto.mutable_cow_clip()->set_floor(config.cow_clip_floor);
  }
  return proto;
}

absl::Status CheckForRows(const OptimizerConfig& config) {
  RETURN_IF_ERROR(IsOnlyFor("dense_optimizer", "adam_w", config.kind == OptimizerKind::kAdamW));
  return OnlyFor("dense_optimizer", "clip_global_norm", config.clip_global_norm);
}

absl::Status CheckForDense(const OptimizerConfig& config) {
  RETURN_IF_ERROR(OnlyFor("rows", "clip_norm", config.clip_norm));
  return IsOnlyFor("rows", "cow_clip", config.has_cow_clip());
}

int StateFloats(OptimizerKind kind, int dim) {
  if (dim == 0) return 0;
  return VisitOptimizer(kind, [dim](auto known) {
    using Rule = OptimizerRule<known()>;
    return Rule::kStatesPerWeight * dim + Rule::kStatesPerRow;
  });
}

int StateFloats(const RowOptimizer& optimizer, int dim) {
  if (!optimizer.has_first_order) return StateFloats(optimizer.vector.kind, dim);
  return StateFloats(optimizer.vector.kind, dim - 1) + StateFloats(optimizer.first_order.kind, 1);
}

void InitState(const RowOptimizer& optimizer, int dim, absl::Span<float> state) {
  const auto fill = [](const OptimizerConfig& config, int of, absl::Span<float> values) {
    std::fill(values.begin(), values.end(), 0.0f);
    VisitOptimizer(config.kind, [&](auto kind) {
      using Rule = OptimizerRule<kind()>;
      if (!Rule::kAccumulates || of == 0) return;
      std::fill_n(values.begin(), Rule::kStatesPerRow > 0 ? 1 : of, config.initial_accumulator);
    });
  };
  if (!optimizer.has_first_order) return fill(optimizer.vector, dim, state);
  const int vector_floats = StateFloats(optimizer.vector.kind, dim - 1);
  fill(optimizer.vector, dim - 1, state.first(vector_floats));
  fill(optimizer.first_order, 1, state.subspan(vector_floats));
}

UpdateScalars ScalarsForStep(const OptimizerConfig& config, float job_learning_rate, Step step) {
  UpdateScalars scalars;
  scalars.kind = config.kind;
  scalars.nesterov = config.nesterov;
  scalars.learning_rate = job_learning_rate * config.learning_rate_scale;
  scalars.epsilon = config.epsilon;
  scalars.beta1 = config.beta1;
  scalars.beta2 = config.beta2;
  scalars.l1 = config.l1;
  scalars.twice_l2 = 2 * config.l2;
  scalars.weight_decay = config.weight_decay;
  scalars.clip_value = config.clip_value;
  scalars.clip_norm = config.clip_norm;
  scalars.cow_clip_ratio = config.cow_clip_ratio;
  scalars.cow_clip_floor = config.cow_clip_floor;
  if (config.kind == OptimizerKind::kAdamW) scalars.weight_decay *= scalars.learning_rate;
  if (config.kind == OptimizerKind::kAdam || config.kind == OptimizerKind::kAdamW) {
    const int64_t t = step.value() + 1;
    scalars.learning_rate = static_cast<float>(static_cast<double>(scalars.learning_rate) /
                                               (1.0 - IntegerPower(config.beta1, t)));
    scalars.sqrt_bias2 = static_cast<float>(std::sqrt(1.0 - IntegerPower(config.beta2, t)));
  }
  return scalars;
}

RowScalars ScalarsForStep(const RowOptimizer& optimizer, float job_learning_rate, Step step) {
  RowScalars scalars = ScalarsForStep(optimizer.vector, job_learning_rate, step);
  if (!optimizer.has_first_order) return scalars;
  scalars.first_order = ScalarsForStep(optimizer.first_order, job_learning_rate, step);
  scalars.has_first_order = true;
  return scalars;
}

void UpdateRow(const RowScalars& scalars, const float* gradient, uint32_t lookups, float* weights,
               float* state, int dim) {
  if (!scalars.has_first_order) {
    return UpdateWeightsOf(scalars.vector, gradient, lookups, weights, state, dim);
  }
  const int last = dim - 1;
  UpdateWeightsOf(scalars.vector, gradient, lookups, weights, state, last);
  UpdateWeightsOf(scalars.first_order, gradient + last, lookups, weights + last,
                  state + StateFloats(scalars.vector.kind, last), 1);
}

void UpdateScaled(const UpdateScalars& scalars, float scale, const float* gradient, float* weights,
                  float* state, int dim) {
  VisitOptimizer(scalars.kind, [&](auto kind) {
    UpdateWeights<kind(), true>(scalars, gradient, /*lookups=*/0, weights, state, dim, scale);
  });
}

RowUpdate SelectRowUpdate(const RowScalars& scalars) {
  if (scalars.has_first_order) return UpdateRow;
  return VisitOptimizer(scalars.vector.kind, [&](auto kind) -> RowUpdate {
    if (scalars.vector.changes_gradients()) return UpdatePlainRow<kind(), true>;
    return UpdatePlainRow<kind(), false>;
  });
}

}  // namespace thermocline
