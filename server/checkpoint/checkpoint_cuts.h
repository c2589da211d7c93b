// The cuts of one server: at which steps they are, and how far the checkpoint of each has come. The
// cut at step c is the rows right after step c was applied.
//
// Not thread-safe: the server core's mutex makes each call one critical section.
#ifndef THERMOCLINE_SERVER_CHECKPOINT_CHECKPOINT_CUTS_H_
#define THERMOCLINE_SERVER_CHECKPOINT_CHECKPOINT_CUTS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "proto/checkpoint.pb.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// What a server knows of the checkpoints of its generation when it begins.
struct CutHistory {
  Step base = kNoStep;       // The step whose checkpoint its rows come from.
  Step committed = kNoStep;  // The last committed cut of this generation that its rows build on.
  uint32_t increments = 0;   // How many of that cut's files hold changed rows only.
};

class CheckpointCuts {
 public:
  // A cut every `every_steps` steps (0: none but the named ones); every `full_every`th has all
  // rows.
  CheckpointCuts(uint64_t every_steps, uint32_t full_every, const CutHistory& history);

  // Name, CallOff and Commit may be repeated.

  // `possible`: whether the cut can still be made (PushState::CanCutAt).
  // Errors: kFailedPrecondition (it is too late, or the cut is committed), kResourceExhausted (too
  // many are open).
  absl::Status Name(Step step, bool possible);
  // Returns the files of this cut, which are to be removed. If an increment had been written for
  // it, the next shard holds all rows. Errors: kFailedPrecondition (the cut is committed).
  absl::StatusOr<CheckpointShard> CallOff(Step step);
  // Earlier cuts are forgotten, too. Their files stay, since they may have been committed and the
  // message lost. The launcher removes files that no checkpoint needs.
  // Errors: kFailedPrecondition (the rows don't reach up to it, or this process has not written its
  // shard).
  absl::Status Commit(Step step, Step complete_through);

  // Whether there is a cut at `complete_through` that has neither begun nor failed.
  bool IsDue(Step complete_through) const;
  // The cut that IsDue becomes WRITING. Returns the base step of its shard, which holds the rows
  // changed after it (kNoStep: all rows). Where another cut is being written, the cut becomes
  // FAILED instead, and nullopt is returned.
  std::optional<Step> Begin(Step step);
  // The cut that IsDue is FAILED without having been begun.
  void Fail(Step step, const std::string& error);

  // Takes the result of writing the shard. False: its cut was called off, so the shard's files are
  // to be removed.
  bool End(const absl::StatusOr<CheckpointShard>& shard, double write_s);
  void SetPause(Step step, double pause_s);
  // The cut that is being written, even if it was called off.
  std::optional<Step> writing() const { return writing_; }
  bool IsOpen(Step step) const { return cuts_.count(step) > 0; }

  Step committed() const { return committed_; }
  void CopyTo(CheckpointReply* reply) const;

 private:
  bool IsPeriodic(Step step) const;

  const uint64_t every_steps_;
  const uint32_t full_every_;
  const Step base_;
  std::map<Step, CutStatus> cuts_;  // Cuts neither committed nor called off.
  std::set<Step> called_off_;       // These cuts must not be begun.
  std::optional<Step> writing_;
  bool writing_called_off_ = false;
  Step committed_;  // The last one in this generation; kNoStep: none, so the next shard is full.
  uint32_t increments_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CHECKPOINT_CHECKPOINT_CUTS_H_
