#include "common/base/task_queue.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/threads.h"

namespace thermocline {

TaskQueue::TaskQueue(int max_threads) : max_threads_(static_cast<size_t>(max_threads)) {
  CHECK_GE(max_threads, 1);
}

TaskQueue::~TaskQueue() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void TaskQueue::Run(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  // While the queue stops, only running tasks queue others: their threads take those next.
  if (tasks_.size() <= idle_threads_ || threads_.size() == max_threads_ || stopping_) return;
  ++idle_threads_;
  threads_.push_back(MakeThread([this] { Loop(); }));
}

void TaskQueue::AwaitIdle() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &TaskQueue::IsIdle));
}

void TaskQueue::Loop() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(this, &TaskQueue::HasWork));
      if (tasks_.empty()) return;
      --idle_threads_;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
    task = nullptr;  // Its captures are destroyed before the queue counts as idle.
    absl::MutexLock lock(&mutex_);
    ++idle_threads_;
  }
}

}  // namespace thermocline
