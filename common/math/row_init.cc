#include "common/math/row_init.h"

#include "common/base/hash.h"

namespace thermocline {
namespace {

// 24 random bits to [-scale, scale): the subtraction is exact, the product rounds once.
float ToUniform(uint32_t bits, float unit) {
  return static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) * unit;
}

}  // namespace

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

}  // namespace thermocline
