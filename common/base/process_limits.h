// What a job file, or a flag of one of its processes, may ask for: above these limits a value is a
// typo, not a wish. And what the system lets a process have.
#ifndef THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_
#define THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace thermocline {

// One row of the largest dim with Adam's state and its key still fits.
inline constexpr int kMinMessageBytes = 64 << 10;
inline constexpr int kMaxMessageBytes = 1 << 30;
inline constexpr int kMaxThreads = 1024;
// While one applies a step, another answers.
inline constexpr int kMinHandlerThreads = 2;
inline constexpr int kMaxHeldPulls = 1 << 20;
// A push or two of a small batch.
inline constexpr int64_t kMinPendingBytes = 1 << 20;
inline constexpr int64_t kMaxPendingBytes = int64_t{1} << 50;

// Files that a process has open beside its connections: logs, data, checkpoints, gRPC's own.
inline constexpr uint64_t kFilesBesideConnections = 64;

// How many files this process may open now.
uint64_t OpenFileLimit();
// Raises that (the soft limit) to the hard limit. Processes that are started from then on inherit
// it.
void RaiseOpenFileLimit();

// Whether a process with so many connections, and files beside, keeps within OpenFileLimit().
// Errors: kFailedPrecondition (says what is needed, by `who`, and what there is).
absl::Status CheckOpenFiles(absl::string_view who, uint64_t connections);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_PROCESS_LIMITS_H_
