// Keeps the checkpoints of an epoch whose processes run, on a thread of its own.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_LOOP_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_LOOP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/net/control_client.h"
#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/checkpoint_requests.h"
#include "deploy/controller/cut_participants.h"
#include "deploy/controller/epoch_start.h"
#include "deploy/controller/server_group.h"
#include "proto/job.pb.h"

namespace thermocline {

class CheckpointLoop {
 public:
  // What it needs beside the job; all must outlive it.
  struct Environment {
    ServerGroup* servers = nullptr;
    std::vector<std::string> worker_addresses;  // by rank; "": it has ended already
    CheckpointStore* store = nullptr;
    std::string run_directory;  // where other programs ask for checkpoints
    std::function<uint64_t(Step cut)> samples_through;
    std::function<EvaluationState(Step cut)> evaluations_through;  // empty: there are none
    std::string build;
  };

  // Begins at once. REQUIRES: job.has_checkpoint(); `job` outlives it. Errors: those of connecting.
  static absl::StatusOr<std::unique_ptr<CheckpointLoop>> Start(const Job& job,
                                                               const EpochStart& start,
                                                               Environment environment);
  ~CheckpointLoop();

  // Nothing is named, called off or committed any more. Waits for a call under way.
  void Stop();

  // Thread-safe, but for Poll.
  CheckpointKeeper& keeper() { return keeper_; }

 private:
  class Calls;

  CheckpointLoop(const Job& job, const EpochStart& start, Environment environment,
                 std::unique_ptr<Calls> calls);
  void Run();

  const Environment environment_;
  const std::unique_ptr<Calls> calls_;
  CheckpointRequests requests_;  // Of the thread alone.
  CheckpointKeeper keeper_;
  absl::Mutex mutex_;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_LOOP_H_
