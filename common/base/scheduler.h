// Time and a timer as an interface: real in the programs, virtual in the simulation and in tests.
// Work that takes long or waits for a disk goes to a TaskQueue (common/base/task_queue.h).
#ifndef THERMOCLINE_COMMON_BASE_SCHEDULER_H_
#define THERMOCLINE_COMMON_BASE_SCHEDULER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// Implementations: ThreadScheduler; VirtualScheduler (tests/testing/virtual_scheduler.h).
class Scheduler {
 public:
  virtual ~Scheduler() = default;
  // The time in microseconds, from a monotonic clock; comparable within one process only.
  virtual int64_t NowMicros() const = 0;
  // Runs `task` once, no earlier than `delay_us` from now, on the scheduler's thread.
  // REQUIRES: `task` is short and does not wait, since later tasks wait for it.
  virtual void RunAfter(int64_t delay_us, std::function<void()> task) = 0;
};

// A timer: one thread, and tasks ordered by time. Thread-safe. The destructor drops tasks that
// haven't started and waits for the one that runs.
class ThreadScheduler : public Scheduler {
 public:
  ThreadScheduler();
  ~ThreadScheduler() override;
  int64_t NowMicros() const override;
  void RunAfter(int64_t delay_us, std::function<void()> task) override;

 private:
  void Run();

  absl::Mutex mutex_;
  std::multimap<int64_t, std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);  // by due time
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_SCHEDULER_H_
