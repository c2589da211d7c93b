// The parameter servers of one run: started, configured, asked for their results.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_SERVER_GROUP_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_SERVER_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/hash.h"
#include "common/net/control_client.h"
#include "deploy/backends/local/supervisor.h"
#include "deploy/console/stats_table.h"
#include "deploy/controller/run_directory.h"
#include "proto/job.pb.h"

namespace thermocline {

// Not thread-safe; lives on the main thread. Every wait is the supervisor's: it ends when a process
// dies, at Ctrl-C and at its timeout.
class ServerGroup {
 public:
  // `job`, `directory` and `supervisor` must outlive this object.
  ServerGroup(const Job& job, const RunDirectory& directory, Supervisor* supervisor)
      : job_(job), directory_(directory), supervisor_(*supervisor) {}

  // Starts `program` once a server and waits until all listen.
  absl::Status Start(const std::string& program);
  // Gives every server its shard of the job's tables.
  absl::Status Configure(uint64_t epoch);
  // The digest of the whole model. Every row is read: it takes as long as that takes.
  absl::StatusOr<Digest> GetDigest(uint64_t epoch, absl::Duration timeout);
  // What each server says, by index; a server that doesn't answer is no error of the whole.
  absl::StatusOr<std::vector<ServerReport>> GetStats();

  // Closes the connections: a server that is asked to stop waits for its clients a while.
  void Disconnect() { clients_.clear(); }

  const std::vector<std::string>& addresses() const { return addresses_; }

 private:
  // Calls `call(i)` for every server on a thread each. `timeout` is the longest that a call takes.
  absl::Status ForEach(const std::function<absl::Status(size_t)>& call, absl::Duration timeout,
                       absl::string_view what);

  const Job& job_;
  const RunDirectory& directory_;
  Supervisor& supervisor_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<ControlClient>> clients_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_SERVER_GROUP_H_
