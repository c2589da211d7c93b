#include "common/net/process_stats.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>

namespace thermocline {
namespace {

const std::chrono::steady_clock::time_point kLoaded = std::chrono::steady_clock::now();

}  // namespace

uint64_t ResidentBytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long total = 0, resident = 0;  // pages
  const int read = std::fscanf(file, "%llu %llu", &total, &resident);
  std::fclose(file);
  return read == 2 ? resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

double UptimeSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kLoaded).count();
}

}  // namespace thermocline
