#include "common/checkpoint/verify_checkpoint.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/merged_rows.h"

namespace thermocline {
namespace {

absl::StatusOr<VerifiedCheckpoint> VerifyPart(Disk* disk, const std::string& directory,
                                              const CheckpointManifest& manifest, int part) {
  VerifiedCheckpoint verified;
  uint64_t rows = 0;  // of the part's files
  for (const CheckpointFile& file : manifest.parts(part).files()) {
    ++verified.files;
    verified.bytes += file.bytes();
    rows += file.rows();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<MergedRows> merged,
                   MergedRows::Open(disk, directory, manifest, part));
  for (SavedRow row;;) {
    ASSIGN_OR_RETURN(const bool found, merged->Next(&row));
    if (!found) break;
    verified.model_digest.Add(RowDigest(row.key.table, row.key.key, row.values));
    ++verified.rows[row.key.table];
  }
  RETURN_IF_ERROR(merged->CheckBytes());
  if (merged->rows_read() == rows) return verified;
  return absl::DataLossError(absl::StrCat("the files of server ", part, " in '", directory,
                                          "' have ", merged->rows_read(),
                                          " rows, the manifest says ", rows));
}

}  // namespace

absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest,
                                                    int num_threads) {
  const int num_parts = manifest.parts_size();
  std::vector<absl::StatusOr<VerifiedCheckpoint>> parts(num_parts, absl::UnknownError(""));
  std::atomic<int> next{0};
  const auto verify_parts = [&] {
    for (int part; (part = next++) < num_parts;) {
      parts[part] = VerifyPart(disk, directory, manifest, part);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < std::min(num_threads, num_parts); ++i) helpers.emplace_back(verify_parts);
  verify_parts();
  for (std::thread& helper : helpers) helper.join();

  VerifiedCheckpoint verified;
  for (const TableSpec& table : manifest.tables()) verified.rows[TableId(table.id())] = 0;
  for (const absl::StatusOr<VerifiedCheckpoint>& part : parts) {
    RETURN_IF_ERROR(part.status());
    verified.model_digest.Add(part->model_digest);
    for (const auto& [table, rows] : part->rows) verified.rows[table] += rows;
    verified.files += part->files;
    verified.bytes += part->bytes;
  }
  return verified;
}

}  // namespace thermocline
