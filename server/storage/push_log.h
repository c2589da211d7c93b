// The writing of a push log, which holds the pushes that a server accepted, in order, before it
// acknowledges them. PushLog writes records; LogJournal is the journal on it.
#ifndef THERMOCLINE_SERVER_STORAGE_PUSH_LOG_H_
#define THERMOCLINE_SERVER_STORAGE_PUSH_LOG_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/task_queue.h"
#include "common/disk/disk.h"
#include "server/storage/log_format.h"
#include "server/storage/push_journal.h"

namespace thermocline {

struct PushLogOptions {
  std::string directory;
  LogIdentity identity;
  // A segment of this size should end. Records are still written to it until EndFullSegment has
  // made the next one. Only whole segments are dropped.
  uint64_t segment_bytes = uint64_t{256} << 20;
};

struct LogSegment {
  Lsn number;  // See SegmentId.
  Lsn first;
  Lsn last;               // first - 1 where it has no record.
  Step newest = kNoStep;  // The greatest step of its records.
  uint64_t bytes = 0;
};

// The present state of a log, with which writing begins or goes on.
struct LogHistory {
  Lsn last = kNoLsn;                 // The last record, even if it was dropped.
  Step newest = kNoStep;             // The greatest step of any record, dropped ones included.
  std::vector<LogSegment> segments;  // In order, without dropped ones.
};

// The operating system has an appended record, so it survives the death of this process. It
// survives the host after a Sync.
//
// Append writes to a file that exists already and waits for no other disk operation: neither for a
// Sync under way, nor for the end of a segment, which takes syncs and a new file. So records may be
// written to the next segment while the segment before it is still being synced. All earlier
// segments are synced.
//
// Thread-safe.
class PushLog {
 public:
  // Goes on after `history`, which a replay found. `disk` outlives the log. Errors: the disk's.
  static absl::StatusOr<std::unique_ptr<PushLog>> Start(Disk* disk, const PushLogOptions& options,
                                                        const LogHistory& history = {});

  // Appends a record made of the pieces of `payload`, and returns its number. The record is needed
  // until DropThroughStep(step).
  // Errors: kResourceExhausted (the disk is full; nothing is left of the record, and a later Append
  // may succeed). Any other error is final: the log refuses from then on, and the process should
  // end.
  absl::StatusOr<Lsn> Append(uint32_t type, Step step, absl::Span<const absl::string_view> payload);

  // Brings everything appended before the call to the medium, with one fsync for all waiting
  // callers. Errors: the disk's, final as above.
  absl::Status Sync() ABSL_LOCKS_EXCLUDED(sync_mutex_);

  // Whether the segment that is being written should end.
  bool segment_is_full() const;
  // Where segment_is_full, syncs the segment and writes further records to a new one. A full disk
  // is no error: the present segment goes on. Errors: the disk's, final as above.
  absl::Status EndFullSegment() ABSL_LOCKS_EXCLUDED(sync_mutex_);

  // Drops segments from the oldest on, as long as all their records are of steps up to `through`.
  // The segment being written is never dropped; a large one ends here, so that a later call drops
  // it. Errors: the disk's; see broken().
  absl::Status DropThroughStep(Step through) ABSL_LOCKS_EXCLUDED(drop_mutex_);

  absl::Status broken() const;  // The final error, or OK.
  Lsn last() const;             // The last record's; before the first record, the history's.
  Lsn synced_through() const;   // Records up to it are on the medium.
  uint64_t bytes() const;       // The size of all segments.

 private:
  PushLog(Disk* disk, const PushLogOptions& options, const LogHistory& history);
  absl::Status SyncThis() ABSL_EXCLUSIVE_LOCKS_REQUIRED(sync_mutex_);
  absl::Status EndSegment(uint64_t min_bytes) ABSL_LOCKS_EXCLUDED(sync_mutex_);
  bool IsDue(uint64_t min_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  struct EndedFile {
    std::shared_ptr<AppendFile> file;  // Null: there was none before.
    Lsn last;                          // The last of its records.
  };
  absl::Status SwitchTo(std::shared_ptr<AppendFile> next, Lsn number, EndedFile* ended)
      ABSL_LOCKS_EXCLUDED(append_mutex_);
  absl::Status Break(absl::Status status) ABSL_LOCKS_EXCLUDED(mutex_);
  std::string PathOf(Lsn number) const;

  Disk* const disk_;
  const PushLogOptions options_;

  absl::Mutex drop_mutex_ ABSL_ACQUIRED_BEFORE(sync_mutex_);  // One drop at a time.
  // One sync, or end of a segment, at a time. While it is free, only the last segment may have
  // records that aren't synced, unless the log is broken.
  absl::Mutex sync_mutex_ ABSL_ACQUIRED_BEFORE(append_mutex_);
  absl::Mutex append_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);  // Held while a record is written.
  mutable absl::Mutex mutex_;                              // Not held during disk operations.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<AppendFile> file_ ABSL_GUARDED_BY(mutex_);
  std::deque<LogSegment> segments_ ABSL_GUARDED_BY(mutex_);  // The last one is being written.
  bool header_is_synced_ ABSL_GUARDED_BY(mutex_) = true;     // The last segment's header.
  Lsn last_ ABSL_GUARDED_BY(mutex_);
  Step newest_ ABSL_GUARDED_BY(mutex_);  // The greatest step of all records, dropped ones included.
  Lsn synced_through_ ABSL_GUARDED_BY(mutex_);
};

class LogJournal : public PushJournal {
 public:
  // `tasks` runs the syncs and ends full segments, which waits for the disk; it outlives the
  // journal. `on_broken` gets the first final error: the process should end. `log_line`, if not
  // null, gets a line when the disk becomes full, and when it no longer is.
  using OnBroken = std::function<void(const absl::Status&)>;
  using LogLine = std::function<void(absl::string_view)>;
  LogJournal(std::unique_ptr<PushLog> log, LogDurability durability, TaskRunner* tasks,
             OnBroken on_broken, LogLine log_line = nullptr);
  ~LogJournal() override;  // Calls WhenDurable's `done` with kUnavailable where it still waits.

  absl::Status Append(const wire::PushChunk& chunk) override;
  void WhenDurable(Done done) override;
  absl::Status DropThroughStep(Step step) override;
  uint64_t bytes() const override;
  std::string full() const override;

  const PushLog& log() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_PUSH_LOG_H_
