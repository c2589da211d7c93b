// Writes one server's part of a checkpoint, slice by slice, while later steps are applied.
//
//   read a slice from the tables' snapshots -> up to kSlicesAhead of them wait -> add it to its
//   file
//
// A slice is some thousand rows. Reading one is a task, and so is writing one; each task schedules
// the next of its kind, so that other tasks of the thread run in between. The files of a shard get
// the slices in turn: the contents of each depend on the rows alone, and its keys ascend.
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

// How checkpoints are read and written. Disk and tasks outlive their user; where they are null,
// there are no checkpoints.
struct CheckpointIo {
  // How many tasks a shard has at a time: one reads rows, one writes each file, and one applies a
  // step which waited for the reading.
  static constexpr size_t MaxTasks(size_t num_files) { return num_files + 2; }

  Disk* disk = nullptr;
  // Its tasks wait for the disk. With MaxTasks(num_files) threads none waits for another.
  TaskRunner* tasks = nullptr;
  uint64_t incarnation = 0;  // This process's: see RowsFileWriterId.
  size_t num_files = 1;      // A shard has at most so many files; each has its own writing task.
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
    std::string directory;  // The folder of all checkpoints.
    // [CheckpointIo::num_files] The files to write, below it. A file without rows is not made.
    std::vector<std::string> paths;
    ServerIndex server;
    uint64_t generation = 0;
    Step base_step;                    // The shard holds rows changed after it; kNoStep: all rows.
    std::vector<Source> sources;       // By table id.
    std::vector<RowLimit> row_limits;  // By table id.
    // Called after each slice that was read, in the task that reads; perhaps after `done`.
    std::function<void()> on_read;
    Step cut = kNoStep;  // The step after which the rows are, for traces.
  };
  // Called once, on a thread of the tasks, with the shard once its files are on the medium, or with
  // an error once its files are removed. Errors: kCancelled, kResourceExhausted, kUnavailable, and
  // those of reading rows.
  using Done = std::function<void(absl::StatusOr<CheckpointShard>)>;

  static std::shared_ptr<ShardWriter> Start(const CheckpointIo& io, Spec spec, Done done);
  ~ShardWriter();

  // Begins no further slice; `done` is called once the present one has ended.
  void Cancel();
  // The same, but waits for the present slice and doesn't call `done` unless that has begun. The
  // tables may be destroyed afterwards. Removes the files if the disk lets it.
  void Stop();

 private:
  struct Slice {
    size_t source = 0;
    SnapshotRows rows;
  };

  // The writing of one file.
  struct Lane {
    absl::Mutex writing;  // Held while a slice is written; acquired before mutex_.
    std::unique_ptr<RowsFileWriter> file ABSL_GUARDED_BY(writing);
    bool ended ABSL_GUARDED_BY(writing) = false;
  };

  ShardWriter(const CheckpointIo& io, Spec spec, Done done);

  void ScheduleRead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ScheduleWrite(size_t lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RunRead();
  void RunWrite(size_t index);
  absl::StatusOr<bool> ReadSlice(Slice* slice) ABSL_EXCLUSIVE_LOCKS_REQUIRED(reading_);
  // True: more slices will come.
  absl::StatusOr<bool> WriteNext(size_t index, Lane* lane)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane->writing);
  absl::Status OpenFile(size_t index, Lane* lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lane->writing);
  absl::Status WriteSlice(const Slice& slice, RowsFileWriter* file);
  void EndLane(size_t index, absl::StatusOr<std::optional<CheckpointFile>> file);
  void RemoveFiles(const CheckpointShard& shard);
  void ReleaseSources();  // Once nothing is read any more.

  const CheckpointIo io_;
  const Spec spec_;                       // Its sources were moved to sources_.
  const std::vector<size_t> row_floats_;  // [sources]
  const std::vector<TableId> tables_;     // [sources]
  std::atomic<bool> cancelled_{false};

  // Held while a slice is read. mutex_ is free meanwhile.
  absl::Mutex reading_ ABSL_ACQUIRED_BEFORE(mutex_);
  std::vector<Source> sources_ ABSL_GUARDED_BY(reading_);
  size_t source_ ABSL_GUARDED_BY(reading_) = 0;     // The source that is being read.
  size_t next_lane_ ABSL_GUARDED_BY(reading_) = 0;  // The lane that gets the next slice.
  std::vector<std::unique_ptr<Lane>> lanes_;        // [num_files]

  absl::Mutex mutex_;
  std::vector<std::deque<Slice>> full_ ABSL_GUARDED_BY(mutex_);  // [lanes]
  std::vector<Slice> empty_ ABSL_GUARDED_BY(mutex_);
  bool read_scheduled_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<char> write_scheduled_ ABSL_GUARDED_BY(mutex_);  // [lanes]
  bool all_read_ ABSL_GUARDED_BY(mutex_) = false;     // No further slice is added to full_,
  absl::Status read_status_ ABSL_GUARDED_BY(mutex_);  // for this reason.
  size_t lanes_left_ ABSL_GUARDED_BY(mutex_);         // Lanes that haven't ended.
  std::vector<std::optional<CheckpointFile>> files_ ABSL_GUARDED_BY(mutex_);  // [lanes]
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // The first error of a lane.
  Done done_ ABSL_GUARDED_BY(mutex_);            // Null once it was called or will not be.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CHECKPOINT_SHARD_WRITER_H_
