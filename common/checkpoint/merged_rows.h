// The rows of one server's shard of a checkpoint, merged from its files: a row of a later file
// replaces the one of an earlier file, and rows forgotten up to the checkpoint's step are left out.
// Candidates (keys that have a count and no row yet) come as rows without values.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_MERGED_ROWS_H_
#define THERMOCLINE_COMMON_CHECKPOINT_MERGED_ROWS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// A part of a shard's rows: partitions [begin_partition, end_partition).
struct RowRange {
  uint32_t begin_partition = 0;
  uint32_t end_partition = kNumPartitions;
  std::optional<TableId> table;  // nullopt: all tables.
};

// Not thread-safe, but several objects may read the same files, for example for several ranges.
//
// Errors of all calls name the file: kDataLoss (damaged, missing, or a row that can't belong to
// this shard: an unknown table, a wrong size, a partition of another server, a later step),
// kUnavailable (the disk).
class MergedRows {
 public:
  // Opens the shard of server `shard`. Reads only the blocks that the range needs; nothing where
  // the server has none of the partitions.
  //
  // REQUIRES: CheckManifest(manifest) is OK, 0 <= shard < shards_size()
  static absl::StatusOr<std::unique_ptr<MergedRows>> Open(Disk* disk, const std::string& directory,
                                                          const CheckpointManifest& manifest,
                                                          int shard, const RowRange& range = {});
  MergedRows(const MergedRows&) = delete;
  MergedRows& operator=(const MergedRows&) = delete;

  // Reads the next row, in the order of keys. False: there is none.
  absl::StatusOr<bool> Next(SavedRow* row);

  // Checks every byte of the shard's files against the manifest: see RowsFileReader.
  absl::Status CheckBytes() const;

  // How many rows of the files Next has read, replaced ones included.
  uint64_t rows_read() const { return rows_read_; }

 private:
  struct Source {
    std::unique_ptr<RowsFileReader> file;
    SavedRow row;  // The next one.
    bool done = false;
    bool used = true;  // Next returned the row, or one that replaces it.
  };

  explicit MergedRows(const RowRange& range) : range_(range) {}
  absl::Status Advance(Source* source);
  absl::Status CheckRow(const Source& source);
  struct Table {
    size_t row_floats = 0;
    bool has_candidates = false;
    uint32_t oldest_kept = 0;  // Rows with a smaller RowMeta::changed are forgotten.
  };

  const RowRange range_;
  std::vector<Source> sources_;                  // Oldest first.
  absl::flat_hash_map<uint32_t, Table> tables_;  // By id.
  int64_t last_step_ = 0;                        // No row was changed later.
  uint32_t first_partition_of_server_ = 0, end_partition_of_server_ = kNumPartitions;
  uint64_t rows_read_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_MERGED_ROWS_H_
