#include "deploy/job/process.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/process_limits.h"

namespace thermocline {
namespace {

bool CausedByTheJob(const ProcessFailure& failure) {
  if (!failure.end.exit_code.has_value()) return false;
  if (failure.role == ProcessRole::kWorker) return *failure.end.exit_code != kExitServerLost;
  return *failure.end.exit_code == kExitUsage;
}

}  // namespace

std::string ProcessName(ProcessRole role, size_t index) {
  return absl::StrCat(role == ProcessRole::kServer ? "server " : "worker ", index);
}

bool JobCausedAny(const std::vector<ProcessFailure>& failures) {
  return std::any_of(failures.begin(), failures.end(), CausedByTheJob);
}

std::string DescribeFailures(const std::vector<ProcessFailure>& failures) {
  return absl::StrJoin(failures, ", ", [](std::string* out, const ProcessFailure& failure) {
    absl::StrAppend(out, failure.name, " ", failure.end.how);
  });
}

absl::Status FailureStatus(const std::vector<ProcessFailure>& failures) {
  return absl::AbortedError(
      absl::StrJoin(failures, "\n", [](std::string* out, const ProcessFailure& failure) {
        absl::StrAppend(out, failure.name, " ", failure.end.report);
      }));
}

}  // namespace thermocline
