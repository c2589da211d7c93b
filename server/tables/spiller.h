// When rows are spilled: on a thread of its own, or by whoever can't wait for it.
#ifndef THERMOCLINE_SERVER_TABLES_SPILLER_H_
#define THERMOCLINE_SERVER_TABLES_SPILLER_H_

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace thermocline {

// Thread-safe.
class Spiller {
 public:
  // Spills until few enough rows are in memory. Errors: kResourceExhausted (the disk is full: the
  // rows stay in memory, and the next round tries again); others are final.
  using Round = std::function<absl::Status()>;

  // `broken` hears of the first final error; no round is run after it, and the thread ends.
  Spiller(Round round, std::function<void(const absl::Status&)> broken);
  ~Spiller();

  // Has a round run soon. Cheap where one is due already.
  void Wake();
  // Runs a round here, after the one that may be running.
  void RunNow() ABSL_LOCKS_EXCLUDED(round_mutex_);

  // Whoever holds it keeps rounds from running.
  absl::Mutex* round_mutex() ABSL_LOCK_RETURNED(round_mutex_) { return &round_mutex_; }

  // kResourceExhausted where the last round found the disk full.
  absl::Status full() const;

 private:
  void Loop();
  bool IsDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || due_.load(); }

  const Round round_;
  const std::function<void(const absl::Status&)> broken_;
  std::atomic<bool> due_{false};

  absl::Mutex round_mutex_;
  bool is_broken_ ABSL_GUARDED_BY(round_mutex_) = false;

  mutable absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool full_ ABSL_GUARDED_BY(mutex_) = false;
  std::string full_message_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_SPILLER_H_
