// Makes checkpoints of the shards that servers write: names steps, calls off checkpoints that fail,
// commits the others, and removes older ones than the job keeps. A part of the job machine.
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
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "deploy/job/checkpoint_operations.h"
#include "deploy/job/checkpoint_progress.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

// Works in rounds. A round is a chain of operations, one at a time: the caller carries out the
// operation that TakeOperation returns and reports its result, until there is none. Not
// thread-safe.
class CheckpointCoordinator {
 public:
  using CommittedShards = std::map<Step, std::vector<CheckpointShard>>;  // By server.

  explicit CheckpointCoordinator(CheckpointOptions options);

  void BeginRound();  // REQUIRES: is_idle()
  bool is_idle() const { return phase_ == Phase::kIdle; }
  // monostate: there is none, or it was taken before.
  CheckpointOperation TakeOperation() { return std::exchange(operation_, {}); }
  void OnAnswers(const CheckpointAnswers& answers);
  // `may_exist`: the manifest may be on the medium in spite of the error.
  void OnCommitted(const absl::Status& status, bool may_exist);
  // `held_back`: why some old checkpoints were not removed; "": all were.
  void OnRemoved(const std::string& held_back);
  void OnLogBytes(uint64_t bytes);  // The length of the longest push log of any server.

  // While a manifest is being written, no server may be started again: it would remove its part of
  // the checkpoint.
  bool is_committing() const {
    return phase_ == Phase::kCommitting || phase_ == Phase::kNotingEvaluations;
  }
  // Begins nothing further. The answer for a manifest that is being written is still taken.
  void Halt();
  // The generation is about to end: names no further step, and commits what servers have written.
  void Conclude() { is_concluding_ = true; }
  // Whether the last round began after Conclude() and found no checkpoint that all servers have
  // begun to write, and can finish.
  bool is_concluded() const { return is_concluded_; }
  // Another process replaces a server and begins with newest(): unfinished shards are void.
  void OnServerReplaced(size_t index);

  // Clients get the name of a checkpoint, or kAborted (three named checkpoints were called off), or
  // no answer where the generation ends first. Until a request for an exact step is answered, no
  // worker pushes a later step.
  CheckpointClients& clients() { return clients_; }
  // Never removes this checkpoint, however old it is; nullopt: removes any that is old. At first it
  // is the best one that the base knows.
  void Keep(const std::optional<CheckpointId>& id) { kept_ = id; }
  // Training is over: `last` is the last step. Makes a checkpoint of it, where the end or a request
  // wants one, and completes or calls off the others.
  void Finish(Step last) { last_ = last; }
  bool finished() const { return finished_; }
  // kAborted: finished, but the last step has no checkpoint. kDataLoss: a server lacks pushes that
  // it acknowledged. kUnavailable: a manifest may be on the medium or not.
  const absl::Status& error() const { return error_; }

  // The newest checkpoint: the generation's base, or one made since.
  const std::string& newest() const { return newest_; }
  Step newest_step() const { return newest_step_; }
  uint64_t newest_generation() const { return manifest_.generation(); }  // 0: there is none.
  std::vector<CheckpointEvent> TakeEvents() { return std::exchange(events_, {}); }

 private:
  // What the present operation is for.
  enum class Phase {
    kIdle,
    kAcknowledged,       // Asks the workers which of their pushes are acknowledged.
    kStatus,             // Asks all servers how far their checkpoints are.
    kCommitting,         // Commits a whole checkpoint.
    kNamingAgain,        // Names a step at servers that lack its checkpoint and can still make it.
    kTellingServers,     // Informs servers of commits and cancellations,
    kTellingWorkers,     // and then the workers.
    kNamingAtWorkers,    // Names a step that no worker has begun,
    kNamingAtServers,    // which then every server must accept.
    kNamingExactly,      // Names the step that all servers are at.
    kNotingEvaluations,  // Adds evaluations to the manifest of an older checkpoint.
    kRemoving,           // Removes old checkpoints.
  };
  void Call(Phase phase, std::vector<CheckpointCall> calls);
  void CallServers(Phase phase, Step step, const std::vector<size_t>& servers);
  void NameAtAllServers(Phase phase, Step step);
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
  bool IsAnyBegun() const;
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

  // After so many failures in a row, requests (or the job's end) get the error.
  static constexpr int kMostFailures = 3;
  const CheckpointOptions options_;
  CheckpointProgress progress_;
  CheckpointNotifier notifier_;
  CheckpointClients clients_;

  Phase phase_ = Phase::kIdle;
  CheckpointOperation operation_;
  std::vector<CheckpointCall> calls_;       // The calls under way.
  std::vector<uint64_t> incarnations_;      // [num_servers] The processes that they go to.
  Step step_ = kNoStep;                     // The step that the operation is about.
  std::vector<Step> to_settle_;             // Steps to settle in this round, the next one last.
  std::vector<bool> answered_;              // [num_servers] Whether it answered in this round.
  Step acknowledged_ = kNoStep;             // All servers have acknowledged pushes up to it.
  Step furthest_ = kNoStep;                 // The furthest step that any server has applied.
  int64_t steps_ahead_ = 0;                 // Names the step so far beyond furthest_; 0: none.
  uint64_t rounds_ = 0, next_try_ = 0;      // The last or an exact step is named from next_try_ on.
  std::set<Step> named_;                    // Steps named by this coordinator and not settled.
  std::set<Step> settled_;                  // Servers may still report them.
  int failures_ = 0;                        // Failures of named steps since the last commit.
  uint64_t log_bytes_ = 0, log_floor_ = 0;  // log_floor_: the least since the last checkpoint.
  std::string last_failure_;
  std::optional<CheckpointId> kept_;
  std::string not_removed_;  // Why old checkpoints were not removed last.
  // The steps that were open at the removal after the last commit.
  std::optional<std::set<Step>> removed_beside_;
  bool removal_due_ = false, is_ending_ = false, is_over_ = false, is_halted_ = false;
  bool is_concluding_ = false, is_concluding_round_ = false, is_concluded_ = false;
  CommittedShards committed_;    // Shards of this generation's newest checkpoints.
  CheckpointManifest composed_;  // The manifest that is being written.
  CheckpointManifest manifest_;  // The manifest of newest_.
  std::string newest_;
  Step newest_step_;
  std::optional<Step> last_;  // The job's last step, once training is over.
  bool finished_ = false;
  absl::Status error_;
  std::vector<CheckpointEvent> events_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_CHECKPOINT_COORDINATOR_H_
