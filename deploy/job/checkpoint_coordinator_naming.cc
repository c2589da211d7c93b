// Which step is to have a checkpoint: the next that no worker has begun, just the one of an
// evaluation, or the last.
#include <algorithm>
#include <iterator>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/periodic_checkpoint.h"
#include "deploy/job/checkpoint_coordinator.h"

namespace thermocline {
namespace {

// How many steps one is named ahead: the shortest that the workers haven't begun yet.
constexpr int64_t kFirstStepsAhead = 2;
constexpr int64_t kMostStepsAhead = 1024;
// About two seconds: by then a full disk may have room, or a server may be back.
constexpr uint64_t kRoundsBetweenTries = 10;

}  // namespace

void CheckpointCoordinator::Decide() {
  if (steps_ahead_ > 0) return NameFurtherAhead();
  if (finished_ || !error_.ok()) {
    phase_ = Phase::kIdle;
    return;
  }
  phase_ = Phase::kIdle;  // Unless something is to be done.
  if (last_) {
    WorkTowardsTheEnd(*last_);
  } else {
    if (!NameExactly()) NameWhatIsWanted();
  }
  if (phase_ == Phase::kIdle) EndRound();
}

void CheckpointCoordinator::NameWhatIsWanted() {
  // A checkpoint drops whole segments, so a log may stay beyond the limit: another checkpoint is
  // worth it only once the log has grown by half the limit since.
  const uint64_t limit = options_.max_log_bytes;
  const bool log_is_long = log_bytes_ > limit && log_bytes_ - log_floor_ > limit / 2;
  // None of them waits for an exact step here.
  if (!log_is_long && clients_.empty()) return;
  // A checkpoint under way may satisfy the request, and a server writes one at a time.
  if (!OpenSteps().empty()) return;
  if (std::count(answered_.begin(), answered_.end(), false) > 0) return;
  furthest_ = progress_.Furthest();
  steps_ahead_ = kFirstStepsAhead;
  NameFurtherAhead();
}

// Workers first: as long as they all wait with its push, no server can pass the step.
void CheckpointCoordinator::NameFurtherAhead() {
  const Step begun = furthest_ + static_cast<int64_t>(options_.staleness_steps);
  for (; steps_ahead_ <= kMostStepsAhead; steps_ahead_ *= 2) {
    const Step step = begun + steps_ahead_;
    for (Step next = furthest_ + 1; next <= step; next = next + 1) {
      if (IsPeriodicCheckpoint(next, options_.every_steps)) return EndRound();  // That one serves.
    }
    if (notifier_.IsPending(step)) continue;
    step_ = step;
    std::vector<CheckpointCall> calls;
    for (size_t rank = 0; rank < options_.num_workers; ++rank) {
      calls.push_back({true, rank, CheckpointRequest::NAME_CUT, step});
    }
    return Call(Phase::kNamingAtWorkers, std::move(calls));
  }
  EndRound();
}

void CheckpointCoordinator::OnNotNamed(const absl::Status& status, bool workers_know) {
  settled_.insert(step_);
  if (workers_know) {
    notifier_.Send(CheckpointRequest::CALL_OFF, step_);
  } else {
    notifier_.CallOffAtWorkers(step_);
  }
  // Where a process does not answer, a later step would not help: the next round tries again.
  steps_ahead_ = IsUnanswered(status) ? kMostStepsAhead + 1 : 2 * steps_ahead_;
  TellServers();
}

// Whether a checkpoint is wanted of exactly the step that the servers have applied, or will apply.
bool CheckpointCoordinator::NameExactly() {
  const std::optional<Step> exact = clients_.exact();
  if (!exact.has_value()) return false;
  const Step step = *exact;
  // The workers wait for this checkpoint, so they never reach a step that was named beyond it.
  std::vector<Step> beyond;
  std::copy_if(named_.begin(), named_.end(), std::back_inserter(beyond),
               [step](Step named) { return named > step; });
  for (const Step later : beyond) {
    CallOff(later, "the checkpoint of an evaluation's step comes before it");
  }
  if (newest_step_ == step) {
    NoteEvaluations(step);
  } else if (progress_.CommonStep() == step && OpenSteps().empty()) {
    NameLast(step);
  }
  return true;
}

// Adds the evaluation of `step` to the newest checkpoint, where it came only after the commit.
void CheckpointCoordinator::NoteEvaluations(Step step) {
  if (!options_.evaluations_through) return clients_.Answer(step, newest_, /*exact_too=*/true);
  EvaluationState evaluations = options_.evaluations_through(step);
  evaluations.set_best_checkpoint(newest_);
  evaluations.set_best_generation(newest_generation());
  // Compares bytes, since an AUC may be NaN.
  if (manifest_.evaluations().SerializeAsString() == evaluations.SerializeAsString()) {
    return clients_.Answer(step, newest_, /*exact_too=*/true);
  }
  *manifest_.mutable_evaluations() = std::move(evaluations);
  phase_ = Phase::kNotingEvaluations;
  step_ = step;
  operation_ = CommitCheckpoint{newest_, manifest_};
}

// The last step that will be applied for now.
void CheckpointCoordinator::NameLast(Step step) {
  if (rounds_ < next_try_ || notifier_.IsPending(step)) return;
  next_try_ = rounds_ + kRoundsBetweenTries;
  settled_.erase(step);
  named_.insert(step);
  CallAllServers(Phase::kNamingExactly, step);
}

void CheckpointCoordinator::WorkTowardsTheEnd(Step last) {
  if (!is_ending_) failures_ = 0;  // Of checkpoints before.
  is_ending_ = true;
  const std::set<Step> open = OpenSteps();
  for (const Step step : open) {
    if (step > last) CallOff(step, "training ended before it");
  }
  if (progress_.CommonStep() != last) return;  // Steps are being applied, or a server recovers.
  if (!open.empty() || notifier_.IsPending(last)) return;
  const bool wanted = options_.at_end || !clients_.empty();
  if (newest_step_ >= last || !wanted) return End(last, absl::OkStatus());
  if (failures_ >= kMostFailures) return End(last, absl::AbortedError(last_failure_));
  NameLast(last);
}

void CheckpointCoordinator::End(Step last, const absl::Status& error) {
  if (!error.ok()) {
    clients_.Answer(last, error, /*exact_too=*/true);
  } else if (newest_.empty()) {
    clients_.Answer(last, absl::AbortedError("no step was trained"), /*exact_too=*/true);
  } else {
    clients_.Answer(last, newest_, /*exact_too=*/true);
  }
  error_ = error;
  is_over_ = true;
  if (removal_due_) RemoveOld();
  finished_ = phase_ != Phase::kRemoving;
}

}  // namespace thermocline
