// The processes of one generation, as far as the job machine knows of them.
#ifndef THERMOCLINE_DEPLOY_JOB_PROCESS_TABLE_H_
#define THERMOCLINE_DEPLOY_JOB_PROCESS_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/job/process.h"
#include "deploy/job/stall_watch.h"

namespace thermocline {

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
  // Of a worker that has ended well: how many steps the job had.
  absl::StatusOr<int64_t> steps = absl::UnknownError("no result");

  bool ended_well() const { return end.has_value() && end->exit_code == 0; }
};

// Not thread-safe.
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
  // error.
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

#endif  // THERMOCLINE_DEPLOY_JOB_PROCESS_TABLE_H_
