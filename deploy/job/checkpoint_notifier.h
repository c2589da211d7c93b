// What has become of checkpoints, on its way to the processes that must know.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_NOTIFIER_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_NOTIFIER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "deploy/job/checkpoint_call.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// Messages go to each server in order, and to the workers once every server has taken them: a
// worker that goes past a checkpoint's step would be refused where the checkpoint still is under
// way. A process that doesn't answer gets its messages again the next time; a worker only a few
// times, since a checkpoint for which it writes rows back needlessly does no harm. Not thread-safe.
class CheckpointNotifier {
 public:
  CheckpointNotifier(size_t num_servers, size_t num_workers)
      : incarnations_(num_servers), num_workers_(num_workers) {}

  // COMMITTED goes to all servers, CALL_OFF to the workers as well.
  void Send(CheckpointRequest::Action action, Step step);
  // CALL_OFF of a checkpoint that no server knows of.
  void CallOffAtWorkers(Step step);
  // Another process takes the server's place: what was meant for the one before is void.
  void OnServerReplaced(size_t server) { ++incarnations_[server]; }

  // The calls that are due. Servers that are known not to answer now, !answers[server], are left
  // out: each would take a call's whole time. REQUIRES: no calls are under way.
  std::vector<CheckpointCall> CallsToServers(const std::vector<bool>& answers);
  std::vector<CheckpointCall> CallsToWorkers();
  // What came of the calls that were returned last, in their order.
  void OnAnswers(const CheckpointAnswers& answers);

  // Whether a process has still to take something about the checkpoint.
  bool IsPending(Step step) const;

 private:
  struct Message {
    CheckpointCall call;
    uint64_t incarnation = 0;
    int attempts = 0;
    bool is_done = false;
  };

  bool IsVoid(const Message& message) const;
  void DropDone();

  std::vector<uint64_t> incarnations_;  // [num_servers]
  const size_t num_workers_;
  std::vector<Message> messages_;
  std::vector<size_t> asked_;  // Positions in messages_ of the calls under way.
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_NOTIFIER_H_
