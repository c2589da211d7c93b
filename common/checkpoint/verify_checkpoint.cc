#include "common/checkpoint/verify_checkpoint.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/merged_rows.h"
#include "common/crc32c.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

constexpr uint64_t kReadBytes = 1 << 20;

absl::Status VerifyBytes(Disk* disk, const std::string& path, const CheckpointFile& file) {
  const auto opened = disk->Open(path);
  if (absl::IsNotFound(opened.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "' is missing"));
  }
  RETURN_IF_ERROR(opened.status());
  const uint64_t size = (*opened)->size();
  if (size != file.bytes()) {
    return absl::DataLossError(absl::StrCat("'", path, "' is damaged: it has ", size,
                                            " bytes, the manifest says ", file.bytes()));
  }
  std::vector<char> buffer(std::min(size, kReadBytes));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < size;) {
    const uint64_t bytes = std::min<uint64_t>(size - at, buffer.size());
    RETURN_IF_ERROR((*opened)->ReadAt(at, absl::MakeSpan(buffer.data(), bytes)));
    crc = ExtendCrc32c(crc, buffer.data(), bytes);
    at += bytes;
  }
  if (crc == file.crc32c()) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "'%s' is damaged: its CRC-32C is %08x, the manifest says %08x", path, crc, file.crc32c()));
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
