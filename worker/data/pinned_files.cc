#include "worker/data/pinned_files.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"

namespace thermocline {
namespace {

// Returns "12 bytes, modified at 2026-11-20 12:34:56.789 UTC", for instance.
std::string DescribeVersion(const FileIdentity& file) {
  if (!file.bytes.has_value()) return "no regular file";
  return absl::StrCat(
      *file.bytes, " bytes, ",
      file.tag.empty()
          ? absl::StrCat("modified at ", absl::FormatTime("%Y-%m-%d %H:%M:%E*S UTC",
                                                          absl::FromUnixNanos(file.modified_ns),
                                                          absl::UTCTimeZone()))
          : absl::StrCat("tag ", file.tag));
}

}  // namespace

absl::StatusOr<std::shared_ptr<PinnedFiles>> PinnedFiles::Open(const DataFiles& files,
                                                               std::shared_ptr<ObjectStore> store) {
  std::vector<const DataFile*> all;
  for (const DataFile& file : files.train()) all.push_back(&file);
  for (const DataFile& file : files.test()) all.push_back(&file);
  std::shared_ptr<PinnedFiles> pinned(new PinnedFiles(std::move(store)));
  RETURN_IF_ERROR(ForEachFile(all.size(), [&](size_t i) -> absl::Status {
    const std::string& path = all[i]->path();
    ASSIGN_OR_RETURN(FileIdentity identity,
                     IdentifyFile(path, pinned->store_.get(), kDataFileEndBytes));
    const std::string change = DescribeChange(ToDataFile(path, identity), *all[i]);
    if (!change.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not the file that the job began with: it ", change));
    }
    absl::MutexLock lock(&pinned->mutex_);
    pinned->files_[path] = std::move(identity);
    return absl::OkStatus();
  }));
  return pinned;
}

absl::Status PinnedFiles::Check(const std::string& path) {
  const auto now = IdentifyFile(path, store_.get(), /*end_bytes=*/0);
  if (absl::IsNotFound(now.status())) return absl::OkStatus();
  RETURN_IF_ERROR(now.status());
  absl::MutexLock lock(&mutex_);
  const FileIdentity& first = files_.emplace(path, *now).first->second;
  if (first.bytes == now->bytes && first.modified_ns == now->modified_ns && first.tag == now->tag) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, " was changed while the job read it: it is ", DescribeVersion(*now),
                   ", and was ", DescribeVersion(first)));
}

}  // namespace thermocline
