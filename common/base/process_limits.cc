#include "common/base/process_limits.h"

#include <sys/resource.h>

#include "absl/strings/str_cat.h"

namespace thermocline {

uint64_t OpenFileLimit() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

void RaiseOpenFileLimit() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);  // Where it fails, CheckOpenFiles sees the old limit.
}

absl::Status CheckOpenFiles(absl::string_view who, uint64_t connections) {
  const uint64_t needed = connections + kFilesBesideConnections;
  const uint64_t available = OpenFileLimit();
  if (needed <= available) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(who, " needs ", needed, " open files for ",
                                                    connections, " connections; the limit is ",
                                                    available, " (raise it with `ulimit -Hn`)"));
}

}  // namespace thermocline
