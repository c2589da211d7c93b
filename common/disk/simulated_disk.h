// A disk in memory that does what real ones may: lose what was not synced, keep later pages and
// lose earlier ones, run full, fail. Folders come and go at once, also on the medium.
//
// Thread-safe.
#ifndef THERMOCLINE_COMMON_DISK_SIMULATED_DISK_H_
#define THERMOCLINE_COMMON_DISK_SIMULATED_DISK_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/disk/disk.h"

namespace thermocline {

class SimulatedDisk : public Disk {
 public:
  static constexpr uint64_t kPageBytes = 512;

  SimulatedDisk() : state_(std::make_shared<State>()) {}

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

  // The process dies: locks are released, open files are closed (their Append fails from now on).
  // All that was written stays.
  void CrashProcess();
  // The host dies too. Of each file that was written since its last sync every page and the new
  // length are kept or lost, by chance; so is every unsynced change of a folder.
  void CrashHost(std::mt19937_64* random);

  // Bytes that may still be appended, over all files; the append that would pass it writes what
  // fits and fails with kResourceExhausted.
  void SetFreeBytes(uint64_t bytes);
  // The n-th write or sync from now on (0: the next) fails with kUnavailable. Appends write half.
  void FailAfter(int operations);
  // The same, and nothing that would follow happens: the process died in the middle. CrashProcess
  // or CrashHost has to follow.
  void DieAfter(int operations);

  // The content of a file as a reader sees it, to look at and to damage.
  std::string Content(const std::string& path) const;
  void SetContent(const std::string& path, const std::string& content);

 private:
  struct File {
    std::string content;
    std::string synced;              // as the medium has it
    std::set<uint64_t> dirty_pages;  // written since
  };
  struct State {
    absl::Mutex mutex;
    std::map<std::string, std::shared_ptr<File>> files ABSL_GUARDED_BY(mutex);
    // As the medium has it, by path.
    std::map<std::string, std::shared_ptr<File>> synced_files ABSL_GUARDED_BY(mutex);
    std::set<std::string> directories ABSL_GUARDED_BY(mutex);
    std::set<std::string> locks ABSL_GUARDED_BY(mutex);
    uint64_t free_bytes ABSL_GUARDED_BY(mutex) = UINT64_MAX;
    int fail_after ABSL_GUARDED_BY(mutex) = -1;
    bool failure_is_death ABSL_GUARDED_BY(mutex) = false;
    bool dead ABSL_GUARDED_BY(mutex) = false;         // in the middle of a write or sync
    uint64_t incarnation ABSL_GUARDED_BY(mutex) = 0;  // of the process

    std::vector<std::string> NamesIn(const std::string& directory) const
        ABSL_SHARED_LOCKS_REQUIRED(mutex);
    bool TakeFailure() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  };
  class OpenAppendFile;
  class OpenReadFile;
  class HeldLock;

  const std::shared_ptr<State> state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_DISK_SIMULATED_DISK_H_
