// Tasks in the background: work that must not delay its caller, or that waits for a disk or for
// another process. common/base/thread_pool.h runs the iterations of a loop, common/base/scheduler.h
// runs tasks that are due at a certain time.
#ifndef THERMOCLINE_COMMON_BASE_TASK_QUEUE_H_
#define THERMOCLINE_COMMON_BASE_TASK_QUEUE_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// An interface, since the simulation and tests run the tasks of many processes on one thread.
class TaskRunner {
 public:
  virtual ~TaskRunner() = default;
  // Runs `task` once, on a thread that holds no lock of the caller's. Thread-safe.
  virtual void Run(std::function<void()> task) = 0;
};

// A queue and the threads that run its tasks. Thread-safe. Tasks start in the order of their Run
// calls, and are destroyed when they have run. The queue has no limit: its users bound the number
// of tasks.
class TaskQueue : public TaskRunner {
 public:
  // A thread starts when a task finds none idle, at most `max_threads`, and stays.
  // REQUIRES: max_threads >= 1
  explicit TaskQueue(int max_threads);
  // Runs every queued task, and those that they queue, then ends the threads. Objects that tasks
  // use must outlive the queue.
  ~TaskQueue() override;

  void Run(std::function<void()> task) override;
  // Returns when no task is queued or runs. REQUIRES: not called by a task.
  void AwaitIdle();

 private:
  void Loop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }
  bool IsIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tasks_.empty() && idle_threads_ == threads_.size();
  }

  const size_t max_threads_;

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  // Threads that wait for a task, or are waking for one.
  size_t idle_threads_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_TASK_QUEUE_H_
