// The parameter servers of one run: started, configured, asked for their results.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_SERVER_GROUP_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_SERVER_GROUP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/hash.h"
#include "common/net/control_client.h"
#include "deploy/console/stats_table.h"
#include "deploy/controller/run_directory.h"
#include "deploy/runner/supervisor.h"
#include "proto/job.pb.h"

namespace thermocline {

// Not thread-safe; lives on the main thread. Every wait is the supervisor's: it ends when a process
// dies, at Ctrl-C and at its timeout.
class ServerGroup {
 public:
  // `job`, `directory` and `supervisor` must outlive this object.
  ServerGroup(const Job& job, const RunDirectory& directory, Supervisor* supervisor)
      : job_(job), directory_(directory), supervisor_(*supervisor) {}
  // REQUIRES: no server runs (calls under way would wait for them).
  ~ServerGroup();

  // Starts `program` once a server and waits until all listen.
  absl::Status Start(const std::string& program);
  // Gives every server its shard of the job's tables, with the rows of the checkpoint `base`; "":
  // none. Loading them takes as long as it takes, as long as every server gets further within
  // `stall_timeout`.
  absl::Status Configure(uint64_t epoch, const std::string& base, absl::Duration stall_timeout);
  // Starts a server again that has ended, at its old address, `delay` from now. It gets its
  // configuration, and with that recovers from `base` and its log, in the background. REQUIRES:
  // Configure has ended. Errors: kUnavailable (its old port file can't be removed).
  absl::Status Restart(size_t index, const std::string& base, absl::Duration delay);
  // Whether the server's last process came to serve. REQUIRES: it has ended.
  bool CameUp(size_t index) const;
  // Whether every server that was restarted has recovered. Once it can't: the first error.
  bool AllRecovered() const;
  absl::Status restart_error() const;

  // The digest of the whole model. Every row is read: it takes as long as that takes.
  absl::StatusOr<Digest> GetDigest(uint64_t epoch, Step last, absl::Duration timeout);
  // What each server says, by index; all are asked at once. A server that doesn't answer within
  // `timeout` is no error of the whole.
  absl::StatusOr<std::vector<ServerReport>> GetStats(absl::Duration timeout);

  // Closes the connections: a server that is asked to stop waits for its clients a while. Gives
  // restarts under way up.
  void Disconnect();

  // Of the process: "server 0".
  static std::string NameOf(size_t index) { return absl::StrCat("server ", index); }
  std::string LogFile(size_t index) const;
  const std::vector<std::string>& addresses() const { return addresses_; }
  // Of the process that is there now; null after Disconnect. Thread-safe, once Start has ended.
  std::shared_ptr<ControlClient> client(size_t index) const;

 private:
  // Each time another incarnation: for one start.
  ChildProcessOptions ProcessOf(size_t index, const std::string& listen);
  absl::StatusOr<std::shared_ptr<ControlClient>> Connect(size_t index) const;
  ConfigureRequest RequestFor(size_t index, const std::string& base) const;
  absl::Status ConfigureRestarted(size_t index, const ConfigureRequest& request);
  // Until the server has taken its configuration, refuses it, or is given up. Errors: its refusal;
  // kDeadlineExceeded (it recovers, and got no further in `stall_timeout`; says how far it is).
  absl::Status ConfigureUntilTaken(const std::shared_ptr<ControlClient>& client,
                                   const ConfigureRequest& request, absl::Duration stall_timeout);

  // Calls `call(i)` for every server on a thread each. `timeout` is the longest that a call takes.
  absl::Status ForEach(const std::function<absl::Status(size_t)>& call, absl::Duration timeout,
                       absl::string_view what);

  const Job& job_;
  const RunDirectory& directory_;
  Supervisor& supervisor_;
  std::vector<std::string> addresses_;
  std::string program_;
  uint64_t epoch_ = 0;
  std::vector<uint64_t> starts_;  // By index: processes started in this epoch.

  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<ControlClient>> clients_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status restart_error_ ABSL_GUARDED_BY(mutex_);
  int recovering_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> restarts_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_SERVER_GROUP_H_
