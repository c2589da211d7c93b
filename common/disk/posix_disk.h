// Disk on the operating system's files.
#ifndef THERMOCLINE_COMMON_DISK_POSIX_DISK_H_
#define THERMOCLINE_COMMON_DISK_POSIX_DISK_H_

#include <memory>
#include <string>
#include <vector>

#include "common/disk/disk.h"

namespace thermocline {

class PosixDisk : public Disk {
 public:
  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override;
  absl::Status Truncate(const std::string& path, uint64_t bytes) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& directory) override;
};

// What people need to know of the disk where a write or a new file at `path` failed with `error`
// (errno): "; the disk is full: ext4 at /data has 40960 bytes free"; "" where it isn't for want of
// room. `path` need not exist, its folder should.
std::string DescribeFullDisk(const std::string& path, int error);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_POSIX_DISK_H_
