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

// 24 random bits to [-scale, scale): the subtraction is exact, the product rounds once.
float ToUniform(uint32_t bits, float unit) {
  return static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) * unit;
}

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

}  // namespace

absl::StatusOr<TableLayout> TableLayoutFromProto(const TableSpec& proto) {
  if (proto.dim() < 1 || proto.dim() > kMaxDim) {
    return absl::InvalidArgumentError(absl::StrCat(
        "table '", proto.name(), "': dim is ", proto.dim(), "; it must be in [1, ", kMaxDim, "]"));
  }
  // Written so that NaN fails too.
  if (!(proto.init_scale() >= 0 && proto.init_scale() <= kMaxInitScale)) {
    return absl::InvalidArgumentError(absl::StrCat("table '", proto.name(), "': init_scale is ",
                                                   proto.init_scale(), "; it must be in [0, ",
                                                   kMaxInitScale, "]"));
  }
  if (proto.role() != TableSpec::SPARSE && proto.role() != TableSpec::DENSE) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", proto.name(), "': unknown role ", static_cast<int>(proto.role())));
  }
  auto optimizer = OptimizerFromProto(proto.optimizer());
  if (!optimizer.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("table '", proto.name(), "': ", optimizer.status().message()));
  }
  TableLayout layout;
  layout.id = TableId(proto.id());
  layout.name = proto.name();
  layout.dim = static_cast<int>(proto.dim());
  layout.optimizer = *optimizer;
  layout.init_scale = proto.init_scale();
  layout.role = proto.role() == TableSpec::DENSE ? TableRole::kDense : TableRole::kSparse;
  layout.memory_budget_bytes = proto.memory_budget_bytes();
  return layout;
}

TableSpec TableLayoutToProto(const TableLayout& layout) {
  TableSpec proto;
  proto.set_id(layout.id.value());
  proto.set_name(layout.name);
  proto.set_dim(layout.dim);
  *proto.mutable_optimizer() = OptimizerToProto(layout.optimizer);
  proto.set_init_scale(layout.init_scale);
  proto.set_role(layout.role == TableRole::kDense ? TableSpec::DENSE : TableSpec::SPARSE);
  proto.set_memory_budget_bytes(layout.memory_budget_bytes);
  return proto;
}

void InitialRow(const TableLayout& layout, uint64_t seed, Key key, absl::Span<float> row) {
  InitialWeights(seed, layout.id, key, layout.init_scale, row.first(layout.dim));
  InitState(layout.optimizer, row.subspan(layout.dim));
}

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
  if (here.init_scale != there.init_scale) {
    return differs("init_scale", here.init_scale, there.init_scale);
  }
  if (here.role != there.role) return absl::StrCat("table '", here.name, "': role differs");
  if (here.memory_budget_bytes != there.memory_budget_bytes) {
    return differs("memory_budget_bytes", here.memory_budget_bytes, there.memory_budget_bytes);
  }
  return "";
}

void InitialWeights(uint64_t seed, TableId table, Key key, float scale, absl::Span<float> weights) {
  const uint64_t base = Mix64(Mix64(seed ^ TableSalt(table)) ^ Mix64(key));
  const float unit = scale * (1.0f / (1 << 23));
  size_t i = 0;
  for (; i + 2 <= weights.size(); i += 2) {
    const uint64_t bits = Mix64(base + i);
    weights[i] = ToUniform(static_cast<uint32_t>(bits), unit);
    weights[i + 1] = ToUniform(static_cast<uint32_t>(bits >> 32), unit);
  }
  if (i < weights.size()) weights[i] = ToUniform(static_cast<uint32_t>(Mix64(base + i)), unit);
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
