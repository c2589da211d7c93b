// The threads of a process. How many there may be is limited: ulimit -u and -v, the cgroup's pids.
#ifndef THERMOCLINE_COMMON_BASE_THREADS_H_
#define THERMOCLINE_COMMON_BASE_THREADS_H_

#include <functional>
#include <optional>
#include <thread>

#include "absl/status/status.h"

namespace thermocline {

// Nothing: none can be made.
std::optional<std::thread> TryMakeThread(std::function<void()> body);

// Where none can be made, the process ends with the reason in its log, and kExitTrouble. Others
// would wait for what the thread was to do.
std::thread MakeThread(std::function<void()> body);

// Checks that a process can have so many more threads at once as gRPC and we make in any job; gRPC
// goes on without those that it can't make, and then nothing arrives. For main, before all others
// start. Errors: kUnavailable.
absl::Status CheckThreads();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_THREADS_H_
