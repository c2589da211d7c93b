// What the job machine watches and makes while processes work: whether anything advances,
// checkpoints, evaluations.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "deploy/job/job_machine.h"

namespace thermocline {
namespace {

// How often the servers are asked whether the job advances.
constexpr absl::Duration kLongestLookPeriod = absl::Seconds(1);
// The user is told what the last checkpoint of a stopped job waits for.
constexpr absl::Duration kSilentLastWait = absl::Seconds(3);
constexpr int kLooksWithinStallTimeout = 4;
// Short, so that a process that does not answer delays nothing else for long.
constexpr absl::Duration kLookTimeout = absl::Seconds(2);

constexpr absl::Duration kRoundPeriod = absl::Milliseconds(200);
constexpr absl::Duration kDecisionRetryPeriod = absl::Milliseconds(100);

}  // namespace

// Stalls
// ------------------------------------------------------------------------------------------------

// How long a job may do nothing; infinite where the user wants no limit. Who has asked it to end
// waits less long for its last checkpoint.
absl::Duration JobMachine::StallTimeout() const {
  const uint32_t seconds = options_.job.cluster().stall_timeout_s();
  const absl::Duration wanted =
      seconds == 0 ? absl::InfiniteDuration() : absl::Duration(absl::Seconds(seconds));
  const bool is_ending = !user_stop_.empty() && stage_ <= Stage::kFinishing;
  return is_ending ? std::min(wanted, kLastRequestPatience) : wanted;
}

void JobMachine::WatchForStalls() {
  GenerationState& g = generation_;
  if (g.is_status_asked || now_ < g.look_at) return;
  if (stage_ == Stage::kSettling) {  // Asks what the remaining processes wait for.
    g.look_at = absl::InfiniteDuration();
    return AskStatus(g.settled_at - now_, /*is_final=*/false);
  }
  if (!IsRunning()) return;
  g.look_at = now_ + std::min(kLongestLookPeriod, StallTimeout() / kLooksWithinStallTimeout);
  AskStatus(kLookTimeout, /*is_final=*/false);
}

void JobMachine::AskStatus(absl::Duration timeout, bool is_final) {
  generation_.is_status_asked = true;
  generation_.is_final_status = is_final;
  Do(action::AskStatus{generation_.start.generation, timeout});
}

void JobMachine::On(const event::StatusAnswered& answered) {
  GenerationState& g = generation_;
  if (!IsOurs(answered.generation) || !g.is_status_asked) return;
  g.is_status_asked = false;
  if (stage_ == Stage::kSettling && g.settles_from == Stage::kTraining) {
    return g.stall.Look(answered.servers, answered.workers, now_ - g.stall_began);
  }
  if (!IsRunning()) return;
  if (!g.is_final_status) {
    return stage_ == Stage::kConfiguring ? LookAtConfiguring(answered) : Look(answered);
  }
  g.reports = answered.servers;
  for (const ServerReport& report : g.reports) {
    if (!report.stats.ok()) return OnNoDigest(report.stats.status());
  }
  g.ask = GenerationState::Ask::kDigest;
  Do(action::AskDigest{g.start.generation, g.last, StallTimeout()});
}

// Loading may take any time while every server advances.
void JobMachine::LookAtConfiguring(const event::StatusAnswered& answered) {
  for (size_t i = 0; i < answered.servers.size(); ++i) {
    ProcessState& server = generation_.processes.servers[i];
    if (answered.servers[i].stats.ok() && WorkOf(*answered.servers[i].stats) != server.work) {
      server.work = WorkOf(*answered.servers[i].stats);
      server.advanced_at = now_;
    }
    if (server.is_configured || server.not_configured.ok()) continue;
    if (now_ - server.advanced_at < StallTimeout()) continue;
    return GiveUp(absl::DeadlineExceededError(server.not_configured.message()));
  }
}

// A step may take any time while something advances.
void JobMachine::Look(const event::StatusAnswered& answered) {
  GenerationState& g = generation_;
  const absl::Duration now = now_ - g.stall_began;
  g.stall.Look(answered.servers, answered.workers, now);
  reached_ = std::max(reached_, g.stall.reached());
  ReportFullDisks(answered.servers);
  uint64_t log_bytes = 0;
  for (const ServerReport& report : answered.servers) {
    if (report.stats.ok()) log_bytes = std::max(log_bytes, report.stats->push_log_bytes());
  }
  if (g.checkpoints != nullptr) g.checkpoints->OnLogBytes(log_bytes);
  if (g.stall.last_advance() == now) return;
  const uint64_t before = g.checkpoint_bytes.value_or(answered.checkpoint_bytes);
  if (answered.checkpoint_bytes != before) g.last_write = now_;
  g.checkpoint_bytes = answered.checkpoint_bytes;
  const absl::Duration last = std::max(g.stall_began + g.stall.last_advance(), g.last_write);
  const bool waits_for_last = !user_stop_.empty() && now_ < last_request_by_;
  if (now_ - last >= StallTimeout() && !waits_for_last) return OnStall();
  if (waits_for_last && now_ - last >= kSilentLastWait) ReportLastWait(last);
}

// Says once what keeps a stopped job from its last checkpoint.
void JobMachine::ReportLastWait(absl::Duration last_advance) {
  if (std::exchange(is_last_wait_told_, true)) return;
  Tell("nothing has advanced for ", absl::ToInt64Seconds(now_ - last_advance),
       "s: ", generation_.stall.WhoIsWaitedFor(generation_.processes.RunningWorkers()),
       "; if that stays so, the job ends without the checkpoint in ",
       absl::ToInt64Seconds(last_request_by_ - now_), "s");
}

void JobMachine::ReportFullDisks(const std::vector<ServerReport>& reports) {
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!reports[i].stats.ok()) continue;
    const std::string& full = reports[i].stats->push_log_full();
    if (full.empty() != generation_.full_disks[i].empty()) {
      const std::string host = generation_.placement.HostOf(ProcessRole::kServer, i);
      Tell(ProcessName(ProcessRole::kServer, i),
           host.empty() ? "" : absl::StrCat(" on host ", host),
           full.empty() ? " has room for its push log again; the job goes on"
                        : absl::StrCat(": ", full, "; the job waits until there is room"));
    }
    generation_.full_disks[i] = full;
  }
}

void JobMachine::OnStall() {
  GenerationState& g = generation_;
  const std::string what =
      absl::StrCat("nothing has advanced for ", absl::FormatDuration(StallTimeout()),
                   " (cluster.stall_timeout_s)");
  std::string server_logs;
  for (const size_t server : g.stall.ServersWaitedFor()) {
    absl::StrAppend(&server_logs, "\n  | ", LogOf(ProcessRole::kServer, server));
  }
  if (stage_ == Stage::kFinishing || stage_ == Stage::kAsking) {
    const bool is_finishing = stage_ == Stage::kFinishing;
    std::string error = absl::StrCat(
        "timed out: ", is_finishing ? "the checkpoint of the last step" : "servers to recover",
        ": ", what);
    if (!server_logs.empty()) {
      absl::StrAppend(&error, ": ", g.stall.WhoIsWaitedFor({}), "; logs:", server_logs);
    }
    if (!is_finishing) return WriteResult(absl::DeadlineExceededError(error));
    return OnFinished(absl::DeadlineExceededError(error));
  }
  const std::vector<uint32_t> running = g.processes.RunningWorkers();
  g.stalled_at = g.stall.reached();
  g.stall_reason = absl::StrCat(what, ": ", g.stall.WhoIsWaitedFor(running));
  std::string logs = server_logs;
  for (const uint32_t rank : g.stall.Behind(running)) {
    absl::StrAppend(&logs, "\n  | ", LogOf(ProcessRole::kWorker, rank));
  }
  g.stall_error = absl::DeadlineExceededError(absl::StrCat(g.stall_reason, "; logs:", logs));
  Settle();
}

void JobMachine::On(const event::Progressed& progressed) {
  if (!IsOurs(progressed.generation)) return;
  samples_.Report(progressed.steps, progressed.samples);
  generation_.reported = Step(progressed.steps - 1);
  reached_ = std::max(reached_, generation_.reported);
}

void JobMachine::On(const event::ScriptFailed& failed) {
  if (IsOurs(failed.generation)) generation_.script_failed_at = failed.step;
}

// The script may take minutes to end. The last step has its checkpoint before that.
void JobMachine::On(const event::Trained& trained) {
  if (!IsOurs(trained.generation) || stage_ != Stage::kTraining) return;
  if (generation_.checkpoints == nullptr || !options_.job.checkpoint().at_end()) return;
  generation_.checkpoints->Finish(trained.last);
}

// Checkpoints
// ------------------------------------------------------------------------------------------------

void JobMachine::On(const event::CheckpointAnswered& answered) {
  if (IsOurs(answered.generation) && MayWorkOnCheckpoints()) {
    generation_.checkpoints->OnAnswers(answered.answers);
  }
}

// Counts also where the generation ends: the next one begins with the committed checkpoint.
void JobMachine::On(const event::Committed& committed) {
  if (!IsOurs(committed.generation)) return;
  generation_.checkpoints->OnCommitted(committed.status, committed.may_exist);
  if (absl::IsAborted(committed.status)) Fail(committed.status);  // Another controller has begun.
}

void JobMachine::On(const event::Removed& removed) {
  if (IsOurs(removed.generation)) generation_.checkpoints->OnRemoved(removed.held_back);
}

// While a failure of training is judged, servers may have written a checkpoint that was due before
// it; what of a worker or another server is missing then is no part of it.
bool JobMachine::MayWorkOnCheckpoints() const {
  const GenerationState& g = generation_;
  if (g.checkpoints == nullptr) return false;
  if (IsRunning()) return true;
  return stage_ == Stage::kSettling && g.settles_from == Stage::kTraining &&
         g.checkpoints->error().ok() && g.processes.AllServersRun();
}

// Whether a checkpoint may still come although the generation ends.
bool JobMachine::AwaitsCheckpoint() const {
  return !IsRunning() && user_stop_.empty() && MayWorkOnCheckpoints() &&
         !generation_.checkpoints->is_concluded() && now_ < generation_.settled_at + kWritePatience;
}

void JobMachine::WorkOnCheckpoints() {
  GenerationState& g = generation_;
  if (g.checkpoints == nullptr) return;
  CheckpointCoordinator& checkpoints = *g.checkpoints;
  if (MayWorkOnCheckpoints() && checkpoints.is_idle() && now_ >= g.round_at &&
      !checkpoints.finished()) {
    g.round_at = now_ + kRoundPeriod;
    checkpoints.BeginRound();
  }
  if (MayWorkOnCheckpoints()) {
    CheckpointOperation operation = checkpoints.TakeOperation();
    const uint64_t generation = g.start.generation;
    if (auto* const calls = std::get_if<std::vector<CheckpointCall>>(&operation)) {
      Do(action::CallProcesses{generation, std::move(*calls)});
    } else if (auto* const commit = std::get_if<CommitCheckpoint>(&operation)) {
      Do(action::Commit{generation, std::move(*commit)});
    } else if (auto* const removal = std::get_if<RemoveCheckpoints>(&operation)) {
      Do(action::Remove{generation, std::move(*removal)});
    }
  }
  ReportCheckpoints();
  if (!IsRunning()) return;
  // Since event::Trained: the stop may have come when the last checkpoint was all but over.
  if (stage_ == Stage::kTraining && checkpoints.finished() && !user_stop_.empty()) return Stop();
  const absl::Status& error = checkpoints.error();
  if (stage_ == Stage::kFinishing && (checkpoints.finished() || !error.ok())) {
    if (absl::IsDataLoss(error)) return Settle();
    OnFinished(error);
  } else if (stage_ < Stage::kFinishing && !error.ok() && !absl::IsAborted(error)) {
    Settle();  // Aborted: the last step has no checkpoint, which the job's end reports.
  }
}

// The last step has its checkpoint, or can't have it.
void JobMachine::OnFinished(const absl::Status& error) {
  stage_ = Stage::kAsking;
  generation_.checkpoint_error = error;
  if (!user_stop_.empty() && !IsAwaitedByHosts()) WriteResult(absl::CancelledError(user_stop_));
}

void JobMachine::ReportCheckpoints() {
  GenerationState& g = generation_;
  for (CheckpointAnswer& answer : g.checkpoints->clients().TakeAnswers()) {
    if (answer.id == kLastRequest) {
      // If it was called off, for example for a full disk, the next may succeed.
      if (stage_ != Stage::kTraining) continue;
      if (answer.name.ok() || now_ >= last_request_by_ || !g.checkpoints->error().ok()) {
        Stop();
      } else {
        g.checkpoints->clients().Add(kLastRequest);
      }
    } else if (!answer.id.empty()) {
      Do(action::AnswerRequest{std::move(answer)});
    } else if (g.evaluations != nullptr) {
      g.evaluations->OnCheckpoint(answer.name);
      g.checkpoints->Keep(BestCheckpointOf(g.evaluations->board().latest()));
    }
  }
  for (CheckpointEvent& event : g.checkpoints->TakeEvents()) {
    Do(action::ReportCheckpoint{std::move(event)});
  }
}

// Evaluations
// ------------------------------------------------------------------------------------------------

void JobMachine::On(const event::Evaluated& evaluated) {
  if (!IsOurs(evaluated.generation) || generation_.evaluations == nullptr) return;
  // Without job.evaluate, nothing follows from the one after the last step.
  const bool decides = options_.job.has_evaluate() || !evaluated.report.data_place.empty();
  if (decides) generation_.evaluations->Take(evaluated.report);
}

void JobMachine::On(const event::Decided& decided) {
  GenerationState& g = generation_;
  if (!IsOurs(decided.generation) || !g.is_decision_sent) return;
  g.is_decision_sent = false;
  for (size_t i = 0; i < decided.answered.size(); ++i) {
    if (decided.answered[i]) g.evaluations->OnAnswered(g.asked_ranks[i]);
  }
  g.decide_at = now_ + kDecisionRetryPeriod;
  if (g.evaluations->Unanswered(g.processes.RunningWorkers()).empty()) {
    g.decide_at = absl::InfiniteDuration();
  }
}

void JobMachine::WorkOnEvaluations() {
  GenerationState& g = generation_;
  if (g.evaluations == nullptr || stage_ < Stage::kTraining || !IsRunning()) return;
  EvaluationCoordinator& evaluations = *g.evaluations;
  const std::vector<uint32_t> running = g.processes.RunningWorkers();
  if (const std::optional<Step> step = evaluations.Begin())
    g.checkpoints->clients().AddExact(*step);
  if (std::optional<EvaluationEvent> event = evaluations.TakeDecided(running)) {
    Do(action::ReportEvaluation{*std::move(event)});
    g.decide_at = now_;
  }
  if (!evaluations.is_deciding() || g.is_decision_sent || now_ < g.decide_at) return;
  g.asked_ranks = evaluations.Unanswered(running);
  g.decide_at = absl::InfiniteDuration();
  if (g.asked_ranks.empty()) return;
  g.is_decision_sent = true;
  const EvaluationBoard::Decision& decision = evaluations.decision();
  Do(action::Decide{g.start.generation, g.asked_ranks, evaluations.step(), decision.stops,
                    decision.data_place});
}

}  // namespace thermocline
