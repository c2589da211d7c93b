// Agreements between our processes: the meaning of exit codes, and the ranges of values in job
// files and flags.
#ifndef THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_
#define THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_

#include <cstdint>

namespace thermocline {

// Exit codes.
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;
// Bad flags or a bad job file. Nothing was done, unless a worker found it out from its data.
inline constexpr int kExitUsage = 2;
// A worker has lost a server, or a server has lost pushes that it had acknowledged to the worker.
// The job itself is not at fault.
inline constexpr int kExitServerLost = 3;
// The process's surroundings fail: the disk or store of its data has errors, another process does
// not answer, or no thread can be made. Nothing is wrong with the job, and it may succeed later.
inline constexpr int kExitTrouble = 4;
// The script that computes a worker's steps (Job.worker) ended with an error of its own. (One that
// a signal killed makes its worker end with kExitTrouble.)
inline constexpr int kExitScript = 5;

// Ranges of settings.
//
// The smallest message has room for one row of the largest dim with Adam's state, and its key.
inline constexpr int kMinMessageBytes = 64 << 10;
inline constexpr int kMaxMessageBytes = 1 << 30;
inline constexpr int kMaxThreads = 1024;
// At least two, since one thread answers while another applies a step.
inline constexpr int kMinHandlerThreads = 2;
inline constexpr int kMaxHeldPulls = 1 << 20;
// At the least, one or two pushes of a small batch fit.
inline constexpr int64_t kMinPendingBytes = 1 << 20;
inline constexpr int64_t kMaxPendingBytes = int64_t{1} << 50;

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_
