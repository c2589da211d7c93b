// What a node decides: which processes it starts and stops, and until when it may have any. Pure:
// no thread, clock, socket or file. deploy/nodes/node.cc carries out what it wants done.
#ifndef THERMOCLINE_DEPLOY_NODES_NODE_AGENT_H_
#define THERMOCLINE_DEPLOY_NODES_NODE_AGENT_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/node.pb.h"

namespace thermocline {

// What a node agent wants done, in order.
namespace node_action {

// Another generation begins, and no process of an earlier one is left: what those wrote here goes.
struct Prepare {
  NodeOrder order;
};
// Answers: OnServes, OnMetrics, OnEnd; or OnNeedsCertificate, and it comes again with one.
struct Start {
  WantedProcess process;
};
// The process runs, and has a newer certificate.
struct Renew {
  WantedProcess process;
};
struct Signal {  // To end, or SIGKILL: it has no time left.
  NodeProcess id;
  bool kill = false;
};

}  // namespace node_action

using NodeAction =
    std::variant<node_action::Prepare, node_action::Start, node_action::Renew, node_action::Signal>;

// The lease: a node may have processes until `lease_ms` after it *sent* the newest heartbeat that
// the controller has answered. Then it ends all of them and registers anew, with another nonce.
// What arrives at the node alone never renews it.
//
// Orders of another nonce, another job (as long as there is a lease), a lower generation or a lower
// number are dropped, so lost, doubled and late messages harm nothing. An incarnation is started at
// most once. No process starts while one of an earlier generation is left. Not thread-safe.
class NodeAgent {
 public:
  // `make_nonce`: another number at each call.
  NodeAgent(NodeHello hello, std::function<uint64_t()> make_nonce);

  // Times never go back. Each call may want actions.
  void OnOrder(absl::Duration now, const NodeOrder& order);
  // The process can't start without a certificate for the key of `request` (PEM).
  void OnNeedsCertificate(const NodeProcess& id, const std::string& request);
  void OnServes(const NodeProcess& id, const std::string& address, const std::string& log);
  void OnMetrics(const NodeProcess& id, absl::string_view data);
  void OnEnd(absl::Duration now, const NodeProcess& id, const ProcessEndReport& end);
  void OnLog(const LogLines& lines) { logs_.push_back(lines); }
  // This host can't be part of the job.
  void OnUnfit(const std::string& why) { unfit_ = why; }
  // What is due.
  void OnTick(absl::Duration now);
  std::vector<NodeAction> TakeActions();
  // When OnTick is due; infinite: never.
  absl::Duration next_tick() const;

  // Whether there is something to say to a controller: not while processes of a lost lease end.
  bool MayReport() const { return !is_ending_; }
  // REQUIRES: MayReport(); it is sent now or never.
  NodeReport MakeReport(absl::Duration now);
  // Whether a report would say something new.
  bool HasNews() const { return has_news_; }

  uint64_t nonce() const { return nonce_; }
  bool HasLease(absl::Duration now) const { return is_leased_ && now < lease_until_; }
  absl::Duration lease() const { return lease_; }  // Its length; zero: not known.
  bool has_ended() const { return has_ended_; }    // The job; no process is left.
  size_t running() const;

 private:
  using Key = std::tuple<int, uint32_t, uint64_t, uint64_t>;
  struct Process {
    ProcessReport report;
    bool waits_for_certificate = false;  // There is no process yet.
    std::string certificate;             // The newest that was handed on.
    bool is_asked_to_end = false, is_killed = false;
    absl::Duration kill_at = absl::InfiniteDuration();
  };

  static Key KeyOf(const NodeProcess& id);
  bool IsCurrent(absl::Duration now, const NodeOrder& order) const;
  void Renew(absl::Duration now, const NodeOrder& order);
  void EndAll();
  void Work(absl::Duration now);
  void StopUnwanted(absl::Duration now);
  void StartWanted();
  void TakeCertificate(const WantedProcess& wanted);

  const NodeHello hello_;
  const std::function<uint64_t()> make_nonce_;
  uint64_t nonce_;
  bool is_leased_ = false;
  bool is_ending_ = false;  // Without a lease, until no process is left.
  bool is_job_over_ = false, has_ended_ = false;
  absl::Duration lease_, lease_until_;
  uint64_t heartbeat_ = 0;
  std::deque<std::pair<uint64_t, absl::Duration>> sent_;  // Heartbeats and when, newest last.
  NodeOrder order_;                                       // The last one taken.
  uint64_t prepared_ = 0;                                 // Generation.
  std::set<Key> started_;                                 // Of this generation.
  std::map<Key, Process> processes_;
  NodeProcess metrics_of_;
  uint64_t metrics_begin_ = 0;  // What comes before has arrived.
  std::string metrics_;
  std::deque<LogLines> logs_;  // Said until the controller no longer asks.
  std::string unfit_;
  bool has_news_ = true;
  std::vector<NodeAction> actions_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_AGENT_H_
