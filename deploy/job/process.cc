#include "deploy/job/process.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/process_limits.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

bool CausedByTheJob(const ProcessFailure& failure) {
  if (!failure.end.exit_code.has_value()) return false;
  const int code = *failure.end.exit_code;
  if (failure.role == ProcessRole::kServer) return code == kExitUsage;
  return code != kExitServerLost && code != kExitTrouble && code != kExitScript;
}

}  // namespace

std::string ProcessName(ProcessRole role, size_t index) {
  return absl::StrCat(role == ProcessRole::kServer ? "server " : "worker ", index);
}

bool JobCausedAny(const std::vector<ProcessFailure>& failures) {
  return std::any_of(failures.begin(), failures.end(), CausedByTheJob);
}

bool OnlyScriptsFailed(const std::vector<ProcessFailure>& failures) {
  bool any = false;
  for (const ProcessFailure& failure : failures) {
    const bool is_script =
        failure.role == ProcessRole::kWorker && failure.end.exit_code == kExitScript;
    if (!is_script && failure.end.exit_code != kExitServerLost) return false;
    any |= is_script;
  }
  return any;
}

std::string DescribeFailures(const std::vector<ProcessFailure>& failures) {
  return absl::StrJoin(failures, ", ", [](std::string* out, const ProcessFailure& failure) {
    absl::StrAppend(out, failure.name, " ", failure.end.how);
  });
}

absl::Status FailureStatus(const std::vector<ProcessFailure>& failures) {
  std::vector<std::string> parts;
  std::set<std::string> reasons;
  for (const ProcessFailure& failure : failures) {
    const std::string& reason = failure.end.reason;
    if (reason.empty() || !reasons.insert(reason).second) continue;
    parts.push_back(reason);
    for (const ProcessFailure& other : failures) {
      if (other.end.reason != reason) continue;
      parts.push_back(absl::StrCat("  | ", other.name, " ", other.end.report));
    }
  }
  for (const ProcessFailure& failure : failures) {
    if (!failure.end.reason.empty()) continue;
    parts.push_back(absl::StrCat(failure.name, " ", failure.end.report));
  }
  const bool is_bad_job = std::any_of(
      failures.begin(), failures.end(),
      [](const ProcessFailure& failure) { return failure.end.exit_code == kExitUsage; });
  return absl::Status(is_bad_job ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kAborted,
                      absl::StrJoin(parts, "\n"));
}

// ProcessTable
// ------------------------------------------------------------------------------------------------

ProcessTable::ProcessTable(uint64_t generation, const Cluster& cluster)
    : servers(NumServers(cluster)),
      workers(cluster.workers()),
      generation_(generation),
      has_embedded_server_(HasEmbeddedServer(cluster)) {}

ProcessId ProcessTable::Begin(ProcessRole role, size_t index) {
  ProcessState& process = role == ProcessRole::kServer ? servers[index] : workers[index];
  ++process.incarnation;
  process.is_running = true;
  process.came_up = false;
  process.is_configured = false;
  process.end.reset();
  process.start_at.reset();
  process.configure_at.reset();
  return Id(role, index);
}

std::vector<std::string> ProcessTable::Addresses(ProcessRole role) const {
  std::vector<std::string> addresses;
  for (const ProcessState& process : Of(role)) addresses.push_back(process.address);
  return addresses;
}

std::vector<uint32_t> ProcessTable::RunningWorkers() const {
  std::vector<uint32_t> ranks;
  for (uint32_t rank = 0; rank < workers.size(); ++rank) {
    if (workers[rank].is_running) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<ProcessFailure> ProcessTable::Failures() const {
  std::vector<ProcessFailure> failures;
  for (size_t i = 0; i < servers.size(); ++i) {
    if (!servers[i].end.has_value() || servers[i].start_at.has_value()) continue;
    const ProcessRole role = has_embedded_server_ ? ProcessRole::kWorker : ProcessRole::kServer;
    failures.push_back({role, ProcessName(role, i), *servers[i].end, static_cast<uint32_t>(i)});
  }
  for (size_t i = 0; i < workers.size(); ++i) {
    if (!workers[i].end.has_value() || workers[i].ended_well()) continue;
    if (has_embedded_server_ && !failures.empty()) continue;  // One process, which ended once.
    failures.push_back({ProcessRole::kWorker, ProcessName(ProcessRole::kWorker, i), *workers[i].end,
                        static_cast<uint32_t>(i)});
  }
  std::stable_partition(failures.begin(), failures.end(), [](const ProcessFailure& failure) {
    return failure.end.exit_code != kExitServerLost;
  });
  return failures;
}

std::optional<size_t> ProcessTable::FirstNotUp(ProcessRole role) const {
  const std::vector<ProcessState>& of_role = Of(role);
  for (size_t i = 0; i < of_role.size(); ++i) {
    if (!of_role[i].came_up && !of_role[i].ended_well()) return i;
  }
  return std::nullopt;
}

bool ProcessTable::AllConfigured() const {
  return std::all_of(servers.begin(), servers.end(),
                     [](const ProcessState& server) { return server.is_configured; });
}

bool ProcessTable::AllServersRun() const {
  return std::all_of(servers.begin(), servers.end(), [](const ProcessState& server) {
    return server.is_running && server.is_configured;
  });
}

bool ProcessTable::AllWorkersEndedWell() const {
  return std::all_of(workers.begin(), workers.end(),
                     [](const ProcessState& worker) { return worker.ended_well(); });
}

}  // namespace thermocline
