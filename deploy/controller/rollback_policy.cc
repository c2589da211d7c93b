#include "deploy/controller/rollback_policy.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace thermocline {
namespace {

constexpr int kBadUsage = 2;

bool IsLoss(const ProcessFailure& failure) {
  if (!failure.exit_code) return true;
  if (failure.role == ProcessRole::kWorker) return *failure.exit_code == kWorkerLostServer;
  return *failure.exit_code != kBadUsage;
}

}  // namespace

bool RollbackMayHelp(const std::vector<ProcessFailure>& failures) {
  return std::all_of(failures.begin(), failures.end(), IsLoss);
}

bool StallPolicy::RollbackMayHelp(Step reached) {
  const bool got_further = !reached_.has_value() || reached > *reached_;
  reached_ = reached;
  return got_further;
}

std::string DescribeFailures(const std::vector<ProcessFailure>& failures) {
  return absl::StrJoin(failures, ", ", [](std::string* out, const ProcessFailure& failure) {
    absl::StrAppend(out, failure.name, " ", failure.how_it_ended);
  });
}

}  // namespace thermocline
