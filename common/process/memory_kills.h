// How often the kernel has killed a process for want of memory, which ends with a mere SIGKILL.
#ifndef THERMOCLINE_COMMON_PROCESS_MEMORY_KILLS_H_
#define THERMOCLINE_COMMON_PROCESS_MEMORY_KILLS_H_

#include <cstdint>
#include <optional>
#include <string>

namespace thermocline {

// Counts since the cgroup was made and since the machine started. nullopt: the kernel does not say.
struct MemoryKills {
  std::optional<int64_t> in_cgroup;  // In the cgroup of this process and its children.
  std::string limit;                 // The cgroup's limit in bytes; "": not known.
  std::optional<int64_t> on_machine;
};

// `root`: where /proc and /sys/fs/cgroup lie, for tests. Reads versions 1 and 2 of cgroups.
MemoryKills CountMemoryKills(const std::string& root = "");

// For the end of a message about a process that lived from `before` to `after`: "; meanwhile the
// kernel killed 1 process of its cgroup for want of memory (limit: 1073741824 bytes)"; "": it
// killed none.
std::string DescribeMemoryKills(const MemoryKills& before, const MemoryKills& after);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_PROCESS_MEMORY_KILLS_H_
