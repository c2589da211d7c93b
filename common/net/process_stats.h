// What a process knows about itself, for the stats that it serves.
#ifndef THERMOCLINE_COMMON_NET_PROCESS_STATS_H_
#define THERMOCLINE_COMMON_NET_PROCESS_STATS_H_

#include <cstdint>

namespace thermocline {

// Memory of this process that is in RAM (VmRSS), or 0 where /proc can't be read.
uint64_t ResidentBytes();

// Seconds since this process was loaded.
double UptimeSeconds();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_PROCESS_STATS_H_
