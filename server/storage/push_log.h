// The write side of a push log: what a server accepted, in order, before it says so.
#ifndef THERMOCLINE_SERVER_STORAGE_PUSH_LOG_H_
#define THERMOCLINE_SERVER_STORAGE_PUSH_LOG_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/disk/disk.h"
#include "server/storage/log_format.h"

namespace thermocline {

struct PushLogOptions {
  std::string directory;
  LogIdentity identity;
  // A segment ends with the record that takes it to this size. Whole segments are dropped.
  uint64_t segment_bytes = uint64_t{256} << 20;
};

// An appended record is in the operating system's hands: it survives the death of this process. It
// survives the host once Sync covers it.
//
// Thread-safe; a Sync under way doesn't keep Append waiting.
class PushLog {
 public:
  // Starts a segment for records from `next` on: kNoLsn + 1, or where a replay ended. `disk`
  // outlives the log. Errors: the disk's.
  static absl::StatusOr<std::unique_ptr<PushLog>> Start(Disk* disk, const PushLogOptions& options,
                                                        Lsn next);

  // Appends a record made of the pieces of `payload`, and gives its number.
  // Errors: kResourceExhausted (the disk is full; nothing is left of the record, and a later Append
  // may succeed); any other is final: the log refuses from then on, and the process should end.
  absl::StatusOr<Lsn> Append(uint32_t type, absl::Span<const absl::string_view> payload);

  // Brings everything appended before the call to the medium, in one fsync for all who wait.
  // Errors: the disk's, final as above.
  absl::Status Sync();

  // Drops the segments that hold nothing after `through`; never the one being written. Segments of
  // before this log was started are known from `Adopt`. Errors: the disk's.
  absl::Status DropThrough(Lsn through);
  // Says that an older segment exists, with records first..last. In order, before any DropThrough.
  void Adopt(Lsn first, Lsn last, uint64_t bytes);

  Lsn last() const;            // kNoLsn or the start's `next` - 1 before the first record
  Lsn synced_through() const;  // as Sync has it
  uint64_t bytes() const;      // of all segments

 private:
  struct Segment {
    Lsn first;
    Lsn last;
    uint64_t bytes;
  };

  PushLog(Disk* disk, const PushLogOptions& options, Lsn next);
  absl::Status StartSegment() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status EndSegment() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Break(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string PathOf(Lsn first) const;

  Disk* const disk_;
  const PushLogOptions options_;

  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<AppendFile> file_ ABSL_GUARDED_BY(mutex_);
  std::deque<Segment> segments_ ABSL_GUARDED_BY(mutex_);  // the last one is being written
  Lsn last_ ABSL_GUARDED_BY(mutex_);
  Lsn synced_through_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_STORAGE_PUSH_LOG_H_
