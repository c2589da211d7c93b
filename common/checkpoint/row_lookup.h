// Finds single rows of a checkpoint by their keys.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_ROW_LOOKUP_H_
#define THERMOCLINE_COMMON_CHECKPOINT_ROW_LOOKUP_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/rows_file.h"
#include "common/disk/disk.h"
#include "common/math/table_spec.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// Reads only the blocks of files that may have a wanted row, and checks what it reads. Not
// thread-safe.
//
// Errors of all calls name the file: kDataLoss (damaged or missing), kUnavailable (the disk).
class RowLookup {
 public:
  // Opens each file once, several at a time. `disk` and `threads` outlive the object. Takes memory
  // for the files' indexes, about 60 bytes for each 64 KiB of rows, and for each thread a block of
  // each file that it reads. REQUIRES: CheckManifest(manifest) is OK.
  static absl::StatusOr<std::unique_ptr<RowLookup>> Open(Disk* disk, const std::string& directory,
                                                         const CheckpointManifest& manifest,
                                                         ThreadPool* threads);

  // Calls `found(i, row)` once for each wanted[i] that has a row, on any of the threads. Forgotten
  // rows and candidates (embedding_table.h) are not found. REQUIRES: `wanted` ascends strictly.
  using OnFound = absl::FunctionRef<void(size_t i, const SavedRow& row)>;
  absl::Status Read(absl::Span<const RowKey> wanted, OnFound found);

 private:
  struct Range;
  using Files = std::vector<std::unique_ptr<RowsFileReader>>;  // A shard's, newest first.

  RowLookup(const CheckpointManifest& manifest, ThreadPool* threads);
  std::vector<Range> RangesOf(absl::Span<const RowKey> wanted) const;
  // A thread's own readers of a shard's files. Called on that thread.
  const Files& ReadersOf(int thread, uint32_t shard);
  absl::Status ReadRange(absl::Span<const RowKey> wanted, const Range& range, const Files& files,
                         OnFound found) const;
  // False: the row is forgotten, or a candidate. Errors: kDataLoss (it can't be of this checkpoint)
  absl::StatusOr<bool> IsRow(const RowsFileReader& file, const SavedRow& row) const;

  const ClusterMap shards_;
  const int64_t last_step_;
  ThreadPool* const threads_;
  std::vector<Files> files_;                           // [shards]
  std::vector<std::vector<Files>> readers_;            // [threads][shards] made at the first use
  absl::flat_hash_map<uint32_t, TableLayout> tables_;  // By id.
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_ROW_LOOKUP_H_
