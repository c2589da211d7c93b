// Whether the servers hold what a worker expects of its job.
#ifndef THERMOCLINE_WORKER_TRAIN_SERVER_CHECK_H_
#define THERMOCLINE_WORKER_TRAIN_SERVER_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/net/rpc.h"
#include "proto/job.pb.h"

namespace thermocline {

struct ServerCheckOptions {
  std::string job_id;
  uint64_t generation = 0;
  std::vector<std::string> addresses;  // host:port, by server index
  TlsFiles tls;
  // How long a server may say nothing new: no answer, or the same words and numbers again.
  absl::Duration patience = absl::Seconds(30);
};

// Asks each server for its Configure with check_only until it serves the job: one that loads a
// checkpoint or replays its push log takes as long as it takes while it advances.
// Errors name the server's address. kFailedPrecondition: it is configured differently, and says in
// what. kUnavailable, kDeadlineExceeded: it didn't serve within `patience`; marked as a loss of the
// server (retry_policy.h).
absl::Status AwaitServers(const Job& job, const ServerCheckOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_SERVER_CHECK_H_
