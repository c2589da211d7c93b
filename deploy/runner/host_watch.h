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

// What a host's processes of one role take, the mean over them in the last window: for a step by
// themselves, without their waits for others; or until they answer the controller, which shows what
// stands still in its waits, too (swapping, a throttled or paused host, a slow link).
struct SlowHost {
  enum class What { kWork, kAnswers };
  std::string host;
  ProcessRole role;
  What what = What::kWork;
  bool is_slow = true;  // False: it is not any more.
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

  // The processes of the next generation run elsewhere.
  void BeginGeneration();
  // host: "" where all are on this one
  void OnStart(const ProcessId& id, const std::string& host);
  void OnEnd(const ProcessId& id);  // Nobody expects an answer of it.
  // Takes what servers, by index, and workers say at `now`; times never go back.
  Findings Look(absl::Duration now, const std::vector<ServerReport>& servers,
                const std::vector<WorkerReport>& workers);
  // That are slow now.
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
  using Key = std::pair<ProcessRole, size_t>;  // Of a process.
  struct State {
    SlowHost last;
    bool is_slow = false;
    int contrary_windows = 0;  // In a row.
  };

  const std::string& HostOf(ProcessRole role, size_t index) const;
  void TakeAnswer(const std::string& address, const absl::Status& answer, absl::Duration took,
                  Findings* findings);
  // "server 1 on host h2"; "a worker" where none at the address has answered yet.
  std::string WhoIsAt(const std::string& address) const;
  void TakeWindow(ProcessRole role, double seconds, const std::map<Key, Totals>& end,
                  std::vector<SlowHost>* changes);
  // `values`: of each host's processes.
  void Compare(ProcessRole role, What what,
               const std::map<std::string, std::vector<double>>& values, double step_s,
               std::vector<SlowHost>* changes);

  std::map<Key, Running> running_;
  absl::Duration begin_at_ = -absl::InfiniteDuration();
  std::map<Key, Totals> begin_;     // Of the window.
  std::map<Key, Answers> answers_;  // In the window.
  std::map<std::tuple<ProcessRole, What, std::string>, State> hosts_;
  std::map<std::string, Key> at_;          // Which process is at an address.
  std::map<std::string, int> unanswered_;  // Looks in a row, by address.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_HOST_WATCH_H_
