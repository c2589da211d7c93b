// The processes of a job: what they are called, how they end, and what their ends mean.
#ifndef THERMOCLINE_DEPLOY_JOB_PROCESS_H_
#define THERMOCLINE_DEPLOY_JOB_PROCESS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace thermocline {

enum class ProcessRole { kServer, kWorker };

// "server 0", "worker 1".
std::string ProcessName(ProcessRole role, size_t index);

// One process. No two of a job are the same; what is said of another than the one that is there now
// is void. (A list of hosts, and the host that a process runs on, have their place here.)
struct ProcessId {
  ProcessRole role = ProcessRole::kServer;
  uint32_t index = 0;  // Of the server, or rank of the worker.
  uint64_t generation = 0;
  uint64_t incarnation = 0;  // From 1 in each generation, of each server and worker.

  std::string Name() const { return ProcessName(role, index); }
  bool operator==(const ProcessId& other) const {
    return role == other.role && index == other.index && generation == other.generation &&
           incarnation == other.incarnation;
  }
};

// How a process ended.
struct ProcessEnd {
  std::optional<int> exit_code;  // Empty: a signal killed it.
  std::string how;               // "was killed by signal 9 (Killed)", "exited with code 1 (...)"
  std::string report;            // The same with its last log lines, for an error.
};

// A process that ended and should not have.
struct ProcessFailure {
  ProcessRole role;
  std::string name;  // "worker 0"
  ProcessEnd end;
};

// Whether the job itself caused the end of any: a worker that found a NaN or bad data, a process
// that refused its flags. It would come again. The others were lost: killed by a signal, workers
// that lost a server, servers whose disk failed.
bool JobCausedAny(const std::vector<ProcessFailure>& failures);

// In one line: "server 0 was killed by signal 9 (Killed), worker 1 exited with code 3".
std::string DescribeFailures(const std::vector<ProcessFailure>& failures);

// kAborted, with the report of each.
absl::Status FailureStatus(const std::vector<ProcessFailure>& failures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_PROCESS_H_
