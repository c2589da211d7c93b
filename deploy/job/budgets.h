// How often, and how soon, a job may start a server again, go back to a checkpoint, or go back
// after a stall.
#ifndef THERMOCLINE_DEPLOY_JOB_BUDGETS_H_
#define THERMOCLINE_DEPLOY_JOB_BUDGETS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"

namespace thermocline {

// Counts repetitions of one thing, up to a limit. The count begins anew once the job gets further
// than it was at the last repetition.
class Budget {
 public:
  // `spent`: what earlier controllers of the job have spent.
  explicit Budget(uint32_t limit, const SpentBudget& spent = {})
      : limit_(limit), spent_(spent.times()), reached_(static_cast<int64_t>(spent.steps()) - 1) {}

  // Spends one repetition; `reached` is the last applied step. False: none is left.
  bool Spend(Step reached);
  uint32_t limit() const { return limit_; }
  SpentBudget spent() const;

 private:
  const uint32_t limit_;
  uint32_t spent_;
  Step reached_;  // The last applied step when one was spent last.
};

// Decides whether, and when, a server that ended is started again at its old address. The first
// restart comes at once. Each further one before the job gets further doubles the delay, within
// bounds. Not thread-safe.
class RestartPolicy {
 public:
  static constexpr absl::Duration kFirstDelay = absl::Milliseconds(100);  // For the second restart.
  static constexpr absl::Duration kLongestDelay = absl::Seconds(5);
  // When a server didn't come up after so many starts in a row, the job goes back to a checkpoint
  // if it can: the servers of its next generation listen on other ports.
  static constexpr uint32_t kFailedStarts = 5;

  // `max_restarts`: how often all servers together may be restarted before the job gets further.
  RestartPolicy(uint32_t max_restarts, bool can_go_back, const SpentBudget& spent = {})
      : can_go_back_(can_go_back), restarts_(max_restarts, spent) {}

  struct Decision {
    bool restart = false;
    absl::Duration delay;  // After the server's end.
    std::string why_not;
    bool is_exhausted = false;  // No restart is left.
  };
  // `came_up`: the process served before it ended. `reached`: as in Budget.
  Decision OnEnd(size_t server, bool came_up, Step reached);
  SpentBudget spent() const { return restarts_.spent(); }

 private:
  struct Server {
    uint32_t in_a_row = 0;  // Restarts before the job got further.
    Step reached = kNoStep;
    uint32_t failed_starts = 0;  // Starts in a row in which it didn't come up.
  };

  const bool can_go_back_;
  Budget restarts_;
  std::vector<Server> servers_;  // By index, up to the last server that ended.
};

// The budgets of a job, over all its generations.
struct JobBudgets {
  JobBudgets(const Job& job, bool can_go_back, const SpentBudgets& spent);

  SpentBudgets spent() const;

  RestartPolicy restarts;  // cluster.max_server_restarts
  Budget rollbacks;        // checkpoint.max_rollbacks
  Budget stalls;           // One a step: a job that stalls twice at one step would stall for ever.
  Budget scripts;          // One a step: a script that fails twice at one step has a fault.
  // One a checkpoint: a job that does not fit would be killed for ever. Not kept in spent():
  // another controller's hosts may have more memory.
  Budget memory;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_BUDGETS_H_
