// Makes checkpoints of what servers write: names cuts, calls off those that fail, commits the
// others, and removes what is older than the job wants to keep.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_KEEPER_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_KEEPER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/controller/cut_board.h"
#include "deploy/controller/cut_messages.h"
#include "deploy/controller/cut_participants.h"
#include "deploy/controller/log_size_watch.h"
#include "proto/checkpoint.pb.h"

namespace thermocline {

struct CheckpointKeeperOptions {
  // Of every checkpoint: all but step, samples and parts.
  CheckpointManifest manifest;
  std::string base;  // What the epoch begins with; "": nothing.
  Step base_step = kNoStep;
  uint64_t every_steps = 0;
  bool at_end = true;
  uint32_t keep = 1;
  uint64_t max_log_bytes = UINT64_MAX;  // A larger push log makes a checkpoint.
  uint32_t staleness_steps = 0;
  // Samples that the steps up to a cut have read; and how the evaluations stand with it, empty
  // where the job has none. Any thread.
  std::function<uint64_t(Step cut)> samples_through = [](Step) { return uint64_t{0}; };
  std::function<EvaluationState(Step cut)> evaluations_through;
};

class CheckpointKeeper {
 public:
  // `participants` and `store` must outlive this object.
  CheckpointKeeper(CheckpointKeeperOptions options, CutParticipants* participants,
                   CheckpointStore* store);

  // One round of asking and deciding. On one thread; all else may be called on others meanwhile.
  void Poll();

  // Wants a checkpoint with the steps so far. Poll calls `done` once, with its name or with
  // kAborted: three cuts were called off. Not called where the epoch ends before.
  using OnCheckpoint = std::function<void(const absl::StatusOr<std::string>& name)>;
  void Request(OnCheckpoint done);
  // Wants one of `cut`, behind which no worker pushes before `done` learns its name, or why not.
  void RequestOf(Step cut, OnCheckpoint done);
  // This checkpoint stays, however old it is; "": none does. At first the best of the base.
  void Keep(const std::string& name);
  // Training is over: `last` is the last step that will be applied. Makes a checkpoint of it, where
  // the end or somebody wants one, and completes or calls off the others.
  void Finish(Step last);
  bool finished() const;
  // kAborted: finished, and the last step should have a checkpoint and doesn't. kDataLoss: a server
  // lacks pushes that it acknowledged. kUnavailable: nobody knows whether a manifest is on the
  // medium, so that the job has to end.
  absl::Status error() const;

  // Another process takes the place of a server: unfinished parts are void. What it begins with.
  std::string RestartServer(size_t index);
  std::string newest() const;  // Checkpoint of this epoch, or what it began with.
  Step newest_step() const;
  std::vector<CheckpointEvent> TakeEvents();

 private:
  // Named cuts called off in a row, after which who wants one learns why there is none.
  static constexpr int kMostFailures = 3;
  // About two seconds: what a disk or a server lacks may be there then.
  static constexpr uint64_t kRoundsBetweenTries = 10;

  struct Wish {
    OnCheckpoint done;
    std::optional<Step> at_least;  // Set by the round that sees it first.
    bool is_exact = false;         // No later one will do.
  };

  bool IsPeriodic(Step cut) const;
  std::set<Step> OpenCuts() const;
  void AskServers();
  Step Acknowledged();
  void LookAtLogs();
  void SettleCuts();
  absl::Status NameTo(Step cut, const std::vector<size_t>& servers);
  absl::Status NameToAll(Step cut);
  void CallOff(Step cut, const std::string& reason);
  bool CountsAsFailure(Step cut, const std::string& reason) const;
  void Commit(Step cut);
  absl::Status WriteManifest(Step cut, const std::string& name);
  absl::StatusOr<CheckpointManifest> Compose(Step cut, const std::vector<CutStatus>& parts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NameWhatIsWanted();
  bool NameExactly();
  absl::StatusOr<std::string> NoteEvaluations(Step cut);
  bool TryToName(Step cut);
  void WorkTowardsTheEnd(Step last);
  void End(Step last, const absl::Status& error);
  void RemoveOld();
  void Answer(Step cut, const absl::StatusOr<std::string>& result, bool exact_too);

  const CheckpointKeeperOptions options_;
  CutParticipants& participants_;
  CheckpointStore& store_;

  // Of Poll alone.
  CutMessages messages_;
  LogSizeWatch log_size_;
  uint64_t rounds_ = 0;
  std::vector<bool> answered_;  // [num_servers], in this round.
  std::set<Step> named_;        // By us, and not settled.
  std::set<Step> settled_;      // Servers may still show them.
  int failures_ = 0;            // Of named cuts, since the last commit.
  std::string last_failure_;
  std::string not_removed_;  // Why old ones stayed the last time: it is said once.
  bool removal_due_ = false, is_ending_ = false;
  std::optional<std::set<Step>> removed_beside_;  // Cuts open at the removal since the commit.
  uint64_t next_try_ = 0;  // To write the last step, or an exact one: the round of it.

  // Held while a manifest is written: no server begins anew in the middle of it. That takes as long
  // as the disk takes; who only looks waits for mutex_ alone.
  absl::Mutex restart_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  CutBoard board_ ABSL_GUARDED_BY(mutex_);
  std::vector<Wish> wishes_ ABSL_GUARDED_BY(mutex_);
  std::string kept_ ABSL_GUARDED_BY(mutex_);
  // The parts of this epoch's newest checkpoints, for those that build on them.
  std::map<Step, std::vector<CheckpointPart>> committed_ ABSL_GUARDED_BY(mutex_);
  std::string newest_ ABSL_GUARDED_BY(mutex_);
  Step newest_step_ ABSL_GUARDED_BY(mutex_);
  std::optional<Step> last_ ABSL_GUARDED_BY(mutex_);  // Of the job, once training is over.
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::vector<CheckpointEvent> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_CHECKPOINT_KEEPER_H_
