// A closed loop of asynchronous calls: a fixed number are in flight until enough have been made.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_CLOSED_LOOP_H_
#define THERMOCLINE_TESTS_BENCHMARKS_CLOSED_LOOP_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"

namespace thermocline {

inline double SecondsNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Starts call `lane`, one of `in_flight`; `done` runs when it has ended.
using StartCall = std::function<void(int lane, std::function<void(absl::Status)> done)>;

// CHECKs that every call succeeds.
class ClosedLoop {
 public:
  ClosedLoop(StartCall start, int in_flight) : start_(std::move(start)), lanes_left_(in_flight) {}

  // Runs for about `seconds`; returns the number of calls.
  uint64_t Run(double seconds) {
    end_ = SecondsNow() + seconds;
    for (int lane = lanes_left_ - 1; lane >= 0; --lane) Next(lane);
    absl::MutexLock lock(&mutex_, absl::Condition(&finished_));
    return calls_.load();
  }

 private:
  void Next(int lane) {
    start_(lane, [this, lane](const absl::Status& status) {
      if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
      CHECK(status.ok());
      calls_.fetch_add(1, std::memory_order_relaxed);
      if (SecondsNow() < end_) return Next(lane);
      if (lanes_left_.fetch_sub(1) != 1) return;
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    });
  }

  const StartCall start_;
  double end_ = 0;
  std::atomic<uint64_t> calls_{0};
  std::atomic<int> lanes_left_;
  absl::Mutex mutex_;
  bool finished_ = false;  // guarded by mutex_
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_CLOSED_LOOP_H_
