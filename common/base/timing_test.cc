#include "common/base/timing.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(LatencyHistogramTest, EmptyIsAllZeros) {
  const LatencySnapshot snapshot = LatencyHistogram().Snapshot();
  EXPECT_EQ(snapshot.count, 0u);
  EXPECT_EQ(snapshot.p50_us, 0);
  EXPECT_EQ(snapshot.p99_us, 0);
  EXPECT_EQ(snapshot.max_us, 0);
}

TEST(LatencyHistogramTest, SmallValuesAreExact) {
  LatencyHistogram histogram;
  for (int64_t us : {-5, 3, 7, 7, 15}) histogram.Record(us);
  const LatencySnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.count, 5u);
  EXPECT_DOUBLE_EQ(snapshot.mean_us, 32.0 / 5);
  EXPECT_EQ(snapshot.p50_us, 7);
  EXPECT_EQ(snapshot.p99_us, 15);
  EXPECT_EQ(snapshot.max_us, 15);
}

TEST(LatencyHistogramTest, PercentilesAreWithinABucket) {
  std::mt19937_64 random(7);
  for (double scale : {10.0, 1e3, 1e6, 1e9}) {
    LatencyHistogram histogram;
    std::vector<int64_t> values;
    for (int i = 0; i < 10000; ++i) {
      const double exponential = -std::log1p(-static_cast<double>(random() >> 11) * 0x1p-53);
      values.push_back(static_cast<int64_t>(scale * exponential));
      histogram.Record(values.back());
    }
    std::sort(values.begin(), values.end());
    const LatencySnapshot snapshot = histogram.Snapshot();
    EXPECT_NEAR(snapshot.p50_us, values[4999], 0.032 * values[4999]);
    EXPECT_NEAR(snapshot.p99_us, values[9899], 0.032 * values[9899]);
    EXPECT_EQ(snapshot.max_us, values.back());
  }
}

TEST(LatencyHistogramTest, BucketsCountTheValuesBelowTheirBounds) {
  LatencyHistogram histogram;
  for (int64_t us : {0, 127, 128, 255, 256, 8388607, 8388608}) histogram.Record(us);
  const LatencySnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.buckets[0], 2u);
  EXPECT_EQ(snapshot.buckets[1], 4u);
  EXPECT_EQ(snapshot.buckets[2], 5u);
  EXPECT_EQ(snapshot.buckets[kLatencyBuckets - 2], 5u);
  EXPECT_EQ(snapshot.buckets[kLatencyBuckets - 1], 6u);
}

TEST(LatencyHistogramTest, HugeValuesShareTheLastBucket) {
  LatencyHistogram histogram;
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.Snapshot().count, 1u);
  EXPECT_GE(histogram.Snapshot().p50_us, 0x1p36);
}

TEST(LatencyHistogramTest, ThreadsLoseNothing) {
  LatencyHistogram histogram;
  StageTimer timer;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&histogram, &timer, t] {
      for (int i = 0; i < 1000; ++i) {
        histogram.Record(t);
        timer.Record(1000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(histogram.Snapshot().count, 4000u);
  EXPECT_DOUBLE_EQ(histogram.Snapshot().mean_us, 1.5);
  EXPECT_EQ(timer.count(), 4000u);
  EXPECT_DOUBLE_EQ(timer.total_s(), 4000 * 1e-6);
}

TEST(StageTimerTest, ScopeCountsOnce) {
  StageTimer timer;
  { StageTimer::Scope scope(&timer); }
  EXPECT_EQ(timer.count(), 1u);
  EXPECT_GE(timer.total_s(), 0);
}

}  // namespace
}  // namespace thermocline
