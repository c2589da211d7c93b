// absl::Mutex without its debug checks.
#ifndef THERMOCLINE_COMMON_NET_MUTEX_TUNING_H_
#define THERMOCLINE_COMMON_NET_MUTEX_TUNING_H_

namespace thermocline {

// Debian builds Abseil with assertions, so every absl::Mutex, gRPC's own included, keeps a
// process-wide graph of lock orders under one spin lock: good for tests, about a tenth of a pull's
// CPU time in production. Call it first in main(), before threads start.
void TurnOffMutexChecks();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_NET_MUTEX_TUNING_H_
