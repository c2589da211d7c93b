// The end of an epoch: the checkpoint of its last step.
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "deploy/controller/checkpoint_keeper.h"

namespace thermocline {
void CheckpointKeeper::Finish(Step last) {
  absl::MutexLock lock(&mutex_);
  last_ = last;
}

bool CheckpointKeeper::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}

absl::Status CheckpointKeeper::error() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

// At the end only tries to write the last step count: neither a cut beyond it, nor a server that
// has still to put another one away.
bool CheckpointKeeper::CountsAsFailure(Step cut, const std::string& reason) const {
  absl::MutexLock lock(&mutex_);
  return !last_ || (cut == *last_ && !absl::StrContains(reason, ": busy"));
}

void CheckpointKeeper::WorkTowardsTheEnd(Step last) {
  if (!is_ending_) failures_ = 0;  // Of cuts before.
  is_ending_ = true;
  const std::set<Step> open = OpenCuts();
  for (const Step cut : open) {
    if (cut > last) CallOff(cut, "training ended before it");
  }
  bool wanted, is_there;
  {
    absl::MutexLock lock(&mutex_);
    if (board_.CommonStep() != last) return;  // Steps are being applied, or a server recovers.
    is_there = newest_step_ >= last;
    wanted = options_.at_end || !wishes_.empty();
  }
  if (!open.empty() || messages_.IsPending(last)) return;
  if (is_there || !wanted) return End(last, absl::OkStatus());
  if (failures_ >= kMostFailures) return End(last, absl::AbortedError(last_failure_));
  if (rounds_ < next_try_) return;
  next_try_ = rounds_ + kRoundsBetweenTries;
  settled_.erase(last);
  named_.insert(last);
  const absl::Status named = NameToAll(last);
  if (!named.ok() && !IsUnanswered(named)) CallOff(last, std::string(named.message()));
}

void CheckpointKeeper::End(Step last, const absl::Status& error) {
  const std::string name = newest();
  if (!error.ok()) {
    Answer(last, error, /*exact_too=*/true);
  } else if (name.empty()) {
    Answer(last, absl::AbortedError("no step was trained"), /*exact_too=*/true);
  } else {
    Answer(last, name, /*exact_too=*/true);
  }
  if (removal_due_) RemoveOld();
  absl::MutexLock lock(&mutex_);
  error_ = error;
  finished_ = true;
}

}  // namespace thermocline
