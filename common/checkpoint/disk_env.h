// RocksDB for the rows files of earlier programs: their settings, and a Disk as a file system that
// can read single SST files.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_DISK_ENV_H_
#define THERMOCLINE_COMMON_CHECKPOINT_DISK_ENV_H_

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/disk/disk.h"
#include "rocksdb/env.h"
#include "rocksdb/options.h"
#include "rocksdb/table.h"

namespace thermocline {

// The errors and checksums of the files of one environment. Thread-safe.
class DiskActivity {
 public:
  // The first error a Disk gave; RocksDB's own statuses say less.
  absl::Status error() const;
  void Record(const absl::Status& status);

  // The checksum of the bytes read of the one file, from its beginning up to the first gap. Where
  // several threads read, nothing is counted.
  bool counts_reads = true;  // Constant after construction.
  uint64_t read_through = 0;
  uint32_t read_crc32c = 0;
  void CountRead(uint64_t offset, const char* data, size_t size);

 private:
  mutable absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
};

// An environment over `disk`, which outlives it.
std::unique_ptr<rocksdb::Env> NewDiskEnv(Disk* disk, std::shared_ptr<DiskActivity> activity);

// The settings of SST files, as docs/formats.md has them.
inline rocksdb::Options SstFileOptions(rocksdb::Env* env) {
  rocksdb::BlockBasedTableOptions table;
  table.format_version = 5;
  table.checksum = rocksdb::kXXH3;
  table.no_block_cache = true;  // Every block is read once.
  // Measured with rows of 128 bytes: smaller and larger blocks are slower, as are other distances
  // between the keys that are written whole.
  table.block_size = 64 << 10;
  table.block_size_deviation = 0;
  table.block_restart_interval = 16;
  rocksdb::Options options;
  options.env = env;
  options.compression = rocksdb::kNoCompression;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_DISK_ENV_H_
