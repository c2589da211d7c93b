// Makes the threads of a process. The system limits their number: ulimit -u and -v, and the
// cgroup's pids.max.
#ifndef THERMOCLINE_COMMON_BASE_THREADS_H_
#define THERMOCLINE_COMMON_BASE_THREADS_H_

#include <functional>
#include <optional>
#include <thread>

#include "absl/status/status.h"

namespace thermocline {

// Starts a thread; nullopt if the system makes none.
std::optional<std::thread> TryMakeThread(std::function<void()> body);

// Starts a thread. If the system makes none, ends the process with the reason in its log and
// kExitTrouble, since other threads would wait for this one for ever.
std::thread MakeThread(std::function<void()> body);

// Checks that this process can make as many more threads as gRPC and we make in any job. (gRPC goes
// on without a thread that it can't make, and then no message arrives.) Call it in main(), before
// any thread starts. Errors: kUnavailable (says how many threads it needs and which limits count).
absl::Status CheckThreads();

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_THREADS_H_
