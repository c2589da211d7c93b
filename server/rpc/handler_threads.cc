#include "server/rpc/handler_threads.h"

#include <utility>

#include "common/base/check.h"

namespace thermocline {

HandlerThreads::HandlerThreads(int num_threads) {
  CHECK_GE(num_threads, 2);
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { Loop(); });
}

HandlerThreads::~HandlerThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void HandlerThreads::Run(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void HandlerThreads::Loop() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_, absl::Condition(this, &HandlerThreads::HasWork));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

}  // namespace thermocline
