// A directory on a file system over the network, as one host sees it: answers get lost, operations
// are carried out late, folders are shown as they were a while ago, and others work in between.
#ifndef THERMOCLINE_TESTS_SIMULATION_NETWORK_DISK_H_
#define THERMOCLINE_TESTS_SIMULATION_NETWORK_DISK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/disk/disk.h"
#include "tests/simulation/sim_random.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {

struct NetworkDiskFaults {
  double lose_answer = 0.01;  // A change fails so: it was made, or not, or comes later.
  double go_stale = 0.1;      // A folder is remembered when it is looked at ...
  int stale_operations = 40;  // ... for so many operations, at the most.
  // Planted: whether a name is taken is judged by what this host remembers.
  bool links_by_looking = false;
  // Planted: a link is reported as made though its name was taken.
  bool trusts_links = false;
};

struct NetworkDiskCounters {
  uint64_t lost = 0, late = 0, stale = 0;
};

// The file server keeps every name that it has made; a host that dies loses what it did not sync of
// its files.
class NetworkDisk : public Disk {
 public:
  // Borrows all. `between` runs before each operation. What comes late goes to `late`.
  NetworkDisk(SimulatedDisk* disk, const NetworkDiskFaults& faults, SimRandom* random,
              std::function<void()> between, std::vector<std::function<void()>>* late,
              NetworkDiskCounters* counters)
      : disk_(*disk),
        faults_(faults),
        random_(*random),
        between_(std::move(between)),
        late_(*late),
        counters_(*counters) {}

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

 private:
  struct Memory {
    std::set<std::string> names;
    uint64_t until = 0;
  };

  void Begin();
  // Null: it is seen as it is.
  Memory* Remembered(const std::string& directory);
  void Remember(const std::string& directory);
  void Note(const std::string& path, bool is_there);
  absl::Status Change(const std::string& path, const std::function<absl::Status()>& change);

  SimulatedDisk& disk_;
  const NetworkDiskFaults faults_;
  SimRandom& random_;
  const std::function<void()> between_;
  std::vector<std::function<void()>>& late_;
  NetworkDiskCounters& counters_;
  uint64_t operations_ = 0;
  std::map<std::string, Memory> memory_;  // By folder.
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_NETWORK_DISK_H_
