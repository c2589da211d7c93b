#include "server/core/server_core.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/latency_histogram.h"
#include "common/status_macros.h"
#include "proto/parameter_server.pb.h"
#include "server/core/held_pulls.h"
#include "server/core/push_state.h"
#include "server/core/request_validation.h"
#include "server/core/step_applier.h"
#include "server/core/table_set.h"

namespace thermocline {
namespace {

// What Configure makes; fixed from then on, but for the applier, which the applying thread uses
// alone.
struct ServedJob {
  ServedJob(const ServerConfig& job_config, const ServerLimits& limits)
      : config(job_config),
        validation(config),
        tables(config.tables, config.seed),
        applier(&tables, limits.apply_threads) {}

  absl::StatusOr<TableSet::Entry*> FindTable(TableId table) {
    const size_t position = tables.Find(table);
    if (position < tables.size()) return &tables.at(position);
    return absl::NotFoundError(absl::StrCat("server ", config.server_index.value(),
                                            " has no table with id ", table.value()));
  }

  const ServerConfig config;
  const RequestValidation validation;
  TableSet tables;
  StepApplier applier;
};

struct PullCounters {
  uint64_t held = 0;
  uint64_t not_ready = 0;
  uint64_t refused = 0;
  uint64_t training_answered = 0;
  uint64_t staleness_sum = 0;
  uint64_t staleness_max = 0;
};

}  // namespace

struct ServerCore::Impl : std::enable_shared_from_this<ServerCore::Impl> {
  Impl(const ServerLimits& server_limits, Scheduler* a_scheduler)
      : limits(server_limits),
        scheduler(a_scheduler),
        held(server_limits.max_held_pulls, server_limits.hold_us) {}

  absl::StatusOr<ServedJob*> FindJob() const;
  absl::Status Configure(const ServerConfig& config);

  void Pull(const wire::PullRequest& request, PullDone done);
  absl::StatusOr<std::optional<wire::PullAnswer>> AdmitPull(const wire::PullRequest& request,
                                                            PullDone* done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  bool IsReady(const HeldPull& pull) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  wire::PullAnswer ReadyAnswer(const HeldPull& pull) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ArmExpiry() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ExpireHeldPulls();

  void Push(wire::PushPart part, PushDone done);

  // Whoever sets `applying` applies; nobody else touches the applier or changes rows.
  bool StartApplying() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void ApplyCompleteSteps(ServedJob* job);
  bool NotApplying() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return !applying; }

  Step LookAtRows(ServedJob* current_job, absl::FunctionRef<void()> look);
  absl::StatusOr<DigestAnswer> ComputeDigest(const std::string& job_id, uint64_t epoch);
  absl::Status VisitRows(TableId table, const RowVisitor& visit);
  void FillStats(ServerStats* stats) const;
  void Shutdown();

  const ServerLimits limits;
  Scheduler* const scheduler;

  std::atomic<ServedJob*> job{nullptr};  // Set once, by Configure.
  mutable StageTimer validate_timer;
  mutable StageTimer accept_timer;
  StageTimer read_timer;
  LatencyHistogram hold_time;

  mutable absl::Mutex mutex;
  std::unique_ptr<ServedJob> owned_job ABSL_GUARDED_BY(mutex);
  std::optional<PushState> pushes ABSL_GUARDED_BY(mutex);  // Engaged with `job`.
  HeldPulls held ABSL_GUARDED_BY(mutex);
  bool expiry_armed ABSL_GUARDED_BY(mutex) = false;
  bool applying ABSL_GUARDED_BY(mutex) = false;
  bool shut_down ABSL_GUARDED_BY(mutex) = false;
  PullCounters counters ABSL_GUARDED_BY(mutex);
};

absl::StatusOr<ServedJob*> ServerCore::Impl::FindJob() const {
  ServedJob* found = job.load(std::memory_order_acquire);
  if (found == nullptr) return absl::FailedPreconditionError("this server is not configured yet");
  return found;
}

absl::Status ServerCore::Impl::Configure(const ServerConfig& config) {
  RETURN_IF_ERROR(ValidateServerConfig(config));
  absl::MutexLock lock(&mutex);
  if (shut_down) return absl::UnavailableError("this server is shutting down");
  if (owned_job != nullptr) {
    const std::string difference = DescribeDifference(owned_job->config, config);
    if (difference.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("this server is configured already, and differently: ", difference));
  }
  owned_job = std::make_unique<ServedJob>(config, limits);
  pushes.emplace(config.num_workers, limits.max_pending_push_bytes);
  job.store(owned_job.get(), std::memory_order_release);
  return absl::OkStatus();
}

// Pulls
// ------------------------------------------------------------------------------------------------

void ServerCore::Impl::Pull(const wire::PullRequest& request, PullDone done) {
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  const absl::Status valid = (*found)->validation.CheckPull(request);
  if (!valid.ok()) return done(valid);

  absl::StatusOr<std::optional<wire::PullAnswer>> answer;
  {
    absl::MutexLock lock(&mutex);
    answer = AdmitPull(request, &done);
  }
  if (!answer.ok()) return done(answer.status());
  if (answer->has_value()) done(**answer);
}

// An answer, or none where the pull is held and `done` was moved from.
absl::StatusOr<std::optional<wire::PullAnswer>> ServerCore::Impl::AdmitPull(
    const wire::PullRequest& request, PullDone* done) {
  if (shut_down) return absl::UnavailableError("this server is shutting down");
  const wire::Header& header = request.header;
  RETURN_IF_ERROR(pushes->CheckAcknowledged(header));
  HeldPull pull;
  pull.kind = request.kind;
  pull.rank = header.rank;
  pull.step = request.step;
  pull.needs_through = request.step - 1;
  if (request.kind == wire::PullKind::kTrain) {
    pull.needs_through = request.step - 1 - request.staleness_steps;
    pull.after_step = request.after_step;
  }
  if (IsReady(pull)) return std::make_optional(ReadyAnswer(pull));
  if (held.full()) {
    ++counters.refused;
    return absl::ResourceExhaustedError(absl::StrCat("rank ", header.rank.value(), ", step ",
                                                     request.step.value(), ": ", held.size(),
                                                     " pulls are held already"));
  }
  pull.held_since_us = scheduler->NowMicros();
  pull.done = std::move(*done);
  held.Hold(std::move(pull));
  ++counters.held;
  ArmExpiry();
  return std::optional<wire::PullAnswer>();
}

bool ServerCore::Impl::IsReady(const HeldPull& pull) const {
  if (pushes->complete_through() < pull.needs_through) return false;
  return pull.kind == wire::PullKind::kRead ||
         pushes->applied_through(pull.rank) >= pull.after_step;
}

wire::PullAnswer ServerCore::Impl::ReadyAnswer(const HeldPull& pull) {
  if (pull.kind == wire::PullKind::kTrain) {
    const int64_t missing = pull.step - 1 - pushes->complete_through();
    const uint64_t staleness = static_cast<uint64_t>(std::max<int64_t>(0, missing));
    ++counters.training_answered;
    counters.staleness_sum += staleness;
    counters.staleness_max = std::max(counters.staleness_max, staleness);
  }
  return {wire::Readiness::kReady, pushes->complete_through()};
}

// One timer serves all held pulls: the oldest expires first.
void ServerCore::Impl::ArmExpiry() {
  if (expiry_armed || held.size() == 0) return;
  expiry_armed = true;
  const int64_t delay_us = std::max<int64_t>(0, held.next_expiry_us() - scheduler->NowMicros());
  scheduler->RunAfter(delay_us, [weak = weak_from_this()] {
    if (const std::shared_ptr<Impl> self = weak.lock()) self->ExpireHeldPulls();
  });
}

void ServerCore::Impl::ExpireHeldPulls() {
  std::vector<HeldPull> expired;
  wire::PullAnswer answer = {wire::Readiness::kNotReady, kNoStep};
  {
    absl::MutexLock lock(&mutex);
    expiry_armed = false;
    const int64_t now_us = scheduler->NowMicros();
    expired = held.TakeExpired(now_us);
    counters.not_ready += expired.size();
    for (const HeldPull& pull : expired) hold_time.Record(now_us - pull.held_since_us);
    answer.complete_through = pushes->complete_through();
    ArmExpiry();
  }
  for (const HeldPull& pull : expired) pull.done(answer);
}

// Pushes
// -----------------------------------------------------------------------------------------------

void ServerCore::Impl::Push(wire::PushPart part, PushDone done) {
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  {
    StageTimer::Scope scope(&validate_timer);
    const absl::Status valid = (*found)->validation.CheckPush(part);
    if (!valid.ok()) return done(valid);
  }
  absl::StatusOr<wire::PushAnswer> answer;
  bool apply = false;
  {
    StageTimer::Scope scope(&accept_timer);
    absl::MutexLock lock(&mutex);
    if (shut_down) {
      answer = absl::UnavailableError("this server is shutting down");
    } else {
      answer = pushes->TakePart(std::move(part));
    }
    apply = StartApplying();
  }
  done(std::move(answer));
  if (apply) ApplyCompleteSteps(*found);
}

bool ServerCore::Impl::StartApplying() {
  if (applying || shut_down || !pushes->NextIsComplete()) return false;
  applying = true;
  return true;
}

// REQUIRES: this thread set `applying`. Pushes are accepted meanwhile; what they complete is
// applied here too.
void ServerCore::Impl::ApplyCompleteSteps(ServedJob* current_job) {
  for (;;) {
    PushState::CompleteStep next;
    {
      absl::MutexLock lock(&mutex);
      if (shut_down || !pushes->NextIsComplete()) {
        applying = false;
        return;
      }
      next = pushes->TakeNext();
    }
    current_job->applier.Apply(next.pushes);

    std::vector<std::pair<PullDone, wire::PullAnswer>> released;
    {
      absl::MutexLock lock(&mutex);
      pushes->MarkApplied(next);
      const int64_t now_us = held.size() > 0 ? scheduler->NowMicros() : 0;
      const auto is_ready = [this](const HeldPull& pull)
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return IsReady(pull); };
      for (HeldPull& pull : held.TakeReady(is_ready)) {
        hold_time.Record(now_us - pull.held_since_us);
        released.emplace_back(std::move(pull.done), ReadyAnswer(pull));
      }
    }
    for (auto& [done, answer] : released) done(answer);
    // The pushes' memory goes back here, after the workers got their answers.
  }
}

// The rest
// ---------------------------------------------------------------------------------------------

// Runs `look` between two applies; no row changes meanwhile. Gives the step that the rows are of.
Step ServerCore::Impl::LookAtRows(ServedJob* current_job, absl::FunctionRef<void()> look) {
  Step complete_through;
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(this, &Impl::NotApplying));
    applying = true;
    complete_through = pushes->complete_through();
  }
  look();
  ApplyCompleteSteps(current_job);  // What was completed meanwhile; ends `applying`.
  return complete_through;
}

absl::StatusOr<ServerCore::DigestAnswer> ServerCore::Impl::ComputeDigest(const std::string& job_id,
                                                                         uint64_t epoch) {
  ASSIGN_OR_RETURN(ServedJob * current_job, FindJob());
  RETURN_IF_ERROR(current_job->validation.CheckJob(job_id, epoch));
  DigestAnswer answer;
  answer.complete_through = LookAtRows(current_job, [&] {
    answer.digest = current_job->tables.ComputeDigest();
    answer.rows = current_job->tables.num_rows();
  });
  return answer;
}

absl::Status ServerCore::Impl::VisitRows(TableId table, const RowVisitor& visit) {
  ASSIGN_OR_RETURN(ServedJob * current_job, FindJob());
  ASSIGN_OR_RETURN(TableSet::Entry * entry, current_job->FindTable(table));
  LookAtRows(current_job, [&] { entry->table.VisitRows(visit); });
  return absl::OkStatus();
}

void ServerCore::Impl::FillStats(ServerStats* stats) const {
  const auto add_stage = [stats](const char* name, const StageTimer& timer) {
    timer.CopyTo(name, stats->add_stages());
  };
  add_stage("validate_push", validate_timer);
  add_stage("accept_push", accept_timer);
  add_stage("read_rows", read_timer);
  hold_time.Snapshot().CopyTo(stats->mutable_hold_time());
  const ServedJob* current_job = job.load(std::memory_order_acquire);
  stats->set_configured(current_job != nullptr);
  if (current_job != nullptr) {
    add_stage("apply", current_job->applier.apply_timer());
    add_stage("merge", current_job->applier.merge_timer());
    stats->set_job_id(current_job->config.job_id);
    stats->set_epoch(current_job->config.epoch);
    stats->set_server_index(current_job->config.server_index.value());
    stats->set_num_servers(current_job->config.num_servers);
    current_job->tables.FillStats(stats);
  }
  absl::MutexLock lock(&mutex);
  stats->set_pulls_held(counters.held);
  stats->set_pulls_waiting(held.size());
  stats->set_pulls_not_ready(counters.not_ready);
  stats->set_max_staleness_seen(counters.staleness_max);
  stats->set_mean_staleness_seen(static_cast<double>(counters.staleness_sum) /
                                 std::max<uint64_t>(1, counters.training_answered));
  stats->set_complete_through(pushes.has_value() ? pushes->complete_through().value()
                                                 : kNoStep.value());
  for (uint32_t rank = 0; pushes.has_value() && rank < pushes->num_workers(); ++rank) {
    stats->add_accepted_through(pushes->accepted_through(WorkerRank(rank)).value());
  }
  const PushCounters push_counters = pushes.has_value() ? pushes->counters() : PushCounters();
  stats->set_pushes_accepted(push_counters.accepted);
  stats->set_push_duplicates(push_counters.duplicates);
  stats->set_pushes_not_ready(push_counters.not_ready);
  stats->set_pending_push_bytes(pushes.has_value() ? pushes->pending_bytes() : 0);
  stats->set_requests_refused(stats->requests_refused() + counters.refused + push_counters.refused);
}

void ServerCore::Impl::Shutdown() {
  std::vector<HeldPull> dropped;
  {
    absl::MutexLock lock(&mutex);
    shut_down = true;
    dropped = held.TakeAll();
  }
  for (const HeldPull& pull : dropped) {
    pull.done(absl::UnavailableError("this server is shutting down"));
  }
}

ServerCore::ServerCore(const ServerLimits& limits, Scheduler* scheduler)
    : impl_(std::make_shared<Impl>(limits, scheduler)) {}
ServerCore::~ServerCore() { Shutdown(); }

absl::Status ServerCore::Configure(const ServerConfig& config) { return impl_->Configure(config); }

void ServerCore::Pull(const wire::PullRequest& request, PullDone done) {
  impl_->Pull(request, std::move(done));
}

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

absl::StatusOr<ServerCore::DigestAnswer> ServerCore::ComputeDigest(const std::string& job_id,
                                                                   uint64_t epoch) {
  return impl_->ComputeDigest(job_id, epoch);
}

absl::Status ServerCore::VisitRows(TableId table, const RowVisitor& visit) {
  return impl_->VisitRows(table, visit);
}

void ServerCore::FillStats(ServerStats* stats) const { impl_->FillStats(stats); }

void ServerCore::Shutdown() { impl_->Shutdown(); }

}  // namespace thermocline
