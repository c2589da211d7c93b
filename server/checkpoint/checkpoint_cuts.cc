#include "server/checkpoint/checkpoint_cuts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/checkpoint/periodic_checkpoint.h"

namespace thermocline {
namespace {

// Far more than a controller that names one after the other ever has.
constexpr size_t kMaxOpenCuts = 1000;

}  // namespace

CheckpointCuts::CheckpointCuts(uint64_t every_steps, uint32_t full_every, const CutHistory& history)
    : every_steps_(every_steps),
      full_every_(full_every),
      base_(history.base),
      committed_(history.committed),
      increments_(history.increments) {}

bool CheckpointCuts::IsPeriodic(Step step) const {
  return IsPeriodicCheckpoint(step, every_steps_);
}

absl::Status CheckpointCuts::Name(Step step, bool possible) {
  if (IsOpen(step)) return absl::OkStatus();
  if (step <= committed_) {
    return absl::FailedPreconditionError(
        absl::StrCat("the checkpoint of step ", committed_.value(), " is committed already"));
  }
  if (!possible) {
    return absl::FailedPreconditionError(
        absl::StrCat("it is too late for a checkpoint of step ", step.value()));
  }
  if (cuts_.size() >= kMaxOpenCuts) {
    return absl::ResourceExhaustedError(
        absl::StrCat(cuts_.size(), " checkpoints are open: commit them or call them off"));
  }
  called_off_.erase(step);
  CutStatus& cut = cuts_[step];
  cut.set_step(step.value());
  cut.set_state(CutStatus::NAMED);
  return absl::OkStatus();
}

absl::StatusOr<CheckpointShard> CheckpointCuts::CallOff(Step step) {
  if (step <= committed_ && !IsOpen(step)) {
    return absl::FailedPreconditionError(absl::StrCat("the checkpoint of step ", step.value(),
                                                      " can't be called off: that of step ",
                                                      committed_.value(), " is committed"));
  }
  CheckpointShard removed;
  const auto cut = cuts_.find(step);
  if (cut != cuts_.end()) {
    // It may be called off because what it builds on was removed.
    const bool builds = cut->second.state() == CutStatus::WRITTEN &&
                        cut->second.shard().base_step() != kNoStep.value();
    if (builds) increments_ = full_every_;
    removed = cut->second.shard();
    cuts_.erase(cut);
  }
  if (writing_ == step) writing_called_off_ = true;
  if (IsPeriodic(step)) called_off_.insert(step);
  if (called_off_.size() > kMaxOpenCuts) called_off_.erase(called_off_.begin());
  return removed;
}

absl::Status CheckpointCuts::Commit(Step step, Step complete_through) {
  if (step <= committed_) return absl::OkStatus();
  if (step > complete_through) {
    return absl::FailedPreconditionError(absl::StrCat("a checkpoint of step ", step.value(),
                                                      " is committed, and the rows here reach ",
                                                      "up to step ", complete_through.value()));
  }
  const auto cut = cuts_.find(step);
  if (cut != cuts_.end() && cut->second.state() != CutStatus::WRITTEN) {
    // It may be of the process before this one, and what is committed here no longer kept: the next
    // shard builds on nothing.
    increments_ = full_every_;
    return absl::FailedPreconditionError(absl::StrCat("a checkpoint of step ", step.value(),
                                                      " is committed, and here it is ",
                                                      CutStatus::State_Name(cut->second.state())));
  }
  // A server that was restarted since doesn't know what it wrote before.
  const bool full = cut != cuts_.end() && cut->second.shard().base_step() == kNoStep.value();
  increments_ = full ? 0 : increments_ + 1;
  cuts_.erase(cuts_.begin(), cuts_.upper_bound(step));
  committed_ = step;
  return absl::OkStatus();
}

bool CheckpointCuts::IsDue(Step complete_through) const {
  const auto cut = cuts_.find(complete_through);
  if (cut != cuts_.end()) return cut->second.state() == CutStatus::NAMED;
  return IsPeriodic(complete_through) && complete_through > base_ &&
         complete_through > committed_ && called_off_.count(complete_through) == 0;
}

std::optional<Step> CheckpointCuts::Begin(Step step) {
  CHECK(IsDue(step));
  called_off_.erase(called_off_.begin(), called_off_.lower_bound(step));
  if (writing_.has_value()) {
    Fail(step, absl::StrCat("busy: the checkpoint of step ", writing_->value(),
                            " is being written still"));
    return std::nullopt;
  }
  // A shard builds on what is committed. While it isn't certain what will be, it builds on nothing:
  // what this one would build on might be removed with the commit of the other.
  const auto is_written = [](const auto& cut) { return cut.second.state() == CutStatus::WRITTEN; };
  const bool full = committed_ == kNoStep || increments_ + 1 >= full_every_ ||
                    std::any_of(cuts_.begin(), cuts_.end(), is_written);
  writing_ = step;
  writing_called_off_ = false;
  CutStatus& cut = cuts_[step];
  cut.set_step(step.value());
  cut.set_state(CutStatus::WRITING);
  return full ? kNoStep : committed_;
}

void CheckpointCuts::Fail(Step step, const std::string& error) {
  CHECK(IsDue(step));
  CutStatus& cut = cuts_[step];
  cut.set_step(step.value());
  cut.set_state(CutStatus::FAILED);
  cut.set_error(error);
}

bool CheckpointCuts::End(const absl::StatusOr<CheckpointShard>& shard, double write_s) {
  CHECK(writing_.has_value());
  const auto cut = cuts_.find(*writing_);
  writing_.reset();
  if (cut == cuts_.end() || cut->second.state() != CutStatus::WRITING) {
    return !writing_called_off_;
  }
  cut->second.set_write_s(write_s);
  if (shard.ok()) {
    cut->second.set_state(CutStatus::WRITTEN);
    *cut->second.mutable_shard() = *shard;
  } else {
    cut->second.set_state(CutStatus::FAILED);
    cut->second.set_error(std::string(shard.status().message()));
  }
  return true;
}

void CheckpointCuts::SetPause(Step step, double pause_s) {
  const auto cut = cuts_.find(step);
  if (cut != cuts_.end()) cut->second.set_pause_s(pause_s);
}

void CheckpointCuts::CopyTo(CheckpointReply* reply) const {
  for (const auto& [step, cut] : cuts_) *reply->add_cuts() = cut;
}

}  // namespace thermocline
