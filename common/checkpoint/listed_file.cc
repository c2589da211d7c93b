#include "common/checkpoint/listed_file.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {

absl::Status DamagedFile(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("'", path, "' is damaged: ", what));
}

absl::StatusOr<std::unique_ptr<ReadFile>> OpenListedFile(Disk* disk, const std::string& path,
                                                         const CheckpointFile& listed) {
  absl::StatusOr<std::unique_ptr<ReadFile>> opened = disk->Open(path);
  if (absl::IsNotFound(opened.status())) {
    return absl::DataLossError(absl::StrCat("'", path, "' is missing"));
  }
  RETURN_IF_ERROR(opened.status());
  const uint64_t bytes = (*opened)->size();
  if (bytes == listed.bytes()) return opened;
  return DamagedFile(path,
                     absl::StrCat("it has ", bytes, " bytes, the manifest says ", listed.bytes()));
}

absl::Status CheckListedBytes(Disk* disk, const std::string& path, const CheckpointFile& listed,
                              const OnRead& on_read) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file, OpenListedFile(disk, path, listed));
  ASSIGN_OR_RETURN(const uint32_t crc, Crc32cFrom(*file, 0, 0, on_read));
  if (crc == listed.crc32c()) return absl::OkStatus();
  return DamagedFile(
      path, absl::StrFormat("its CRC-32C is %08x, the manifest says %08x", crc, listed.crc32c()));
}

absl::StatusOr<uint32_t> Crc32cFrom(const ReadFile& file, uint64_t begin, uint32_t crc,
                                    const OnRead& on_read) {
  const uint64_t end = file.size();
  CHECK_LE(begin, end);
  std::vector<char> buffer(std::min<uint64_t>(end - begin, kListedFileReadBytes));
  for (uint64_t at = begin; at < end;) {
    const uint64_t bytes = std::min<uint64_t>(end - at, buffer.size());
    RETURN_IF_ERROR(file.ReadAt(at, absl::MakeSpan(buffer.data(), bytes)));
    crc = ExtendCrc32c(crc, buffer.data(), bytes);
    at += bytes;
    if (on_read) RETURN_IF_ERROR(on_read(bytes));
  }
  return crc;
}

}  // namespace thermocline
