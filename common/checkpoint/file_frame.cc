#include "common/checkpoint/file_frame.h"

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

constexpr size_t kMagicBytes = 8, kVersionAt = 8, kLengthAt = 12, kCrcAt = 16;

uint32_t Checksum(absl::string_view header, absl::string_view payload) {
  return ExtendCrc32c(Crc32c(header.data(), kCrcAt), payload.data(), payload.size());
}

}  // namespace

std::string EncodeFrame(const FrameFormat& format, absl::string_view payload) {
  CHECK_EQ(std::strlen(format.magic), kMagicBytes);
  CHECK_LE(payload.size(), kMaxFramePayloadBytes);
  std::string bytes(kFrameHeaderBytes, '\0');
  std::memcpy(&bytes[0], format.magic, kMagicBytes);
  StoreAt<uint32_t>(format.version, kVersionAt, &bytes[0]);
  StoreAt<uint32_t>(static_cast<uint32_t>(payload.size()), kLengthAt, &bytes[0]);
  StoreAt<uint32_t>(Checksum(bytes, payload), kCrcAt, &bytes[0]);
  absl::StrAppend(&bytes, payload);
  return bytes;
}

absl::StatusOr<std::string> DecodeFrameOfAnyVersion(const char* magic, absl::string_view bytes,
                                                    const std::string& path) {
  if (bytes.size() < kFrameHeaderBytes) {
    return absl::DataLossError(absl::StrCat("'", path, "' is cut short: ", bytes.size(),
                                            " bytes, its header alone has ", kFrameHeaderBytes));
  }
  if (bytes.substr(0, kMagicBytes) != magic) {
    return absl::DataLossError(
        absl::StrCat("'", path, "' is damaged: it doesn't begin with ", magic));
  }
  const absl::string_view payload = bytes.substr(kFrameHeaderBytes);
  if (LoadAt<uint32_t>(bytes, kLengthAt) != payload.size()) {
    return absl::DataLossError(absl::StrCat("'", path, "' is damaged: ", payload.size(),
                                            " bytes follow its header, which says ",
                                            LoadAt<uint32_t>(bytes, kLengthAt)));
  }
  if (LoadAt<uint32_t>(bytes, kCrcAt) != Checksum(bytes, payload)) {
    return absl::DataLossError(absl::StrCat("'", path, "' is damaged: its checksum is wrong"));
  }
  return std::string(payload);
}

absl::StatusOr<std::string> DecodeFrame(const FrameFormat& format, absl::string_view bytes,
                                        const std::string& path) {
  ASSIGN_OR_RETURN(std::string payload, DecodeFrameOfAnyVersion(format.magic, bytes, path));
  // The checksum is right, so the version can be trusted.
  if (!format.Knows(LoadAt<uint32_t>(bytes, kVersionAt))) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path, "' has format version ", LoadAt<uint32_t>(bytes, kVersionAt),
                     "; this program knows version ", format.version));
  }
  return payload;
}

absl::StatusOr<std::string> ReadWholeFile(Disk* disk, const std::string& path) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file, disk->Open(path));
  if (file->size() > kFrameHeaderBytes + kMaxFramePayloadBytes) {
    return absl::DataLossError(absl::StrCat("'", path, "' is damaged: ", file->size(), " bytes"));
  }
  std::string bytes(file->size(), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, absl::MakeSpan(&bytes[0], bytes.size())));
  return bytes;
}

absl::Status WriteWholeFile(Disk* disk, absl::string_view bytes, const std::string& path) {
  const std::string temporary = path + ".tmp";
  const absl::Status removed = disk->Remove(temporary);  // what a crash left
  if (!removed.ok() && !absl::IsNotFound(removed)) return removed;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, disk->Create(temporary));
    RETURN_IF_ERROR(file->Append({bytes}));
    RETURN_IF_ERROR(file->Sync());
  }
  RETURN_IF_ERROR(disk->Rename(temporary, path));
  return disk->SyncDirectory(FolderOf(path));
}

}  // namespace thermocline
