#include "server/core/server_core.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "proto/parameter_server.pb.h"
#include "server/core/base_checkpoint.h"
#include "server/core/server_core_impl.h"

namespace thermocline {
namespace {

// The caller tries again: a server that was restarted is configured again.
absl::Status NotConfigured() { return absl::UnavailableError("this server is not configured yet"); }

// A launcher that gets kUnavailable asks again, since the server might not be up yet. This server
// is up and would fail again, so the launcher gets kAborted.
absl::Status ForGood(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  return absl::AbortedError(status.message());
}

// Other callers then get an error after which they do not try again. For lost data a job may go
// back to a checkpoint.
absl::Status CantRecover(const absl::Status& why) {
  const absl::StatusCode code =
      absl::IsDataLoss(why) ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted;
  return absl::Status(code, absl::StrCat("this server can't recover: ", why.message()));
}

}  // namespace

absl::Status ShuttingDown() { return absl::UnavailableError("this server is shutting down"); }

// The job, and where its rows come from
// ------------------------------------------------------------------------------------------------

ServedJob::ServedJob(const ServerConfig& job_config, int apply_threads,
                     std::vector<TableSpill> spills)
    : config(job_config),
      validation(config),
      tables(config.tables, config.seed, std::move(spills)),
      applier(&tables, apply_threads, static_cast<int64_t>(config.init_steps)) {}

absl::StatusOr<TableSet::Entry*> ServedJob::FindTable(TableId table) {
  const size_t position = tables.Find(table);
  if (position < tables.size()) return &tables.at(position);
  return absl::NotFoundError(absl::StrCat("server ", config.server_index.value(),
                                          " has no table with id ", table.value()));
}

void ServedJob::FillStats(ServerStats* stats) const {
  applier.apply_timer().CopyTo("apply", stats->add_stages());
  applier.merge_timer().CopyTo("merge", stats->add_stages());
  stats->set_job_id(config.job_id);
  stats->set_generation(config.generation);
  stats->set_server_index(config.server_index.value());
  stats->set_num_servers(config.num_servers);
  tables.FillStats(stats);
}

absl::StatusOr<ServedJob*> ServerCore::Impl::FindJob() const {
  ServedJob* found = job.load(std::memory_order_acquire);
  if (found != nullptr) return found;
  absl::MutexLock lock(&mutex);
  if (shut_down) return ShuttingDown();
  if (!recovery.ok()) return CantRecover(recovery);
  found = job.load(std::memory_order_relaxed);  // Set under the mutex.
  if (found != nullptr) return found;
  return NotConfigured();
}

absl::Status ServerCore::Impl::Configure(const ServerConfig& config) {
  RETURN_IF_ERROR(ValidateServerConfig(config));
  ServedJob* new_job;
  const int64_t start_us = scheduler->NowMicros();
  {
    absl::MutexLock lock(&mutex);
    if (shut_down) return ShuttingDown();
    if (owned_job != nullptr) return CompareConfigured(config);
    RETURN_IF_ERROR(CheckMeans(config));
    absl::StatusOr<std::vector<TableSpill>> spills = OpenSpills(config);
    if (!spills.ok()) return ForGood(spills.status());
    owned_job = std::make_unique<ServedJob>(config, limits.apply_threads, *std::move(spills));
    new_job = owned_job.get();
    recovering = true;
  }
  const absl::Status recovered = Recover(new_job);
  bool apply = false;
  {
    absl::MutexLock lock(&mutex);
    recovery = shut_down ? recovered : ForGood(recovered);
    recovery_s = static_cast<double>(scheduler->NowMicros() - start_us) / 1e6;
    recovering = false;
    if (!recovery.ok()) return recovery;
    job.store(new_job, std::memory_order_release);
    apply = StartApplying();  // The rows may stand at a cut.
  }
  if (apply) RunApplier(new_job);
  return absl::OkStatus();
}

// Whether this process was given what the job needs.
absl::Status ServerCore::Impl::CheckMeans(const ServerConfig& config) const {
  if (config.durability.has_value() && journals == nullptr) {
    return absl::FailedPreconditionError(
        "the job wants a push log, and this server was started without a folder for it");
  }
  if ((!config.checkpoint_directory.empty() || !config.init_checkpoint.empty()) &&
      (checkpoints.disk == nullptr || checkpoints.tasks == nullptr)) {
    return absl::FailedPreconditionError(
        "the job wants checkpoints, and this server can't read or write any");
  }
  for (const TableLayout& table : config.tables) {
    if (table.memory_budget_bytes == 0 || spill.stores != nullptr) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("table '", table.name,
                     "' has a memory budget, and this server was started without a folder for the "
                     "rows beyond it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TableSpill>> ServerCore::Impl::OpenSpills(
    const ServerConfig& config) const {
  std::vector<TableSpill> spills(config.tables.size());
  for (size_t i = 0; i < spills.size(); ++i) {
    if (config.tables[i].memory_budget_bytes == 0) continue;
    ASSIGN_OR_RETURN(spills[i].store, spill.stores->Open(config.tables[i]));
    spills[i].on_broken = spill.on_broken;
  }
  return spills;
}

absl::Status ServerCore::Impl::CheckConfigured(const ServerConfig& config) const {
  absl::MutexLock lock(&mutex);
  if (shut_down) return ShuttingDown();
  if (owned_job == nullptr) return NotConfigured();
  return CompareConfigured(config);
}

absl::Status ServerCore::Impl::CompareConfigured(const ServerConfig& config) const {
  const std::string difference = DescribeDifference(owned_job->config, config);
  if (!difference.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this server is configured already, and differently: ", difference));
  }
  if (!recovering) return recovery;
  return absl::UnavailableError(absl::StrCat("recovering: ", loaded_rows.load(),
                                             " rows are loaded, ", replayed_chunks.load(),
                                             " chunks of pushes are replayed so far"));
}

// No other thread uses the tables, the applier or the pushes before `job` is set.
absl::Status ServerCore::Impl::Recover(ServedJob* new_job) {
  const ServerConfig& config = new_job->config;
  ASSIGN_OR_RETURN(const CutHistory history, LoadBase(new_job));
  {
    absl::MutexLock lock(&mutex);
    pushes.emplace(config.num_workers, limits.max_pending_push_bytes, history.base);
    const bool has_checkpoints = !config.checkpoint_directory.empty();
    cuts.emplace(has_checkpoints ? config.checkpoint_every_steps : 0, config.checkpoint_full_every,
                 history);
  }
  if (!config.durability.has_value()) return absl::OkStatus();
  return ReplayJournal(new_job, history.base);
}

absl::StatusOr<CutHistory> ServerCore::Impl::LoadBase(ServedJob* new_job) {
  const ServerConfig& config = new_job->config;
  const auto progress = [this](uint64_t rows) {
    loaded_rows += rows;
    absl::MutexLock lock(&mutex);
    return shut_down ? ShuttingDown() : absl::OkStatus();
  };
  if (config.base_checkpoint.empty()) {
    if (config.init_checkpoint.empty()) return CutHistory();
    ASSIGN_OR_RETURN(const CheckpointManifest init, ReadInitManifest(checkpoints.disk, config));
    RETURN_IF_ERROR(LoadInitRows(checkpoints.disk, config, init, limits.load_threads,
                                 &new_job->tables, progress));
    return CutHistory();
  }
  ASSIGN_OR_RETURN(const CheckpointManifest base, ReadBaseManifest(checkpoints.disk, config));
  RETURN_IF_ERROR(LoadBaseRows(checkpoints.disk, config, base, limits.load_threads,
                               &new_job->tables, progress));
  return HistoryOf(base, config);
}

absl::Status ServerCore::Impl::ReplayJournal(ServedJob* new_job, Step base) {
  const auto replay = [&](wire::PushChunk&& chunk) -> absl::Status {
    RETURN_IF_ERROR(new_job->validation.CheckPush(chunk));
    RETURN_IF_ERROR(new_job->tables.CheckRoom());
    {
      absl::MutexLock lock(&mutex);
      if (shut_down) return ShuttingDown();
      RETURN_IF_ERROR(pushes->ReplayChunk(std::move(chunk)));
      applying = pushes->NextIsComplete();
    }
    ++replayed_chunks;
    RunApplier(new_job);
    absl::MutexLock lock(&mutex);
    return shut_down ? ShuttingDown()
                     : absl::OkStatus();  // A step that can't be applied shuts down.
  };
  const ServerConfig& config = new_job->config;
  const JournalSpec spec = {config.job_id, config.generation, config.server_index.value(),
                            *config.durability, base};
  ASSIGN_OR_RETURN(journal, journals->Open(spec, replay));
  absl::MutexLock lock(&accept_mutex);
  recorder.WriteTo(journal.get());
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

  if (request.count_rows) {
    done = [self = shared_from_this(), step = request.step,
            done = std::move(done)](absl::StatusOr<wire::PullAnswer> answer) {
      const bool ready = answer.ok() && answer->readiness == wire::Readiness::kReady;
      done(ready ? self->WithRowCounts(step, *std::move(answer)) : std::move(answer));
    };
  }

  absl::StatusOr<WaitingPulls::Admitted> admitted = ShuttingDown();
  {
    absl::MutexLock lock(&mutex);
    if (!shut_down) {
      admitted = waiting_pulls.Admit(request, *pushes, scheduler->NowMicros(), time_left_us, &done);
      ArmTimer();
    }
  }
  if (!admitted.ok()) return refuse(admitted.status());
  if (admitted->answer.has_value()) done(*admitted->answer);
  return admitted->ticket;
}

// Counts the rows after step - 1. They do not change meanwhile: the worker that waits for the
// counts has not pushed `step`.
absl::StatusOr<wire::PullAnswer> ServerCore::Impl::WithRowCounts(Step step,
                                                                 wire::PullAnswer answer) {
  if (answer.complete_through != step - 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("rows are to be counted before step ", step.value(), ", and step ",
                     answer.complete_through.value(), " is applied"));
  }
  TableSet& tables = job.load(std::memory_order_acquire)->tables;
  for (size_t i = 0; i < tables.size(); ++i) {
    EmbeddingTable& table = tables.at(i).table;
    if (!table.layout().CountsAfter(step - 1)) continue;
    wire::TableRowCounts& counts = answer.row_counts.emplace_back();
    counts.table = table.layout().id;
    for (const auto& [group, rows] : table.CountRows(step - 1)) {
      counts.groups.push_back(group);
      counts.rows.push_back(rows);
    }
  }
  return answer;
}

void ServerCore::Impl::DropPull(PullTicket ticket) {
  PullDone done;
  {
    absl::MutexLock lock(&mutex);
    done = waiting_pulls.Drop(ticket);
  }
  if (done) done(absl::CancelledError("the caller has gone"));
}

void ServerCore::Impl::ArmTimer() {
  const std::optional<int64_t> delay_us = waiting_pulls.ArmTimer(scheduler->NowMicros());
  if (!delay_us.has_value()) return;
  scheduler->RunAfter(*delay_us, [weak = weak_from_this()] {
    if (const std::shared_ptr<Impl> self = weak.lock()) self->ExpireHeldPulls();
  });
}

void ServerCore::Impl::ExpireHeldPulls() {
  std::vector<WaitingPulls::Released> expired;
  {
    absl::MutexLock lock(&mutex);
    expired = waiting_pulls.TakeExpired(*pushes, scheduler->NowMicros());
    ArmTimer();
  }
  for (const WaitingPulls::Released& pull : expired) pull.done(pull.answer);
}

// Pushes
// -----------------------------------------------------------------------------------------------

void ServerCore::Impl::Push(wire::PushChunk chunk, PushDone done) {
  if (recovering) return done(wire::PushAnswer{wire::Readiness::kRecovering, kNoStep});
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  {
    StageTimer::Scope scope(&validate_timer);
    const TraceSpan span("validate push", chunk.step, {"worker", chunk.header.rank.value()});
    const absl::Status valid = (*found)->validation.CheckPush(chunk);
    if (!valid.ok()) return done(valid);
    const absl::Status room = (*found)->tables.CheckRoom();
    if (!room.ok()) {
      {
        absl::MutexLock lock(&mutex);
        pushes->CountRefused();
      }
      return done(room);
    }
  }
  const Step step = chunk.step;
  bool apply = false;
  absl::StatusOr<wire::PushAnswer> answer = TakeChunk(std::move(chunk), &apply);
  if (journal != nullptr && answer.ok() && answer->accepted_through >= step) {
    // A repeated push too is acknowledged only once the first is certain.
    journal->WhenDurable([answer = *answer, done = std::move(done)](const absl::Status& durable) {
      durable.ok() ? done(answer) : done(durable);
    });
  } else {
    done(std::move(answer));
  }
  if (apply) RunApplier(*found);
}

// One critical section, of which `mutex` is held only where the state is read or changed.
absl::StatusOr<wire::PushAnswer> ServerCore::Impl::TakeChunk(wire::PushChunk chunk, bool* apply) {
  StageTimer::Scope scope(&accept_timer);
  const TraceSpan span("accept push", chunk.step, {"worker", chunk.header.rank.value()});
  absl::MutexLock accepting(&accept_mutex);
  PushState::BegunChunk begun;
  {
    absl::MutexLock lock(&mutex);
    if (shut_down) return ShuttingDown();
    ASSIGN_OR_RETURN(begun, pushes->BeginChunk(std::move(chunk)));
  }
  if (begun.answer.has_value()) return *begun.answer;
  absl::Status recorded = recorder.Record(begun);
  absl::MutexLock lock(&mutex);
  absl::StatusOr<wire::PushAnswer> answer = pushes->EndChunk(begun, std::move(recorded));
  *apply = StartApplying();
  return answer;
}

bool ServerCore::Impl::StartApplying() {
  if (applying || shut_down) return false;
  const bool cut = !recovering && CutIsDue();
  if (!cut && pushes->NextIsComplete() && OldImagesAreFull()) {
    // The thread that reads them for the checkpoint calls GoOnAfterRead once there is room.
    if (!std::exchange(waits_for_images, true)) owned_job->tables.CountOldImageWait();
    return false;
  }
  applying = pushes->NextIsComplete() || digest_waiting != nullptr || cut;
  return applying;
}

// Applies steps that waited for the reading of a checkpoint's rows. They run on the checkpoint's
// tasks, one step a task (RunApplier with kOne schedules the next). So the thread that reads goes
// on reading, and timers run in time however long a step takes.
void ServerCore::Impl::ScheduleApplier() {
  checkpoints.tasks->Run([weak = weak_from_this()] {
    const std::shared_ptr<Impl> self = weak.lock();
    if (self == nullptr) return;
    {
      absl::MutexLock lock(&self->mutex);
      if (!self->StartApplying()) return;
    }
    self->RunApplier(self->job.load(), Steps::kOne);
  });
}

// Applies complete steps, computes a digest that waits, and begins a cut that is due, until there
// is nothing to do. Pushes are accepted meanwhile; steps that they complete are applied here too,
// and before the digest. A cut comes before the step behind it. REQUIRES: this thread set
// `applying`.
void ServerCore::Impl::RunApplier(ServedJob* current_job, Steps steps) {
  for (bool first = true;; first = false) {
    std::optional<PushState::CompleteStep> step;
    DigestDone digest;
    Step cut;
    std::optional<Step> shard_base;
    {
      absl::MutexLock lock(&mutex);
      applying = false;
      if (!first && steps == Steps::kOne) break;
      if (!StartApplying()) return;
      cut = pushes->complete_through();
      if (CutIsDue()) {
        // A replay that goes on beyond the cut doesn't wait for its rows to be collected.
        if (recovering) cuts->Fail(cut, "this server was restarted, and replayed what is beyond");
        if (!recovering) shard_base = cuts->Begin(cut);
      }
      if (!shard_base.has_value()) {
        if (pushes->NextIsComplete()) {
          step = pushes->TakeNext();
        } else {
          digest = std::exchange(digest_waiting, nullptr);
        }
      }
    }
    if (shard_base.has_value()) {
      BeginCut(current_job, cut, *shard_base);
    } else if (step.has_value()) {
      const absl::Status applied = ApplyStep(current_job, *std::move(step));
      if (!applied.ok()) {
        // Accepted pushes must be applied, and this step can't be. Nothing is applied any more:
        // `applying` stays true.
        {
          absl::MutexLock lock(&mutex);
          apply_error = applied;
        }
        spill.on_broken(applied);
        return Shutdown();
      }
    } else if (digest) {
      AnswerDigest(*current_job, digest);
    }
  }
  ScheduleApplier();
}

absl::Status ServerCore::Impl::ApplyStep(ServedJob* current_job, PushState::CompleteStep step) {
  const absl::Status applied = [&] {
    const TraceSpan span("apply", step.step);
    return current_job->applier.Apply(step.pushes);
  }();
  if (!applied.ok()) {
    return absl::Status(applied.code(),
                        absl::StrCat("step ", step.step.value(), ": ", applied.message()));
  }
  std::vector<WaitingPulls::Released> released;
  {
    absl::MutexLock lock(&mutex);
    pushes->MarkApplied(step);
    released =
        waiting_pulls.TakeReady(*pushes, waiting_pulls.num_held() > 0 ? scheduler->NowMicros() : 0);
  }
  for (const WaitingPulls::Released& pull : released) pull.done(pull.answer);
  EndTraceOf(step.step);
  return absl::OkStatus();  // The pushes' memory goes back here, after the workers got their
                            // answers.
}

// Looking at rows
// ---------------------------------------------------------------------------------------------

void ServerCore::Impl::ComputeDigest(const std::string& job_id, uint64_t generation,
                                     DigestDone done) {
  const absl::StatusOr<ServedJob*> found = FindJob();
  if (!found.ok()) return done(found.status());
  const absl::Status valid = (*found)->validation.CheckJob(job_id, generation);
  if (!valid.ok()) return done(valid);
  absl::StatusOr<DigestAnswer> answer = ShuttingDown();
  bool apply = false;
  {
    absl::MutexLock lock(&mutex);
    const int64_t now_us = scheduler->NowMicros();
    if (shut_down) {
      // The answer says so.
    } else if (last_digest.has_value() &&
               last_digest->complete_through == pushes->complete_through()) {
      answer = *last_digest;
    } else if (digest_wanted) {
      answer = absl::ResourceExhaustedError("a digest is being computed already; come again");
    } else if (now_us < next_digest_us) {
      answer = absl::ResourceExhaustedError(
          absl::StrCat("a digest was computed just now; come again in ",
                       (next_digest_us - now_us) / 1000 + 1, " ms"));
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
  const int64_t begun_us = scheduler->NowMicros();
  const absl::StatusOr<Digest> digest = current_job.tables.ComputeDigest();
  DigestAnswer answer;
  answer.rows = current_job.tables.num_rows();
  {
    absl::MutexLock lock(&mutex);
    digest_wanted = false;
    const int64_t ended_us = scheduler->NowMicros();
    next_digest_us = ended_us + (ended_us - begun_us);
    if (digest.ok()) {
      answer.digest = *digest;
      answer.complete_through = pushes->complete_through();
      last_digest = answer;
    }
  }
  digest.ok() ? done(answer) : done(digest.status());
}

absl::Status ServerCore::Impl::VisitRows(TableId table, const RowVisitor& visit) {
  ASSIGN_OR_RETURN(ServedJob * current_job, FindJob());
  ASSIGN_OR_RETURN(TableSet::Entry * entry, current_job->FindTable(table));
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(this, &Impl::CanVisitRows));
    RETURN_IF_ERROR(apply_error);
    applying = true;
  }
  const absl::Status visited = entry->table.VisitRows(visit);
  RunApplier(current_job);  // Applies what was completed meanwhile, and ends `applying`.
  return visited;
}

// The rest
// ---------------------------------------------------------------------------------------------

void ServerCore::Impl::FillStats(ServerStats* stats) const {
  validate_timer.CopyTo("validate_push", stats->add_stages());
  accept_timer.CopyTo("accept_push", stats->add_stages());
  read_timer.CopyTo("read_rows", stats->add_stages());
  const ServedJob* current_job = job.load(std::memory_order_acquire);
  stats->set_configured(current_job != nullptr);
  stats->set_replayed_chunks(replayed_chunks.load());
  if (current_job != nullptr) {
    current_job->FillStats(stats);
    if (journal != nullptr) {
      stats->set_push_log_bytes(journal->bytes());
      stats->set_push_log_full(journal->full());
    }
  }
  stats->set_loaded_rows(loaded_rows.load());
  stats->set_checkpoint_step(kNoStep.value());
  stats->set_complete_through(kNoStep.value());
  absl::MutexLock lock(&mutex);
  waiting_pulls.FillStats(stats);
  stats->set_recovery_s(recovery_s);
  if (pushes.has_value()) pushes->FillStats(stats);
  if (cuts.has_value()) stats->set_checkpoint_step(cuts->committed().value());
}

void ServerCore::Impl::Shutdown() {
  std::vector<PullDone> dropped;
  DigestDone digest;
  std::shared_ptr<ShardWriter> writer;
  {
    absl::MutexLock lock(&mutex);
    shut_down = true;
    writer = std::move(shard_writer);
    dropped = waiting_pulls.TakeAll();
    digest = std::exchange(digest_waiting, nullptr);
  }
  for (const PullDone& done : dropped) done(ShuttingDown());
  if (digest) digest(ShuttingDown());
  if (writer != nullptr) writer->Stop();
}

ServerCore::ServerCore(const ServerLimits& limits, Scheduler* scheduler, JournalOpener* journals,
                       const CheckpointIo& checkpoints, const SpillIo& spill)
    : impl_(std::make_shared<Impl>(limits, scheduler, journals, checkpoints, spill)) {}
ServerCore::~ServerCore() { Shutdown(); }

absl::Status ServerCore::Configure(const ServerConfig& config) { return impl_->Configure(config); }
absl::Status ServerCore::CheckConfigured(const ServerConfig& config) const {
  return impl_->CheckConfigured(config);
}

PullTicket ServerCore::Pull(const wire::PullRequest& request, PullDone done, int64_t time_left_us) {
  return impl_->Pull(request, std::move(done), time_left_us);
}

void ServerCore::DropPull(PullTicket ticket) { impl_->DropPull(ticket); }

absl::Status ServerCore::ReadRows(TableId table, absl::Span<const Key> keys, bool with_state,
                                  uint8_t* rows, wire::PullKind kind) {
  StageTimer::Scope scope(&impl_->read_timer);
  ServedJob* job = impl_->job.load(std::memory_order_acquire);
  CHECK(job != nullptr);
  const absl::StatusOr<TableSet::Entry*> entry = job->FindTable(table);
  CHECK(entry.ok());
  const bool trains = kind == wire::PullKind::kTrain;
  ((*entry)->*(trains ? &TableSet::Entry::keys_pulled : &TableSet::Entry::keys_read))
      .fetch_add(keys.size(), std::memory_order_relaxed);
  // A training pull's rows are pushed soon.
  const auto read_back =
      trains ? EmbeddingTable::ReadBack::kKeep : EmbeddingTable::ReadBack::kLeave;
  return with_state ? (*entry)->table.GatherRows(keys, rows, read_back)
                    : (*entry)->table.GatherWeights(keys, rows, read_back);
}

absl::StatusOr<int> ServerCore::FloatsOf(TableId table, bool with_state) const {
  ASSIGN_OR_RETURN(ServedJob * job, impl_->FindJob());
  ASSIGN_OR_RETURN(const TableSet::Entry* entry, job->FindTable(table));
  const TableLayout& layout = entry->table.layout();
  return with_state ? layout.row_floats() : layout.dim;
}

bool ServerCore::MayReadDisk(TableId table) const {
  const ServedJob* job = impl_->job.load(std::memory_order_acquire);
  if (job == nullptr) return false;
  const size_t position = job->tables.Find(table);
  return position < job->tables.size() &&
         job->tables.at(position).table.layout().memory_budget_bytes > 0;
}

void ServerCore::Push(wire::PushChunk chunk, PushDone done) {
  impl_->Push(std::move(chunk), std::move(done));
}

void ServerCore::ComputeDigest(const std::string& job_id, uint64_t generation, DigestDone done) {
  impl_->ComputeDigest(job_id, generation, std::move(done));
}

void ServerCore::Checkpoint(const CheckpointRequest& request, CheckpointDone done) {
  impl_->Checkpoint(request, std::move(done));
}

absl::Status ServerCore::VisitRows(TableId table, const RowVisitor& visit) {
  return impl_->VisitRows(table, visit);
}

void ServerCore::FillStats(ServerStats* stats) const { impl_->FillStats(stats); }

void ServerCore::Shutdown() { impl_->Shutdown(); }

}  // namespace thermocline
