// One file with rows of a checkpoint, sorted by table, partition and key (docs/formats.md). Writers
// make the format of rows_format.h; readers also read the SST files of earlier programs.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/checkpoint/row_key.h"
#include "common/checkpoint/rows_format.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct SavedRow {
  RowKey key;
  uint32_t lookups = 0;
  uint32_t changed = 0;  // The step of the last change, plus 1.
  // Weights, then optimizer state; empty for a candidate. Valid until the reader's next call.
  absl::Span<const float> values;
};

// Rows of one table, as columns.
struct RowColumns {
  absl::Span<const Key> keys;          // [n]
  absl::Span<const uint32_t> lookups;  // [n]
  absl::Span<const uint32_t> changed;  // [n] steps of the last change, plus 1
  absl::Span<const char> has_row;      // [n] 0: a candidate, of which the floats mean nothing
  absl::Span<const float> floats;      // [n, row_floats]
};

// Not thread-safe. The destructor removes an unfinished file.
class RowsFileWriter {
 public:
  // `path` is CheckpointFile's, below `directory`, which exists. Makes the folder of `path` where
  // it is missing. Replaces a file that a dead process has left. Errors: kResourceExhausted,
  // kUnavailable
  static absl::StatusOr<std::unique_ptr<RowsFileWriter>> Create(Disk* disk,
                                                                const std::string& directory,
                                                                std::string path);
  ~RowsFileWriter();
  RowsFileWriter(const RowsFileWriter&) = delete;
  RowsFileWriter& operator=(const RowsFileWriter&) = delete;

  // Adds rows. REQUIRES: keys ascend strictly, in the order of RowKey. Errors: kResourceExhausted,
  // kUnavailable
  absl::Status AddRows(TableId table, size_t row_floats, const RowColumns& rows);
  // Adds one row. A row without values is a candidate. The same requirement and errors.
  absl::Status Add(TableId table, Key key, uint32_t lookups, uint32_t changed,
                   absl::Span<const float> row);

  uint64_t rows() const { return footer_.rows; }

  // Syncs the file and its folder. Without rows there is no file: returns nullopt, and leaves
  // nothing on the disk. Called once, last. Errors: kResourceExhausted, kUnavailable
  absl::StatusOr<std::optional<CheckpointFile>> Finish();

 private:
  RowsFileWriter(Disk* disk, std::string path, std::string full_path)
      : disk_(disk), path_(std::move(path)), full_path_(std::move(full_path)) {}

  // The block under construction with so many more rows, or candidates where they have no values.
  RowsBlock BlockWith(size_t rows, size_t floats) const;
  // How many of so many further rows, at least one, belong into it.
  size_t BlockTakes(TableId table, size_t rows, size_t floats) const;
  absl::Status WriteBlock();
  // `crc32c` is the checksum of the pieces.
  absl::Status Append(absl::Span<const absl::string_view> pieces, uint32_t crc32c);

  Disk* const disk_;
  const std::string path_;  // CheckpointFile's.
  const std::string full_path_;
  std::unique_ptr<StreamFile> file_;
  bool finished_ = false;
  RowKey last_key_;
  uint64_t bytes_ = 0;  // Written so far.
  RowsFooter footer_;   // Counts what was added; the checksum is that of the bytes so far.
  std::string index_;   // The entries of the written blocks.
  // The block under construction, and its columns. Kinds are there from the first candidate on.
  RowsBlock block_;
  std::vector<Key> keys_;
  std::vector<uint32_t> lookups_, changed_;
  std::vector<char> kinds_;
  std::vector<float> values_;
};

// How a file is read: all its rows in order, or single rows.
enum class RowsFileUse { kScan, kSingleRows };

// Not thread-safe. Errors of all calls name the file: kDataLoss (damaged), kUnavailable (the disk),
// kFailedPrecondition (of a later format).
class RowsFileReader {
 public:
  // `file` is the manifest's entry, of which the path says the format. Also kDataLoss where the
  // file is missing, or its size or number of rows differs.
  static absl::StatusOr<std::unique_ptr<RowsFileReader>> Open(Disk* disk,
                                                              const std::string& directory,
                                                              const CheckpointFile& file,
                                                              RowsFileUse use = RowsFileUse::kScan);
  virtual ~RowsFileReader() = default;

  // A reader of the same open file for another thread, which calls this. REQUIRES: kSingleRows
  virtual std::unique_ptr<RowsFileReader> Share() const = 0;

  // Reads the next row, at first the file's first. False: there is none. Checks that the keys
  // ascend.
  virtual absl::StatusOr<bool> Next(SavedRow* row) = 0;
  // Moves, forwards or back, so that Next reads the first row whose key is not less than `key`.
  virtual void Seek(const RowKey& key) = 0;

  // How many rows with values each table has in partitions [begin_partition, end_partition), to
  // within a block at either end, by the file's index. Empty where the format has no such numbers.
  virtual absl::flat_hash_map<TableId, uint64_t> CountRows(uint32_t begin_partition,
                                                           uint32_t end_partition) const = 0;

  // Checks every byte of the file against the manifest. Reads only bytes that Next has not read;
  // they are few once it has returned all rows of a kScan. Also kDataLoss where a byte differs.
  virtual absl::Status CheckBytes() const = 0;

  virtual const std::string& path() const = 0;  // With the directory.
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROWS_FILE_H_
