// Threads for work that must not occupy gRPC's own few: taking and applying pushes, and the replies
// to pulls that were held.
#ifndef THERMOCLINE_SERVER_RPC_HANDLER_THREADS_H_
#define THERMOCLINE_SERVER_RPC_HANDLER_THREADS_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// Thread-safe. Tasks start in the order given. The queue is bounded by who fills it (Admission).
class HandlerThreads {
 public:
  // REQUIRES: num_threads >= 2, so that an apply on one leaves another for what comes meanwhile.
  explicit HandlerThreads(int num_threads);
  // Runs every task that was given, then ends the threads.
  ~HandlerThreads();

  void Run(std::function<void()> task);

 private:
  void Loop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !tasks_.empty();
  }

  absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_RPC_HANDLER_THREADS_H_
