// Writes one server's part of a checkpoint, slice by slice, while later steps are applied.
//
//   read a slice from the tables' snapshots -> up to kSlicesAhead of them wait -> add it to its
//   file
//
// A slice is some thousand rows. Reading it is a task, and so is writing it; each gives the next of
// its kind, so that other tasks of the thread run in between. Where a shard has several files, they
// get the slices in turn: what is in each depends on the rows alone, and its keys ascend.
#ifndef THERMOCLINE_SERVER_CHECKPOINT_SHARD_WRITER_H_
#define THERMOCLINE_SERVER_CHECKPOINT_SHARD_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/base/task_queue.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"
#include "server/tables/table_snapshot.h"

namespace thermocline {

// Where checkpoints are read and written. Disk and tasks outlive their user; null: nowhere.
struct CheckpointIo {
  // Of a shard that is being written: one that reads rows, one for each file, and one that applies
  // a step which waited for the reading.
  static constexpr size_t MaxTasks(size_t num_files) { return num_files + 2; }

  Disk* disk = nullptr;
  // Its tasks wait for the disk. With MaxTasks(num_files) threads none waits for another.
  TaskRunner* tasks = nullptr;
  uint64_t incarnation = 0;  // Of this process: see RowsFileWriterId.
  size_t num_files = 1;      // At most, of a shard; each is written by a task of its own.
};

// Thread-safe.
class ShardWriter : public std::enable_shared_from_this<ShardWriter> {
 public:
  struct Source {
    TableId table;
    size_t row_floats = 0;
    std::unique_ptr<TableSnapshot> snapshot;
  };
  struct Spec {
    std::string directory;  // Of all checkpoints.
    // Of the files to write, below it. [CheckpointIo::num_files]; one that gets no rows isn't made.
    std::vector<std::string> paths;
    ServerIndex server;
    uint64_t generation = 0;
    Step base_step;               // Of which the shard holds the changes; kNoStep: it holds all.
    std::vector<Source> sources;  // By table id.
    std::vector<RowLimit> row_limits;  // By table id.
    // Runs after each slice that was read, in the task that reads; perhaps once `done` has run.
    std::function<void()> on_read;
  };
  // Runs once, on a thread of the tasks: with the shard, whose files are on the medium; or with why
  // there is none, and then there are no files. Errors: kCancelled, kResourceExhausted,
  // kUnavailable, and those of reading rows.
  using Done = std::function<void(absl::StatusOr<CheckpointShard>)>;

  static std::shared_ptr<ShardWriter> Start(const CheckpointIo& io, Spec spec, Done done);
  ~ShardWriter();

  // No slice begins any more; `done` runs once the present one has ended.
  void Cancel();
  // The same, but returns when that is so, and `done` doesn't run any more unless it has begun. The
  // tables may go then. The files are removed, if the disk can.
  void Stop();

 private:
  struct Slice {
    size_t source = 0;
    SnapshotRows rows;
  };

  // What writes one file.
  struct Lane {
    absl::Mutex writing;  // Held during a slice; before the mutex of the queues.
    std::unique_ptr<RowsFileWriter> file ABSL_GUARDED_BY(writing);
    bool ended ABSL_GUARDED_BY(writing) = false;
  };

  ShardWriter(const CheckpointIo& io, Spec spec, Done done);

  void ScheduleRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScheduleWrite(size_t lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunRead();
  void RunWrite(size_t index);
  absl::StatusOr<bool> ReadSlice(Slice* slice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  // True: there is more to come.
  absl::StatusOr<bool> WriteNext(size_t index, Lane* lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane->writing);
  absl::Status OpenFile(size_t index, Lane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane->writing);
  absl::Status WriteSlice(const Slice& slice, RowsFileWriter* file);
  void EndLane(size_t index, absl::StatusOr<std::optional<CheckpointFile>> file);
  void RemoveFiles(const CheckpointShard& shard);
  // Nothing is read any more.
  void ReleaseSources();

  const CheckpointIo io_;
  const Spec spec_;                       // But for the sources.
  const std::vector<size_t> row_floats_;  // [sources]
  const std::vector<TableId> tables_;     // [sources]
  std::atomic<bool> cancelled_{false};

  // Held during a slice that is read; the mutex of the queues only in between.
  absl::Mutex reading_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::vector<Source> sources_ ABSL_GUARDED_BY(reading_);
  size_t source_ ABSL_GUARDED_BY(reading_) = 0;     // That is being read.
  size_t next_lane_ ABSL_GUARDED_BY(reading_) = 0;  // Which gets the next slice.
  std::vector<std::unique_ptr<Lane>> lanes_;        // [num_files]

  absl::Mutex mutex_;
  std::vector<std::deque<Slice>> full_ ABSL_GUARDED_BY(mutex_);  // [lanes]
  std::vector<Slice> empty_ ABSL_GUARDED_BY(mutex_);
  bool read_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<char> write_scheduled_ ABSL_GUARDED_BY(mutex_);  // [lanes]
  bool all_read_ ABSL_GUARDED_BY(mutex_) = false;     // No slice will be added to full_ ...
  absl::Status read_status_ ABSL_GUARDED_BY(mutex_);  // ... and why.
  size_t lanes_left_ ABSL_GUARDED_BY(mutex_);         // That haven't ended.
  std::vector<std::optional<CheckpointFile>> files_ ABSL_GUARDED_BY(mutex_);  // [lanes]
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // The first error of a lane.
  Done done_ ABSL_GUARDED_BY(mutex_);            // Null: it runs, or never will.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CHECKPOINT_SHARD_WRITER_H_
