// When a table's rows are written to its store: on a thread for this, or on that of a request which
// can't wait for it.
#ifndef THERMOCLINE_SERVER_TABLES_SPILLER_H_
#define THERMOCLINE_SERVER_TABLES_SPILLER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/storage/row_store.h"

namespace thermocline {

// Where the rows of a table go that its memory budget has no room for.
struct TableSpill {
  std::unique_ptr<RowStore> store;  // Empty at first.
  // Called once rows can't be written to the store for another reason than a full disk, on a thread
  // of the table or one that changes rows. The process should end.
  std::function<void(const absl::Status&)> on_broken;
};

struct SpillStats {
  uint64_t rows_in_memory = 0;
  uint64_t bytes_spilled = 0;   // In the store.
  uint64_t rows_read_back = 0;  // From the store.
  uint64_t rows_spilled = 0;    // Written to the store.
};

// Thread-safe.
class Spiller {
 public:
  // Spills until few enough rows are in memory. Errors: kResourceExhausted (the disk is full: the
  // rows stay in memory, and the next round tries again); others are final.
  using Round = std::function<absl::Status()>;

  // `broken` gets the first final error; after it the thread ends and no round is run.
  Spiller(Round round, std::function<void(const absl::Status&)> broken);
  ~Spiller();

  // Has a round run soon on the thread. Cheap where one is due already.
  void Wake();
  // Runs a round on the calling thread, after any that is running.
  void RunNow() ABSL_LOCKS_EXCLUDED(round_mutex_);

  // No round runs while it is held.
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
