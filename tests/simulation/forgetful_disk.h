// A disk that reports success for a sync that it did not do.
#ifndef THERMOCLINE_TESTS_SIMULATION_FORGETFUL_DISK_H_
#define THERMOCLINE_TESTS_SIMULATION_FORGETFUL_DISK_H_

#include <memory>
#include <string>
#include <vector>

#include "common/disk/disk.h"

namespace thermocline {

struct DiskDeceptions {
  bool files = false;  // Sync does nothing ...
  bool names = false;  // ... nor does SyncDirectory.
  // A new file takes the place of another generation's, as if their names were the same.
  bool generations = false;
};

class ForgetfulDisk : public Disk {
 public:
  // `disk` outlives it.
  ForgetfulDisk(Disk* disk, const DiskDeceptions& deceptions)
      : disk_(*disk), deceptions_(deceptions) {}

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenToAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override {
    return disk_.Open(path);
  }
  absl::Status Truncate(const std::string& path, uint64_t bytes) override {
    return disk_.Truncate(path, bytes);
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return disk_.Rename(from, to);
  }
  absl::Status Link(const std::string& from, const std::string& to) override {
    return disk_.Link(from, to);
  }
  absl::Status Remove(const std::string& path) override { return disk_.Remove(path); }
  absl::Status CreateDirectory(const std::string& path) override {
    return disk_.CreateDirectory(path);
  }
  absl::Status RemoveDirectory(const std::string& path) override {
    return disk_.RemoveDirectory(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override {
    return disk_.List(directory);
  }
  absl::Status SyncDirectory(const std::string& directory) override {
    return deceptions_.names ? absl::OkStatus() : disk_.SyncDirectory(directory);
  }
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& directory) override {
    return disk_.Lock(directory);
  }

 private:
  void RemoveOfOtherGenerations(const std::string& path);

  Disk& disk_;
  const DiskDeceptions deceptions_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_FORGETFUL_DISK_H_
