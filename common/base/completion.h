// A status that one thread waits for and another delivers; can be used again after Reset().
// Thread-safe.
#ifndef THERMOCLINE_COMMON_BASE_COMPLETION_H_
#define THERMOCLINE_COMMON_BASE_COMPLETION_H_

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

class Completion {
 public:
  // Forgets what was delivered. REQUIRES: no thread waits, and no Deliver() is still to come.
  void Reset() {
    absl::MutexLock lock(&mutex_);
    done_ = false;
    status_ = absl::OkStatus();
  }

  // REQUIRES: called once after construction or Reset().
  void Deliver(absl::Status status) {
    absl::MutexLock lock(&mutex_);
    status_ = std::move(status);
    done_ = true;
  }

  // Waits for Deliver(). May be called again; the answer stays.
  absl::Status Wait() const {
    absl::MutexLock lock(&mutex_, absl::Condition(&done_));
    return status_;
  }

 private:
  mutable absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_COMPLETION_H_
