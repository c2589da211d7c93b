// A node's decisions: which processes it starts and stops, and until when it may have any. It has
// no thread, clock, socket or file; deploy/nodes/node.cc carries out its actions.
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

// The actions of a node agent, which are carried out in order.
namespace node_action {

// Removes the files of earlier generations: a new one begins, and no process of an earlier one is
// left.
struct Prepare {
  NodeOrder order;
};
// Starts a process. OnServes, OnMetrics and OnEnd follow; or OnNeedsCertificate, after which
// another Start comes with the certificate.
struct Start {
  WantedProcess process;
};
// Gives a running process a newer certificate.
struct Renew {
  WantedProcess process;
};
// Asks a process to end, or kills it if it has no time left.
struct Signal {
  NodeProcess id;
  bool kill = false;
};

}  // namespace node_action

using NodeAction =
    std::variant<node_action::Prepare, node_action::Start, node_action::Renew, node_action::Signal>;

// A node has a lease: it may have processes until `lease_ms` after it *sent* the newest heartbeat
// that the controller has answered. Then it ends all of them and registers anew, with another
// nonce. The time at which an order arrives never counts.
//
// Orders of another nonce, another job (while there is a lease), a lower generation or a lower
// number are dropped, so lost, doubled and late messages do no harm. An incarnation is started at
// most once. No process starts while one of an earlier generation is left. Not thread-safe.
class NodeAgent {
 public:
  // `make_nonce` returns a new number at each call.
  NodeAgent(NodeHello hello, std::function<uint64_t()> make_nonce);

  // Times never go back. After each call the caller carries out TakeActions().
  void OnOrder(absl::Duration now, const NodeOrder& order);
  // The process can't start without a certificate for the key of `request` (PEM).
  void OnNeedsCertificate(const NodeProcess& id, const std::string& request);
  void OnServes(const NodeProcess& id, const std::string& address, const std::string& log);
  void OnMetrics(const NodeProcess& id, absl::string_view data);
  void OnEnd(absl::Duration now, const NodeProcess& id, const ProcessEndReport& end);
  void OnLog(const LogLines& lines) { logs_.push_back(lines); }
  // This host can't be part of the job.
  void OnUnfit(const std::string& why) { unfit_ = why; }
  // Does what is due by time.
  void OnTick(absl::Duration now);
  std::vector<NodeAction> TakeActions();
  // When OnTick is due; infinite: never.
  absl::Duration next_tick() const;

  // Whether it may report to a controller; it may not while processes of a lost lease end.
  bool MayReport() const { return !is_ending_; }
  // Makes a report, which is sent now or never. REQUIRES: MayReport()
  NodeReport MakeReport(absl::Duration now);
  // Whether a report would say something new.
  bool HasNews() const { return has_news_; }

  uint64_t nonce() const { return nonce_; }
  bool HasLease(absl::Duration now) const { return is_leased_ && now < lease_until_; }
  absl::Duration lease() const { return lease_; }  // The lease's length; zero: not known.
  bool has_ended() const { return has_ended_; }    // The job has ended, and no process is left.
  size_t running() const;

 private:
  using Key = std::tuple<int, uint32_t, uint64_t, uint64_t>;
  struct Process {
    ProcessReport report;
    bool waits_for_certificate = false;  // It is not started before it has one.
    std::string certificate;             // The newest one that an action had.
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
  bool is_ending_ = false;  // The lease is lost, and processes are still ending.
  bool is_job_over_ = false, has_ended_ = false;
  absl::Duration lease_, lease_until_;
  uint64_t heartbeat_ = 0;
  std::deque<std::pair<uint64_t, absl::Duration>>
      sent_;               // Heartbeats and their times, newest last.
  NodeOrder order_;        // The last order taken.
  uint64_t prepared_ = 0;  // The generation of the last Prepare.
  std::set<Key> started_;  // Processes started in this generation.
  std::map<Key, Process> processes_;
  NodeProcess metrics_of_;
  uint64_t metrics_begin_ = 0;  // The controller has the bytes before; metrics_ begins here.
  std::string metrics_;
  std::deque<LogLines> logs_;  // Reported until the controller no longer asks.
  std::string unfit_;
  bool has_news_ = true;
  std::vector<NodeAction> actions_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_AGENT_H_
