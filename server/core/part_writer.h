// Writes one server's part of a checkpoint, slice by slice, while later steps are applied.
//
//   read a slice from the tables' snapshots -> up to kSlicesAhead of them wait -> add it to the
//   file
//
// A slice is some thousand rows. Each schedules the next, so that whoever else shares the thread
// gets in between; in the simulation that is everybody. Reading and writing take turns on one
// scheduler, or run beside each other on two.
#ifndef THERMOCLINE_SERVER_CORE_PART_WRITER_H_
#define THERMOCLINE_SERVER_CORE_PART_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "common/ids.h"
#include "common/scheduler.h"
#include "proto/checkpoint.pb.h"
#include "server/tables/table_snapshot.h"

namespace thermocline {

// Where checkpoints are read and written. All outlive their user; null: nowhere.
struct CheckpointIo {
  Disk* disk = nullptr;
  // Its tasks wait for the disk.
  Scheduler* scheduler = nullptr;
  // Reads rows. Null: the other does that too.
  Scheduler* read_scheduler = nullptr;
};

// Thread-safe.
class PartWriter : public std::enable_shared_from_this<PartWriter> {
 public:
  struct Source {
    TableId table;
    size_t row_floats = 0;
    std::unique_ptr<TableSnapshot> snapshot;
  };
  struct Spec {
    std::string directory;  // Of all checkpoints.
    std::string path;       // Of the file to write, below it.
    ServerIndex server;
    Step base_step;               // Of which the part holds the changes; kNoStep: it holds all.
    std::vector<Source> sources;  // By table id.
  };
  // Runs once, on the scheduler's thread: with the part, whose file is on the medium; or with why
  // there is none, and then there is no file. Errors: kCancelled, kResourceExhausted, kUnavailable,
  // and those of reading rows.
  using Done = std::function<void(absl::StatusOr<CheckpointPart>)>;

  static std::shared_ptr<PartWriter> Start(const CheckpointIo& io, Spec spec, Done done);
  ~PartWriter();

  // No slice begins any more; `done` runs once the present one has ended.
  void Cancel();
  // The same, but returns when that is so, and `done` doesn't run any more unless it has begun. The
  // tables may go then. The file is removed, if the disk can.
  void Stop();

 private:
  struct Slice {
    size_t source = 0;
    SnapshotRows rows;
  };

  PartWriter(const CheckpointIo& io, Spec spec, Done done);

  void ScheduleRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScheduleWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunRead();
  void RunWrite();
  absl::StatusOr<bool> ReadSlice(Slice* slice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  absl::Status OpenFile() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  absl::Status WriteSlice(const Slice& slice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  absl::StatusOr<CheckpointPart> Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_);
  // Nothing is read any more.
  void ReleaseSources();

  const CheckpointIo io_;
  const Spec spec_;                       // But for the sources.
  const std::vector<size_t> row_floats_;  // [sources]
  const std::vector<TableId> tables_;     // [sources]
  std::atomic<bool> cancelled_{false};

  // Each is held during a slice of its kind; the mutex of the queue only in between.
  absl::Mutex reading_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::vector<Source> sources_ ABSL_GUARDED_BY(reading_);
  size_t source_ ABSL_GUARDED_BY(reading_) = 0;  // That is being read.
  absl::Mutex writing_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::unique_ptr<RowsFileWriter> file_ ABSL_GUARDED_BY(writing_);
  Done done_ ABSL_GUARDED_BY(writing_);  // Null: there is nothing more to do.

  absl::Mutex mutex_;
  std::deque<Slice> full_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slice> empty_ ABSL_GUARDED_BY(mutex_);
  bool read_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  bool write_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  bool all_read_ ABSL_GUARDED_BY(mutex_) = false;     // No slice will be added to full_ ...
  absl::Status read_status_ ABSL_GUARDED_BY(mutex_);  // ... and why.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PART_WRITER_H_
