#include "common/base/timing.h"

#include <algorithm>

namespace thermocline {

// Bucket 16 * o + s holds, for o >= 1, the values whose leading bit is bit o + 3 and whose next
// four bits are s; o == 0 holds the values 0..15 themselves.
size_t LatencyHistogram::BucketOf(uint64_t us) {
  if (us < kSubBuckets) return us;
  const int leading = 63 - __builtin_clzll(us);
  const size_t octave = leading - kSubBucketBits + 1;
  const size_t sub = (us >> (leading - kSubBucketBits)) & (kSubBuckets - 1);
  return std::min(octave * kSubBuckets + sub, kBuckets - 1);
}

double LatencyHistogram::MiddleOf(size_t bucket) {
  if (bucket < kSubBuckets) return static_cast<double>(bucket);
  const int shift = static_cast<int>(bucket / kSubBuckets) - 1;
  const uint64_t first = (kSubBuckets + bucket % kSubBuckets) << shift;
  const uint64_t width = uint64_t{1} << shift;
  return static_cast<double>(first) + static_cast<double>(width - 1) / 2;
}

void LatencyHistogram::Record(int64_t us) {
  const uint64_t value = us < 0 ? 0 : static_cast<uint64_t>(us);
  buckets_[BucketOf(value)].fetch_add(1, std::memory_order_relaxed);
  total_us_.fetch_add(value, std::memory_order_relaxed);
  uint64_t seen = max_us_.load(std::memory_order_relaxed);
  while (value > seen && !max_us_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

LatencySnapshot LatencyHistogram::Snapshot() const {
  std::array<uint64_t, kBuckets> counts;
  LatencySnapshot snapshot;
  for (size_t i = 0; i < kBuckets; ++i) {
    counts[i] = buckets_[i].load(std::memory_order_relaxed);
    snapshot.count += counts[i];
  }
  if (snapshot.count == 0) return snapshot;
  snapshot.mean_us =
      static_cast<double>(total_us_.load(std::memory_order_relaxed)) / snapshot.count;
  snapshot.max_us = static_cast<double>(max_us_.load(std::memory_order_relaxed));

  // The value below or at which at least `percent` of the records are.
  const auto percentile = [&](uint64_t percent) {
    const uint64_t rank = (snapshot.count * percent + 99) / 100;
    uint64_t below = 0;
    for (size_t i = 0; i < kBuckets; ++i) {
      below += counts[i];
      if (below >= rank) return std::min(MiddleOf(i), snapshot.max_us);
    }
    return snapshot.max_us;
  };
  uint64_t below = 0;
  for (size_t i = 0, bound = 0; bound < kLatencyBuckets; ++bound) {
    for (const size_t end = BucketOf(LatencyBucketBoundUs(bound)); i < end; ++i) below += counts[i];
    snapshot.buckets[bound] = below;
  }
  snapshot.p50_us = percentile(50);
  snapshot.p99_us = percentile(99);
  return snapshot;
}

}  // namespace thermocline
