#include "server/core/server_core.h"

#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/latency_histogram.h"
#include "common/status_macros.h"
#include "proto/parameter_server.pb.h"
#include "server/core/pull_gate.h"
#include "server/core/push_state.h"
#include "server/core/served_job.h"

namespace thermocline {
namespace {

absl::Status ShuttingDown() { return absl::UnavailableError("this server is shutting down"); }

}  // namespace

struct ServerCore::Impl : std::enable_shared_from_this<ServerCore::Impl> {
  Impl(const ServerLimits& server_limits, Scheduler* a_scheduler, JournalOpener* journal_opener)
      : limits(server_limits),
        scheduler(a_scheduler),
        journals(journal_opener),
        gate(server_limits.max_held_pulls, server_limits.hold_us) {}

  absl::StatusOr<ServedJob*> FindJob() const;
  absl::Status Configure(const ServerConfig& config);
  absl::Status CheckConfigured(const ServerConfig& config) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::Status Recover(ServedJob* new_job);

  PullTicket Pull(const wire::PullRequest& request, PullDone done, int64_t time_left_us);
  void DropPull(PullTicket ticket);
  void ArmTimer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ExpireHeldPulls();

  void Push(wire::PushPart part, PushDone done);

  // Whoever sets `applying` applies; nobody else touches the applier or changes rows.
  bool StartApplying() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RunApplier(ServedJob* current_job);
  void ApplyStep(ServedJob* current_job, PushState::CompleteStep step);
  bool NotApplying() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !applying; }

  void ComputeDigest(const std::string& job_id, uint64_t epoch, DigestDone done);
  void AnswerDigest(const ServedJob& current_job, const DigestDone& done);
  absl::Status VisitRows(TableId table, const RowVisitor& visit);
  void FillStats(ServerStats* stats) const;
  void Shutdown();

  const ServerLimits limits;
  Scheduler* const scheduler;
  JournalOpener* const journals;  // May be null.

  std::atomic<ServedJob*> job{nullptr};  // Set once, by Configure.
  std::atomic<bool> recovering{false};
  std::atomic<uint64_t> replayed_parts{0};
  std::unique_ptr<PushJournal> journal;  // Fixed once `job` is set; null without durability.
  mutable StageTimer validate_timer;
  mutable StageTimer accept_timer;
  StageTimer read_timer;

  mutable absl::Mutex mutex;
  std::unique_ptr<ServedJob> owned_job ABSL_GUARDED_BY(mutex);
  absl::Status recovery ABSL_GUARDED_BY(mutex);            // How it ended, once not `recovering`.
  std::optional<PushState> pushes ABSL_GUARDED_BY(mutex);  // Engaged with `job`.
  PullGate gate ABSL_GUARDED_BY(mutex);
  bool applying ABSL_GUARDED_BY(mutex) = false;
  bool shut_down ABSL_GUARDED_BY(mutex) = false;
  // At most one digest is wanted at a time; the applying thread computes it.
  bool digest_wanted ABSL_GUARDED_BY(mutex) = false;
  DigestDone digest_waiting ABSL_GUARDED_BY(mutex);  // Until it is begun.
  std::optional<DigestAnswer> last_digest ABSL_GUARDED_BY(mutex);
};

// A server that was restarted is configured again: whoever asks before that comes again.
absl::StatusOr<ServedJob*> ServerCore::Impl::FindJob() const {
  ServedJob* found = job.load(std::memory_order_acquire);
  if (found == nullptr) return absl::UnavailableError("this server is not configured yet");
  return found;
}

absl::Status ServerCore::Impl::Configure(const ServerConfig& config) {
  RETURN_IF_ERROR(ValidateServerConfig(config));
  ServedJob* new_job;
  {
    absl::MutexLock lock(&mutex);
    if (shut_down) return ShuttingDown();
    if (owned_job != nullptr) return CheckConfigured(config);
    if (config.durability.has_value() && journals == nullptr) {
      return absl::FailedPreconditionError(
          "the job wants a push log, and this server was started without a folder for it");
    }
    owned_job = std::make_unique<ServedJob>(config, limits.apply_threads);
    new_job = owned_job.get();
    pushes.emplace(config.num_workers, limits.max_pending_push_bytes);
    recovering = true;
  }
  const absl::Status recovered = Recover(new_job);
  absl::MutexLock lock(&mutex);
  recovery = recovered;
  recovering = false;
  if (recovered.ok()) job.store(new_job, std::memory_order_release);
  return recovered;
}

absl::Status ServerCore::Impl::CheckConfigured(const ServerConfig& config) {
  const std::string difference = DescribeDifference(owned_job->config, config);
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server is configured already, and differently: ", difference));
  }
  if (!recovering) return recovery;
  return absl::UnavailableError(
      absl::StrCat("recovering: ", replayed_parts.load(), " parts of pushes are replayed so far"));
}

// Nobody else uses the tables, the applier or the pushes before `job` is set.
absl::Status ServerCore::Impl::Recover(ServedJob* new_job) {
  const ServerConfig& config = new_job->config;
  if (!config.durability.has_value()) return absl::OkStatus();
  const auto replay = [&](wire::PushPart&& part) -> absl::Status {
    RETURN_IF_ERROR(new_job->validation.CheckPush(part));
    {
      absl::MutexLock lock(&mutex);
      if (shut_down) return ShuttingDown();
      RETURN_IF_ERROR(pushes->ReplayPart(std::move(part)));
      applying = pushes->NextIsComplete();
    }
    ++replayed_parts;
    RunApplier(new_job);
    return absl::OkStatus();
  };
  const JournalSpec spec = {config.job_id, config.epoch, config.server_index.value(),
                            *config.durability};
  ASSIGN_OR_RETURN(journal, journals->Open(spec, replay));
  absl::MutexLock lock(&mutex);
  pushes->WriteTo(journal.get());
  return absl::OkStatus();
}

// Pulls
// ------------------------------------------------------------------------------------------------

PullTicket ServerCore::Impl::Pull(const wire::PullRequest& request, PullDone done,
                                  int64_t time_left_us) {
  const auto refuse = [&](absl::Status why) {
    done(std::move(why));
    return kNoTicket;
  };
  if (recovering) {
    done(wire::PullAnswer{wire::Readiness::kRecovering, kNoStep});
    return kNoTicket;
  }
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return refuse(found.status());
  const absl::Status valid = (*found)->validation.CheckPull(request);
  if (!valid.ok()) return refuse(valid);

  absl::StatusOr<PullGate::Admitted> admitted = ShuttingDown();
  {
    absl::MutexLock lock(&mutex);
    if (!shut_down) {
      admitted = gate.Admit(request, *pushes, scheduler->NowMicros(), time_left_us, &done);
      ArmTimer();
    }
  }
  if (!admitted.ok()) return refuse(admitted.status());
  if (admitted->answer.has_value()) done(*admitted->answer);
  return admitted->ticket;
}

void ServerCore::Impl::DropPull(PullTicket ticket) {
  PullDone done;
  {
    absl::MutexLock lock(&mutex);
    done = gate.Drop(ticket);
  }
  if (done) done(absl::CancelledError("the caller has gone"));
}

void ServerCore::Impl::ArmTimer() {
  const std::optional<int64_t> delay_us = gate.ArmTimer(scheduler->NowMicros());
  if (!delay_us.has_value()) return;
  scheduler->RunAfter(*delay_us, [weak = weak_from_this()] {
    if (const std::shared_ptr<Impl> self = weak.lock()) self->ExpireHeldPulls();
  });
}

void ServerCore::Impl::ExpireHeldPulls() {
  std::vector<PullGate::Released> expired;
  {
    absl::MutexLock lock(&mutex);
    expired = gate.TakeExpired(*pushes, scheduler->NowMicros());
    ArmTimer();
  }
  for (const PullGate::Released& pull : expired) pull.done(pull.answer);
}

// Pushes
// -----------------------------------------------------------------------------------------------

void ServerCore::Impl::Push(wire::PushPart part, PushDone done) {
  if (recovering) return done(wire::PushAnswer{wire::Readiness::kRecovering, kNoStep});
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  {
    StageTimer::Scope scope(&validate_timer);
    const absl::Status valid = (*found)->validation.CheckPush(part);
    if (!valid.ok()) return done(valid);
  }
  const Step last_step = part.last_step;
  absl::StatusOr<wire::PushAnswer> answer = ShuttingDown();
  bool apply = false;
  {
    StageTimer::Scope scope(&accept_timer);
    absl::MutexLock lock(&mutex);
    if (!shut_down) answer = pushes->TakePart(std::move(part));
    apply = StartApplying();
  }
  if (journal != nullptr && answer.ok() && answer->accepted_through >= last_step) {
    // A repeated push too is acknowledged only once the first is certain.
    journal->WhenDurable([answer = *answer, done = std::move(done)](const absl::Status& durable) {
      durable.ok() ? done(answer) : done(durable);
    });
  } else {
    done(std::move(answer));
  }
  if (apply) RunApplier(*found);
}

bool ServerCore::Impl::StartApplying() {
  if (applying || shut_down) return false;
  applying = pushes->NextIsComplete() || digest_waiting != nullptr;
  return applying;
}

// REQUIRES: this thread set `applying`. Pushes are accepted meanwhile; what they complete is
// applied here too, and before a digest that waits.
void ServerCore::Impl::RunApplier(ServedJob* current_job) {
  for (;;) {
    std::optional<PushState::CompleteStep> step;
    DigestDone digest;
    {
      absl::MutexLock lock(&mutex);
      applying = false;
      if (!StartApplying()) return;
      if (pushes->NextIsComplete()) {
        step = pushes->TakeNext();
      } else {
        digest = std::exchange(digest_waiting, nullptr);
      }
    }
    if (step.has_value()) {
      ApplyStep(current_job, *std::move(step));
    } else {
      AnswerDigest(*current_job, digest);
    }
  }
}

void ServerCore::Impl::ApplyStep(ServedJob* current_job, PushState::CompleteStep step) {
  current_job->applier.Apply(step.pushes);
  std::vector<PullGate::Released> released;
  {
    absl::MutexLock lock(&mutex);
    pushes->MarkApplied(step);
    released = gate.TakeReady(*pushes, gate.num_held() > 0 ? scheduler->NowMicros() : 0);
  }
  for (const PullGate::Released& pull : released) pull.done(pull.answer);
  // The pushes' memory goes back here, after the workers got their answers.
}

// Looking at rows
// ---------------------------------------------------------------------------------------------

void ServerCore::Impl::ComputeDigest(const std::string& job_id, uint64_t epoch, DigestDone done) {
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  const absl::Status valid = (*found)->validation.CheckJob(job_id, epoch);
  if (!valid.ok()) return done(valid);
  absl::StatusOr<DigestAnswer> answer = ShuttingDown();
  bool apply = false;
  {
    absl::MutexLock lock(&mutex);
    if (shut_down) {
      // The answer says so.
    } else if (digest_wanted) {
      answer = absl::ResourceExhaustedError("a digest is being computed already; come again");
    } else if (!applying && last_digest.has_value() &&
               last_digest->complete_through == pushes->complete_through()) {
      answer = *last_digest;
    } else {
      digest_wanted = true;
      digest_waiting = std::exchange(done, nullptr);
      apply = StartApplying();
    }
  }
  if (done) done(std::move(answer));
  if (apply) RunApplier(*found);
}

// REQUIRES: this thread set `applying`.
void ServerCore::Impl::AnswerDigest(const ServedJob& current_job, const DigestDone& done) {
  DigestAnswer answer;
  answer.digest = current_job.tables.ComputeDigest();
  answer.rows = current_job.tables.num_rows();
  {
    absl::MutexLock lock(&mutex);
    answer.complete_through = pushes->complete_through();
    last_digest = answer;
    digest_wanted = false;
  }
  done(answer);
}

absl::Status ServerCore::Impl::VisitRows(TableId table, const RowVisitor& visit) {
  ASSIGN_OR_RETURN(ServedJob * current_job, FindJob());
  ASSIGN_OR_RETURN(TableSet::Entry * entry, current_job->FindTable(table));
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(this, &Impl::NotApplying));
    applying = true;
  }
  entry->table.VisitRows(visit);
  RunApplier(current_job);  // What was completed meanwhile; ends `applying`.
  return absl::OkStatus();
}

// The rest
// ---------------------------------------------------------------------------------------------

void ServerCore::Impl::FillStats(ServerStats* stats) const {
  validate_timer.CopyTo("validate_push", stats->add_stages());
  accept_timer.CopyTo("accept_push", stats->add_stages());
  read_timer.CopyTo("read_rows", stats->add_stages());
  const ServedJob* current_job = job.load(std::memory_order_acquire);
  stats->set_configured(current_job != nullptr);
  stats->set_replayed_parts(replayed_parts.load());
  if (current_job != nullptr) current_job->FillStats(stats);
  stats->set_complete_through(kNoStep.value());
  absl::MutexLock lock(&mutex);
  gate.FillStats(stats);
  if (pushes.has_value()) pushes->FillStats(stats);
}

void ServerCore::Impl::Shutdown() {
  std::vector<PullDone> dropped;
  DigestDone digest;
  {
    absl::MutexLock lock(&mutex);
    shut_down = true;
    dropped = gate.TakeAll();
    digest = std::exchange(digest_waiting, nullptr);
  }
  for (const PullDone& done : dropped) done(ShuttingDown());
  if (digest) digest(ShuttingDown());
}

ServerCore::ServerCore(const ServerLimits& limits, Scheduler* scheduler, JournalOpener* journals)
    : impl_(std::make_shared<Impl>(limits, scheduler, journals)) {}
ServerCore::~ServerCore() { Shutdown(); }

absl::Status ServerCore::Configure(const ServerConfig& config) { return impl_->Configure(config); }

PullTicket ServerCore::Pull(const wire::PullRequest& request, PullDone done, int64_t time_left_us) {
  return impl_->Pull(request, std::move(done), time_left_us);
}

void ServerCore::DropPull(PullTicket ticket) { impl_->DropPull(ticket); }

void ServerCore::ReadRows(TableId table, absl::Span<const Key> keys, uint8_t* weights) {
  StageTimer::Scope scope(&impl_->read_timer);
  ServedJob* job = impl_->job.load(std::memory_order_acquire);
  CHECK(job != nullptr);
  const absl::StatusOr<TableSet::Entry*> entry = job->FindTable(table);
  CHECK(entry.ok());
  (*entry)->keys_pulled.fetch_add(keys.size(), std::memory_order_relaxed);
  (*entry)->table.GatherWeights(keys, weights);
}

absl::StatusOr<int> ServerCore::DimOf(TableId table) const {
  ASSIGN_OR_RETURN(ServedJob * job, impl_->FindJob());
  ASSIGN_OR_RETURN(const TableSet::Entry* entry, job->FindTable(table));
  return entry->table.layout().dim;
}

void ServerCore::Push(wire::PushPart part, PushDone done) {
  impl_->Push(std::move(part), std::move(done));
}

void ServerCore::ComputeDigest(const std::string& job_id, uint64_t epoch, DigestDone done) {
  impl_->ComputeDigest(job_id, epoch, std::move(done));
}

absl::Status ServerCore::VisitRows(TableId table, const RowVisitor& visit) {
  return impl_->VisitRows(table, visit);
}

void ServerCore::FillStats(ServerStats* stats) const { impl_->FillStats(stats); }

void ServerCore::Shutdown() { impl_->Shutdown(); }

}  // namespace thermocline
