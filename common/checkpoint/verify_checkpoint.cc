#include "common/checkpoint/verify_checkpoint.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/listed_file.h"
#include "common/checkpoint/merged_rows.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

absl::Status VerifyBytes(Disk* disk, const std::string& path, const CheckpointFile& listed) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file, OpenListedFile(disk, path, listed));
  ASSIGN_OR_RETURN(const uint32_t crc, Crc32cFrom(*file, 0));
  if (crc == listed.crc32c()) return absl::OkStatus();
  return DamagedFile(
      path, absl::StrFormat("its CRC-32C is %08x, the manifest says %08x", crc, listed.crc32c()));
}

}  // namespace

absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest) {
  VerifiedCheckpoint verified;
  for (const TableSpec& table : manifest.tables()) verified.rows[TableId(table.id())] = 0;
  for (int part = 0; part < manifest.parts_size(); ++part) {
    uint64_t rows = 0;  // of the part's files
    for (const CheckpointFile& file : manifest.parts(part).files()) {
      RETURN_IF_ERROR(VerifyBytes(disk, absl::StrCat(directory, "/", file.path()), file));
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
    if (merged->rows_read() != rows) {
      return absl::DataLossError(absl::StrCat("the files of server ", part, " in '", directory,
                                              "' have ", merged->rows_read(),
                                              " rows, the manifest says ", rows));
    }
  }
  return verified;
}

}  // namespace thermocline
