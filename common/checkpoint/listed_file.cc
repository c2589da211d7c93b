#include "common/checkpoint/listed_file.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"

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

absl::Status CheckedFiles::Check(Disk* disk, const std::string& directory,
                                 const CheckpointManifest& manifest,
                                 absl::FunctionRef<bool(const std::string& path)> shown) {
  std::vector<const CheckpointFile*> unknown;
  {
    absl::MutexLock lock(&mutex_);
    for (const CheckpointShard& shard : manifest.shards()) {
      for (const CheckpointFile& file : shard.files()) {
        const auto known = bytes_.find(file.path());
        const bool is_known = known != bytes_.end() && known->second == file.bytes();
        if (!is_known || !shown(file.path())) unknown.push_back(&file);
      }
    }
  }
  if (unknown.empty()) return absl::OkStatus();
  std::vector<absl::Status> found(unknown.size());
  ThreadPool pool(static_cast<int>(std::min<size_t>(threads_, unknown.size())));
  pool.ParallelFor(static_cast<int64_t>(unknown.size()), [&](int64_t i, int /*thread*/) {
    const CheckpointFile& file = *unknown[i];
    found[i] = OpenListedFile(disk, absl::StrCat(directory, "/", file.path()), file).status();
  });
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < unknown.size(); ++i) {
    if (found[i].ok()) bytes_[unknown[i]->path()] = unknown[i]->bytes();
  }
  for (const absl::Status& each : found) RETURN_IF_ERROR(each);
  return absl::OkStatus();
}

void CheckedFiles::Forget(const std::string& path) {
  absl::MutexLock lock(&mutex_);
  bytes_.erase(path);
}

void CheckedFiles::Forget(const CheckpointManifest& manifest) {
  for (const CheckpointShard& shard : manifest.shards()) {
    for (const CheckpointFile& file : shard.files()) Forget(file.path());
  }
}

absl::Status CheckListedBytes(Disk* disk, const std::string& path, const CheckpointFile& listed,
                              const OnRead& on_read) {
  ASSIGN_OR_RETURN(const std::unique_ptr<ReadFile> file, OpenListedFile(disk, path, listed));
  ASSIGN_OR_RETURN(const uint32_t crc, Crc32cFrom(*file, 0, 0, on_read));
  return CheckListedCrc32c(path, listed, crc);
}

absl::Status CheckListedCrc32c(const std::string& path, const CheckpointFile& listed,
                               uint32_t crc32c) {
  if (crc32c == listed.crc32c()) return absl::OkStatus();
  return DamagedFile(path, absl::StrFormat("its CRC-32C is %08x, the manifest says %08x", crc32c,
                                           listed.crc32c()));
}

absl::Status CheckListedRows(const std::string& path, const CheckpointFile& listed, uint64_t rows) {
  if (rows == listed.rows()) return absl::OkStatus();
  return DamagedFile(path,
                     absl::StrCat("it has ", rows, " rows, the manifest says ", listed.rows()));
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
