// Agreements between our processes: the meaning of exit codes, and the ranges of values in job
// files and flags.
#ifndef THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_
#define THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_

#include <cstdint>

namespace thermocline {

// Exit codes.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitUsage = 2;  // Bad flags or a bad job file: nothing was done.
// A worker has lost a server, or pushes that a server had acknowledged to it. The job itself is not
// at fault.
inline constexpr int kExitServerLost = 3;
// What a process needs can't be had for now: the disk or store of its data fails, a process does
// not answer, no thread can be made. Nothing is wrong with the job, and it may succeed later.
inline constexpr int kExitTrouble = 4;

// Ranges of settings.
//
// A message has room for one row of the largest dim with Adam's state, and its key.
inline constexpr int kMinMessageBytes = 64 << 10;
inline constexpr int kMaxMessageBytes = 1 << 30;
inline constexpr int kMaxThreads = 1024;
// One thread answers while another applies a step.
inline constexpr int kMinHandlerThreads = 2;
inline constexpr int kMaxHeldPulls = 1 << 20;
// Room for one or two pushes of a small batch.
inline constexpr int64_t kMinPendingBytes = 1 << 20;
inline constexpr int64_t kMaxPendingBytes = int64_t{1} << 50;

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_
