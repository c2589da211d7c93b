// Makes checkpoints of what servers write: names steps, calls off what fails, commits the others,
// and removes what is older than the job wants to keep. A part of the job machine.
#ifndef THERMOCLINE_DEPLOY_JOB_CHECKPOINT_COORDINATOR_H_
#define THERMOCLINE_DEPLOY_JOB_CHECKPOINT_COORDINATOR_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "deploy/job/checkpoint_operations.h"
#include "deploy/job/checkpoint_progress.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// Works in rounds. A round is a chain of operations, one at a time: the caller carries out what
// TakeOperation returns and says what came of it, until there is none. Not thread-safe.
class CheckpointCoordinator {
 public:
  using CommittedShards = std::map<Step, std::vector<CheckpointShard>>;  // By server.

  explicit CheckpointCoordinator(CheckpointOptions options);

  void BeginRound();  // REQUIRES: is_idle()
  bool is_idle() const { return phase_ == Phase::kIdle; }
  // monostate: none, or it is being carried out.
  CheckpointOperation TakeOperation() { return std::exchange(operation_, {}); }
  void OnAnswers(const CheckpointAnswers& answers);
  // `may_exist`: with an error, it is not known whether the manifest is on the medium.
  void OnCommitted(const absl::Status& status, bool may_exist);
  // `held_back`: why old checkpoints stay; "": none do.
  void OnRemoved(const std::string& held_back);
  void OnLogBytes(uint64_t bytes);  // Of the longest push log of any server.

  // A manifest is being written: a server that started anew now would remove its part of it.
  bool is_committing() const {
    return phase_ == Phase::kCommitting || phase_ == Phase::kNotingEvaluations;
  }
  // Nothing further is begun; a manifest that is being written still gets its answer.
  void Halt();
  // Another process replaces a server and begins with newest(): unfinished shards are void.
  void OnServerReplaced(size_t index);

  // Clients get the name of a checkpoint, or kAborted (three named checkpoints were called off), or
  // no answer where the generation ends first. Until a request for an exact step is answered, no
  // worker pushes a later step.
  CheckpointClients& clients() { return clients_; }
  // This checkpoint stays, however old it is; nullopt: none does. At first the best of the base.
  void Keep(const std::optional<CheckpointId>& id) { kept_ = id; }
  // Training is over: `last` is the last step. Makes a checkpoint of it, where the end or a request
  // wants one, and completes or calls off the others.
  void Finish(Step last) { last_ = last; }
  bool finished() const { return finished_; }
  // kAborted: finished, and the last step lacks its checkpoint. kDataLoss: a server lacks pushes
  // that it acknowledged. kUnavailable: it is not known whether a manifest is on the medium.
  const absl::Status& error() const { return error_; }

  const std::string& newest() const { return newest_; }  // What it began with, or one made since.
  Step newest_step() const { return newest_step_; }
  uint64_t newest_generation() const { return manifest_.generation(); }  // 0: there is none.
  std::vector<CheckpointEvent> TakeEvents() { return std::exchange(events_, {}); }

 private:
  // What the operation under way is for.
  enum class Phase {
    kIdle,
    kAcknowledged,    // The workers say which of their pushes are acknowledged, ...
    kStatus,          // ... and all servers how their checkpoints stand.
    kCommitting,      // A whole one.
    kNamingAgain,     // At servers that lack a checkpoint under way and can still make it.
    kTellingServers,  // What was committed or called off; and then the workers.
    kTellingWorkers,
    kNamingAtWorkers,    // A step that no worker has begun ...
    kNamingAtServers,    // ... which every server must accept.
    kNamingExactly,      // The step at which all servers stand.
    kNotingEvaluations,  // In the manifest of a checkpoint that was there before them.
    kRemoving,
  };
  void Call(Phase phase, std::vector<CheckpointCall> calls);
  void CallServers(Phase phase, Step step, const std::vector<size_t>& servers);
  void CallAllServers(Phase phase, Step step);
  absl::Status TakeNamed(const CheckpointAnswers& answers);
  void TakeStatus(const CheckpointAnswers& answers);
  void TakeAcknowledged(const CheckpointAnswers& answers);
  void AskServers(Step acknowledged);
  void SettleNext();
  void CallOff(Step step, const std::string& reason);
  void Commit(Step step);
  void TellServers();
  void TellWorkers();
  void Decide();
  bool NameExactly();
  void NoteEvaluations(Step step);
  void NameWhatIsWanted();
  void NameFurtherAhead();
  void OnNotNamed(const absl::Status& status, bool workers_know);
  void WorkTowardsTheEnd(Step last);
  void NameLast(Step step);
  void End(Step last, const absl::Status& error);
  void EndRound();
  void RemoveOld();
  std::set<Step> OpenSteps() const;

  static constexpr int kMostFailures = 3;  // In a row; then a request, or the end, learns why.
  const CheckpointOptions options_;
  CheckpointProgress progress_;
  CheckpointNotifier notifier_;
  CheckpointClients clients_;

  Phase phase_ = Phase::kIdle;
  CheckpointOperation operation_;
  std::vector<CheckpointCall> calls_;       // Under way ...
  std::vector<uint64_t> incarnations_;      // ... to these processes, [num_servers]
  Step step_ = kNoStep;                     // That the operation is about.
  std::vector<Step> to_settle_;             // In this round, the next one last.
  std::vector<bool> answered_;              // [num_servers], in this round.
  Step acknowledged_ = kNoStep;             // By all servers, as far as it matters.
  Step furthest_ = kNoStep;                 // That any server has applied.
  int64_t steps_ahead_ = 0;                 // Beyond that, to name; 0: none is looked for.
  uint64_t rounds_ = 0, next_try_ = 0;      // Next: to name the last step, or an exact one.
  std::set<Step> named_;                    // By us, and not settled.
  std::set<Step> settled_;                  // Servers may still show them.
  int failures_ = 0;                        // Of named ones, since the last commit.
  uint64_t log_bytes_ = 0, log_floor_ = 0;  // Floor: the least since the last checkpoint.
  std::string last_failure_;
  std::optional<CheckpointId> kept_;
  std::string not_removed_;                       // Why old ones stayed the last time.
  std::optional<std::set<Step>> removed_beside_;  // Open ones at the removal since the commit.
  bool removal_due_ = false, is_ending_ = false, is_over_ = false, is_halted_ = false;
  CommittedShards committed_;               // Of this generation's newest checkpoints.
  CheckpointManifest composed_, manifest_;  // Being written; of newest_.
  std::string newest_;
  Step newest_step_;
  std::optional<Step> last_;  // Of the job, once training is over.
  bool finished_ = false;
  absl::Status error_;
  std::vector<CheckpointEvent> events_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_COORDINATOR_H_
