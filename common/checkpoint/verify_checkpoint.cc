#include "common/checkpoint/verify_checkpoint.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/merged_rows.h"

namespace thermocline {
namespace {

absl::StatusOr<VerifiedCheckpoint> VerifyShard(Disk* disk, const std::string& directory,
                                               const CheckpointManifest& manifest, int shard) {
  VerifiedCheckpoint verified;
  uint64_t rows = 0;  // of the shard's files
  for (const CheckpointFile& file : manifest.shards(shard).files()) {
    ++verified.files;
    verified.bytes += file.bytes();
    rows += file.rows();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<MergedRows> merged,
                   MergedRows::Open(disk, directory, manifest, shard));
  for (SavedRow row;;) {
    ASSIGN_OR_RETURN(const bool found, merged->Next(&row));
    if (!found) break;
    if (row.values.empty()) {
      verified.model_digest.Add(CandidateDigest(row.key.table, row.key.key, row.lookups));
      continue;
    }
    verified.model_digest.Add(RowDigest(row.key.table, row.key.key, row.values));
    ++verified.rows[row.key.table];
  }
  RETURN_IF_ERROR(merged->CheckBytes());
  if (merged->rows_read() == rows) return verified;
  return absl::DataLossError(absl::StrCat("the files of server ", shard, " in '", directory,
                                          "' have ", merged->rows_read(),
                                          " rows, the manifest says ", rows));
}

}  // namespace

absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest,
                                                    int num_threads) {
  const int num_shards = manifest.shards_size();
  std::vector<absl::StatusOr<VerifiedCheckpoint>> shards(num_shards, absl::UnknownError(""));
  ThreadPool(std::clamp(num_threads, 1, std::max(1, num_shards)))
      .ParallelFor(num_shards, [&](int64_t shard, int) {
        shards[shard] = VerifyShard(disk, directory, manifest, static_cast<int>(shard));
      });

  VerifiedCheckpoint verified;
  for (const TableSpec& table : manifest.tables()) verified.rows[TableId(table.id())] = 0;
  for (const absl::StatusOr<VerifiedCheckpoint>& shard : shards) {
    RETURN_IF_ERROR(shard.status());
    verified.model_digest.Add(shard->model_digest);
    for (const auto& [table, rows] : shard->rows) verified.rows[table] += rows;
    verified.files += shard->files;
    verified.bytes += shard->bytes;
  }
  return verified;
}

}  // namespace thermocline
