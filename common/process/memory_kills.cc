#include "common/process/memory_kills.h"

#include <fstream>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace thermocline {
namespace {

// The number of a line "oom_kill 3" of a file.
std::optional<int64_t> KillsIn(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() == 2 && words[0] == "oom_kill" && absl::SimpleAtoi(words[1], &number)) {
      return number;
    }
  }
  return std::nullopt;
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Version 1 shows "no limit" as a number beyond any memory.
bool IsLimit(const std::string& text) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(text, &bytes) && bytes < int64_t{1} << 60;
}

std::string HowMany(int64_t count) {
  return absl::StrCat(count, count == 1 ? " process" : " processes");
}

}  // namespace

MemoryKills CountMemoryKills(const std::string& root) {
  MemoryKills kills;
  kills.on_machine = KillsIn(absl::StrCat(root, "/proc/vmstat"));
  const std::string mounts = absl::StrCat(root, "/sys/fs/cgroup");
  std::ifstream groups(absl::StrCat(root, "/proc/self/cgroup"));
  // "4:memory:/a/b" in version 1, "0::/a/b" in version 2.
  for (std::string line; std::getline(groups, line) && !kills.in_cgroup.has_value();) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3 || (parts[1] != "memory" && !parts[1].empty())) continue;
    const bool is_version_1 = parts[1] == "memory";
    // A container sees its own cgroup at the root, whatever its path.
    for (const std::string& path : {parts[2], std::string()}) {
      const std::string folder = absl::StrCat(mounts, is_version_1 ? "/memory" : "", path, "/");
      kills.in_cgroup = KillsIn(folder + (is_version_1 ? "memory.oom_control" : "memory.events"));
      if (!kills.in_cgroup.has_value()) continue;
      kills.limit = FirstLine(folder + (is_version_1 ? "memory.limit_in_bytes" : "memory.max"));
      if (!IsLimit(kills.limit)) kills.limit.clear();
      break;
    }
  }
  return kills;
}

std::string DescribeMemoryKills(const MemoryKills& before, const MemoryKills& after) {
  const auto since = [](const std::optional<int64_t>& from, const std::optional<int64_t>& to) {
    return from.has_value() && to.has_value() ? *to - *from : 0;
  };
  if (const int64_t count = since(before.in_cgroup, after.in_cgroup); count > 0) {
    return absl::StrCat(
        "; meanwhile the kernel killed ", HowMany(count), " of its cgroup for want of memory",
        after.limit.empty() ? "" : absl::StrCat(" (limit: ", after.limit, " bytes)"));
  }
  if (const int64_t count = since(before.on_machine, after.on_machine); count > 0) {
    return absl::StrCat("; meanwhile the kernel killed ", HowMany(count),
                        " of this machine for want of memory");
  }
  return "";
}

}  // namespace thermocline
