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
  uint32_t changed = 0;  // Step of the last change + 1
  absl::Span<const float>
      values;  // Weights, then optimizer state; valid until the reader's next call.
};

// One thread at a time. The destructor removes an unfinished file.
class RowsFileWriter {
 public:
  // `path`: as CheckpointFile has it, below `directory`, which exists; the folder of `path` is made
  // where it is missing. Replaces an existing file, which a dead process has left. Errors:
  // kResourceExhausted, kUnavailable
  static absl::StatusOr<std::unique_ptr<RowsFileWriter>> Create(Disk* disk, std::string directory,
                                                                std::string path);
  ~RowsFileWriter();

  // REQUIRES: keys ascend strictly, in the order of RowKey. Errors: kResourceExhausted,
  // kUnavailable
  absl::Status Add(const RowKey& key, uint32_t lookups, uint32_t changed,
                   absl::Span<const float> row);
  // The same, with the partition computed.
  absl::Status Add(TableId table, Key key, uint32_t lookups, uint32_t changed,
                   absl::Span<const float> row) {
    return Add(RowKeyOf(table, key), lookups, changed, row);
  }

  uint64_t rows() const;

  // The file and its folder are synced. Without any rows there is no file: nullopt, and nothing is
  // left on the disk. Called once, last. Errors: kResourceExhausted, kUnavailable
  absl::StatusOr<std::optional<CheckpointFile>> Finish();

 private:
  struct Rep;
  explicit RowsFileWriter(std::unique_ptr<Rep> rep);

  const std::unique_ptr<Rep> rep_;
};

// What a file is read for: one row after the other, or single ones here and there.
enum class RowsFileUse { kScan, kSingleRows };

// One thread at a time.
//
// Errors of all calls name the file: kDataLoss (damaged), kUnavailable (the disk).
class RowsFileReader {
 public:
  // `file`: as the manifest lists it. Also kDataLoss: it is missing, of another size, or has
  // another number of rows.
  static absl::StatusOr<std::unique_ptr<RowsFileReader>> Open(Disk* disk,
                                                              const std::string& directory,
                                                              const CheckpointFile& file,
                                                              RowsFileUse use = RowsFileUse::kScan);
  ~RowsFileReader();

  // A reader of the same open file for another thread, which calls this. REQUIRES: kSingleRows
  std::unique_ptr<RowsFileReader> Share() const;

  // The next row, at first the file's first. False: there is none. Checks that the partition is the
  // key's and that the keys ascend.
  absl::StatusOr<bool> Next(SavedRow* row);
  // Moves, forwards or back, to the first row that isn't before `key`.
  void Seek(const RowKey& key);

  // Whether every byte of the file is as the manifest says. Reads only the bytes that Next has not
  // read, which are few once it has returned all rows of a kScan. Also kDataLoss: a byte differs.
  absl::Status CheckBytes() const;

  const std::string& path() const;  // Directory included

 private:
  struct File;
  struct Rep;
  explicit RowsFileReader(std::unique_ptr<Rep> rep);

  const std::unique_ptr<Rep> rep_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_
