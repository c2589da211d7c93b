// The stats of servers and workers, as text for users and as JSON for programs.
#ifndef THERMOCLINE_DEPLOY_REPORT_STATS_TABLE_H_
#define THERMOCLINE_DEPLOY_REPORT_STATS_TABLE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

struct ServerReport {
  std::string address;
  absl::StatusOr<ServerStats> stats;
  absl::Duration took;   // Until the answer.
  int64_t asked_ns = 0;  // MonotonicNanos() before the call.
};
struct WorkerReport {
  std::string address;
  absl::StatusOr<WorkerStats> stats;
  absl::Duration took;   // Until the answer.
  int64_t asked_ns = 0;  // MonotonicNanos() before the call.
};

// The figures of a method, such as "Pull"; nullptr where it was never called.
const RpcStats* FindRpc(const ServerStats& stats, const std::string& method);

// One line a server.
std::string RenderServerStats(const std::vector<ServerReport>& servers);
// One line a table, summed over the servers; the dense tensors share one. Empty if there are
// none.
std::string RenderTableStats(const std::vector<ServerReport>& servers);
// One line a worker.
std::string RenderWorkerStats(const std::vector<WorkerReport>& workers);

// {"servers": [{"address": ..., "stats": {...}} or {"address": ..., "error": ...}], "workers":
// ...}, fields named as in parameter_server.proto; 64-bit numbers as numbers.
std::string StatsToJson(const std::vector<ServerReport>& servers,
                        const std::vector<WorkerReport>& workers);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_STATS_TABLE_H_
