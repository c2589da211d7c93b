// How stale the rows were that a worker computed with: for a step t, t - 1 - c, where the pushes of
// every worker up to c were in all of them.
//
// Thread-safe and wait-free.
#ifndef THERMOCLINE_WORKER_TRAIN_STALENESS_METER_H_
#define THERMOCLINE_WORKER_TRAIN_STALENESS_METER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/base/ids.h"

namespace thermocline {

class StalenessMeter {
 public:
  // The rows of `step` are complete through `complete_through`. One thread at a time.
  void Record(Step step, Step complete_through) {
    const int64_t missing = std::max<int64_t>(0, step - 1 - complete_through);
    max_.store(std::max(max(), static_cast<uint64_t>(missing)), std::memory_order_relaxed);
    sum_.fetch_add(missing, std::memory_order_relaxed);
    steps_.fetch_add(1, std::memory_order_relaxed);
  }

  uint64_t max() const { return max_.load(std::memory_order_relaxed); }
  double mean() const {
    const uint64_t steps = steps_.load(std::memory_order_relaxed);
    return steps == 0 ? 0 : static_cast<double>(sum_.load(std::memory_order_relaxed)) / steps;
  }

 private:
  std::atomic<uint64_t> max_{0};
  std::atomic<uint64_t> sum_{0};
  std::atomic<uint64_t> steps_{0};
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_STALENESS_METER_H_
