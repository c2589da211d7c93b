#include "common/math/gradient_merge.h"

#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

TEST(GradientMergeTest, NothingGivesNothing) {
  GradientMerge merge;
  merge.Run({}, 4);
  EXPECT_TRUE(merge.result().keys.empty());
  EXPECT_TRUE(merge.result().gradients.empty());
}

TEST(GradientMergeTest, AddsInRankOrder) {
  // (1 + 2^-24) + 2^-24 rounds to 1; 2^-24 + 2^-24 + 1 does not.
  const float tiny = 0x1p-24f;
  const std::vector<Key> key = {7};
  const std::vector<uint32_t> count = {1};
  const std::vector<float> one = {1.0f};
  const std::vector<float> small = {tiny};
  GradientMerge merge;
  const GradientBlock big_block = {key, count, one};
  const GradientBlock small_block = {key, count, small};
  merge.Run({big_block, small_block, small_block}, 1);
  ASSERT_EQ(merge.result().keys.size(), 1u);
  EXPECT_EQ(merge.result().gradients[0], 1.0f);
  EXPECT_EQ(merge.result().counts[0], 3u);
  merge.Run({small_block, small_block, big_block}, 1);
  EXPECT_EQ(merge.result().gradients[0], 1.0f + 2 * tiny);
}

// What a server has of a key that one rank alone looked up, to the bit.
TEST(GradientMergeTest, KeepsTheSignOfASingleZero) {
  const std::vector<Key> key = {7};
  const std::vector<uint32_t> count = {1};
  const std::vector<float> zero = {-0.0f};
  GradientMerge merge;
  merge.Run({GradientBlock{key, count, zero}}, 1);
  EXPECT_TRUE(std::signbit(merge.result().gradients[0]));
}

TEST(GradientMergeTest, AgreesWithAMap) {
  std::mt19937_64 random(TestSeed());
  GradientMerge merge;
  for (int round = 0; round < 30; ++round) {
    const int dim = 1 + static_cast<int>(random() % 20);
    const size_t num_blocks = random() % 5;
    std::vector<std::vector<Key>> keys(num_blocks);
    std::vector<std::vector<uint32_t>> counts(num_blocks);
    std::vector<std::vector<float>> gradients(num_blocks);
    std::vector<GradientBlock> blocks;
    std::map<Key, std::pair<uint32_t, std::vector<float>>> expected;
    for (size_t b = 0; b < num_blocks; ++b) {
      Key key = 0;  // Key 0 and keys that differ in high bits alone are keys like any other.
      for (size_t i = random() % 300; i > 0; --i) {
        keys[b].push_back(key);
        key += random() % 3 == 0 ? uint64_t{1} << 48 : 1 + random() % 4;
        counts[b].push_back(static_cast<uint32_t>(random() % 9));
        for (int d = 0; d < dim; ++d) {
          gradients[b].push_back(static_cast<float>(random() % 2001) / 7.0f - 100.0f);
        }
        auto& [count, sum] = expected[keys[b].back()];
        count += counts[b].back();
        const float* gradient = gradients[b].data() + gradients[b].size() - dim;
        if (sum.empty()) {
          sum.assign(gradient, gradient + dim);
        } else {
          for (int d = 0; d < dim; ++d) sum[d] += gradient[d];
        }
      }
      blocks.push_back({keys[b], counts[b], gradients[b]});
    }
    const uint32_t pieces = 1 + random() % 5;
    for (uint32_t piece = 0; piece < pieces; ++piece) {
      merge.Run(blocks, dim, {piece, pieces});
      const GradientBlock& result = merge.result();
      ASSERT_EQ(result.gradients.size(), result.keys.size() * dim);
      for (size_t i = 0; i < result.keys.size(); ++i) {
        const auto found = expected.find(result.keys[i]);
        ASSERT_NE(found, expected.end());
        EXPECT_EQ(result.counts[i], found->second.first);
        EXPECT_EQ(std::memcmp(result.gradients.data() + i * dim, found->second.second.data(),
                              dim * sizeof(float)),
                  0);
        expected.erase(found);
      }
    }
    EXPECT_TRUE(expected.empty());
  }
}

TEST(GradientMergeTest, PiecesAreOfAboutOneSize) {
  std::vector<Key> keys(10000);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<uint32_t> counts(keys.size(), 1);
  const std::vector<float> gradients(keys.size(), 1);
  const GradientBlock block = {keys, counts, gradients};
  GradientMerge merge;
  for (uint32_t piece = 0; piece < 3; ++piece) {
    merge.Run({block}, 1, {piece, 3});
    EXPECT_GT(merge.result().keys.size(), 3000u);
    EXPECT_LT(merge.result().keys.size(), 3700u);
  }
}

}  // namespace
}  // namespace thermocline
