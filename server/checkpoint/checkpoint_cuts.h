// The cuts of one server: at which steps they are, and how far each has come. A cut at step c is
// the rows right after step c was applied.
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
  Step base = kNoStep;       // Where its rows begin.
  Step committed = kNoStep;  // The last committed cut of this generation that its rows build on.
  uint32_t increments = 0;   // Files of it that hold changed rows only.
};

class CheckpointCuts {
 public:
  // A cut every `every_steps` steps (0: none but the named ones); every `full_every`th has all
  // rows.
  CheckpointCuts(uint64_t every_steps, uint32_t full_every, const CutHistory& history);

  // Each may be repeated.

  // `possible`: whether the cut can still be made (PushState::CanCutAt).
  // Errors: kFailedPrecondition (it is too late, or the cut is committed), kResourceExhausted (too
  // many are open).
  absl::Status Name(Step step, bool possible);
  // Gives the files of this cut that are to be removed. After an increment that was written, the
  // next shard holds all rows.
  // Errors: kFailedPrecondition (the cut is committed).
  absl::StatusOr<CheckpointShard> CallOff(Step step);
  // Cuts before it are forgotten, too. Their files stay: their commits may have happened, and the
  // message got lost. The launcher removes what no checkpoint needs.
  // Errors: kFailedPrecondition (the rows don't reach up to it, or this process has not written its
  // shard).
  absl::Status Commit(Step step, Step complete_through);

  // Whether there is a cut at `complete_through` that nothing became of yet.
  bool IsDue(Step complete_through) const;
  // The cut that IsDue becomes WRITING, and this gives the step behind which rows are in its shard
  // (kNoStep: all are); or FAILED where another one is being written, and this gives nothing.
  std::optional<Step> Begin(Step step);
  // The cut that IsDue is FAILED without having been begun.
  void Fail(Step step, const std::string& error);

  // What became of the shard being written. False: its cut was called off, so what was written is
  // to be removed.
  bool End(const absl::StatusOr<CheckpointShard>& shard, double write_s);
  void SetPause(Step step, double pause_s);
  // The cut being written, called off or not.
  std::optional<Step> writing() const { return writing_; }
  bool IsOpen(Step step) const { return cuts_.count(step) > 0; }

  Step committed() const { return committed_; }
  void CopyTo(CheckpointReply* reply) const;

 private:
  bool IsPeriodic(Step step) const;

  const uint64_t every_steps_;
  const uint32_t full_every_;
  const Step base_;
  std::map<Step, CutStatus> cuts_;  // Neither committed nor called off.
  std::set<Step> called_off_;       // Not to be begun (again).
  std::optional<Step> writing_;
  bool writing_called_off_ = false;
  Step committed_;  // In this generation; kNoStep: none, so the next shard is full.
  uint32_t increments_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CHECKPOINT_CHECKPOINT_CUTS_H_
