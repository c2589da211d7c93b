// What the controller knows of its job's processes and progress, as it tells its web server.
// Counters of a process that ends are kept and added to those of the next one, so that what is
// shown never falls while the launch lasts.
#ifndef THERMOCLINE_DEPLOY_HTTP_MONITOR_STATE_H_
#define THERMOCLINE_DEPLOY_HTTP_MONITOR_STATE_H_

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "deploy/job/process.h"
#include "deploy/report/stats_table.h"
#include "proto/monitor.pb.h"

namespace thermocline {

// Not thread-safe.
class MonitorState {
 public:
  // A process of a server or worker is started. `host`: where it runs.
  void OnStart(const ProcessId& id, const std::string& host);
  // The process has ended. is_done: as it should.
  void OnEnd(const ProcessId& id, bool is_done);
  // What the processes have answered: servers by index; of the workers, those that are connected.
  void OnStats(const std::vector<ServerReport>& servers, const std::vector<WorkerReport>& workers);
  void OnCheckpointBytes(uint64_t bytes) {
    snapshot_.mutable_job()->set_checkpoint_store_bytes(bytes);
  }
  // A line of metrics.jsonl.
  void OnEvent(const nlohmann::ordered_json& event);

  const MonitorSnapshot& snapshot() const { return snapshot_; }

 private:
  MonitoredProcess* Of(ProcessRole role, uint32_t index);
  TaskFigures* TaskNamed(const std::string& label);
  MonitoredProcess* At(const std::string& address);  // Null: no worker has answered there.
  void OnProgress(const nlohmann::ordered_json& event);
  void OnEvaluation(const nlohmann::ordered_json& event);
  void OnCheckpoint(const nlohmann::ordered_json& event);

  MonitorSnapshot snapshot_;
  std::map<std::pair<ProcessRole, uint32_t>, int> places_;            // In snapshot_.processes.
  std::set<std::tuple<std::string, std::string, std::string>> slow_;  // host, role, what
};

// The counters of all processes that a server or worker has had, and all else of its last answer.
ServerStats FoldedServer(const MonitoredProcess& process);
WorkerStats FoldedWorker(const MonitoredProcess& process);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_HTTP_MONITOR_STATE_H_
