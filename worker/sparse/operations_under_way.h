// Counts what a source has begun and not ended, and keeps the first error of what has ended.
//
// Thread-safe.
#ifndef THERMOCLINE_WORKER_SPARSE_OPERATIONS_UNDER_WAY_H_
#define THERMOCLINE_WORKER_SPARSE_OPERATIONS_UNDER_WAY_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

class OperationsUnderWay {
 public:
  void Begin() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void End(const absl::Status& status) {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
    --count_;
  }
  // Waits until all have ended; the first error.
  absl::Status Drain() {
    absl::MutexLock lock(&mutex_, absl::Condition(this, &OperationsUnderWay::None));
    return status_;
  }

 private:
  bool None() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return count_ == 0; }

  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_OPERATIONS_UNDER_WAY_H_
