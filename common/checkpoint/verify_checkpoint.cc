#include "common/checkpoint/verify_checkpoint.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/listed_file.h"
#include "common/checkpoint/merged_rows.h"
#include "common/status_macros.h"

namespace thermocline {
absl::StatusOr<VerifiedCheckpoint> VerifyCheckpoint(Disk* disk, const std::string& directory,
                                                    const CheckpointManifest& manifest) {
  VerifiedCheckpoint verified;
  for (const TableSpec& table : manifest.tables()) verified.rows[TableId(table.id())] = 0;
  for (int part = 0; part < manifest.parts_size(); ++part) {
    uint64_t rows = 0;  // of the part's files
    for (const CheckpointFile& file : manifest.parts(part).files()) {
      RETURN_IF_ERROR(CheckListedBytes(disk, absl::StrCat(directory, "/", file.path()), file));
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
