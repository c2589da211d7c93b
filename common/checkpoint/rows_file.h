// One file with rows of a checkpoint: a RocksDB SST file, uncompressed, every block under a
// checksum, sorted by table, partition and key (docs/formats.md).
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/checkpoint/row_key.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct SavedRow {
  RowKey key;
  uint32_t lookups = 0;
  uint32_t changed = 0;  // The step of the last change, plus 1.
  // Weights, then optimizer state. Valid until the reader's next call.
  absl::Span<const float> values;
};

// Not thread-safe. The destructor removes an unfinished file.
class RowsFileWriter {
 public:
  // `path` is CheckpointFile's, below `directory`, which exists. Makes the folder of `path` where
  // it is missing. Replaces a file that a dead process has left. Errors: kResourceExhausted,
  // kUnavailable
  static absl::StatusOr<std::unique_ptr<RowsFileWriter>> Create(Disk* disk, std::string directory,
                                                                std::string path);
  ~RowsFileWriter();

  // REQUIRES: keys ascend strictly, in the order of RowKey. Errors: kResourceExhausted,
  // kUnavailable
  absl::Status Add(const RowKey& key, uint32_t lookups, uint32_t changed,
                   absl::Span<const float> row);
  // The same, but computes the partition.
  absl::Status Add(TableId table, Key key, uint32_t lookups, uint32_t changed,
                   absl::Span<const float> row) {
    return Add(RowKeyOf(table, key), lookups, changed, row);
  }

  uint64_t rows() const;

  // Syncs the file and its folder. Without rows there is no file: returns nullopt, and leaves
  // nothing on the disk. Called once, last. Errors: kResourceExhausted, kUnavailable
  absl::StatusOr<std::optional<CheckpointFile>> Finish();

 private:
  struct Rep;
  explicit RowsFileWriter(std::unique_ptr<Rep> rep);

  const std::unique_ptr<Rep> rep_;
};

// How a file is read: all its rows in order, or single rows.
enum class RowsFileUse { kScan, kSingleRows };

// Not thread-safe. Errors of all calls name the file: kDataLoss (damaged), kUnavailable (the disk).
class RowsFileReader {
 public:
  // `file` is the manifest's entry. Also kDataLoss where the file is missing, or its size or number
  // of rows differs.
  static absl::StatusOr<std::unique_ptr<RowsFileReader>> Open(Disk* disk,
                                                              const std::string& directory,
                                                              const CheckpointFile& file,
                                                              RowsFileUse use = RowsFileUse::kScan);
  ~RowsFileReader();

  // A reader of the same open file for another thread, which calls this. REQUIRES: kSingleRows
  std::unique_ptr<RowsFileReader> Share() const;

  // Reads the next row, at first the file's first. False: there is none. Checks that the partition
  // is the key's and that the keys ascend.
  absl::StatusOr<bool> Next(SavedRow* row);
  // Moves, forwards or back, so that Next reads the first row whose key is not less than `key`.
  void Seek(const RowKey& key);

  // Checks every byte of the file against the manifest. Reads only bytes that Next has not read;
  // they are few once it has returned all rows of a kScan. Also kDataLoss where a byte differs.
  absl::Status CheckBytes() const;

  const std::string& path() const;  // With the directory.

 private:
  struct File;
  struct Rep;
  explicit RowsFileReader(std::unique_ptr<Rep> rep);

  const std::unique_ptr<Rep> rep_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_
