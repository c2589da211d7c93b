#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "common/math/table_spec.h"

namespace thermocline {
namespace {

std::vector<uint32_t> Bits(const std::vector<float>& floats) {
  std::vector<uint32_t> bits(floats.size());
  std::memcpy(bits.data(), floats.data(), floats.size() * sizeof(float));
  return bits;
}

std::vector<float> Initial(uint64_t seed, uint32_t table, Key key, float scale, size_t dim) {
  std::vector<float> weights(dim);
  InitialWeights(seed, TableId(table), key, scale, absl::MakeSpan(weights));
  return weights;
}

// Computed by another implementation (Python).
TEST(InitialWeightsTest, HaveTheirGoldenBits) {
  EXPECT_EQ(Bits(Initial(42, 7, 123456789, 0.01f, 5)),
            (std::vector<uint32_t>{0x3af16e29, 0xbc16ddf0, 0xbc212f18, 0xbc032f10, 0x3c1b8e73}));
  EXPECT_EQ(Bits(Initial(0, 0, 0, 1.0f, 4)),
            (std::vector<uint32_t>{0x3e6ab018, 0xbe5d5930, 0xbed66068, 0x3f27d36a}));
}

TEST(InitialWeightsTest, DependOnSeedTableAndKey) {
  const std::vector<float> weights = Initial(1, 2, 3, 1, 8);
  EXPECT_EQ(weights, Initial(1, 2, 3, 1, 8));
  EXPECT_NE(weights, Initial(2, 2, 3, 1, 8));
  EXPECT_NE(weights, Initial(1, 3, 3, 1, 8));
  EXPECT_NE(weights, Initial(1, 2, 4, 1, 8));
}

TEST(InitialWeightsTest, ShorterRowsAreAPrefix) {
  const std::vector<float> all = Initial(1, 2, 3, 0.5f, 9);
  for (size_t dim = 0; dim < all.size(); ++dim) {
    EXPECT_EQ(Initial(1, 2, 3, 0.5f, dim), std::vector<float>(all.begin(), all.begin() + dim));
  }
}

TEST(InitialWeightsTest, AreUniform) {
  const float scale = 0.05f;
  double sum = 0;
  double squares = 0;
  constexpr int kKeys = 4000;
  constexpr int kDim = 16;
  for (Key key = 0; key < kKeys; ++key) {
    for (float weight : Initial(9, 1, key, scale, kDim)) {
      ASSERT_GE(weight, -scale);
      ASSERT_LT(weight, scale);
      sum += weight;
      squares += weight * weight;
    }
  }
  constexpr int kWeights = kKeys * kDim;
  EXPECT_NEAR(sum / kWeights, 0, 5 * scale / std::sqrt(3.0 * kWeights));
  EXPECT_NEAR(squares / kWeights / (scale * scale / 3), 1, 0.02);
}

TEST(InitialWeightsTest, ScaleZeroGivesZeros) {
  for (float weight : Initial(1, 2, 3, 0, 8)) EXPECT_EQ(weight, 0);
}

}  // namespace
}  // namespace thermocline
