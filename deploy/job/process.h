// The processes of a job: names, ends and states.
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
#include "proto/job.pb.h"

namespace thermocline {

enum class ProcessRole { kServer, kWorker };

// "server 0", "worker 1".
std::string ProcessName(ProcessRole role, size_t index);

// Identifies one process of a job. An event with the id of an earlier process is void.
struct ProcessId {
  ProcessRole role = ProcessRole::kServer;
  uint32_t index = 0;  // The server's index, or the worker's rank.
  uint64_t generation = 0;
  uint64_t incarnation =
      0;  // Counts the processes of this server or worker in the generation, from 1.

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
  // The process's own message: "day.csv:17: column 2 ('item'): ..."; "": it left none.
  std::string reason = {};
  // It was killed, and meanwhile the kernel killed processes for want of memory.
  bool lacked_memory = false;
};

// A process that ended although it should not have.
struct ProcessFailure {
  ProcessRole role;
  std::string name;  // "worker 0"
  ProcessEnd end;
  uint32_t index = 0;
};

// Whether the job itself caused any of the failures: a worker found a NaN or bad data, or a process
// refused its flags. The next generation would fail the same way. Other processes were lost: they
// were killed by a signal, a worker lost a server or can't read its data for now, a server's disk
// failed. A script that failed may have failed for the loss of another process, or by its own
// fault.
bool JobCausedAny(const std::vector<ProcessFailure>& failures);

// Whether scripts (Job.worker) failed, and no other process was lost that they could have failed
// for. Workers that only lost another process are no cause.
bool OnlyScriptsFailed(const std::vector<ProcessFailure>& failures);

// One line: "server 0 was killed by signal 9 (Killed), worker 1 exited with code 3".
std::string DescribeFailures(const std::vector<ProcessFailure>& failures);

// kAborted; kInvalidArgument where a process could not use the job as it is written (kExitUsage).
// Its message has the reasons, each once and above the processes that gave it, and the reports.
absl::Status FailureStatus(const std::vector<ProcessFailure>& failures);

// One server or worker, over all its processes.
struct ProcessState {
  uint64_t incarnation = 0;  // The last process's; 0: none was started.
  bool is_running = false;
  bool came_up = false;                    // The last process served.
  std::string address;                     // Where it serves, or where the one before did.
  std::optional<ProcessEnd> end;           // How the last process ended.
  std::optional<absl::Duration> start_at;  // When the next process is started.
  // For a server:
  bool is_configured = false;
  std::optional<absl::Duration> configure_at;  // When Configure is called again.
  absl::Status not_configured;                 // The error of the last Configure.
  ServerWork work = {};
  absl::Duration advanced_at;  // When `work` changed last.
  // For a worker:
  bool knows_peers = false;  // It has the addresses of all workers.
  // Once it has ended well: how many steps the job had.
  absl::StatusOr<int64_t> steps = absl::UnknownError("no result");

  bool ended_well() const { return end.has_value() && end->exit_code == 0; }
};

// The processes of one generation. Not thread-safe.
class ProcessTable {
 public:
  ProcessTable(uint64_t generation, const Cluster& cluster);

  // The id of the last process.
  ProcessId Id(ProcessRole role, size_t index) const {
    return {role, static_cast<uint32_t>(index), generation_, Of(role)[index].incarnation};
  }
  // Null: another process has replaced it.
  ProcessState* Find(const ProcessId& id) {
    std::vector<ProcessState>& of_role = id.role == ProcessRole::kServer ? servers : workers;
    if (id.index >= of_role.size() || !(Id(id.role, id.index) == id)) return nullptr;
    return &of_role[id.index];
  }
  // Begins the next process of a server or worker.
  ProcessId Begin(ProcessRole role, size_t index);

  std::vector<std::string> Addresses(ProcessRole role) const;
  std::vector<uint32_t> RunningWorkers() const;
  // Servers that ended and are not started again, then workers that ended with an error. Workers
  // that only lost another process come last. The end of an embedded server is its worker's.
  std::vector<ProcessFailure> Failures() const;
  // The first process that neither came up nor ended well.
  std::optional<size_t> FirstNotUp(ProcessRole role) const;
  bool AllConfigured() const;
  bool AllServersRun() const;  // And are configured.
  bool AllWorkersEndedWell() const;

  std::vector<ProcessState> servers;  // [num_servers]
  std::vector<ProcessState> workers;  // [num_workers]

 private:
  const std::vector<ProcessState>& Of(ProcessRole role) const {
    return role == ProcessRole::kServer ? servers : workers;
  }

  uint64_t generation_;
  bool has_embedded_server_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_PROCESS_H_
