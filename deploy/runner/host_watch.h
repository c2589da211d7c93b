// What the stats of a job's processes say about its hosts: which of them keep the others waiting
// (in sync training one host that is throttled, swaps or has a bad disk sets the pace of all, which
// then show the same samples per second), and which processes the controller does not reach.
#ifndef THERMOCLINE_DEPLOY_RUNNER_HOST_WATCH_H_
#define THERMOCLINE_DEPLOY_RUNNER_HOST_WATCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "deploy/job/process.h"
#include "deploy/report/stats_table.h"

namespace thermocline {

// In the run directory: {"slow_hosts": [{"host": "h2", "role": "worker", "text": what
// Describe says, ...}]}, the hosts that are slow now. No file: none was yet.
inline constexpr char kSlowHostsFile[] = "slow_hosts.json";

// How long a host's processes of one role take, as the mean over them in the last window: either
// for their own part of a step, without their waits for other processes (kWork); or until they
// answer the controller (kAnswers), which also shows a host that stands still in its waits (it
// swaps, is throttled or paused, or has a slow link).
struct SlowHost {
  enum class What { kWork, kAnswers };
  std::string host;
  ProcessRole role;
  What what = What::kWork;
  bool is_slow = true;  // false: it was slow, and is not any more.
  double own_s = 0;
  double others_s = 0;  // The median over the other hosts.
  double step_s = 0;    // What a step takes altogether.
};
// "host h2 is slow: its workers take 0.31 s of their own for a step, those of other hosts 0.1 s; a
// step takes 0.33 s", or "... take 0.31 s to answer the controller, ..."
std::string Describe(const SlowHost& slow);

// A host is slow when for three windows of ten seconds its processes of a role take more than twice
// what the median of the other hosts' take, and the difference is more than a fifth of a step; of
// answers also more than a tenth of a second. It is not any more when that is over for as long.
// Pure. Not thread-safe.
class HostWatch {
 public:
  struct Findings {
    std::vector<SlowHost> changes;    // Hosts that are slow now, or not any more.
    std::vector<std::string> silent;  // Processes that have not answered for a while; once each.
  };

  // The processes of the next generation may run on other hosts.
  void BeginGeneration();
  //   host: "" if all processes run on this host
  void OnStart(const ProcessId& id, const std::string& host);
  void OnEnd(const ProcessId& id);  // From now on it is not expected to answer.
  // Takes the reports of servers, by index, and of workers at `now`. Times never go back.
  Findings Look(absl::Duration now, const std::vector<ServerReport>& servers,
                const std::vector<WorkerReport>& workers);
  // The hosts that are slow now.
  std::vector<SlowHost> slow() const;

 private:
  struct Totals {
    double own_s = 0;
    int64_t steps = 0;
  };
  struct Answers {
    double total_s = 0;
    int count = 0;
  };
  struct Running {
    ProcessId id;
    std::string host;
  };
  using What = SlowHost::What;
  using Key = std::pair<ProcessRole, size_t>;  // A process's role and index.
  struct State {
    SlowHost last;
    bool is_slow = false;
    int contrary_windows = 0;  // How many windows in a row contradict is_slow.
  };

  const std::string& HostOf(ProcessRole role, size_t index) const;
  void TakeAnswer(const std::string& address, const absl::Status& answer, absl::Duration took,
                  Findings* findings);
  // Returns "server 1 on host h2"; "a worker" if none at the address has answered yet.
  std::string WhoIsAt(const std::string& address) const;
  void TakeWindow(ProcessRole role, double seconds, const std::map<Key, Totals>& end,
                  std::vector<SlowHost>* changes);
  //   values: of the processes, by host
  void Compare(ProcessRole role, What what,
               const std::map<std::string, std::vector<double>>& values, double step_s,
               std::vector<SlowHost>* changes);

  std::map<Key, Running> running_;
  absl::Duration begin_at_ = -absl::InfiniteDuration();
  std::map<Key, Totals> begin_;     // Totals when the window began.
  std::map<Key, Answers> answers_;  // Answers in the window.
  std::map<std::tuple<ProcessRole, What, std::string>, State> hosts_;
  std::map<std::string, Key> at_;          // The process at each address.
  std::map<std::string, int> unanswered_;  // Looks in a row, by address.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_HOST_WATCH_H_
