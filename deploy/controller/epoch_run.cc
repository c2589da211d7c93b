#include "deploy/controller/epoch_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/stopwatch.h"
#include "deploy/controller/json_number.h"
#include "deploy/controller/startup.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPollPeriod = absl::Milliseconds(100);
// Until a server that broke its connection is seen to be dead.
constexpr absl::Duration kDeathNotice = absl::Seconds(1);

constexpr absl::Duration kStatsTimeout = absl::Seconds(10);

// How often the servers are asked whether the job advances.
constexpr absl::Duration kLongestLookPeriod = absl::Seconds(1);
constexpr int kLooksWithinStallTimeout = 4;
// A process that doesn't answer keeps nothing else waiting for long.
constexpr absl::Duration kLookTimeout = absl::Seconds(2);

// Workers report how many steps there were.
Step LastStep(const std::vector<nlohmann::ordered_json>& results) {
  double steps = 0;
  for (const auto& result : results) steps = std::max(steps, NumberAt(result, "steps").value_or(0));
  return Step(std::llround(steps) - 1);
}

}  // namespace

EpochRun::EpochRun(const Job& job, const JobPrograms& programs, const RunDirectory& directory,
                   const EpochOptions& options, const EpochObserver& observer, SignalWatch* signals)
    : job_(job),
      programs_(programs),
      directory_(directory),
      options_(options),
      observer_(observer),
      supervisor_(signals),
      servers_(job, directory, &supervisor_),
      workers_(job, directory, &supervisor_) {
  if (!job.has_evaluate() || options.eval_only) return;
  evaluations_ = std::make_unique<EvaluationLoop>(job, options.start, options.evaluations);
}

absl::Status EpochRun::Train() {
  RETURN_IF_ERROR(servers_.Start(programs_.server));
  RETURN_IF_ERROR(WriteAddresses());
  RETURN_IF_ERROR(servers_.Configure(options_.start.epoch, options_.start.base, StallTimeout()));
  observer_.on_servers_up(servers_.addresses());
  if (job_.cluster().durability() != NONE) {
    supervisor_.set_server_replacer(
        [this](const ChildProcess& ended) { return ReplaceServer(ended); });
  }
  WorkerGroupOptions workers;
  workers.program = programs_.worker;
  workers.epoch = options_.start.epoch;
  workers.first_step = options_.start.first_step();
  workers.eval_only = options_.eval_only;
  workers.servers = servers_.addresses();
  RETURN_IF_ERROR(workers_.Start(workers, [this](absl::string_view data) {
    for (const EvaluationReport& report : observer_.on_metrics(data)) {
      if (evaluations_ != nullptr) evaluations_->Take(report);
    }
  }));
  RETURN_IF_ERROR(workers_.WaitUntilUp());
  // Only `stats --run-dir` misses it if this fails.
  WriteAddresses().IgnoreError();
  RETURN_IF_ERROR(StartCheckpoints());
  if (evaluations_ != nullptr) {
    RETURN_IF_ERROR(evaluations_->Begin(
        workers_.addresses(), checkpoints_ == nullptr ? nullptr : &checkpoints_->keeper()));
  }
  return WaitForWorkers();
}

absl::Status EpochRun::StartCheckpoints() {
  if (options_.checkpoints == nullptr) return absl::OkStatus();
  CheckpointLoop::Environment environment;
  environment.servers = &servers_;
  environment.worker_addresses = workers_.addresses();
  environment.store = options_.checkpoints;
  environment.run_directory = directory_.path();
  environment.samples_through = observer_.samples_through;
  if (evaluations_ != nullptr) {
    environment.evaluations_through = [&board = evaluations_->board()](Step cut) {
      return board.Through(cut);
    };
  }
  environment.build = programs_.build;
  ASSIGN_OR_RETURN(checkpoints_,
                   CheckpointLoop::Start(job_, options_.start, std::move(environment)));
  return absl::OkStatus();
}

// Whether the server is started again. Workers repeat what it didn't acknowledge.
bool EpochRun::ReplaceServer(const ChildProcess& ended) {
  if (server_given_up_) return false;
  for (size_t i = 0; i < servers_.addresses().size(); ++i) {
    if (ended.name() != ServerGroup::NameOf(i)) continue;
    const RestartPolicy::Decision decision =
        observer_.on_server_end(i, HowItEnded(ended), servers_.CameUp(i));
    if (!decision.restart) {
      server_given_up_ = true;
      return false;
    }
    const std::string base =
        checkpoints_ == nullptr ? options_.start.base : checkpoints_->keeper().RestartServer(i);
    if (!servers_.Restart(i, base, decision.delay).ok()) return false;
    ++restarts_;
    return true;
  }
  return false;
}

void EpochRun::ReportEvents() {
  if (checkpoints_ != nullptr) {
    for (const CheckpointEvent& event : checkpoints_->keeper().TakeEvents()) {
      observer_.on_checkpoint(event);
    }
  }
  if (evaluations_ == nullptr) return;
  for (const EvaluationEvent& event : evaluations_->TakeEvents()) observer_.on_evaluation(event);
}

absl::Status EpochRun::Broken() const {
  RETURN_IF_ERROR(servers_.restart_error());
  return checkpoints_ == nullptr ? absl::OkStatus() : checkpoints_->keeper().error();
}

// Work takes as long as it takes, as long as something advances.
absl::StatusOr<bool> EpochRun::WaitWhileAdvancing(const std::function<bool()>& done,
                                                  absl::string_view what, StallWatch* stall) {
  const absl::Duration limit = StallTimeout();
  const absl::Duration period = std::min(kLongestLookPeriod, limit / kLooksWithinStallTimeout);
  const Stopwatch watch;
  uint64_t written = CheckpointBytes();
  absl::Duration last_write;
  while (true) {
    const absl::Status ended = supervisor_.WaitUntil(done, period, kPollPeriod, what);
    if (ended.ok()) return true;
    if (!absl::IsDeadlineExceeded(ended)) return ended;
    ASSIGN_OR_RETURN(const std::vector<ServerReport> reports, servers_.GetStats(kLookTimeout));
    ASSIGN_OR_RETURN(const std::vector<WorkerReport> workers, workers_.GetStats(kLookTimeout));
    for (const WorkerReport& worker : workers) {
      if (!worker.stats.ok() || worker.stats->device().empty()) continue;
      observer_.on_device(worker.stats->worker_rank(), worker.stats->device_warning());
    }
    const absl::Duration now = watch.Elapsed();
    stall->Look(reports, workers, now);
    observer_.on_reached(stall->reached());
    ReportFullDisks(reports);
    if (stall->last_advance() == now) continue;
    const uint64_t bytes = CheckpointBytes();
    if (bytes != written) last_write = now;
    written = bytes;
    if (watch.Elapsed() - std::max(stall->last_advance(), last_write) >= limit) return false;
  }
}

void EpochRun::ReportFullDisks(const std::vector<ServerReport>& reports) {
  full_disks_.resize(reports.size());
  for (size_t i = 0; i < reports.size(); ++i) {
    if (!reports[i].stats.ok()) continue;
    const std::string& full = reports[i].stats->push_log_full();
    if (full.empty() != full_disks_[i].empty()) {
      observer_.on_notice(absl::StrCat(
          ServerGroup::NameOf(i),
          full.empty() ? " has room for its push log again; the job goes on"
                       : absl::StrCat(": ", full, "; the job waits until there is room")));
    }
    full_disks_[i] = full;
  }
}

// All that lies in the folders of checkpoints now: it changes while servers write.
uint64_t EpochRun::CheckpointBytes() const {
  if (options_.checkpoints == nullptr) return 0;
  uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(options_.checkpoints->directory(), error);
  for (; !error && entry != std::filesystem::end(entry); entry.increment(error)) {
    std::error_code no_file;  // It is a folder, or was removed meanwhile.
    const uint64_t size = entry->file_size(no_file);
    if (!no_file) bytes += size;
  }
  return bytes;
}

// A worker that loses its servers ends by itself.
absl::Status EpochRun::WaitForWorkers() {
  StallWatch stall(job_.cluster().servers());
  const auto ended = [this] {
    ReportEvents();
    return workers_.AllEnded() || !Broken().ok();
  };
  const absl::StatusOr<bool> waited = WaitWhileAdvancing(ended, "workers to end", &stall);
  ReportEvents();
  RETURN_IF_ERROR(Broken());
  RETURN_IF_ERROR(waited.status());
  return *waited ? absl::OkStatus() : EndStalled(stall);
}

absl::Status EpochRun::FinishCheckpoints() {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto results, workers_.ReadResults());
  CheckpointKeeper& keeper = checkpoints_->keeper();
  keeper.Finish(LastStep(results));
  const absl::Status finished = WaitAndReport([&] { return keeper.finished() || !Broken().ok(); },
                                              "the checkpoint of the last step");
  ReportEvents();
  RETURN_IF_ERROR(finished);
  RETURN_IF_ERROR(servers_.restart_error());
  return keeper.error();
}

absl::Status EpochRun::WaitAndReport(const std::function<bool()>& done, absl::string_view what) {
  StallWatch stall(job_.cluster().servers());
  ASSIGN_OR_RETURN(const bool is_done, WaitWhileAdvancing(done, what, &stall));
  if (is_done) return absl::OkStatus();
  std::string error =
      absl::StrCat("timed out: ", what, ": nothing has advanced for ",
                   absl::FormatDuration(StallTimeout()), " (cluster.stall_timeout_s)");
  const std::vector<size_t> servers = stall.ServersWaitedFor();
  if (!servers.empty()) absl::StrAppend(&error, ": ", stall.WhoIsWaitedFor({}), "; logs:");
  for (const size_t server : servers) absl::StrAppend(&error, "\n  | ", servers_.LogFile(server));
  return absl::DeadlineExceededError(error);
}

std::string EpochRun::Loss() {
  if (stalled_at_.has_value()) return stall_;
  const absl::Status lost_log = servers_.restart_error();
  if (absl::IsDataLoss(lost_log)) return std::string(lost_log.message());
  if (checkpoints_ != nullptr && absl::IsDataLoss(checkpoints_->keeper().error())) {
    return std::string(checkpoints_->keeper().error().message());
  }
  if (!lost_pushes_.empty()) return lost_pushes_;
  const std::vector<ProcessFailure> failures = supervisor_.Failures();
  if (failures.empty() || !RollbackMayHelp(failures)) return "";
  return DescribeFailures(failures);
}

absl::Status EpochRun::Uncertainty() const {
  if (checkpoints_ == nullptr) return absl::OkStatus();
  const absl::Status error = checkpoints_->keeper().error();
  return absl::IsUnavailable(error) ? error : absl::OkStatus();
}

EpochStart EpochRun::NextStart() const {
  EpochStart next = options_.start;
  if (checkpoints_ != nullptr) {
    next.base = checkpoints_->keeper().newest();
    next.base_step = checkpoints_->keeper().newest_step();
  }
  next.base_samples = next.base.empty() ? 0 : observer_.samples_through(next.base_step);
  ++next.epoch;
  return next;
}

// How long a job may do nothing; infinite where the user wants no limit.
absl::Duration EpochRun::StallTimeout() const {
  const uint32_t seconds = job_.cluster().stall_timeout_s();
  return seconds == 0 ? absl::InfiniteDuration() : absl::Seconds(seconds);
}

absl::Status EpochRun::EndStalled(const StallWatch& stall) {
  const std::vector<uint32_t> running = workers_.RunningRanks();
  stalled_at_ = stall.reached();
  stall_ = absl::StrCat("nothing has advanced for ", absl::FormatDuration(StallTimeout()),
                        " (cluster.stall_timeout_s): ", stall.WhoIsWaitedFor(running));
  std::string logs;
  for (const size_t server : stall.ServersWaitedFor()) {
    absl::StrAppend(&logs, "\n  | ", servers_.LogFile(server));
  }
  for (const uint32_t rank : stall.Behind(running)) {
    absl::StrAppend(&logs, "\n  | ", workers_.LogFile(rank));
  }
  return absl::DeadlineExceededError(absl::StrCat(stall_, "; logs:", logs));
}

absl::Status EpochRun::WriteAddresses() const {
  nlohmann::ordered_json json;
  json["job"] = job_.name();
  json["servers"] = servers_.addresses();
  json["workers"] = workers_.addresses();
  return directory_.Write("servers.json", json.dump(2) + "\n");
}

absl::StatusOr<Digest> EpochRun::AskServers(std::vector<ServerReport>* reports) {
  while (true) {
    const uint32_t restarts = restarts_;
    absl::StatusOr<Digest> digest = AskServersOnce(reports);
    if (!absl::IsUnavailable(digest.status())) return digest;
    const absl::Status dead = supervisor_.WaitUntil([&] { return restarts_ > restarts; },
                                                    kDeathNotice, kPollPeriod, "a restart");
    if (absl::IsDeadlineExceeded(dead)) return digest;
    RETURN_IF_ERROR(dead);
    RETURN_IF_ERROR(
        WaitAndReport([this] { return servers_.AllRecovered(); }, "servers to recover"));
    RETURN_IF_ERROR(servers_.restart_error());
  }
}

// Stats, then the digest: reading all rows for it would show in them.
absl::StatusOr<Digest> EpochRun::AskServersOnce(std::vector<ServerReport>* reports) {
  ASSIGN_OR_RETURN(*reports, servers_.GetStats(kStatsTimeout));
  for (const ServerReport& report : *reports) RETURN_IF_ERROR(report.stats.status());
  ASSIGN_OR_RETURN(const auto results, workers_.ReadResults());
  auto digest = servers_.GetDigest(options_.start.epoch, LastStep(results), StallTimeout());
  if (absl::IsDataLoss(digest.status())) lost_pushes_ = std::string(digest.status().message());
  return digest;
}

void EpochRun::Stop(absl::Duration grace) {
  if (evaluations_ != nullptr) evaluations_->Stop();  // It asks for checkpoints.
  if (checkpoints_ != nullptr) checkpoints_->Stop();
  ReportEvents();
  supervisor_.Stop(ProcessRole::kWorker, grace);
  servers_.Disconnect();
  supervisor_.Stop(ProcessRole::kServer, grace);
  // What stays costs nothing but somebody's attention.
  if (checkpoints_ != nullptr) options_.checkpoints->RemoveEmptyFolders().IgnoreError();
}

}  // namespace thermocline
