// How a generation of a job ends, and what follows from it.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "deploy/job/job_machine.h"

namespace thermocline {
namespace {

// How long processes may take to end by themselves.
constexpr absl::Duration kGrace = absl::Seconds(5);
constexpr absl::Duration kGraceAfterFailure = absl::Seconds(2);
constexpr absl::Duration kFinalStatusTimeout = absl::Seconds(10);
// From a broken connection until the server's end is seen.
constexpr absl::Duration kDeathNotice = absl::Seconds(1);

// The block of a lost worker that the others waited for first: rank, step and phase.
std::string WhatIsMissedOf(const std::vector<ProcessFailure>& failures, const StallWatch& watch) {
  for (const ProcessFailure& failure : failures) {
    if (failure.role != ProcessRole::kWorker) continue;
    const std::string missed = watch.WaitFor(failure.index);
    if (!missed.empty()) return absl::StrCat(missed, " from ", failure.name);
  }
  return "";
}

}  // namespace

// The end of training
// ------------------------------------------------------------------------------------------------

void JobMachine::OnTrained() {
  GenerationState& g = generation_;
  Do(action::ReportTrainingDone{});
  for (const ProcessState& worker : g.processes.workers) {
    if (!worker.steps.ok()) return Fail(worker.steps.status());
    g.last = std::max(g.last, Step(*worker.steps - 1));
  }
  g.stall = StallWatch(g.processes.servers.size());
  g.stall_began = g.last_write = now_;
  stage_ = g.checkpoints == nullptr ? Stage::kAsking : Stage::kFinishing;
  if (g.checkpoints == nullptr) return;
  g.checkpoints->Finish(g.last);
  if (g.checkpoints->finished()) OnFinished(g.checkpoints->error());  // Since event::Trained.
}

// Stats, then the digest: reading all rows for it would show in them. A server that dies meanwhile
// and is started again is asked again.
void JobMachine::Ask() {
  GenerationState& g = generation_;
  if (g.ask == GenerationState::Ask::kRestart) {
    if (g.restarts == g.restarts_when_asked) {
      if (now_ >= g.restart_seen_by) WriteResult(g.digest);
      return;
    }
    g.ask = GenerationState::Ask::kRecovery;
    g.restart_seen_by = absl::InfiniteDuration();
    g.stall = StallWatch(g.processes.servers.size());
    g.stall_began = g.last_write = g.look_at = now_;
  }
  if (g.ask == GenerationState::Ask::kRecovery && g.processes.AllConfigured())
    g.ask = GenerationState::Ask::kStats;
  if (g.ask != GenerationState::Ask::kStats || g.is_status_asked) return;
  g.look_at = absl::InfiniteDuration();
  g.restarts_when_asked = g.restarts;
  AskStatus(kFinalStatusTimeout, /*is_final=*/true);
}

void JobMachine::On(const event::DigestReady& ready) {
  if (stage_ != Stage::kAsking || !IsOurs(ready.generation)) return;
  if (ready.digest.ok()) return WriteResult(ready.digest);
  OnNoDigest(ready.digest.status());
}

void JobMachine::OnNoDigest(const absl::Status& status) {
  if (!absl::IsUnavailable(status)) return WriteResult(status);
  generation_.digest = status;
  generation_.ask = GenerationState::Ask::kRestart;
  generation_.restart_seen_by = now_ + kDeathNotice;
}

// The workers' results are valid, whether or not the servers still answer.
void JobMachine::WriteResult(absl::StatusOr<Digest> digest) {
  GenerationState& g = generation_;
  stage_ = Stage::kWritingResult;
  g.digest = std::move(digest);
  g.is_result_written = true;
  Do(action::WriteResult{g.digest, g.checkpoint_error, g.reports, g.start});
}

void JobMachine::On(const event::ResultWritten& written) {
  if (stage_ != Stage::kWritingResult) return;
  generation_.result_error = written.status;
  Stop();
}

// Failures
// ------------------------------------------------------------------------------------------------

// Another generation would fail in the same way.
void JobMachine::Fail(const absl::Status& status) {
  if (!IsRunning()) return;
  generation_.fatal = status;
  Stop();
}

void JobMachine::On(const event::RunnerFailed& failed) { Fail(failed.status); }

void JobMachine::On(const event::UserStop& stop) {
  // A user's stop is one for good, whatever the engine does as well.
  const bool is_first = user_stop_.empty();
  if (!is_first && stop.by_engine) return;
  if (is_first || is_engines_stop_) {
    user_stop_ = stop.how;
    is_engines_stop_ = stop.by_engine;
  }
  if (is_first && !stop.at_once && MakesLastCheckpoint(stop)) return;
  const absl::Status stopped = absl::CancelledError(user_stop_);
  if (stage_ == Stage::kFinishing) generation_.checkpoint_error = stopped;
  if (stage_ == Stage::kFinishing || stage_ == Stage::kAsking) return WriteResult(stopped);
  if (IsRunning()) Stop();
}

// Another generation may fare better.
void JobMachine::GiveUp(const absl::Status& trouble) {
  generation_.trouble = trouble;
  Settle();
}

bool JobMachine::IsAwaitedByHosts() const { return is_engines_stop_ && options_.num_hosts > 0; }

// Whether the job goes on until what is trained has its checkpoint. Where nothing is known to be
// trained since the base, there is nothing to keep.
bool JobMachine::MakesLastCheckpoint(const event::UserStop& stop) {
  GenerationState& g = generation_;
  last_request_by_ = now_ + kLastRequestPatience;
  is_last_wait_told_ = false;
  if (stage_ == Stage::kFinishing) return true;
  if (stage_ == Stage::kAsking) return IsAwaitedByHosts();
  if (stage_ != Stage::kTraining || g.checkpoints == nullptr) return false;
  if (g.checkpoints->finished()) return false;  // The last step has its checkpoint.
  const bool has_trained = std::max(g.reported, g.stall.reached()) >= g.start.first_step();
  if (!has_trained && !IsAwaitedByHosts()) return false;
  Tell(stop.how, ": writing a checkpoint",
       stop.by_engine ? "" : "; Ctrl-C again ends the job without it");
  g.checkpoints->clients().Add(kLastRequest);
  return true;
}

// Waits for other processes that end: all failures are judged together. Meanwhile what the servers
// have written is committed.
void JobMachine::Settle() {
  if (!IsRunning()) return;
  generation_.settles_from = stage_;
  stage_ = Stage::kSettling;
  const absl::Duration settle = options_.num_hosts == 0 ? kSettle : kSettleOverHosts;
  generation_.settled_at = now_ + settle;
  if (generation_.checkpoints != nullptr && generation_.settles_from == Stage::kTraining) {
    generation_.checkpoints->Conclude();
    generation_.round_at = now_;
  }
  // Late enough that waits have begun, early enough for an answer.
  generation_.look_at = options_.introduces_workers ? now_ + settle / 2 : absl::InfiniteDuration();
}

void JobMachine::OnSettled() {
  const Cause cause = FindCause();
  const Stage from = generation_.settles_from;
  const bool is_lost = CanGoBack() && !cause.reason.empty();
  if (from != Stage::kAsking && (from != Stage::kFinishing || is_lost)) return Stop();
  if (from == Stage::kFinishing) generation_.checkpoint_error = cause.status;
  WriteResult(cause.status);
}

void JobMachine::Stop() {
  stage_ = Stage::kStopping;
  if (generation_.checkpoints != nullptr) generation_.checkpoints->Halt();
  Do(action::StopProcesses{FindCause().status.ok() ? kGrace : kGraceAfterFailure});
}

void JobMachine::On(const event::AllStopped&) {
  if (stage_ == Stage::kStopping) generation_.all_stopped = true;
}

// A manifest that is being written decides where the next generation begins.
void JobMachine::ConcludeIfStopped() {
  GenerationState& g = generation_;
  if (stage_ != Stage::kStopping || !g.all_stopped) return;
  if (g.checkpoints != nullptr && g.checkpoints->is_committing()) return;
  if (g.checkpoints != nullptr) {
    for (std::string& id : g.checkpoints->clients().Unanswered())
      requests_.push_back(std::move(id));
  }
  GenerationOutcome outcome = DetermineOutcome();
  if (outcome.goes_back) {
    Open(outcome.next);
  } else {
    stage_ = Stage::kEnded;
    Do(action::Finish{std::move(outcome)});
  }
}

// The order of causes: the user's stop, failures that the job itself caused, what the machine knows
// for certain, ends of processes that may follow from it, and a stall.
JobMachine::Cause JobMachine::FindCause() const {
  using What = GenerationOutcome::What;
  const GenerationState& g = generation_;
  const absl::Status& checkpoints =
      g.checkpoints == nullptr ? absl::OkStatus() : g.checkpoints->error();
  const bool is_done = g.is_result_written && g.digest.ok();
  if (!user_stop_.empty() && !is_done) {
    return {is_engines_stop_ ? What::kStoppedByEngine : What::kStoppedByUser,
            absl::CancelledError(user_stop_), ""};
  }
  const std::vector<ProcessFailure> failures = g.processes.Failures();
  const std::string ends = DescribeFailures(failures);
  if (JobCausedAny(failures)) return {What::kFailed, FailureStatus(failures), ""};
  if (absl::IsUnavailable(checkpoints)) {
    return {What::kUncertain, checkpoints, ""};
  }
  if (!g.restart_error.ok()) {
    const bool log_is_lost = absl::IsDataLoss(g.restart_error);
    const std::string reason = log_is_lost ? std::string(g.restart_error.message()) : ends;
    return {reason.empty() ? What::kFailed : What::kLost, g.restart_error, reason};
  }
  if (absl::IsDataLoss(checkpoints)) {
    return {What::kLost, checkpoints, std::string(checkpoints.message())};
  }
  if (!failures.empty()) {
    absl::Status status = FailureStatus(failures);
    const std::string missed = WhatIsMissedOf(failures, g.stall);
    std::string reason = ends;
    if (!missed.empty()) {
      status = absl::Status(status.code(), absl::StrCat(status.message(), "\n", missed));
      absl::StrAppend(&reason, "; ", missed);
    }
    const bool lacks_memory =
        std::any_of(failures.begin(), failures.end(),
                    [](const auto& failure) { return failure.end.lacked_memory; });
    return {What::kLost,           status,      reason, OnlyScriptsFailed(failures),
            failures.front().name, lacks_memory};
  }
  if (!g.fatal.ok()) return {g.lacks_hosts ? What::kLost : What::kFailed, g.fatal, ""};
  if (!g.trouble.ok()) return {What::kLost, g.trouble, std::string(g.trouble.message())};
  if (g.stalled_at.has_value()) return {What::kStalled, g.stall_error, g.stall_reason};
  if (g.is_result_written && !g.digest.ok()) {
    const bool is_lost = absl::IsDataLoss(g.digest.status());
    return {is_lost ? What::kLost : What::kFailed, g.digest.status(),
            is_lost ? std::string(g.digest.status().message()) : ""};
  }
  if (!g.result_error.ok()) return {What::kFailed, g.result_error, ""};
  if (!g.checkpoint_error.ok()) return {What::kFailed, g.checkpoint_error, ""};
  return {};
}

// The job's status if it ends with this cause.
absl::Status JobMachine::StatusOfEnd(const Cause& cause) const {
  const GenerationState& g = generation_;
  if (!g.is_result_written) return cause.status;
  absl::Status result = g.result_error;
  if (result.ok() && !g.digest.ok()) {
    result = absl::Status(g.digest.status().code(),
                          absl::StrCat("the model is trained, but summary.json lacks its digest: ",
                                       g.digest.status().message()));
  }
  if (g.checkpoint_error.ok()) return result;
  std::string error = absl::StrCat("the model is trained, but its checkpoint can't be written: ",
                                   g.checkpoint_error.message());
  if (!result.ok()) absl::StrAppend(&error, "\n", result.message());
  return absl::Status(g.checkpoint_error.code(), error);
}

GenerationStart JobMachine::NextStart() const {
  const GenerationState& g = generation_;
  GenerationStart next = g.start;
  if (g.checkpoints != nullptr) {
    next.base = g.checkpoints->newest();
    next.base_step = g.checkpoints->newest_step();
    next.base_generation = g.checkpoints->newest_generation();
  }
  next.base_samples = next.base.empty() ? 0 : samples_.Through(next.base_step);
  ++next.generation;
  return next;
}

// Spends what going back takes of the limits. False: one is reached, and the outcome says which.
bool JobMachine::MayGoBack(const Cause& cause, GenerationOutcome* outcome) {
  const auto add_to_status = [&](absl::string_view text) {
    outcome->status =
        absl::Status(outcome->status.code(), absl::StrCat(outcome->status.message(), "\n", text));
  };
  if (!budgets_.rollbacks.Spend(reached_)) {
    const uint32_t limit = budgets_.rollbacks.limit();
    Tell(cause.reason, "; not going back: checkpoint.max_rollbacks is ", limit);
    Do(action::ReportLimit{"checkpoint.max_rollbacks", cause.reason, limit});
    return false;
  }
  if (cause.what == GenerationOutcome::What::kStalled &&
      !budgets_.stalls.Spend(*generation_.stalled_at)) {
    Do(action::ReportLimit{"cluster.stall_timeout_s", cause.reason,
                           options_.job.cluster().stall_timeout_s()});
    add_to_status("the job has gone back for a stall before, and got no further since");
    return false;
  }
  const GenerationStart next = NextStart();
  if (cause.lacks_memory && !budgets_.memory.Spend(next.base.empty() ? kNoStep : next.base_step)) {
    const std::string why =
        "processes were killed for want of memory twice, without a new checkpoint between: the job "
        "does not fit. `thermocline plan` says what takes how much; a worker takes less with a "
        "smaller train.eval_batch_size or train.batch_size";
    Tell(absl::StrCat(cause.reason, "; not going back: ", why));
    add_to_status(why);
    outcome->what = GenerationOutcome::What::kFailed;
    return false;
  }
  // Where the worker could not say it, the step behind the last that is known. An earlier
  // generation may have got past it.
  const Step failed_at = generation_.script_failed_at.value_or(reached_ + 1);
  if (cause.is_script && !budgets_.scripts.Spend(std::max(failed_at - 1, reached_))) {
    const std::string why =
        absl::StrCat("the script failed twice before the job had got past step ",
                     budgets_.scripts.spent().steps());
    Tell(cause.reason, "; not going back: ", why);
    Do(action::ReportLimit{"worker", cause.reason, budgets_.scripts.limit()});
    add_to_status(why);
    outcome->what = GenerationOutcome::What::kFailed;
    return false;
  }
  return true;
}

// Every decision to go back to a checkpoint is made here.
GenerationOutcome JobMachine::DetermineOutcome() {
  const Cause cause = FindCause();
  GenerationOutcome outcome;
  outcome.what = cause.what;
  outcome.status = StatusOfEnd(cause);
  if (cause.reason.empty() || !writes_checkpoints_ || !MayGoBack(cause, &outcome)) return outcome;
  outcome.goes_back = true;
  outcome.next = NextStart();
  Do(action::ReportStart{"rollback", cause.reason, outcome.next, cause.process});
  const GenerationStart& next = outcome.next;
  Tell(cause.reason, "; going back to ",
       next.base.empty() ? "the beginning" : absl::StrCat("step ", next.first_step().value()),
       " (generation ", next.generation, ")");
  return outcome;
}

}  // namespace thermocline
