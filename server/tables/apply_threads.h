// A few threads that share the tasks of one apply, or of loading a checkpoint. With one thread
// everything runs on the caller.
#ifndef THERMOCLINE_SERVER_TABLES_APPLY_THREADS_H_
#define THERMOCLINE_SERVER_TABLES_APPLY_THREADS_H_

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

class ApplyThreads {
 public:
  // The caller of Run is one of the `num_threads`.
  explicit ApplyThreads(int num_threads);
  ~ApplyThreads();

  int num_threads() const { return static_cast<int>(helpers_.size()) + 1; }

  // Runs task(0) .. task(n - 1), each once, in any order; returns when all have ended. One Run at a
  // time.
  void Run(size_t n, absl::FunctionRef<void(size_t)> task);

 private:
  void HelperLoop();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || helpers_wanted_ > 0;
  }
  bool HelpersIdle() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return helpers_busy_ == 0; }

  std::atomic<size_t> next_task_{0};

  absl::Mutex mutex_;
  const absl::FunctionRef<void(size_t)>* task_ ABSL_GUARDED_BY(mutex_) = nullptr;
  size_t num_tasks_ ABSL_GUARDED_BY(mutex_) = 0;
  int helpers_wanted_ ABSL_GUARDED_BY(mutex_) = 0;  // That may still join the run.
  int helpers_busy_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::vector<std::thread> helpers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_APPLY_THREADS_H_
