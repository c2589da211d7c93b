// Which ends of processes are losses, that a job survives by going back to a checkpoint, and which
// are verdicts on the job itself: they would only come again.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_ROLLBACK_POLICY_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_ROLLBACK_POLICY_H_

#include <optional>
#include <string>
#include <vector>

#include "common/ids.h"
#include "deploy/backends/local/supervisor.h"

namespace thermocline {

// A worker's exit code: it has lost a server, or what a server had acknowledged to it.
inline constexpr int kWorkerLostServer = 3;

// Whether all that failed was lost: workers that a signal killed or that lost a server, and servers
// that did not refuse their flags. REQUIRES: something failed
bool RollbackMayHelp(const std::vector<ProcessFailure>& failures);

// A job in which nothing advances any more: whether it goes back. What hangs again before the job
// got further would hang for ever.
class StallPolicy {
 public:
  // The job has stalled, with its steps up to `reached` applied.
  bool RollbackMayHelp(Step reached);

 private:
  std::optional<Step> reached_;  // At the stall before.
};

// In one line: "server 0 was killed by signal 9 (Killed), worker 1 exited with code 3".
std::string DescribeFailures(const std::vector<ProcessFailure>& failures);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_ROLLBACK_POLICY_H_
