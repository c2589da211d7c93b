// Writes one server's part of a checkpoint, slice by slice, while later steps are applied.
//
// A slice is some thousand rows. Each schedules the next, so that whoever else shares the thread
// gets in between; in the simulation that is everybody.
#ifndef THERMOCLINE_SERVER_CORE_PART_WRITER_H_
#define THERMOCLINE_SERVER_CORE_PART_WRITER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
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

// Where checkpoints are read and written. Both outlive their user; null: nowhere.
struct CheckpointIo {
  Disk* disk = nullptr;
  // Its tasks wait for the disk.
  Scheduler* scheduler = nullptr;
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
  PartWriter(const CheckpointIo& io, Spec spec, Done done);
  void Schedule();
  void RunSlice();
  absl::StatusOr<bool> WriteSlice() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<CheckpointPart> Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CheckpointIo io_;
  std::atomic<bool> cancelled_{false};

  absl::Mutex mutex_;  // Held during a slice.
  Spec spec_ ABSL_GUARDED_BY(mutex_);
  Done done_ ABSL_GUARDED_BY(mutex_);  // Null: there is nothing more to do.
  size_t source_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<RowsFileWriter> file_ ABSL_GUARDED_BY(mutex_);
  SnapshotRows rows_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PART_WRITER_H_
