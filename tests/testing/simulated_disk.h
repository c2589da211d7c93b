// A disk in memory with the faults that real disks may have: it loses unsynced data, keeps later
// pages and loses earlier ones, forgets names and folders, runs full, and fails.
//
// Thread-safe.
#ifndef THERMOCLINE_TESTS_TESTING_SIMULATED_DISK_H_
#define THERMOCLINE_TESTS_TESTING_SIMULATED_DISK_H_

#include <cstdint>
#include <functional>
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

  SimulatedDisk() : SimulatedDisk(std::make_shared<State>()) {}

  // The same files as a process on another host sees them. Each of the two dies and fails alone,
  // and loses only its own writes; they share the free bytes.
  std::unique_ptr<SimulatedDisk> Share();

  absl::StatusOr<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<AppendFile>> OpenToAppend(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override;
  absl::Status Truncate(const std::string& path, uint64_t bytes) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Link(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status CreateDirectory(const std::string& path) override;
  absl::Status RemoveDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<DirectoryLock>> Lock(const std::string& directory) override;

  // The process dies: its locks are released and its open files closed (their Append fails from now
  // on). All written data stays.
  void CrashProcess();
  // The host dies too. If a file was written since its last sync, each written page and the new
  // length are kept or lost, by chance. So is every unsynced change of a folder; a lost folder
  // takes its files with it.
  void CrashHost(std::mt19937_64* random);

  // Sets how many bytes may still be appended, over all files. An append beyond that writes as much
  // as fits and fails with kResourceExhausted.
  void SetFreeBytes(uint64_t bytes);
  // Lets `operations` writes and syncs succeed; the next one fails with kUnavailable. An append
  // that fails has written half.
  void FailAfter(int operations);
  // The same, but the process dies in the middle of that operation: every later one fails as well,
  // and the caller must then call CrashProcess or CrashHost. `died` runs at the moment of death,
  // and must not use the disk.
  void DieAfter(int operations, std::function<void()> died = nullptr);

  // The content of a file as a reader sees it, to look at and to damage.
  std::string Content(const std::string& path) const;
  void SetContent(const std::string& path, const std::string& content);

 private:
  struct File {
    std::string content;
    std::string synced;              // The content on the medium.
    std::set<uint64_t> dirty_pages;  // Pages written since the last sync.
    int writer = 0;                  // The process that wrote last.
  };
  // A process that uses the disk. After a crash the next one takes its place.
  struct Process {
    int fail_after = -1;
    bool failure_is_death = false;
    std::function<void()> died;
    bool dead = false;  // It has died in the middle of a write or sync.
    uint64_t incarnation = 0;
  };
  struct State {
    absl::Mutex mutex;
    std::map<std::string, std::shared_ptr<File>> files ABSL_GUARDED_BY(mutex);
    std::set<std::string> directories ABSL_GUARDED_BY(mutex) = {".", "/"};
    // The files and folders that the medium has, by path.
    std::map<std::string, std::shared_ptr<File>> synced_files ABSL_GUARDED_BY(mutex);
    std::set<std::string> synced_directories ABSL_GUARDED_BY(mutex) = {".", "/"};
    // Names that differ on the medium, and the process that changed them last.
    std::map<std::string, int> changed ABSL_GUARDED_BY(mutex);
    // The process that holds a folder's lock, by folder.
    std::map<std::string, int> locks ABSL_GUARDED_BY(mutex);
    uint64_t free_bytes ABSL_GUARDED_BY(mutex) = UINT64_MAX;
    std::vector<Process> processes ABSL_GUARDED_BY(mutex);

    std::vector<std::string> NamesIn(const std::string& directory) const
        ABSL_SHARED_LOCKS_REQUIRED(mutex);
    bool TakeFailure(int process) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
    void SettleName(const std::string& path, bool keep) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
    void DropOrphans() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  };
  class OpenAppendFile;
  class OpenReadFile;
  class HeldLock;

  explicit SimulatedDisk(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
  const int id_;  // The process that uses this object.
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_SIMULATED_DISK_H_
