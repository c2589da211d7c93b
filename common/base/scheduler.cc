#include "common/base/scheduler.h"

#include <chrono>
#include <utility>

#include "absl/time/time.h"
#include "common/base/threads.h"

namespace thermocline {

ThreadScheduler::ThreadScheduler() : thread_(MakeThread([this] { Run(); })) {}

ThreadScheduler::~ThreadScheduler() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

int64_t ThreadScheduler::NowMicros() const {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void ThreadScheduler::RunAfter(int64_t delay_us, std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.emplace(NowMicros() + delay_us, std::move(task));
}

void ThreadScheduler::Run() {
  absl::MutexLock lock(&mutex_);
  while (!stopping_) {
    if (tasks_.empty()) {
      mutex_.Await(absl::Condition(
          +[](ThreadScheduler* self) ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
            return self->stopping_ || !self->tasks_.empty();
          },
          this));
      continue;
    }
    const int64_t first_due = tasks_.begin()->first;
    const int64_t wait_us = first_due - NowMicros();
    if (wait_us > 0) {
      // Wakes early for a task that is due before the first one.
      const auto changed = [this, first_due]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || tasks_.begin()->first < first_due;
      };
      mutex_.AwaitWithTimeout(absl::Condition(&changed), absl::Microseconds(wait_us));
      continue;
    }
    std::function<void()> task = std::move(tasks_.begin()->second);
    tasks_.erase(tasks_.begin());
    mutex_.Unlock();
    task();
    task = nullptr;  // Its captures are destroyed outside the lock.
    mutex_.Lock();
  }
}

}  // namespace thermocline
