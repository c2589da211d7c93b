#include "deploy/job/budgets.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

constexpr uint32_t kMostStalls = 1;
constexpr uint32_t kMostScriptFailures = 1;
constexpr uint32_t kMostMemoryKills = 1;

}  // namespace

bool Budget::Spend(Step reached) {
  if (reached > reached_) spent_ = 0;
  reached_ = std::max(reached_, reached);
  if (spent_ == limit_) return false;
  ++spent_;
  return true;
}

SpentBudget Budget::spent() const {
  SpentBudget spent;
  spent.set_times(spent_);
  spent.set_steps(static_cast<uint64_t>(reached_.value() + 1));
  return spent;
}

RestartPolicy::Decision RestartPolicy::OnEnd(size_t server, bool came_up, Step reached) {
  if (servers_.size() <= server) servers_.resize(server + 1);
  Server& state = servers_[server];
  if (came_up) {
    state.failed_starts = 0;
  } else if (++state.failed_starts >= kFailedStarts && can_go_back_) {
    return {false, {}, absl::StrCat("it did not come up ", state.failed_starts, " times in a row")};
  }
  if (!restarts_.Spend(reached)) {
    return {false, {}, absl::StrCat("cluster.max_server_restarts is ", restarts_.limit()), true};
  }
  if (reached > state.reached) state.in_a_row = 0;
  state.reached = std::max(state.reached, reached);
  absl::Duration delay;
  for (uint32_t i = 0; i < state.in_a_row && delay < kLongestDelay; ++i) {
    delay = std::min(std::max(2 * delay, kFirstDelay), kLongestDelay);
  }
  ++state.in_a_row;
  return {true, delay, ""};
}

JobBudgets::JobBudgets(const Job& job, bool can_go_back, const SpentBudgets& spent)
    : restarts(job.cluster().max_server_restarts(), can_go_back, spent.restarts()),
      rollbacks(job.checkpoint().max_rollbacks(), spent.rollbacks()),
      stalls(kMostStalls, spent.stalls()),
      scripts(kMostScriptFailures, spent.scripts()),
      memory(kMostMemoryKills) {}

SpentBudgets JobBudgets::spent() const {
  SpentBudgets spent;
  *spent.mutable_restarts() = restarts.spent();
  *spent.mutable_rollbacks() = rollbacks.spent();
  *spent.mutable_stalls() = stalls.spent();
  // Records of jobs without a script stay as they were.
  if (scripts.spent().times() > 0) *spent.mutable_scripts() = scripts.spent();
  return spent;
}

}  // namespace thermocline
