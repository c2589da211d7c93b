// What a job may do again, how often, and how soon: start a server, go back to a checkpoint, go
// back after a stall.
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

// How often something may be done again before the job gets further than it was the last time: from
// there on it counts anew.
class Budget {
 public:
  // `spent`: by an earlier controller of the job.
  explicit Budget(uint32_t limit, const SpentBudget& spent = {})
      : limit_(limit), spent_(spent.times()), reached_(static_cast<int64_t>(spent.steps()) - 1) {}

  // Spends one, in a job whose steps up to `reached` were applied. False: none is left.
  bool Spend(Step reached);
  uint32_t limit() const { return limit_; }
  SpentBudget spent() const;

 private:
  const uint32_t limit_;
  uint32_t spent_;
  Step reached_;  // The furthest, when it was spent.
};

// Whether, and when, a server that ended is started again at its old address. The first restart
// comes at once, each further one before the job gets further doubles its delay, within bounds. Not
// thread-safe.
class RestartPolicy {
 public:
  static constexpr absl::Duration kFirstDelay = absl::Milliseconds(100);  // Of the second restart.
  static constexpr absl::Duration kLongestDelay = absl::Seconds(5);
  // After so many starts in a row in which a server didn't come up, the job goes back to a
  // checkpoint if it can: the servers of its next generation listen on other ports.
  static constexpr uint32_t kFailedStarts = 5;

  // `max_restarts`: of all servers together, before the job gets further.
  RestartPolicy(uint32_t max_restarts, bool can_go_back, const SpentBudget& spent = {})
      : can_go_back_(can_go_back), restarts_(max_restarts, spent) {}

  struct Decision {
    bool restart = false;
    absl::Duration delay;  // From the server's end on.
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
    uint32_t failed_starts = 0;  // In a row.
  };

  const bool can_go_back_;
  Budget restarts_;
  std::vector<Server> servers_;  // By index, as far as any ended.
};

// Of a whole job, over all its generations.
struct JobBudgets {
  JobBudgets(const Job& job, bool can_go_back, const SpentBudgets& spent);

  SpentBudgets spent() const;

  RestartPolicy restarts;  // cluster.max_server_restarts
  Budget rollbacks;        // checkpoint.max_rollbacks
  Budget stalls;           // A job that stalls twice at one step would stall for ever.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_BUDGETS_H_
