#include "common/disk/disk.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// "a" lies in ".", "/a" in "/".
std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

absl::Status CreateDirectories(Disk* disk, const std::string& path) {
  if (path.empty() || path == "." || path.back() == '/') {
    return path.size() > 1 && path != "." ? CreateDirectories(disk, path.substr(0, path.size() - 1))
                                          : absl::OkStatus();
  }
  const std::string folder = FolderOf(path);
  if (!disk->List(path).ok()) {
    RETURN_IF_ERROR(CreateDirectories(disk, folder));
    RETURN_IF_ERROR(disk->CreateDirectory(path));
    return disk->SyncDirectory(folder);
  }
  // The process that made it may have died before it synced the name. A folder that we may not read
  // need not be synced.
  const absl::Status synced = disk->SyncDirectory(folder);
  return absl::IsPermissionDenied(synced) ? absl::OkStatus() : synced;
}

}  // namespace thermocline
