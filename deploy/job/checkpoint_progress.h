// What the coordinator of checkpoints keeps track of: what the servers have written, which
// processes it notifies, and which clients wait. All three are of one generation.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_PROGRESS_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_PROGRESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "deploy/job/checkpoint_operations.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// The state of the checkpoint of one step.
struct CheckpointState {
  enum Kind {
    kUnderWay,
    kWhole,  // Every server has written its shard.
    kLost,   // `reason` names the server that can't write its shard, and why.
  };
  Kind kind = kUnderWay;
  std::string reason;
  bool is_begun = false;  // Under way, and every server writes its shard or has written it.
  // Servers that have not written their shard and still can. Servers in `ahead` have not reached
  // the step, and take a periodic checkpoint by themselves. Servers in `there` are at the step, and
  // must be called.
  std::vector<size_t> ahead, there;
};

// What each server has reported of its checkpoints. Not thread-safe.
class CheckpointProgress {
 public:
  explicit CheckpointProgress(size_t num_servers) : servers_(num_servers) {}

  // Another process replaces the server: forgets what the old one reported.
  void Forget(size_t server);
  // How often the server was replaced. An answer to a call of an earlier incarnation is void.
  uint64_t incarnation(size_t server) const { return servers_[server].incarnation; }
  // Takes a server's answer to STATUS.
  void Update(size_t server, const CheckpointReply& reply);
  // The server has accepted NAME_CUT for the step.
  void Named(size_t server, Step cut);
  // The step is about to be named: what servers reported of an earlier attempt is void.
  void ForgetCut(Step cut);

  std::set<Step> Cuts() const;  // All steps of which any server has a checkpoint.
  CheckpointState StateOf(Step cut) const;
  // [num_servers]. REQUIRES: StateOf(cut) is kWhole
  std::vector<CutStatus> Shards(Step cut) const;

  // The furthest step that any server has applied; kNoStep before the first report.
  Step Furthest() const;
  // The step that all servers have reported; nullopt where they differ.
  std::optional<Step> CommonStep() const;
  // Whether a replaced server has accepted nothing between its last two reports: its log may have
  // lost pushes that it had acknowledged.
  bool MayLackPushes() const;

 private:
  struct Server {
    uint64_t incarnation = 0;
    bool has_answered = false;
    Step complete_through = kNoStep;
    Step accepted_through = kNoStep;
    bool stands_still = false;  // For MayLackPushes.
    // complete_through of the report before. Shards of earlier steps will not come any more.
    Step passed = kNoStep;
    std::map<Step, CutStatus> cuts;
  };

  std::vector<Server> servers_;
};

// Sends the outcome of checkpoints to each server in order, and to the workers once every server
// has it: a server would refuse a worker that goes past the step of a checkpoint that is still
// under way. Repeats a message until the process answers. To a worker it repeats it a few times
// only, since a worker that writes rows back for a void checkpoint does no harm. Not thread-safe.
class CheckpointNotifier {
 public:
  CheckpointNotifier(size_t num_servers, size_t num_workers)
      : incarnations_(num_servers), num_workers_(num_workers) {}

  // COMMITTED goes to all servers, CALL_OFF to the workers as well.
  void Send(CheckpointRequest::Action action, Step step);
  // CALL_OFF of a checkpoint that no server knows.
  void CallOffAtWorkers(Step step);
  // Another process replaces the server: messages to the old one are void.
  void OnServerReplaced(size_t server) { ++incarnations_[server]; }

  // The calls that are due. Skips servers with !answers[server]: they do not answer now, and each
  // would take a call's whole timeout. REQUIRES: no calls are under way.
  std::vector<CheckpointCall> CallsToServers(const std::vector<bool>& answers);
  std::vector<CheckpointCall> CallsToWorkers();
  // Takes the answers to the calls that were returned last, in their order.
  void OnAnswers(const CheckpointAnswers& answers);
  // Whether a message about the checkpoint of this step is undelivered.
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
  std::vector<size_t> asked_;  // The calls under way, as positions in messages_.
};

// The clients that wait for a checkpoint: requests of users, and evaluations. Not thread-safe.
class CheckpointClients {
 public:
  // Waits for a checkpoint of the steps that are applied by now, or of more.
  void Add(const std::string& id) { clients_.push_back({id, std::nullopt, false}); }
  // Waits for the checkpoint of exactly this step; its id is "".
  void AddExact(Step step) { clients_.push_back({"", step, true}); }

  bool empty() const { return clients_.empty(); }
  std::optional<Step> exact() const;            // The step of an exact client, if there is one.
  std::vector<std::string> Unanswered() const;  // Ids; exact clients have none.

  // The servers have applied the steps up to `furthest`: new clients wait for that step.
  void OnStatus(Step furthest);
  // Answers the clients for which `step` is late enough; `exact_too`: also an exact one of it.
  void Answer(Step step, const absl::StatusOr<std::string>& result, bool exact_too);
  std::vector<CheckpointAnswer> TakeAnswers() { return std::exchange(answers_, {}); }

 private:
  struct Client {
    std::string id;
    std::optional<Step> at_least;  // The first OnStatus after Add sets it.
    bool is_exact = false;
  };

  std::vector<Client> clients_;
  std::vector<CheckpointAnswer> answers_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_PROGRESS_H_
