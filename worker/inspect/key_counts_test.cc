#include "worker/inspect/key_counts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>

#include "common/base/hash.h"

namespace thermocline {
namespace {

TEST(KeyCounts, IsExactUpToItsBound) {
  KeyCounts counts(200);
  for (Key key = 0; key < 200; ++key) {
    const int times = key == 7 ? 500 : key < 100 ? 2 : 1;
    for (int i = 0; i < times; ++i) counts.Add(key);
  }
  const KeyCounts::Summary summary = counts.Summarize({1, 1e12});
  EXPECT_EQ(summary.lookups, 798u);
  EXPECT_EQ(summary.distinct, 200);
  EXPECT_EQ(summary.distinct_error, 0);
  EXPECT_DOUBLE_EQ(summary.once_share, 0.5);
  // The two most frequent keys.
  EXPECT_DOUBLE_EQ(summary.top_share, 502.0 / 798);
  EXPECT_NEAR(summary.distinct_among[0], 1, 1e-9);
  EXPECT_NEAR(summary.distinct_among[1], 200, 1e-9);
}

TEST(KeyCounts, NoKeyIsNoDistinctKey) {
  EXPECT_EQ(KeyCounts(10).Summarize({5}).distinct, 0);
  EXPECT_EQ(KeyCounts(10).Summarize({5}).distinct_among, std::vector<double>{0});
}

// A Zipf-like stream whose keys are far more than are counted: the estimates are within the stated
// error, which is two standard deviations, so twice of it is never reached by a working sampler.
TEST(KeyCounts, EstimatesBeyondItsBound) {
  for (const uint64_t seed : {1, 2, 3}) {
    SCOPED_TRACE(seed);
    KeyCounts bounded(16384), exact(1 << 20);
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> uniform;
    for (int i = 0; i < 400'000; ++i) {
      const Key key = Mix64(static_cast<Key>(std::exp(uniform(random) * std::log(300'000.0))));
      bounded.Add(key);
      exact.Add(key);
    }
    const KeyCounts::Summary is = bounded.Summarize({1000}), wanted = exact.Summarize({1000});
    EXPECT_EQ(wanted.distinct_error, 0);
    EXPECT_GT(is.distinct_error, 0);
    EXPECT_LT(is.distinct_error, 0.08);
    EXPECT_NEAR(is.distinct, wanted.distinct, 2 * is.distinct_error * wanted.distinct);
    EXPECT_NEAR(is.top_share, wanted.top_share, 0.05);
    EXPECT_NEAR(is.once_share, wanted.once_share, 0.05);
    EXPECT_NEAR(is.distinct_among[0], wanted.distinct_among[0], 0.05 * wanted.distinct_among[0]);
  }
}

}  // namespace
}  // namespace thermocline
