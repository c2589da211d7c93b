#include "tests/simulation/sim_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/verify_checkpoint.h"
#include "deploy/controller/resume.h"
#include "proto/parameter_server.pb.h"
#include "tests/simulation/sim_checks.h"

namespace thermocline {
namespace {

constexpr int64_t kTimeLimitMicros = int64_t{600} * 1'000'000;
constexpr int64_t kStallMicros = int64_t{60} * 1'000'000;
constexpr int kMaxWritesBeforeDeath = 12;
// Of what worker 0 reports, and of what the workers are told.
constexpr int64_t kReportMicros = 50'000;
constexpr int64_t kDecisionMicros = 50'000;

DiskDeceptions DeceptionsOf(PlantedFault planted) {
  DiskDeceptions deceptions;
  deceptions.names = planted == PlantedFault::kUnsyncedNames;
  return deceptions;
}

}  // namespace

void SimJobCounters::Add(const SimJobCounters& other) {
  launcher_deaths += other.launcher_deaths;
  launcher_hosts += other.launcher_hosts;
  broken_writes += other.broken_writes;
  worker_deaths += other.worker_deaths;
  rollbacks += other.rollbacks;
  resumes += other.resumes;
  resized += other.resized;
  restored += other.restored;
  lost_logs += other.lost_logs;
  stalls += other.stalls;
  checkpoints.Add(other.checkpoints);
  evaluations.Add(other.evaluations);
}

SimJob::SimJob(uint64_t seed, const SimSetup& setup, PlantedFault planted,
               std::vector<std::string>* failures)
    : seed_(seed),
      setup_(setup),
      failures_(*failures),
      random_(Mix64(seed)),
      host_random_(seed),
      model_(setup.tables, seed, setup.num_workers),
      saboteur_(planted, seed, setup.staleness_steps),
      launcher_disk_(&disk_, DeceptionsOf(planted)),
      store_(&launcher_disk_, kSimCheckpoints),
      num_servers_(setup.num_servers),
      num_workers_(setup.num_workers),
      deaths_left_(setup.launcher.max_deaths),
      worker_deaths_left_(setup.launcher.max_worker_deaths) {
  MakeServers();
  BeginEpoch({});
}

SimJob::~SimJob() { EndEpoch(); }

void SimJob::MakeServers() {
  SimServerEvents events;
  events.on_serving = [this](SimServer* server) { OnServing(server); };
  events.on_lost = [this](SimServer* server, const std::string& why) { OnServerLost(server, why); };
  events.on_restart = [this](SimServer* server) {
    if (launcher_ == nullptr || saboteur_.Has(PlantedFault::kOldBases)) return start_.base;
    return launcher_->keeper().RestartServer(server->index().value());
  };
  std::vector<SimServer*> servers;
  for (uint32_t i = 0; i < kMaxServers; ++i) {
    SimServerOptions options;
    options.index = ServerIndex(i);
    options.limits = setup_.limits;
    options.faults = setup_.crashes;
    if (i == 0) options.overload = setup_.overload;
    options.seed = random_.Next();
    servers_.push_back(std::make_unique<SimServer>(
        options, events, setup_.checkpoints.has_value() ? disk_.Share() : nullptr, &scheduler_,
        &saboteur_, &failures_));
    servers.push_back(servers_.back().get());
  }
  network_ =
      std::make_unique<SimNetwork>(random_.Next(), setup_.faults, servers, &scheduler_, &saboteur_);
}

std::vector<SimServer*> SimJob::servers() const {
  std::vector<SimServer*> servers;
  for (uint32_t i = 0; i < num_servers_; ++i) servers.push_back(servers_[i].get());
  return servers;
}

ServerConfig SimJob::ConfigFor(ServerIndex index) const {
  ServerConfig config;
  config.job_id = kSimJobId;
  config.epoch = start_.epoch;
  config.server_index = index;
  config.num_servers = num_servers_;
  config.num_workers = num_workers_;
  config.seed = seed_;
  config.staleness_steps = setup_.staleness_steps;
  config.durability = setup_.durability;
  config.tables = setup_.tables;
  if (!setup_.checkpoints.has_value()) return config;
  config.checkpoint_directory = kSimCheckpoints;
  config.base_checkpoint = start_.base;
  config.checkpoint_every_steps = setup_.checkpoints->every_steps;
  config.checkpoint_full_every = setup_.checkpoints->full_every;
  return config;
}

// Epochs
// ------------------------------------------------------------------------------------------------

void SimJob::BeginEpoch(const EpochStart& start) {
  if (start.base_step < newest_committed_) {
    Fail(absl::StrCat("the checkpoint of step ", newest_committed_.value(),
                      " was committed, and the next epoch begins behind step ",
                      start.base_step.value()));
  }
  start_ = start;
  trace_ = Mix64(trace_ ^ Mix64(start.epoch) ^ static_cast<uint64_t>(start.base_step.value()));
  if (!start.base.empty()) ++counters_.restored;
  if (setup_.checkpoints.has_value()) {
    JobState state;
    state.set_job_id(kSimJobId);
    state.set_epoch(start.epoch);
    state.set_base_checkpoint(start.base);
    absl::Status written = store_.Prepare();
    if (written.ok()) written = store_.WriteJobState(state);
    if (!written.ok()) return Later(0, &SimJob::KillLauncher);
  }
  model_.RollBack(start.base_step, num_workers_);
  training_ = lost_ = false;
  const absl::Status evaluations = BeginEvaluations();
  if (!evaluations.ok()) return Fail(evaluations.ToString());
  for (SimServer* server : servers()) server->BeginEpoch(ConfigFor(server->index()));
}

absl::Status SimJob::BeginEvaluations() {
  if (!setup_.evaluations.has_value()) return absl::OkStatus();
  EvaluationState before;
  if (!start_.base.empty()) {
    ASSIGN_OR_RETURN(const CheckpointManifest base, store_.Load(start_.base));
    before = base.evaluations();
  }
  const std::unique_ptr<SimEvaluations> old = std::move(evaluations_);
  evaluations_ =
      std::make_unique<SimEvaluations>(*setup_.evaluations, start_.epoch, before, old.get(),
                                       [this](Step step, bool stop) { OnDecided(step, stop); });
  if (old != nullptr && saboteur_.Has(PlantedFault::kOldEvaluations)) evaluations_->TakeOld(*old);
  return absl::OkStatus();
}

// On its way to the launcher.
void SimJob::OnScored(Step step, double score) {
  Later(random_.Between(0, kReportMicros), [this, step, score] {
    evaluations_->Take(step, score, launcher_ == nullptr ? nullptr : &launcher_->keeper(),
                       launcher_ended_);
  });
}

// Every worker hears of it, and maybe again after a while.
void SimJob::OnDecided(Step step, bool stop) {
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    const auto tell = [this, step, stop, rank] {
      if (workers_[rank] != nullptr) workers_[rank]->Decide(step, stop);
    };
    Later(random_.Between(0, kDecisionMicros), tell);
    if (random_.Chance(0.3)) Later(random_.Between(0, 10 * kDecisionMicros), tell);
  }
}

// Whatever it began with, it holds what the model held after the same step.
void SimJob::OnServing(SimServer* server) {
  CheckServerRows(model_, setup_.tables, num_servers_, server, &failures_);
  const std::vector<SimServer*> all = servers();
  if (training_ || finished_ ||
      !std::all_of(all.begin(), all.end(), [](SimServer* s) { return s->serving(); })) {
    return;
  }
  training_ = true;
  for (uint32_t rank = 0; rank < num_workers_; ++rank) AddWorker(WorkerRank(rank));
  if (setup_.checkpoints.has_value()) StartLauncher();
  for (size_t rank = 0; rank < workers_.size(); ++rank) workers_[rank]->Start();
}

void SimJob::AddWorker(WorkerRank rank) {
  SimWorkerOptions options;
  options.seed = random_.Next();
  options.data_seed = seed_;
  options.rank = rank;
  options.num_servers = num_servers_;
  options.staleness_steps = setup_.staleness_steps;
  options.start_step = start_.first_step();
  options.num_steps = setup_.num_steps;
  if (setup_.checkpoints.has_value()) {
    options.checkpoint_every_steps = setup_.checkpoints->every_steps;
  }
  if (setup_.evaluations.has_value()) {
    options.evaluate_every_steps = setup_.evaluations->every_steps;
  }
  options.num_keys = setup_.num_keys;
  options.keys_per_table = setup_.keys_per_table;
  if (rank == WorkerRank(0)) options.compute_us = setup_.slow_rank_us;
  options.tables = setup_.tables;
  PsSessionOptions session;
  session.job_id = kSimJobId;
  session.epoch = start_.epoch;
  session.rank = rank;
  session.num_servers = num_servers_;
  session.staleness_steps = setup_.staleness_steps;
  session.tables = setup_.tables;
  session.start_step = start_.first_step();
  session.max_part_bytes = setup_.max_part_bytes;
  session.max_calls_in_flight = static_cast<int>(random_.Between(1, 16));
  session.rpc_deadline_us = random_.Between(10'000, 300'000);
  session.give_up_us = kSimGiveUpMicros;
  session.jitter_seed = random_.Next();
  workers_.push_back(std::make_unique<SimWorker>(
      options, session,
      [this](SimWorker* worker, const absl::Status& why) { OnWorkerLost(worker, why); },
      [this](Step step, double score) { OnScored(step, score); }, network_->Connect(), &scheduler_,
      &model_, &failures_));
}

void SimJob::StartLauncher() {
  SimLauncherOptions options;
  options.seed = random_.Next();
  options.job_id = kSimJobId;
  options.faults = setup_.launcher;
  options.servers = servers();
  options.num_workers = num_workers_;
  options.worker = [this](size_t rank) {
    return rank < workers_.size() ? workers_[rank].get() : nullptr;
  };
  options.ended = launcher_ended_;
  CheckpointKeeperOptions& keeper = options.keeper;
  keeper.manifest.set_format_version(kCheckpointFormatVersion);
  keeper.manifest.set_job_id(kSimJobId);
  keeper.manifest.set_epoch(start_.epoch);
  keeper.manifest.set_num_servers(num_servers_);
  keeper.manifest.set_num_workers(num_workers_);
  keeper.manifest.set_seed(seed_);
  for (const TableLayout& table : setup_.tables) {
    *keeper.manifest.add_tables() = TableLayoutToProto(table);
  }
  keeper.base = start_.base;
  keeper.base_step = start_.base_step;
  keeper.every_steps = setup_.checkpoints->every_steps;
  keeper.at_end = setup_.checkpoints->at_end;
  keeper.keep = setup_.checkpoints->keep;
  if (setup_.durability.has_value()) keeper.max_log_bytes = setup_.checkpoints->max_log_bytes;
  keeper.staleness_steps = setup_.staleness_steps;
  if (evaluations_ != nullptr) {
    keeper.evaluations_through = [this](Step cut) { return evaluations_->board().Through(cut); };
  }
  launcher_ = std::make_unique<SimLauncher>(std::move(options), &store_, &scheduler_, &saboteur_,
                                            &failures_);
  Later(0, &SimJob::Tick);
}

void SimJob::EndEpoch() {
  max_staleness_ = max_staleness();
  workers_.clear();
  for (const auto& server : servers_) server->End();
  counters_ = counters();
  launcher_.reset();
}

// Losses
// ------------------------------------------------------------------------------------------------

void SimJob::OnServerLost(SimServer* server, const std::string& why) {
  if (!setup_.checkpoints.has_value()) {
    return Fail(absl::StrCat("server ", server->index().value(), " is lost: ", why));
  }
  GoBackSoon();
}

void SimJob::OnWorkerLost(SimWorker* worker, const absl::Status& why) {
  OnLoss(absl::StrCat("rank ", worker->rank().value(), ": ", why.ToString()));
}

// Somebody misses what a server had acknowledged: nobody may say so unless that is so.
void SimJob::OnLoss(const std::string& what) {
  const std::vector<SimServer*> all = servers();
  if (!setup_.checkpoints.has_value() ||
      std::none_of(all.begin(), all.end(), [](SimServer* s) { return s->lacks_acknowledged(); })) {
    return Fail(what);
  }
  if (!lost_) ++counters_.lost_logs;
  GoBackSoon();
}

void SimJob::GoBackSoon() {
  if (std::exchange(lost_, true)) return;
  Later(random_.Between(0, setup_.checkpoints->notice_us), &SimJob::RollBack);
}

void SimJob::RollBack() {
  if (finished_) return;
  if (polling_) {
    if (after_poll_ == nullptr) after_poll_ = &SimJob::RollBack;
    return;
  }
  if (launcher_ != nullptr && absl::IsUnavailable(launcher_->keeper().error())) {
    return KillLauncher();
  }
  EpochStart next = start_;
  ++next.epoch;
  if (launcher_ != nullptr) {
    next.base = launcher_->keeper().newest();
    next.base_step = launcher_->keeper().newest_step();
  }
  ++counters_.rollbacks;
  EndEpoch();
  BeginEpoch(next);
}

// The launcher
// ------------------------------------------------------------------------------------------------

void SimJob::Later(int64_t delay_us, void (SimJob::*task)()) {
  Later(delay_us, [this, task] { (this->*task)(); });
}

void SimJob::Later(int64_t delay_us, const std::function<void()>& task) {
  scheduler_.RunAfter(delay_us, [this, ended = launcher_ended_, epoch = start_.epoch, task] {
    if (!*ended && epoch == start_.epoch) task();
  });
}

bool SimJob::Spend(int* budget, double probability) {
  if (*budget == 0 || !random_.Chance(probability)) return false;
  --*budget;
  return true;
}

void SimJob::MaybeFail() {
  const LauncherFaults& faults = setup_.launcher;
  if (random_.Chance(faults.fail_write)) {
    disk_.FailAfter(static_cast<int>(random_.Below(kMaxWritesBeforeDeath)));
  }
  if (Spend(&deaths_left_, faults.break_write)) {
    disk_.DieAfter(static_cast<int>(random_.Below(kMaxWritesBeforeDeath)),
                   [this] { OnLauncherDiskDeath(); });
  }
  if (!lost_ && !WorkersDone() && Spend(&worker_deaths_left_, faults.stop_worker)) {
    ++counters_.worker_deaths;
    max_staleness_ = max_staleness();
    workers_[random_.Below(workers_.size())].reset();
    GoBackSoon();
  }
}

// One round of the launcher.
void SimJob::Tick() {
  MaybeFail();
  if (Spend(&deaths_left_, setup_.launcher.stop)) return KillLauncher();
  polling_ = true;
  launcher_->Poll();
  polling_ = false;
  if (const auto task = std::exchange(after_poll_, nullptr)) return (this->*task)();
  if (*launcher_ended_) return;
  CheckCommitted();
  CheckpointKeeper& keeper = launcher_->keeper();
  if (absl::IsDataLoss(keeper.error())) {
    OnLoss(absl::StrCat("the end: ", keeper.error().ToString()));
  } else if (!keeper.error().ok()) {
    return KillLauncher();  // Somebody has to start it again.
  }
  if (keeper.finished() && !lost_) {
    finished_ = true;
    return;
  }
  if (WorkersDone()) keeper.Finish(last_step());
  if (!lost_ && HasStalled()) {
    ++counters_.stalls;
    if (std::none_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->done(); })) {
      Fail("nothing advances, and somebody should have noticed why");
    }
    OnLoss("nothing advances");
  }
  Later(random_.Between(1, setup_.checkpoints->poll_us), &SimJob::Tick);
}

// What was committed can be read, every byte, and is the model after that step, with what workers
// alone would hold.
void SimJob::CheckCommitted() {
  for (const std::string& name : launcher_->TakeCommitted()) {
    const Step cut = ParseCheckpointName(name)->step;
    newest_committed_ = std::max(newest_committed_, cut);
    const auto manifest = store_.Load(name);
    const bool is_newest = launcher_->keeper().newest() == name;
    if (absl::IsNotFound(manifest.status()) && !is_newest) continue;  // It was not kept.
    if (!manifest.ok()) return Fail(manifest.status().ToString());
    const auto verified = VerifyCheckpoint(&disk_, kSimCheckpoints, *manifest);
    if (!verified.ok()) return Fail(verified.status().ToString());
    if (!(verified->model_digest == DigestOf(model_.RowsAfter(cut)))) {
      Fail(absl::StrCat("checkpoint ", name, " is not the model of its step"));
    }
    for (const auto& worker : workers_) {
      if (worker == nullptr || worker->WritesBackAt(cut)) continue;
      Fail(absl::StrCat("checkpoint ", name, " lacks what rank ", worker->rank().value(),
                        " holds: it didn't know of the cut"));
    }
  }
}

// As a launcher's stall timeout. What makes it necessary: a worker that has ended hears of no loss.
bool SimJob::HasStalled() {
  uint64_t progress = start_.epoch;
  for (SimServer* server : servers()) {
    ServerStats stats;
    if (server->core() != nullptr) server->core()->FillStats(&stats);
    progress = Mix64(progress ^ static_cast<uint64_t>(stats.complete_through()));
    for (const int64_t step : stats.accepted_through()) {
      progress = Mix64(progress ^ static_cast<uint64_t>(step));
    }
  }
  if (std::exchange(progress_, progress) != progress) progress_us_ = scheduler_.NowMicros();
  return scheduler_.NowMicros() - progress_us_ > kStallMicros;
}

void SimJob::OnLauncherDiskDeath() {
  if (*launcher_ended_) return;
  *launcher_ended_ = true;
  ++counters_.broken_writes;
  scheduler_.RunAfter(0, [this] { KillLauncher(); });
}

void SimJob::KillLauncher() {
  *launcher_ended_ = true;
  if (polling_) {
    after_poll_ = &SimJob::KillLauncher;
    return;
  }
  ++counters_.launcher_deaths;
  EndEpoch();
  if (random_.Chance(setup_.launcher.take_host)) {
    ++counters_.launcher_hosts;
    disk_.CrashHost(&host_random_);
  } else {
    disk_.CrashProcess();
  }
  launcher_ended_ = std::make_shared<bool>(false);
  Later(random_.Between(1, setup_.checkpoints->notice_us), &SimJob::Resume);
}

void SimJob::Resume() {
  ++counters_.resumes;
  Resize();
  const auto next = FindNextEpoch(store_, kSimJobId, "");
  if (next.ok()) return BeginEpoch(next->start);
  if (!absl::IsNotFound(next.status())) return Fail(next.status().ToString());
  BeginEpoch({});
}

void SimJob::Resize() {
  const uint32_t servers = num_servers_, workers = num_workers_;
  // With a limit on what is pending there is room for one push of every worker, and no more.
  const bool limited =
      setup_.limits.max_pending_push_bytes != ServerLimits().max_pending_push_bytes;
  if (setup_.launcher.resizes_servers) {
    num_servers_ = static_cast<uint32_t>(random_.Between(1, kMaxServers));
  }
  if (setup_.launcher.resizes_workers && !limited) {
    num_workers_ = static_cast<uint32_t>(random_.Between(1, 4));
  }
  if (servers != num_servers_ || workers != num_workers_) ++counters_.resized;
}

// The run
// ------------------------------------------------------------------------------------------------

bool SimJob::WorkersDone() const {
  return training_ && !workers_.empty() &&
         std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker != nullptr && worker->done(); });
}

void SimJob::Run() {
  while (!finished_ && failures_.empty()) {
    if (!scheduler_.RunNext() || scheduler_.NowMicros() > kTimeLimitMicros) {
      Fail("the job is stuck");
    }
    if (!setup_.checkpoints.has_value() && WorkersDone()) finished_ = true;
  }
}

void SimJob::CrashServers() {
  // Only what is on the medium for sure comes back with certainty.
  const bool host = setup_.crashes.take_host > 0;
  if (host && setup_.durability != LogDurability::kHost) return;
  for (SimServer* server : servers()) server->Crash();
}

void SimJob::Drain() {
  for (SimServer* server : servers()) {
    if (!setup_.durability.has_value() || setup_.checkpoints.has_value()) server->Spare();
  }
  while (scheduler_.RunNext()) {
  }
}

uint64_t SimJob::max_staleness() const {
  uint64_t max = max_staleness_;
  for (const auto& worker : workers_) {
    if (worker != nullptr) max = std::max(max, worker->max_staleness());
  }
  return max;
}

SimJobCounters SimJob::counters() const {
  SimJobCounters sum = counters_;
  if (launcher_ != nullptr) sum.checkpoints.Add(launcher_->counters());
  if (evaluations_ != nullptr) sum.evaluations.Add(evaluations_->counters());
  return sum;
}

SimServerCounters SimJob::server_counters() const {
  SimServerCounters sum;
  for (const auto& server : servers_) sum.Add(server->counters());
  return sum;
}

uint64_t SimJob::trace() const {
  uint64_t trace = Mix64(trace_ ^ network_->trace());
  for (const auto& server : servers_) trace = Mix64(trace ^ server->trace());
  return trace;
}

void SimJob::Fail(const std::string& what) {
  failures_.push_back(
      absl::StrCat("epoch ", start_.epoch, ", at ", scheduler_.NowMicros(), " us: ", what));
}

}  // namespace thermocline
