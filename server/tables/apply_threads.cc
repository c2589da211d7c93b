#include "server/tables/apply_threads.h"

#include <algorithm>

namespace thermocline {

ApplyThreads::ApplyThreads(int num_threads) {
  for (int i = 1; i < num_threads; ++i) helpers_.emplace_back([this] { HelperLoop(); });
}

ApplyThreads::~ApplyThreads() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& helper : helpers_) helper.join();
}

void ApplyThreads::Run(size_t n, absl::FunctionRef<void(size_t)> task) {
  if (n <= 1 || helpers_.empty()) {
    for (size_t i = 0; i < n; ++i) task(i);
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    task_ = &task;
    num_tasks_ = n;
    next_task_.store(0, std::memory_order_relaxed);
    helpers_wanted_ = static_cast<int>(std::min(n - 1, helpers_.size()));
  }
  for (size_t i; (i = next_task_.fetch_add(1, std::memory_order_relaxed)) < n;) task(i);
  // A helper that hasn't joined yet finds nothing left to do: it isn't waited for.
  absl::MutexLock lock(&mutex_);
  helpers_wanted_ = 0;
  mutex_.Await(absl::Condition(this, &ApplyThreads::HelpersIdle));
  task_ = nullptr;
}

void ApplyThreads::HelperLoop() {
  for (;;) {
    const absl::FunctionRef<void(size_t)>* task;
    size_t n;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &ApplyThreads::HasWork));
      if (stopping_) return;
      --helpers_wanted_;
      ++helpers_busy_;
      task = task_;
      n = num_tasks_;
    }
    for (size_t i; (i = next_task_.fetch_add(1, std::memory_order_relaxed)) < n;) (*task)(i);
    absl::MutexLock lock(&mutex_);
    --helpers_busy_;
  }
}

}  // namespace thermocline
