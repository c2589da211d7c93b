// Virtual time for tests and the simulation: it stands still while an event runs, then jumps to the
// next one.
#ifndef THERMOCLINE_TESTS_TESTING_VIRTUAL_SCHEDULER_H_
#define THERMOCLINE_TESTS_TESTING_VIRTUAL_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "common/base/scheduler.h"
#include "common/base/task_queue.h"

namespace thermocline {

// Not thread-safe: everything runs on the thread that calls RunNext.
class VirtualScheduler : public Scheduler, public TaskRunner {
 public:
  int64_t NowMicros() const override { return now_us_; }
  // Events that are due at the same time run in the order in which they were scheduled.
  void RunAfter(int64_t delay_us, std::function<void()> task) override {
    events_.emplace(now_us_ + (delay_us < 0 ? 0 : delay_us), std::move(task));
  }

  void Run(std::function<void()> task) override { RunAfter(0, std::move(task)); }

  // Runs the next event. Returns false if there is none.
  bool RunNext() {
    if (events_.empty()) return false;
    now_us_ = events_.begin()->first;
    const std::function<void()> task = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    ++events_run_;
    task();
    return true;
  }
  // Runs all events that are due within `us` from now, then sets the time to the end of that span.
  void Advance(int64_t us) {
    const int64_t until_us = now_us_ + us;
    while (!events_.empty() && events_.begin()->first <= until_us) RunNext();
    now_us_ = until_us;
  }
  uint64_t events_run() const { return events_run_; }

 private:
  int64_t now_us_ = 0;
  std::multimap<int64_t, std::function<void()>> events_;  // by time
  uint64_t events_run_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_VIRTUAL_SCHEDULER_H_
