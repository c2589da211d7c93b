#include "deploy/plan/machine.h"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/thread_pool.h"

namespace thermocline {
namespace {

// The number in a file of its own; 0: there is none ("max").
uint64_t NumberIn(const char* path) {
  std::ifstream file(path);
  std::string text;
  uint64_t number = 0;
  if (!(file >> text) || !absl::SimpleAtoi(text, &number)) return 0;
  return number;
}

uint64_t AvailableBytes() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  uint64_t kib = 0;
  while (file >> name >> kib) {
    std::getline(file, unit);
    if (name == "MemAvailable:") return kib << 10;
  }
  return 0;
}

// Lowers memory to the limit of this process's container, where it has one.
void ApplyContainerLimit(Machine* machine) {
  const std::pair<const char*, const char*> files[] = {
      {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes",
       "/sys/fs/cgroup/memory/memory.usage_in_bytes"}};
  for (const auto& [limit_file, use_file] : files) {
    const uint64_t limit = NumberIn(limit_file);
    if (limit == 0 || limit >= machine->memory_bytes) continue;
    const uint64_t use = NumberIn(use_file);
    machine->memory_bytes = limit;
    machine->available_memory_bytes =
        std::min(machine->available_memory_bytes, limit - std::min(use, limit));
  }
}

std::vector<std::string> Gpus() {
  std::vector<std::string> gpus;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    std::ifstream file(entry.path() / "information");
    for (std::string line; std::getline(file, line);) {
      absl::string_view model = line;
      if (!absl::ConsumePrefix(&model, "Model:")) continue;
      gpus.emplace_back(absl::StripAsciiWhitespace(model));
    }
  }
  std::sort(gpus.begin(), gpus.end());
  return gpus;
}

uint64_t FreeDiskBytes(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error);
  while (!std::filesystem::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  struct statvfs info;
  if (statvfs(path.c_str(), &info) != 0) return 0;
  return uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace

Machine ThisMachine(const std::string& run_folder) {
  Machine machine;
  machine.memory_bytes = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                         static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGE_SIZE)));
  machine.available_memory_bytes = AvailableBytes();
  ApplyContainerLimit(&machine);
  machine.cores = static_cast<uint32_t>(HardwareThreads());
  machine.free_disk_bytes = FreeDiskBytes(run_folder);
  machine.gpus = Gpus();
  return machine;
}

uint64_t SmallestGpuMemory(absl::string_view printed) {
  uint64_t smallest = 0;
  for (const absl::string_view line : absl::StrSplit(printed, '\n', absl::SkipWhitespace())) {
    uint64_t mib = 0;
    if (!absl::SimpleAtoi(line, &mib) || mib == 0) return 0;
    smallest = smallest == 0 ? mib : std::min(smallest, mib);
  }
  return smallest << 20;
}

uint64_t SmallestGpuMemory() {
  FILE* const pipe =
      popen("nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null", "r");
  if (pipe == nullptr) return 0;
  std::string printed;
  char part[256];
  for (size_t n; (n = fread(part, 1, sizeof(part), pipe)) > 0;) printed.append(part, n);
  return pclose(pipe) == 0 ? SmallestGpuMemory(printed) : 0;
}

}  // namespace thermocline
