#include "deploy/job/checkpoint_coordinator.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/periodic_checkpoint.h"

namespace thermocline {
namespace {

// How many steps one is named ahead: the shortest that the workers haven't begun yet.
constexpr int64_t kFirstStepsAhead = 2;
constexpr int64_t kMostStepsAhead = 1024;
// About two seconds: by then a full disk may have room, or a server may be back.
constexpr uint64_t kRoundsBetweenTries = 10;

CheckpointEvent CommittedEvent(const std::string& name, Step step,
                               const std::vector<CutStatus>& shards) {
  CheckpointEvent event;
  event.kind = CheckpointEvent::kCommitted;
  event.step = step;
  event.name = name;
  event.is_full = true;
  for (const CutStatus& shard : shards) {
    event.is_full = event.is_full && shard.shard().base_step() < 0;
    for (const CheckpointFile& file : shard.shard().files()) event.bytes += file.bytes();
    event.pause_s = std::max(event.pause_s, shard.pause_s());
    event.write_s = std::max(event.write_s, shard.write_s());
  }
  return event;
}

// `committed`: shards that these may build on.
absl::StatusOr<CheckpointManifest> Compose(const CheckpointOptions& options,
                                           const CheckpointCoordinator::CommittedShards& committed,
                                           Step step, const std::vector<CutStatus>& shards) {
  CheckpointManifest manifest = options.manifest;
  manifest.set_step(step.value());
  manifest.set_samples(options.samples_through(step));
  if (options.evaluations_through) {
    *manifest.mutable_evaluations() = options.evaluations_through(step);
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    CheckpointShard* shard = manifest.add_shards();
    *shard = shards[i].shard();
    shard->set_server_index(static_cast<uint32_t>(i));
    if (shard->base_step() < 0) continue;
    const auto base = committed.find(Step(shard->base_step()));
    if (base == committed.end()) {
      return absl::AbortedError(absl::StrCat("server ", i, " builds on the checkpoint of step ",
                                             shard->base_step(), ", which is not kept"));
    }
    *shard->mutable_files() = base->second[i].files();
    for (const CheckpointFile& file : shards[i].shard().files()) *shard->add_files() = file;
  }
  manifest.set_format_version(ManifestVersionOf(manifest));
  RETURN_IF_ERROR(CheckManifest(manifest));  // What servers say is input.
  return manifest;
}

}  // namespace

CheckpointCoordinator::CheckpointCoordinator(CheckpointOptions options)
    : options_(std::move(options)),
      progress_(options_.num_servers),
      notifier_(options_.num_servers, options_.num_workers),
      manifest_(options_.base_manifest),
      newest_(options_.base),
      newest_step_(options_.base_step) {
  if (!options_.evaluations_through) return;
  kept_ = BestCheckpointOf(options_.evaluations_through(options_.base_step));
}

// Rounds
// ------------------------------------------------------------------------------------------------

void CheckpointCoordinator::BeginRound() {
  CHECK(is_idle());
  is_concluding_round_ = is_concluding_;
  // Training is over when every push is acknowledged.
  if (is_ending_) return AskServers(*last_);
  // Workers that wait for a decision send nothing to the servers, so they cannot notice that a
  // restarted server has lost pushes that it had acknowledged.
  if (!progress_.MayLackPushes()) return AskServers(kNoStep);
  std::vector<CheckpointCall> calls;
  for (size_t rank = 0; rank < options_.num_workers; ++rank) calls.push_back({true, rank});
  Call(Phase::kAcknowledged, std::move(calls));
}

void CheckpointCoordinator::TakeAcknowledged(const CheckpointAnswers& answers) {
  Step acknowledged(INT64_MAX);
  for (const absl::StatusOr<CheckpointReply>& answer : answers) {
    if (!answer.ok()) return AskServers(kNoStep);
    acknowledged = std::min(acknowledged, Step(answer->accepted_through()));
  }
  AskServers(acknowledged);
}

// `acknowledged`: before the servers say what they have.
void CheckpointCoordinator::AskServers(Step acknowledged) {
  acknowledged_ = acknowledged;
  std::vector<CheckpointCall> calls;
  for (size_t i = 0; i < options_.num_servers; ++i) calls.push_back({false, i});
  Call(Phase::kStatus, std::move(calls));
}

void CheckpointCoordinator::Call(Phase phase, std::vector<CheckpointCall> calls) {
  phase_ = phase;
  incarnations_.clear();
  for (size_t i = 0; i < options_.num_servers; ++i) {
    incarnations_.push_back(progress_.incarnation(i));
  }
  calls_ = calls;
  operation_ = std::move(calls);
}

void CheckpointCoordinator::CallServers(Phase phase, Step step,
                                        const std::vector<size_t>& servers) {
  step_ = step;
  std::vector<CheckpointCall> calls;
  for (const size_t server : servers) {
    calls.push_back({false, server, CheckpointRequest::NAME_CUT, step});
  }
  Call(phase, std::move(calls));
}

void CheckpointCoordinator::NameAtAllServers(Phase phase, Step step) {
  progress_.ForgetCut(step);
  std::vector<size_t> all(options_.num_servers);
  std::iota(all.begin(), all.end(), 0);
  CallServers(phase, step, all);
}

void CheckpointCoordinator::OnAnswers(const CheckpointAnswers& answers) {
  CHECK_EQ(answers.size(), calls_.size());
  switch (phase_) {
    case Phase::kAcknowledged:
      return TakeAcknowledged(answers);
    case Phase::kStatus:
      TakeStatus(answers);
      return SettleNext();
    case Phase::kNamingAgain: {
      const absl::Status named = TakeNamed(answers);
      if (!named.ok() && !IsUnanswered(named)) CallOff(step_, std::string(named.message()));
      return SettleNext();
    }
    case Phase::kTellingServers:
      notifier_.OnAnswers(answers);
      return TellWorkers();
    case Phase::kTellingWorkers:
      notifier_.OnAnswers(answers);
      return Decide();
    case Phase::kNamingAtWorkers: {
      const absl::Status named = TakeNamed(answers);
      if (!named.ok()) return OnNotNamed(named, /*workers_know=*/false);
      return NameAtAllServers(Phase::kNamingAtServers, step_);
    }
    case Phase::kNamingAtServers: {
      const absl::Status named = TakeNamed(answers);
      if (!named.ok()) return OnNotNamed(named, /*workers_know=*/true);
      settled_.erase(step_);
      named_.insert(step_);
      return EndRound();
    }
    case Phase::kNamingExactly: {
      const absl::Status named = TakeNamed(answers);
      if (!named.ok() && !IsUnanswered(named)) CallOff(step_, std::string(named.message()));
      return EndRound();
    }
    default:
      CHECK(false);
  }
}

// The first refusal; without one, the first call that was not answered.
absl::Status CheckpointCoordinator::TakeNamed(const CheckpointAnswers& answers) {
  absl::Status first_error;
  for (size_t i = 0; i < answers.size(); ++i) {
    const CheckpointCall& call = calls_[i];
    if (answers[i].ok()) {
      if (call.to_worker || progress_.incarnation(call.index) != incarnations_[call.index])
        continue;
      progress_.Named(call.index, call.step);
    } else if (call.to_worker) {
      if (first_error.ok()) first_error = answers[i].status();
    } else if (first_error.ok() || IsUnanswered(first_error)) {
      first_error =
          absl::Status(answers[i].status().code(),
                       absl::StrCat("server ", call.index, ": ", answers[i].status().message()));
    }
  }
  return first_error;
}

void CheckpointCoordinator::TakeStatus(const CheckpointAnswers& answers) {
  answered_.assign(options_.num_servers, false);
  for (size_t i = 0; i < answers.size(); ++i) {
    answered_[i] = answers[i].ok();
    if (!answered_[i] || progress_.incarnation(i) != incarnations_[i]) continue;
    progress_.Update(i, *answers[i]);
    const Step accepted(answers[i]->accepted_through());
    if (finished_ || !error_.ok() || accepted >= acknowledged_) continue;
    error_ = absl::DataLossError(
        absl::StrCat("server ", i, " has lost pushes that it had acknowledged: it knows of none ",
                     "beyond step ", accepted.value(), ", and all workers have step ",
                     acknowledged_.value(), " acknowledged"));
  }
  clients_.OnStatus(progress_.Furthest());
  const std::set<Step> open = OpenSteps();
  to_settle_.assign(open.rbegin(), open.rend());
}

std::set<Step> CheckpointCoordinator::OpenSteps() const {
  std::set<Step> open = named_;
  for (const Step step : progress_.Cuts()) {
    if (settled_.count(step) == 0) open.insert(step);
  }
  return open;
}

void CheckpointCoordinator::SettleNext() {
  if (is_halted_) {
    phase_ = Phase::kIdle;
    return;
  }
  while (!to_settle_.empty()) {
    const Step step = to_settle_.back();
    to_settle_.pop_back();
    const CheckpointState state = progress_.StateOf(step);
    if (state.kind == CheckpointState::kWhole) {
      Commit(step);
      if (phase_ == Phase::kCommitting) return;
    } else if (state.kind == CheckpointState::kLost) {
      CallOff(step, state.reason);
    } else {
      // Servers that were restarted since it was named.
      std::vector<size_t> unaware = state.there;
      if (named_.count(step) > 0) {
        unaware.insert(unaware.end(), state.ahead.begin(), state.ahead.end());
      }
      if (!unaware.empty()) return CallServers(Phase::kNamingAgain, step, unaware);
    }
  }
  TellServers();
}

void CheckpointCoordinator::TellServers() {
  std::vector<CheckpointCall> calls = notifier_.CallsToServers(answered_);
  if (calls.empty()) return TellWorkers();
  Call(Phase::kTellingServers, std::move(calls));
}

void CheckpointCoordinator::TellWorkers() {
  std::vector<CheckpointCall> calls = notifier_.CallsToWorkers();
  if (calls.empty()) return Decide();
  Call(Phase::kTellingWorkers, std::move(calls));
}

void CheckpointCoordinator::Halt() {
  is_halted_ = true;
  if (std::holds_alternative<CommitCheckpoint>(operation_)) phase_ = Phase::kIdle;
  operation_ = {};
}

void CheckpointCoordinator::EndRound() {
  steps_ahead_ = 0;
  if (removal_due_ && !is_over_) return RemoveOld();
  ++rounds_;
  phase_ = Phase::kIdle;
}

// Commits
// ------------------------------------------------------------------------------------------------

void CheckpointCoordinator::Commit(Step step) {
  absl::StatusOr<CheckpointManifest> manifest =
      Compose(options_, committed_, step, progress_.Shards(step));
  if (!manifest.ok()) return CallOff(step, std::string(manifest.status().message()));
  phase_ = Phase::kCommitting;
  step_ = step;
  operation_ = CommitCheckpoint{CheckpointName(step), *std::move(manifest)};
  composed_ = std::get<CommitCheckpoint>(operation_).manifest;
}

void CheckpointCoordinator::OnCommitted(const absl::Status& status, bool may_exist) {
  CHECK(is_committing());
  if (phase_ == Phase::kNotingEvaluations) {
    clients_.Answer(step_, status.ok() ? absl::StatusOr<std::string>(newest_) : status,
                    /*exact_too=*/true);
    return EndRound();
  }
  if (absl::IsUnavailable(status) && may_exist) {
    // The manifest may exist, and a crash may still lose it: the checkpoint is neither committed
    // nor called off, now or later.
    error_ = status;
    Halt();
  } else if (!status.ok()) {
    CallOff(step_, std::string(status.message()));
  } else {
    manifest_ = std::move(composed_);
    committed_[step_] = {manifest_.shards().begin(), manifest_.shards().end()};
    newest_ = CheckpointName(step_);
    newest_step_ = step_;
    events_.push_back(CommittedEvent(newest_, step_, progress_.Shards(step_)));
    named_.erase(step_);
    settled_.insert(step_);
    failures_ = 0;
    removal_due_ = true;
    removed_beside_ = std::nullopt;
    log_floor_ = UINT64_MAX;
    log_bytes_ = 0;
    notifier_.Send(CheckpointRequest::COMMITTED, step_);
    next_try_ = 0;
    clients_.Answer(step_, newest_,
                    /*exact_too=*/false);  // NameExactly sees that it has its evaluation.
  }
  SettleNext();
}

void CheckpointCoordinator::CallOff(Step step, const std::string& reason) {
  const bool was_named = named_.erase(step) > 0;
  settled_.insert(step);
  notifier_.Send(CheckpointRequest::CALL_OFF, step);
  // At the end only attempts to write the last step count: not a step beyond it, and not the
  // refusal of a server that is busy with another checkpoint.
  const bool counts = !last_ || (step == *last_ && !absl::StrContains(reason, ": busy"));
  if (was_named && counts) ++failures_;
  last_failure_ = reason;
  CheckpointEvent event;
  event.kind = CheckpointEvent::kCalledOff;
  event.step = step;
  event.name = CheckpointName(step);
  event.reason = reason;
  events_.push_back(std::move(event));
  if (failures_ < kMostFailures || last_) return;
  failures_ = 0;
  clients_.Answer(step, absl::AbortedError(reason), /*exact_too=*/true);
}

void CheckpointCoordinator::OnServerReplaced(size_t index) {
  CHECK(!is_committing());
  progress_.Forget(index);
  notifier_.OnServerReplaced(index);
}

void CheckpointCoordinator::OnLogBytes(uint64_t bytes) {
  log_bytes_ = bytes;
  log_floor_ = std::min(log_floor_, bytes);
}

// Removal of old checkpoints
// ------------------------------------------------------------------------------------------------

void CheckpointCoordinator::RemoveOld() {
  // A shard that is being written may build on the last checkpoint but one, if its server began it
  // before it learned of the newest commit.
  const std::set<Step> open = OpenSteps();
  // A removal looks at the files of every checkpoint that is kept, so it runs only when something
  // has changed.
  if (removed_beside_ == open) {
    ++rounds_;
    phase_ = Phase::kIdle;
    return;
  }
  removed_beside_ = open;
  removal_due_ = !open.empty();
  RemoveCheckpoints removal;
  removal.keep = options_.keep + (open.empty() ? 0 : 1);
  for (const Step step : open) {
    removal.in_progress.push_back({options_.manifest.generation(), step});
  }
  removal.kept = kept_;
  while (committed_.size() > removal.keep) committed_.erase(committed_.begin());
  phase_ = Phase::kRemoving;
  operation_ = std::move(removal);
}

void CheckpointCoordinator::OnRemoved(const std::string& held_back) {
  CHECK(phase_ == Phase::kRemoving);
  if (held_back != not_removed_ && !held_back.empty()) {
    CheckpointEvent event;
    event.kind = CheckpointEvent::kNotRemoved;
    event.reason = held_back;
    events_.push_back(std::move(event));
  }
  not_removed_ = held_back;
  finished_ = is_over_;
  ++rounds_;
  phase_ = Phase::kIdle;
}

// Naming: which step is to have a checkpoint. It is the next step that no worker has begun, the one
// of an evaluation, or the last.
// ------------------------------------------------------------------------------------------------

// Whether a checkpoint comes even if no worker pushes any more.
bool CheckpointCoordinator::IsAnyBegun() const {
  if (std::count(answered_.begin(), answered_.end(), false) > 0) return false;
  const std::set<Step> open = OpenSteps();
  return std::any_of(open.begin(), open.end(),
                     [this](Step step) { return progress_.StateOf(step).is_begun; });
}

void CheckpointCoordinator::Decide() {
  if (is_concluding_) {
    is_concluded_ = is_concluding_round_ && !IsAnyBegun();
    return EndRound();
  }
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
      if (IsPeriodicCheckpoint(next, options_.every_steps)) return EndRound();  // It serves.
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
  NameAtAllServers(Phase::kNamingExactly, step);
}

void CheckpointCoordinator::WorkTowardsTheEnd(Step last) {
  if (!is_ending_) failures_ = 0;  // Failures of earlier checkpoints don't count.
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
