#include "common/math/finite.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

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

}  // namespace

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
