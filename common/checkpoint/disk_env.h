// RocksDB's view of a Disk: enough of a file system to write and to read single SST files.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_DISK_ENV_H_
#define THERMOCLINE_COMMON_CHECKPOINT_DISK_ENV_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/disk/disk.h"
#include "rocksdb/env.h"

namespace thermocline {

// What became of the files of one environment. Thread-safe.
class DiskActivity {
 public:
  // The first error a Disk gave; RocksDB's own statuses tell less.
  absl::Status error() const;
  void Record(const absl::Status& status);

  // What was appended, over all files. REQUIRES: nobody appends
  uint64_t appended_bytes = 0;
  uint32_t appended_crc32c = 0;

 private:
  mutable absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// An environment over `disk`, which outlives it. A new file replaces one that is there.
std::unique_ptr<rocksdb::Env> NewDiskEnv(Disk* disk, std::shared_ptr<DiskActivity> activity);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_DISK_ENV_H_
