#include "common/math/table_spec.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

constexpr uint32_t kExponent = 0x7F800000u;

bool IsFinite(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & kExponent) != kExponent;
}

// No early exit, so that the compiler vectorizes it.
bool AllFinite(const float* values, size_t n) {
  uint32_t bad = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    bad |= (bits & kExponent) == kExponent ? 1u : 0u;
  }
  return bad == 0;
}

// TableSpec.init_scale of tables whose distribution is not uniform. Programs that know no other
// distribution refuse it.
constexpr float kNotUniform = -1;

absl::Status ReadDistribution(const TableSpec& proto, TableLayout* layout) {
  if (!proto.has_initializer()) {
    Initializer uniform;
    uniform.mutable_uniform()->set_scale(proto.init_scale());
    return ReadInitializer(uniform, "init_scale", &layout->distribution, &layout->init_scale);
  }
  return ReadInitializer(proto.initializer(), "", &layout->distribution, &layout->init_scale);
}

Initializer InitializerOf(InitialDistribution distribution, float scale) {
  Initializer proto;
  switch (distribution) {
    case InitialDistribution::kUniform:
      proto.mutable_uniform()->set_scale(scale);
      break;
    case InitialDistribution::kNormal:
      proto.mutable_normal()->set_std(scale);
      break;
    case InitialDistribution::kTruncatedNormal:
      proto.mutable_truncated_normal()->set_std(scale);
      break;
    case InitialDistribution::kConstant:
      proto.mutable_constant()->set_value(scale);
      break;
  }
  return proto;
}

absl::Status ReadOptimizer(const Optimizer& proto, TableSpec::Role role, OptimizerConfig* config) {
  ASSIGN_OR_RETURN(*config, OptimizerFromProto(proto));
  return role == TableSpec::DENSE ? CheckForDense(*config) : CheckForRows(*config);
}

absl::Status ReadFirstOrder(const TableSpec& proto, TableLayout* layout) {
  if (!proto.has_first_order()) return absl::OkStatus();
  if (proto.role() == TableSpec::DENSE) {
    return absl::InvalidArgumentError("a dense tensor has no first-order weights");
  }
  FirstOrderWeight& weight = layout->first_order.emplace();
  RETURN_IF_ERROR(ReadOptimizer(proto.first_order().optimizer(), proto.role(), &weight.optimizer));
  return ReadInitializer(proto.first_order().initializer(), "", &weight.distribution,
                         &weight.init_scale);
}

absl::Status NamingTable(const TableSpec& proto, absl::string_view what,
                         const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat("table '", proto.name(), "': ", what, status.message()));
}

// The job seed of first-order weights, so that they don't repeat the vector's first weights.
uint64_t FirstOrderSeed(uint64_t seed) { return Mix64(seed ^ 0x66697273744F7264ull); }

}  // namespace

absl::StatusOr<TableLayout> TableLayoutFromProto(const TableSpec& proto) {
  if (proto.dim() < 1 || proto.dim() > kMaxDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", proto.name(), "': dim is ", proto.dim(), "; it must be in [1, ", kMaxDim, "]"));
  }
  if (proto.role() != TableSpec::SPARSE && proto.role() != TableSpec::DENSE) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", proto.name(), "': unknown role ", static_cast<int>(proto.role())));
  }
  TableLayout layout;
  RETURN_IF_ERROR(
      NamingTable(proto, "", ReadOptimizer(proto.optimizer(), proto.role(), &layout.optimizer)));
  RETURN_IF_ERROR(NamingTable(proto, "", ReadDistribution(proto, &layout)));
  RETURN_IF_ERROR(NamingTable(proto, "first-order weights: ", ReadFirstOrder(proto, &layout)));
  layout.id = TableId(proto.id());
  layout.name = proto.name();
  layout.dim = static_cast<int>(proto.dim());
  layout.role = proto.role() == TableSpec::DENSE ? TableRole::kDense : TableRole::kSparse;
  layout.memory_budget_bytes = proto.memory_budget_bytes();
  layout.min_count = proto.min_count();
  layout.unused_steps = proto.unused_steps();
  layout.max_rows = proto.max_rows();
  return layout;
}

TableSpec TableLayoutToProto(const TableLayout& layout) {
  TableSpec proto;
  proto.set_id(layout.id.value());
  proto.set_name(layout.name);
  proto.set_dim(layout.dim);
  *proto.mutable_optimizer() = OptimizerToProto(layout.optimizer);
  if (layout.distribution == InitialDistribution::kUniform) {
    proto.set_init_scale(layout.init_scale);
  } else {
    proto.set_init_scale(kNotUniform);
    *proto.mutable_initializer() = InitializerOf(layout.distribution, layout.init_scale);
  }
  if (layout.first_order.has_value()) {
    TableSpec::FirstOrder* const weight = proto.mutable_first_order();
    *weight->mutable_optimizer() = OptimizerToProto(layout.first_order->optimizer);
    *weight->mutable_initializer() =
        InitializerOf(layout.first_order->distribution, layout.first_order->init_scale);
  }
  proto.set_role(layout.role == TableRole::kDense ? TableSpec::DENSE : TableSpec::SPARSE);
  proto.set_memory_budget_bytes(layout.memory_budget_bytes);
  proto.set_min_count(layout.min_count);
  proto.set_unused_steps(layout.unused_steps);
  proto.set_max_rows(layout.max_rows);
  return proto;
}

uint32_t TableLayout::OldestKept(Step step) const {
  if (unused_steps == 0) return forgotten_before;
  const uint64_t applied = static_cast<uint64_t>(step.value() + 1);
  const uint64_t looked_at = applied / forget_period() * forget_period();
  const auto oldest =
      looked_at < unused_steps ? 0 : static_cast<uint32_t>(looked_at - unused_steps + 1);
  return std::max(oldest, forgotten_before);
}

void InitialRow(const TableLayout& layout, uint64_t seed, Key key, absl::Span<float> row) {
  InitialRowWeights(layout, seed, key, row.first(layout.dim));
  InitState(layout.row_optimizer(), layout.dim, row.subspan(layout.dim));
}

void InitialRowWeights(const TableLayout& layout, uint64_t seed, Key key,
                       absl::Span<float> weights) {
  InitialWeights(seed, layout.id, key, layout.distribution, layout.init_scale,
                 weights.first(layout.vector_dim()));
  if (!layout.first_order.has_value()) return;
  InitialWeights(FirstOrderSeed(seed), layout.id, key, layout.first_order->distribution,
                 layout.first_order->init_scale, weights.last(1));
}

namespace {

// REQUIRES: they differ.
std::string DescribeFirstOrder(const TableLayout& here, const TableLayout& there) {
  if (!here.first_order.has_value() || !there.first_order.has_value()) {
    return absl::StrCat("table '", here.name, "': rows have ",
                        here.first_order.has_value() ? "a first-order weight here, none there"
                                                     : "no first-order weight here, one there");
  }
  const OptimizerKind kind = here.first_order->optimizer.kind;
  const OptimizerKind other = there.first_order->optimizer.kind;
  if (kind != other) {
    return absl::StrCat("table '", here.name, "': the first-order weights' optimizer is ",
                        OptimizerKindName(kind), " here, ", OptimizerKindName(other), " there");
  }
  return absl::StrCat("table '", here.name, "': the first-order weights' ",
                      here.first_order->optimizer == there.first_order->optimizer
                          ? "initializer differs"
                          : "optimizer has other settings");
}

}  // namespace

std::string DescribeDifference(const TableLayout& here, const TableLayout& there) {
  const auto differs = [&](absl::string_view field, const auto& a, const auto& b) {
    return absl::StrCat("table '", here.name, "': ", field, " is ", a, " here, ", b, " there");
  };
  if (here.id != there.id) return differs("id", here.id.value(), there.id.value());
  if (here.name != there.name) return differs("name", here.name, there.name);
  if (here.dim != there.dim) return differs("dim", here.dim, there.dim);
  if (here.optimizer.kind != there.optimizer.kind) {
    return differs("optimizer", OptimizerKindName(here.optimizer.kind),
                   OptimizerKindName(there.optimizer.kind));
  }
  if (!(here.optimizer == there.optimizer)) {
    return absl::StrCat("table '", here.name, "': the optimizer's settings differ");
  }
  if (here.distribution != there.distribution) {
    return differs("initializer", InitialDistributionName(here.distribution),
                   InitialDistributionName(there.distribution));
  }
  if (here.init_scale != there.init_scale) {
    return differs("init_scale", here.init_scale, there.init_scale);
  }
  if (!(here.first_order == there.first_order)) return DescribeFirstOrder(here, there);
  if (here.role != there.role) return absl::StrCat("table '", here.name, "': role differs");
  if (here.memory_budget_bytes != there.memory_budget_bytes) {
    return differs("memory_budget_bytes", here.memory_budget_bytes, there.memory_budget_bytes);
  }
  if (here.min_count != there.min_count) {
    return differs("min_count", here.min_count, there.min_count);
  }
  if (here.unused_steps != there.unused_steps) {
    return differs("eviction.unused_steps", here.unused_steps, there.unused_steps);
  }
  if (here.max_rows != there.max_rows) {
    return differs("eviction.max_rows", here.max_rows, there.max_rows);
  }
  return "";
}

size_t FindNonFinite(absl::Span<const float> values) {
  constexpr size_t kBlock = 4096;
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, values.size() - begin);
    if (AllFinite(values.data() + begin, n)) continue;
    while (IsFinite(values[begin])) ++begin;
    return begin;
  }
  return values.size();
}

size_t FindBadInRows(absl::Span<const float> rows, size_t dim, size_t row_floats) {
  for (size_t i = FindNonFinite(rows); i < rows.size(); ++i) {
    const bool is_weight = i % row_floats < dim;
    if (is_weight ? !IsFinite(rows[i]) : std::isnan(rows[i])) return i;
  }
  return rows.size();
}

}  // namespace thermocline
