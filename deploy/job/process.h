// The processes of a job: their names, how they end, what their ends mean, and the state of each.
#ifndef THERMOCLINE_DEPLOY_JOB_PROCESS_H_
#define THERMOCLINE_DEPLOY_JOB_PROCESS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "deploy/job/stall_watch.h"

namespace thermocline {

enum class ProcessRole { kServer, kWorker };

// "server 0", "worker 1".
std::string ProcessName(ProcessRole role, size_t index);

// Names one process of a job, and no other. An event with the id of an earlier process is void. (A
// list of hosts, and the host that a process runs on, have their place here.)
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
  // Why, in its own words: "day.csv:17: column 2 ('item'): ..."; "": it did not say.
  std::string reason;
};

// A process that ended and should not have.
struct ProcessFailure {
  ProcessRole role;
  std::string name;  // "worker 0"
  ProcessEnd end;
  uint32_t index = 0;
};

// Whether the job itself caused the end of any: a worker that found a NaN or bad data, a process
// that refused its flags. The next generation would fail the same way. The others were lost: killed
// by a signal, workers that lost a server or can't read their data for now, servers whose disk
// failed.
bool JobCausedAny(const std::vector<ProcessFailure>& failures);

// In one line: "server 0 was killed by signal 9 (Killed), worker 1 exited with code 3".
std::string DescribeFailures(const std::vector<ProcessFailure>& failures);

// kAborted, with the reasons, each once and above the processes that gave it, and the reports.
absl::Status FailureStatus(const std::vector<ProcessFailure>& failures);

// One server or worker, over all its processes.
struct ProcessState {
  uint64_t incarnation = 0;  // Of the last one; 0: none was started.
  bool is_running = false;
  bool came_up = false;                    // The last one.
  std::string address;                     // Where it serves, or where the one before did.
  std::optional<ProcessEnd> end;           // Of the last one.
  std::optional<absl::Duration> start_at;  // When the next one is due.
  // Of a server:
  bool is_configured = false;
  std::optional<absl::Duration> configure_at;  // When it is asked to take its configuration again.
  absl::Status not_configured;                 // What it said the last time.
  ServerWork work = {};                        // What it has done, ...
  absl::Duration advanced_at;                  // ... and when that changed last.
  // Of a worker:
  bool knows_peers = false;  // It was told where all of them are.
  // Where it has ended well: how many steps the job had.
  absl::StatusOr<int64_t> steps = absl::UnknownError("no result");

  bool ended_well() const { return end.has_value() && end->exit_code == 0; }
};

// The processes of one generation. Not thread-safe.
class ProcessTable {
 public:
  ProcessTable(uint64_t generation, size_t num_servers, size_t num_workers)
      : servers(num_servers), workers(num_workers), generation_(generation) {}

  // Of the last process.
  ProcessId Id(ProcessRole role, size_t index) const {
    return {role, static_cast<uint32_t>(index), generation_, Of(role)[index].incarnation};
  }
  // Null: it is another process than the last in its place.
  ProcessState* Find(const ProcessId& id) {
    std::vector<ProcessState>& of_role = id.role == ProcessRole::kServer ? servers : workers;
    if (id.index >= of_role.size() || !(Id(id.role, id.index) == id)) return nullptr;
    return &of_role[id.index];
  }
  // Notes that the next process in its place is started.
  ProcessId Begin(ProcessRole role, size_t index);

  std::vector<std::string> Addresses(ProcessRole role) const;
  std::vector<uint32_t> RunningWorkers() const;
  // Servers that ended and no process is to come in their place, then workers that ended with an
  // error; those last that only lost another process.
  std::vector<ProcessFailure> Failures() const;
  // The first that has not come up, and has not ended well.
  std::optional<size_t> FirstNotUp(ProcessRole role) const;
  bool AllConfigured() const;
  bool AllWorkersEndedWell() const;

  std::vector<ProcessState> servers;  // [num_servers]
  std::vector<ProcessState> workers;  // [num_workers]

 private:
  const std::vector<ProcessState>& Of(ProcessRole role) const {
    return role == ProcessRole::kServer ? servers : workers;
  }

  uint64_t generation_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_PROCESS_H_
