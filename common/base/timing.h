// How long things take: a stopwatch, a histogram of latencies (count, mean, p50, p99, max), and a
// running total for one stage of a pipeline. Many threads record into the last two without a lock.
#ifndef THERMOCLINE_COMMON_BASE_TIMING_H_
#define THERMOCLINE_COMMON_BASE_TIMING_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace thermocline {

// The time since its construction, for deadlines and durations, by the monotonic clock.
// Thread-safe.
class Stopwatch {
 public:
  absl::Duration Elapsed() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Bucket i of a snapshot's histogram counts the values below 2^(7 + i) us: 128 us, ..., 8.4 s.
inline constexpr size_t kLatencyBuckets = 17;
constexpr uint64_t LatencyBucketBoundUs(size_t bucket) { return uint64_t{128} << bucket; }

// The monotonic clock (CLOCK_MONOTONIC), which all processes of a machine share, in nanoseconds.
inline int64_t MonotonicNanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct LatencySnapshot {
  uint64_t count = 0;
  double mean_us = 0;
  double p50_us = 0;
  double p99_us = 0;
  double max_us = 0;
  std::array<uint64_t, kLatencyBuckets> buckets = {};  // Each includes those before it.

  // Fills a LatencyStats message of proto/parameter_server.proto.
  template <typename LatencyStatsProto>
  void CopyTo(LatencyStatsProto* stats) const {
    stats->set_count(count);
    stats->set_mean_us(mean_us);
    stats->set_p50_us(p50_us);
    stats->set_p99_us(p99_us);
    stats->set_max_us(max_us);
    for (const uint64_t below : buckets) stats->add_buckets(below);
  }
};

// Thread-safe and wait-free. Sixteen buckets an octave: a percentile is the middle of its bucket,
// within 3.2% of the true value. Values below 16 us and count, mean and max are exact.
class LatencyHistogram {
 public:
  // Negative values count as 0.
  void Record(int64_t us);
  // While other threads record, the figures may disagree by the records in flight.
  LatencySnapshot Snapshot() const;

 private:
  static constexpr int kSubBucketBits = 4;
  static constexpr size_t kSubBuckets = size_t{1} << kSubBucketBits;
  // Values from 2^37 us (38 hours) share the last bucket.
  static constexpr size_t kBuckets = (37 - kSubBucketBits + 1) * kSubBuckets;

  static size_t BucketOf(uint64_t us);
  static double MiddleOf(size_t bucket);

  std::array<std::atomic<uint64_t>, kBuckets> buckets_ = {};
  std::atomic<uint64_t> total_us_{0};
  std::atomic<uint64_t> max_us_{0};
};

// Counts the runs of one stage and adds up their time. Thread-safe and wait-free.
class StageTimer {
 public:
  // Adds the time from its construction to its destruction.
  class Scope {
   public:
    explicit Scope(StageTimer* timer) : timer_(timer), start_(std::chrono::steady_clock::now()) {}
    ~Scope() {
      timer_->Record(std::chrono::duration_cast<std::chrono::nanoseconds>(
                         std::chrono::steady_clock::now() - start_)
                         .count());
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    StageTimer* timer_;
    std::chrono::steady_clock::time_point start_;
  };

  void Record(int64_t ns) {
    count_.fetch_add(1, std::memory_order_relaxed);
    total_ns_.fetch_add(ns, std::memory_order_relaxed);
  }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  double total_s() const { return 1e-9 * total_ns_.load(std::memory_order_relaxed); }

  // Fills a StageStats message of proto/parameter_server.proto.
  template <typename StageStatsProto>
  void CopyTo(const char* stage, StageStatsProto* stats) const {
    const uint64_t runs = count();
    const double seconds = total_s();
    stats->set_stage(stage);
    stats->set_count(runs);
    stats->set_total_s(seconds);
    stats->set_mean_us(runs == 0 ? 0 : 1e6 * seconds / runs);
  }

 private:
  std::atomic<uint64_t> count_{0};
  std::atomic<int64_t> total_ns_{0};
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_TIMING_H_
