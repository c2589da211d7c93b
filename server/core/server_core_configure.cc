// How a server gets its job, and where its rows come from.
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "proto/parameter_server.pb.h"
#include "server/core/base_checkpoint.h"
#include "server/core/server_core_impl.h"

namespace thermocline {

namespace {

// A server that was restarted is configured again: a caller that comes before that comes again.
absl::Status NotConfigured() { return absl::UnavailableError("this server is not configured yet"); }

// A launcher that gets kUnavailable asks again, since the server might not be up yet. This one is
// up, and won't get further than it did.
absl::Status ForGood(const absl::Status& status) {
  if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
  return absl::AbortedError(status.message());
}

// What other callers get then: an error after which they do not try again. For lost data a job may
// go back to a checkpoint.
absl::Status CantRecover(const absl::Status& why) {
  const absl::StatusCode code =
      absl::IsDataLoss(why) ? absl::StatusCode::kDataLoss : absl::StatusCode::kAborted;
  return absl::Status(code, absl::StrCat("this server can't recover: ", why.message()));
}

}  // namespace

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

// Nobody else uses the tables, the applier or the pushes before `job` is set.
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
  const auto replay = [&](wire::PushChunk&& shard) -> absl::Status {
    RETURN_IF_ERROR(new_job->validation.CheckPush(shard));
    RETURN_IF_ERROR(new_job->tables.CheckRoom());
    {
      absl::MutexLock lock(&mutex);
      if (shut_down) return ShuttingDown();
      RETURN_IF_ERROR(pushes->ReplayChunk(std::move(shard)));
      applying = pushes->NextIsComplete();
    }
    ++replayed_chunks;
    RunApplier(new_job);
    absl::MutexLock lock(&mutex);
    return shut_down ? ShuttingDown() : absl::OkStatus();  // What can't be applied ends it, too.
  };
  const ServerConfig& config = new_job->config;
  const JournalSpec spec = {config.job_id, config.generation, config.server_index.value(),
                            *config.durability, base};
  ASSIGN_OR_RETURN(journal, journals->Open(spec, replay));
  absl::MutexLock lock(&accept_mutex);
  recorder.WriteTo(journal.get());
  return absl::OkStatus();
}

}  // namespace thermocline
