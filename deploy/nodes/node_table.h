// What the controller of a job knows about its hosts: which are there, what runs on each, and what
// is to run there. Like the nodes' side (deploy/nodes/node_agent.h) it has no thread, clock or
// socket.
#ifndef THERMOCLINE_DEPLOY_NODES_NODE_TABLE_H_
#define THERMOCLINE_DEPLOY_NODES_NODE_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "deploy/job/job_actions.h"
#include "deploy/job/job_events.h"
#include "deploy/job/process.h"
#include "proto/node.pb.h"

namespace thermocline {

// A node's version must be the controller's.
inline constexpr uint32_t kNodeProtocolVersion = 2;

NodeProcess ToNodeProcess(const ProcessId& id);
ProcessId FromNodeProcess(const NodeProcess& id);

// A host is lost when no report of it has come for `host_timeout`, or when its node registers anew.
// Its processes are lost with it: HostLost comes first, then their ends. A node of the same name on
// another machine, at another address or with another folder is a stranger: it has to wait, and is
// refused when a report of the host comes. If the controller signs certificates, a host may have
// the address of another machine only if it connects from there. Not thread-safe.
class NodeTable {
 public:
  // Signs a certificate for the key of `request` (PEM), for a process of `role` at `address`.
  using Signer = std::function<absl::StatusOr<std::string>(
      const std::string& request, ProcessRole role, const std::string& address)>;
  struct Options {
    NodeOrder
        order;  // The fields that all orders have: job, run directory, lease, check, data index.
    std::string build;
    absl::Duration host_timeout;
    size_t num_workers = 0;
    Signer sign;                        // Null: no certificates are signed.
    absl::Duration certificate_period;  // How often certificates are signed anew.
  };

  explicit NodeTable(Options options);

  // Begins a generation, in which no process is wanted yet. Before the first one no order is sent.
  void BeginGeneration(uint64_t generation);
  // Wants a process. Does nothing if its host is lost: HostLost is among the events then.
  void Start(const action::StartProcess& start);
  // Wants the processes of a role no longer.
  void Stop(ProcessRole role, absl::Duration grace);
  // Whether no process of the role is left on any host that is there.
  bool AllGone(ProcessRole role) const;
  // Ends the job, and with it the nodes.
  void End();

  // Takes a report.
  //   peer: the IP address that it came from, or the node's own name for that; "": not known
  // Errors: kFailedPrecondition (the node is refused for good; names host and builds or addresses).
  absl::Status OnReport(absl::Duration now, const NodeReport& report, const std::string& peer = "");
  void OnTick(absl::Duration now);
  // Returns the order for the node that registered with `nonce`; it answers its newest report.
  NodeOrder OrderFor(const std::string& host, uint64_t nonce);
  bool MayOrder() const { return generation_ > 0; }
  // Hosts whose orders have changed since the call before.
  std::set<std::string> TakeChanged() { return std::exchange(changed_, {}); }

  std::vector<JobEvent> TakeEvents() { return std::exchange(events_, {}); }
  // Returns rank 0's metrics that have come since the call before.
  std::string TakeMetrics() { return std::exchange(metrics_, {}); }
  // Returns the results of this generation's workers that ended well, by rank; nullopt: they are
  // those of the call before.
  std::optional<std::vector<nlohmann::ordered_json>> TakeResults();
  std::vector<std::string> TakeNotices() { return std::exchange(notices_, {}); }

  // Asks for lines of a process's log. The answer has the request's id. Errors: kNotFound (no such
  // process was started), kUnavailable (its host is lost).
  absl::Status AskForLog(const LogRequest& request);
  // The answers that came since the call before.
  std::vector<LogLines> TakeLogs() { return std::exchange(logs_, {}); }
  // Returns where each process ran last, by name: {"server 0": {"host": .., "log": path}}; nullopt:
  // it is that of the call before.
  std::optional<nlohmann::ordered_json> TakePlaces();

 private:
  struct Placed {
    ProcessId id;
    WantedProcess wanted;
    bool is_wanted = true, is_up = false, has_ended = false;
    uint64_t dropped_in = 0;  // The first order that did not want it.
    std::string request;      // Its certificate request; "": none has come.
    absl::Duration sign_at = absl::InfiniteDuration();  // When to sign its certificate anew.
  };
  struct HostState {
    uint64_t nonce = 0;
    NodeHello hello;
    std::string peer;  // The address that its reports come from.
    // Strangers by nonce, with the host's heartbeat when each came.
    std::map<uint64_t, uint64_t> strangers;
    absl::Duration seen_at;
    uint64_t heartbeat = 0;
    bool is_up = false;  // It is fit, and the job machine has the event.
    std::vector<Placed> processes;
    std::vector<LogRequest> logs;
  };

  void Lose(const std::string& name, HostState* host, const std::string& why);
  absl::Status Admit(const NodeReport& report, HostState* host);
  absl::Status TakeStranger(const NodeReport& report, HostState* host);
  absl::Status CheckAddress(const HostState& host) const;
  void TakeProcesses(absl::Duration now, const NodeReport& report, HostState* host);
  void TakeRequest(absl::Duration now, const HostState& host, const std::string& request,
                   Placed* placed);
  void Sign(absl::Duration now, const HostState& host, Placed* placed);
  void RefuseUnordered(const NodeReport& report, const HostState& host);
  void TakeMetricsOf(const NodeReport& report);
  void TakeEnd(const std::string& host, const ProcessReport& report, Placed* placed);
  void TakeLogsOf(const NodeReport& report, HostState* host);
  // Notes that the host's order has changed.
  void Change(const std::string& host);

  const Options options_;
  uint64_t generation_ = 0;
  uint64_t number_ = 0;  // The number of the newest order.
  absl::Duration grace_;
  bool has_ended_ = false;
  std::map<std::string, HostState> hosts_;
  std::set<std::pair<std::string, uint64_t>> retired_;  // Hosts and nonces that are lost.
  ProcessId metrics_of_;
  uint64_t metrics_received_ = 0;
  std::string metrics_;
  std::vector<nlohmann::ordered_json> results_;
  nlohmann::ordered_json places_ = nlohmann::ordered_json::object();
  bool are_results_new_ = true, are_places_new_ = true;
  std::set<std::string> told_;  // Notices that are not repeated.
  std::vector<JobEvent> events_;
  std::vector<LogLines> logs_;
  std::vector<std::string> notices_;
  std::set<std::string> changed_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_TABLE_H_
