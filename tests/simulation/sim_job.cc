#include "tests/simulation/sim_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/base/process_limits.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/verify_checkpoint.h"
#include "common/job/data_place.h"
#include "deploy/checkpoints/resume.h"
#include "proto/parameter_server.pb.h"
#include "tests/simulation/sim_checks.h"

namespace thermocline {
namespace {

constexpr int64_t kTimeLimitMicros = int64_t{600} * 1'000'000;
constexpr uint32_t kStallSeconds = 60;
constexpr int kMaxLauncherWrites = 12;
// Between two rounds of the launcher in a job without checkpoints.
constexpr int64_t kPollMicros = 20'000;
// Between two rounds of checkpoints of the job machine.
constexpr int64_t kRoundMicros = 200'000;

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
  older += other.older;
  left += other.left;
  made_again += other.made_again;
  lost_logs += other.lost_logs;
  stalls += other.stalls;
  user_stops += other.user_stops;
  job_faults += other.job_faults;
  changes += other.changes;
  amid += other.amid;
  failures += other.failures;
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
      nonces_(Mix64(seed ^ 1)),
      num_servers_(setup.num_servers),
      num_workers_(setup.num_workers),
      deaths_left_(setup.launcher.max_deaths),
      host_losses_left_(setup.launcher.max_host_losses),
      worker_deaths_left_(setup.launcher.max_worker_deaths) {
  MakeServers();
  MakeStore();
  if (setup.evaluations.has_value()) {
    evaluations_ = std::make_unique<SimEvaluations>(*setup.evaluations);
  }
  if (setup.schedule.has_value()) schedule_.emplace(*setup.schedule, setup.num_steps);
  StartLauncher({});
}

SimJob::~SimJob() { StopProcesses(); }

void SimJob::MakeServers() {
  SimServerEvents events;
  events.on_serving = [this](SimServer* server) { OnServing(server); };
  events.on_ended = [this](SimServer* server) {
    if (runner_ != nullptr) runner_->OnServerEnded(server->index().value());
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
  if (setup_.exchange.has_value()) held_ = HeldTables(*setup_.exchange, setup_.tables);
  const StreamFaults faults = setup_.exchange.value_or(ExchangeSetup()).streams;
  streams_ = std::make_unique<SimStreams>(Mix64(seed_ ^ 2), faults, /*is_cut=*/nullptr, &scheduler_,
                                          &saboteur_);
}

// A controller knows nothing of what the one before knew.
void SimJob::MakeStore() {
  store_.emplace(&launcher_disk_, kSimCheckpoints, [this] { return nonces_.Next(); });
}

std::vector<SimServer*> SimJob::servers() const {
  std::vector<SimServer*> servers;
  for (uint32_t i = 0; i < num_servers_; ++i) servers.push_back(servers_[i].get());
  return servers;
}

ServerConfig SimJob::ConfigFor(ServerIndex index) const {
  ServerConfig config;
  config.job_id = kSimJobId;
  config.generation = start_.generation;
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
  config.base_generation = start_.base_generation;
  config.checkpoint_every_steps = setup_.checkpoints->every_steps;
  config.checkpoint_full_every = setup_.checkpoints->full_every;
  return config;
}

// Launchers and generations
// ------------------------------------------------------------------------------------------------

void SimJob::Later(int64_t delay_us, const std::function<void()>& task) {
  scheduler_.RunAfter(delay_us, [ended = launcher_ended_, task] {
    if (!*ended) task();
  });
}

JobMachineOptions SimJob::MachineOptions(const GenerationStart& start) const {
  JobMachineOptions machine;
  machine.start = start;
  machine.is_resumed = start.generation > 1;
  machine.introduces_workers = num_workers_ > 1 && setup_.staleness_steps == 0;
  Job& job = machine.job;
  job.set_name(kSimJobId);
  job.set_seed(seed_);
  job.mutable_train()->set_staleness_steps(setup_.staleness_steps);
  job.mutable_train()->set_batch_size(1);
  Cluster& cluster = *job.mutable_cluster();
  cluster.set_servers(num_servers_);
  cluster.set_workers(num_workers_);
  if (setup_.durability.has_value()) {
    cluster.set_durability(*setup_.durability == LogDurability::kHost ? LOG_SYNC : LOG_ASYNC);
  }
  const bool no_limit = saboteur_.Has(PlantedFault::kExtraRestarts);
  cluster.set_max_server_restarts(no_limit ? 1000 : setup_.max_server_restarts);
  cluster.set_startup_timeout_s(1'000'000);
  cluster.set_host_wait_s(1'000'000);
  machine.num_hosts = setup_.num_hosts;
  cluster.set_stall_timeout_s(kStallSeconds * static_cast<uint32_t>(ClockSpeed()));
  if (setup_.evaluations.has_value()) {
    job.mutable_evaluate()->set_every_steps(setup_.evaluations->every_steps);
    job.mutable_evaluate()->set_patience(setup_.evaluations->patience);
    job.mutable_evaluate()->set_keep_best(setup_.checkpoints.has_value());
  }
  if (schedule_.has_value()) *job.mutable_fae() = schedule_->job.fae();
  for (uint32_t i = 0; i < num_servers_; ++i) machine.server_logs.push_back("a log");
  for (uint32_t i = 0; i < num_workers_; ++i) machine.worker_logs.push_back("a log");
  if (!setup_.checkpoints.has_value()) return machine;
  auto& checkpoint = *job.mutable_checkpoint();
  checkpoint.set_directory(kSimCheckpoints);
  checkpoint.set_every_steps(setup_.checkpoints->every_steps);
  checkpoint.set_at_end(setup_.checkpoints->at_end);
  checkpoint.set_keep(setup_.checkpoints->keep);
  checkpoint.set_max_rollbacks(setup_.max_rollbacks);
  machine.max_log_bytes = setup_.checkpoints->max_log_bytes;
  machine.manifest.set_format_version(kCheckpointFormatVersion);
  machine.manifest.set_job_id(kSimJobId);
  machine.manifest.set_num_servers(num_servers_);
  machine.manifest.set_num_workers(num_workers_);
  machine.manifest.set_seed(seed_);
  for (const TableLayout& table : setup_.tables) {
    *machine.manifest.add_tables() = TableLayoutToProto(table);
  }
  return machine;
}

// So that the launcher's rounds come as often as the setup says.
int64_t SimJob::ClockSpeed() const {
  const int64_t poll_us =
      setup_.checkpoints.has_value() ? setup_.checkpoints->poll_us : kPollMicros;
  return std::max<int64_t>(1, kRoundMicros / poll_us);
}

SimWorld SimJob::World() {
  SimWorld world;
  world.num_servers = num_servers_;
  world.server = [this](size_t index) { return servers_[index].get(); };
  world.worker = [this](size_t rank) {
    return rank < workers_.size() ? workers_[rank].get() : nullptr;
  };
  world.start_worker = [this](const action::StartProcess& start) {
    AddWorker(start);
    workers_[start.id.index]->Start();
  };
  world.lose_worker = [this](size_t rank) {
    if (rank >= workers_.size() || workers_[rank] == nullptr) return;
    if (worker_noticed_[rank]) return;  // It has ended well, and is kept to be looked at.
    max_staleness_ = max_staleness();
    workers_[rank].reset();
    worker_noticed_[rank] = true;
  };
  world.on_open = [this](const GenerationStart& start, const absl::Status& status) {
    OnOpen(start, status);
  };
  world.on_rollback = [this](const action::ReportStart& start) { OnRollback(start); };
  world.on_committed = [this](const CheckpointEvent& event) { OnCommitted(event); };
  world.on_evaluation = [this](const EvaluationEvent& event) {
    if (!event.decision.data_place.empty()) ++counters_.changes;
    if (evaluations_ != nullptr) evaluations_->OnDecided(event, setup_.checkpoints.has_value());
  };
  world.stop = [this](bool is_done) {
    if (!is_done) return StopProcesses();
    // They have ended, and are kept to be looked at.
    for (SimServer* server : servers()) server->Spare();
  };
  world.on_result = [this](const action::WriteResult& written) {
    if (written.digest.ok()) digest_ = *written.digest;
  };
  world.finish = [this](const GenerationOutcome& outcome) {
    Later(0, [this, outcome] { OnFinish(outcome); });
  };
  return world;
}

void SimJob::StartLauncher(const GenerationStart& start) {
  SimRunnerOptions options;
  options.seed = random_.Next();
  options.machine = MachineOptions(start);
  options.max_server_restarts = setup_.max_server_restarts;
  options.faults = setup_.launcher;
  if (setup_.checkpoints.has_value()) options.notice_us = setup_.checkpoints->notice_us;
  options.start_us = setup_.crashes.down_us;
  options.clock_speed = ClockSpeed();
  options.ended = launcher_ended_;
  runner_ = std::make_unique<SimRunner>(std::move(options), World(), &*store_, &scheduler_,
                                        &saboteur_, &failures_);
  runner_->Begin();
  Later(0, [this] { Tick(); });
}

void SimJob::OnOpen(const GenerationStart& start, const absl::Status& status) {
  if (start.generation <= newest_generation_) {
    Fail(absl::StrCat("generation ", start.generation, " comes after ", newest_generation_));
  }
  if (status.ok()) newest_generation_ = start.generation;  // Else nothing is done in it.
  if (start.base_step < newest_committed_) {
    Fail(absl::StrCat("the checkpoint of step ", newest_committed_.value(),
                      " was committed, and the next generation begins after step ",
                      start.base_step.value()));
  }
  start_ = start;
  newest_base_ = start.base;
  newest_base_generation_ = start.base_generation;
  stall_may_be_ = false;
  trace_ = Mix64(trace_ ^ Mix64(start.generation) ^ static_cast<uint64_t>(start.base_step.value()));
  if (!start.base.empty()) ++counters_.restored;
  if (!status.ok()) return;
  KeepLines();
  const auto base = lines_.find({start.base_generation, start.base_step});
  model_.GoBack(base != lines_.end() ? base->second : model_.LineThrough(start.base_step),
                num_workers_);
  workers_.resize(num_workers_);
  worker_noticed_.assign(num_workers_, false);
  for (SimServer* server : servers()) server->BeginGeneration(ConfigFor(server->index()));
}

// Whatever base and log a server began with, its rows are the model's after the same step.
void SimJob::OnServing(SimServer* server) {
  CheckServerRows(model_, {held_, /*are_written=*/!HoldsParameters()}, num_servers_, server,
                  &failures_);
}

void SimJob::OnScored(Step step, double score, const std::optional<ScheduleState>& next) {
  if (runner_ == nullptr) return;
  if (evaluations_ != nullptr) return runner_->OnScored(evaluations_->ReportOf(step, score, next));
  EvaluationReport report;
  report.step = step;
  report.is_evaluation = false;
  report.data_place = MakeDataPlace(*next);
  runner_->OnScored(report);
}

// Whatever died, and wherever the job began again, its stretches follow from the model alone.
void SimJob::OnStretch(WorkerRank rank, const ScheduleState& state) {
  const std::string wrong = schedule_->DescribeDifference(state, model_, setup_.num_keys);
  if (!wrong.empty()) Fail(absl::StrCat("rank ", rank.value(), ": ", wrong));
}

void SimJob::AddWorker(const action::StartProcess& start) {
  const WorkerRank rank(start.id.index);
  const Step first_step = start.first_step;
  SimWorkerOptions options;
  options.seed = random_.Next();
  options.data_seed = seed_;
  options.rank = rank;
  options.num_servers = num_servers_;
  options.staleness_steps = setup_.staleness_steps;
  options.start_step = first_step;
  options.num_steps = setup_.num_steps;
  if (setup_.checkpoints.has_value()) {
    options.checkpoint_every_steps = setup_.checkpoints->every_steps;
  }
  if (setup_.evaluations.has_value()) {
    options.evaluate_every_steps = setup_.evaluations->every_steps;
  }
  options.awaits_others = num_workers_ > 1 && setup_.staleness_steps == 0;
  options.num_keys = setup_.num_keys;
  options.keys_per_table = setup_.keys_per_table;
  if (rank == WorkerRank(0)) options.compute_us = setup_.slow_rank_us;
  options.tables = setup_.tables;
  options.dense = setup_.dense;
  options.model = setup_.model.get();
  options.lacks_gradients = MayLackGradients(setup_.dense, num_workers_);
  if (HoldsParameters()) {
    options.held = held_;
    options.join = [this, rank, first_step](SimTrainee* worker, PsSession* session,
                                            Scheduler* scheduler, std::function<void()> wake) {
      return JoinOthers(rank, first_step, worker, session, scheduler, std::move(wake));
    };
  }
  if (schedule_.has_value()) {
    options.schedule = &*schedule_;
    if (!start.data_place.empty()) {
      options.schedule_state = ReadDataPlace(start.data_place).value_or(ScheduleState());
    }
    options.on_stretch = [this, rank](const ScheduleState& state) { OnStretch(rank, state); };
    if (rank == WorkerRank(0) && !start.data_place.empty()) ++counters_.amid;
  }
  PsSessionOptions session;
  session.job_id = kSimJobId;
  session.generation = start_.generation;
  session.rank = rank;
  session.num_servers = num_servers_;
  session.staleness_steps = setup_.staleness_steps;
  session.tables = setup_.tables;
  session.start_step = first_step;
  session.max_chunk_bytes = setup_.max_chunk_bytes;
  session.max_calls_in_flight = static_cast<int>(random_.Between(1, 16));
  session.rpc_deadline_us = random_.Between(10'000, 300'000);
  session.give_up_us = kSimGiveUpMicros;
  session.jitter_seed = random_.Next();
  workers_[rank.value()] = std::make_unique<SimWorker>(
      options, session,
      [this](SimWorker* worker, const absl::Status& why) { OnWorkerLost(worker, why); },
      [this](Step step, double score, const std::optional<ScheduleState>& next) {
        OnScored(step, score, next);
      },
      network_->Connect(), &scheduler_, &model_, &failures_);
}

std::unique_ptr<SimTraining> SimJob::JoinOthers(WorkerRank rank, Step first_step,
                                                SimTrainee* worker, PsSession* session,
                                                Scheduler* scheduler, std::function<void()> wake) {
  SimTrainingOptions options = TrainingOptions(*setup_.exchange, setup_.tables, setup_.dense);
  options.seed = random_.Next();
  options.job_seed = seed_;
  options.exchange.rank = rank;
  options.exchange.num_ranks = options.rows.num_workers = num_workers_;
  options.exchange.start_step = options.rows.start_step = first_step;
  options.rows.num_servers = num_servers_;
  options.num_steps = setup_.num_steps;
  options.model = setup_.model.get();
  SimStreamPlace place;
  place.generation = start_.generation;
  place.rank = rank;
  place.scheduler = &scheduler_;
  place.credit_steps = options.exchange.credit_steps;
  place.after_event = std::move(wake);
  return std::make_unique<SimTraining>(
      options, worker, num_workers_ > 1 ? streams_->Connect(std::move(place)) : nullptr, session,
      scheduler, &saboteur_);
}

void SimJob::StopProcesses() {
  max_staleness_ = max_staleness();
  workers_.clear();
  for (const auto& server : servers_) server->End();
}

void SimJob::OnFinish(const GenerationOutcome& outcome) {
  if (outcome.what == GenerationOutcome::What::kTrained && outcome.status.ok()) {
    finished_ = true;
    return;
  }
  ++counters_.failures;
  EndLauncher(/*takes_host=*/false);  // The user starts it again.
}

// Losses
// ------------------------------------------------------------------------------------------------

// A worker reports that a server lost acknowledged pushes: a failure unless a server did lose some.
void SimJob::OnWorkerLost(SimWorker* worker, const absl::Status& why) {
  const std::vector<SimServer*> all = servers();
  if (!setup_.checkpoints.has_value() ||
      std::none_of(all.begin(), all.end(), [](SimServer* s) { return s->lacks_acknowledged(); })) {
    return Fail(absl::StrCat("rank ", worker->rank().value(), ": ", why.ToString()));
  }
  ++counters_.lost_logs;
  const size_t rank = worker->rank().value();
  worker_noticed_[rank] = true;
  if (runner_ != nullptr) runner_->OnWorkerEnded(rank, kExitServerLost);
}

void SimJob::OnRollback(const action::ReportStart& start) {
  ++counters_.rollbacks;
  const std::vector<SimServer*> all = servers();
  const bool is_stall = absl::StrContains(start.reason, "nothing has advanced");
  if (is_stall || absl::StrContains(start.reason, "lost pushes")) {
    ++counters_.lost_logs;
    if (std::none_of(all.begin(), all.end(),
                     [](SimServer* s) { return s->lacks_acknowledged(); })) {
      Fail(start.reason);
    }
  }
  if (!is_stall) return;
  ++counters_.stalls;
  if (!stall_may_be_) Fail("nothing advances, and it should have been noticed why");
}

// Every byte of a committed checkpoint can be read, and it is the whole model after its step,
// including rows that only workers would hold.
void SimJob::OnCommitted(const CheckpointEvent& event) {
  newest_committed_ = std::max(newest_committed_, event.step);
  newest_base_ = event.name;
  newest_base_generation_ = start_.generation;
  for (const auto& [id, line] : lines_) {
    if (id.second == event.step) ++counters_.made_again;
  }
  const auto manifest = store_->Load(event.name);
  if (!manifest.ok()) return Fail(manifest.status().ToString());
  const auto verified = VerifyCheckpoint(&disk_, kSimCheckpoints, *manifest);
  if (!verified.ok()) return Fail(verified.status().ToString());
  if (!model_.HasRowsAfter(event.step) ||
      !(verified->model_digest == DigestOf(model_.RowsAfter(event.step)))) {
    Fail(absl::StrCat("checkpoint ", event.name, " is not the model of its step"));
  }
  for (const auto& worker : workers_) {
    if (worker == nullptr || worker->WritesBackAt(event.step)) continue;
    Fail(absl::StrCat("checkpoint ", event.name, " lacks what rank ", worker->rank().value(),
                      " holds: it didn't know of the step"));
  }
}

// What goes wrong
// ------------------------------------------------------------------------------------------------

bool SimJob::Spend(int* budget, double probability) {
  if (*budget == 0 || !random_.Chance(probability)) return false;
  --*budget;
  return true;
}

void SimJob::MaybeFail() {
  const LauncherFaults& faults = setup_.launcher;
  if (!disk_dies_soon_) {
    if (random_.Chance(faults.fail_write)) {
      disk_.FailAfter(static_cast<int>(random_.Below(kMaxLauncherWrites)));
    } else if (Spend(&deaths_left_, faults.break_write)) {
      disk_dies_soon_ = true;
      disk_.DieAfter(static_cast<int>(random_.Below(kMaxLauncherWrites)),
                     [this] { OnLauncherDiskDeath(); });
    }
  }
  if (Spend(&user_stops_left_, faults.stop_by_user)) {
    ++counters_.user_stops;
    runner_->StopByUser();
  }
  if (Spend(&host_losses_left_, faults.lose_host))
    runner_->LoseHost(random_.Below(setup_.num_hosts));
  if (workers_.empty() || WorkersDone()) return;
  const size_t victim = random_.Below(workers_.size());
  if (workers_[victim] == nullptr || worker_noticed_[victim]) return;
  const bool is_killed = Spend(&worker_deaths_left_, faults.stop_worker);
  if (!is_killed && !Spend(&job_faults_left_, faults.bad_data)) return;
  ++(is_killed ? counters_.worker_deaths : counters_.job_faults);
  max_staleness_ = max_staleness();
  workers_[victim].reset();
  worker_noticed_[victim] = true;
  runner_->OnWorkerEnded(victim, is_killed ? std::nullopt : std::optional<int>(kExitFailed));
}

void SimJob::NoticeDoneWorkers() {
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    if (workers_[rank] == nullptr || !workers_[rank]->done() || worker_noticed_[rank]) continue;
    worker_noticed_[rank] = true;
    stall_may_be_ = true;  // A worker that has ended does not notice a loss.
    runner_->OnWorkerEnded(rank, kExitDone, workers_[rank]->last_step().value() + 1);
  }
}

void SimJob::Tick() {
  if (finished_) return;
  MaybeFail();
  if (Spend(&deaths_left_, setup_.launcher.stop)) return KillLauncher();
  if (random_.Chance(setup_.launcher.request)) runner_->RequestCheckpoint();
  NoticeDoneWorkers();
  const int64_t poll_us =
      setup_.checkpoints.has_value() ? setup_.checkpoints->poll_us : kPollMicros;
  Later(random_.Between(1, poll_us), [this] { Tick(); });
}

void SimJob::OnLauncherDiskDeath() {
  if (*launcher_ended_) return;
  *launcher_ended_ = true;
  ++counters_.broken_writes;
  scheduler_.RunAfter(0, [this] { KillLauncher(); });
}

void SimJob::KillLauncher() {
  ++counters_.launcher_deaths;
  const bool takes_host = random_.Chance(setup_.launcher.take_host);
  if (takes_host) ++counters_.launcher_hosts;
  EndLauncher(takes_host);
}

// Every process that it started ends with it.
void SimJob::EndLauncher(bool takes_host) {
  *launcher_ended_ = true;
  counters_ = counters();
  runner_.reset();
  StopProcesses();
  if (takes_host) {
    disk_.CrashHost(&host_random_);
  } else {
    disk_.CrashProcess();
  }
  disk_dies_soon_ = false;
  MakeStore();
  launcher_ended_ = std::make_shared<bool>(false);
  const int64_t pause_us =
      setup_.checkpoints.has_value() ? setup_.checkpoints->notice_us : kPollMicros;
  Later(random_.Between(1, pause_us), [this] { Resume(); });
}

void SimJob::Resume() {
  ++counters_.resumes;
  if (!setup_.checkpoints.has_value()) {  // In another run directory.
    GenerationStart anew;
    anew.generation = newest_generation_ + 1;
    return StartLauncher(anew);
  }
  Resize();
  const auto next = FindNextGeneration(*store_, kSimJobId, ChooseOlder());
  if (next.ok()) return StartLauncher(next->start);
  if (!absl::IsNotFound(next.status())) return Fail(next.status().ToString());
  StartLauncher({});
}

bool SimJob::IsLeftBehind(const CheckpointId& id) const {
  const auto line = lines_.find({id.generation, id.step});
  return line != lines_.end() && !model_.Follows(line->second);
}

// A checkpoint from which the user continues the job instead of the newest; "": none. Never one
// whose best checkpoint was removed, so that the best can be checked at the end.
std::string SimJob::ChooseOlder() {
  if (!random_.Chance(setup_.launcher.resume_older)) return "";
  const auto list = store_->List();
  if (!list.ok() || list->size() < 2) return "";
  std::vector<size_t> left_behind;
  for (size_t i = 0; i < list->size(); ++i) {
    if (IsLeftBehind((*list)[i].id)) left_behind.push_back(i);
  }
  const bool is_left = !left_behind.empty() && random_.Chance(0.95);
  const size_t index =
      is_left ? left_behind[random_.Below(left_behind.size())] : random_.Below(list->size() - 1);
  const ListedCheckpoint& chosen = (*list)[index];
  const auto best = BestCheckpointOf(chosen.manifest.evaluations());
  const bool has_best = std::any_of(
      list->begin(), list->end(), [&](const ListedCheckpoint& other) { return best == other.id; });
  if (!chosen.status.ok() || (best.has_value() && !has_best)) return "";
  ++counters_.older;
  if (IsLeftBehind(chosen.id)) ++counters_.left;
  newest_committed_ = chosen.id.step;
  return chosen.name;
}

// Before the job goes back: steps that will be trained again do not always make the same model.
void SimJob::KeepLines() {
  if (!setup_.checkpoints.has_value()) return;
  const auto list = store_->List();
  if (!list.ok()) return;
  for (const ListedCheckpoint& listed : *list) {
    if (!listed.status.ok()) continue;
    const auto [line, is_new] = lines_.try_emplace({listed.id.generation, listed.id.step});
    if (is_new) line->second = model_.LineThrough(listed.id.step);
  }
}

void SimJob::Resize() {
  const uint32_t servers = num_servers_, workers = num_workers_;
  // With a limit on pending pushes there is room for one push of every worker, and no more.
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
  return !workers_.empty() && std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
    return worker != nullptr && worker->done();
  });
}

void SimJob::Run() {
  while (!finished_ && failures_.empty()) {
    if (!scheduler_.RunNext() || scheduler_.NowMicros() > kTimeLimitMicros) {
      Fail("the job is stuck");
    }
  }
}

void SimJob::CrashServers() {
  // With a crash of the host, only a synced log comes back for certain.
  const bool host = setup_.crashes.take_host > 0;
  if (host && setup_.durability != LogDurability::kHost) return;
  for (SimServer* server : servers()) server->Crash(newest_base_, newest_base_generation_);
}

void SimJob::Drain() {
  for (SimServer* server : servers()) {
    server->Spare();
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
  if (runner_ != nullptr) sum.checkpoints.Add(runner_->counters());
  if (evaluations_ != nullptr) sum.evaluations = evaluations_->counters();
  return sum;
}

SimServerCounters SimJob::server_counters() const {
  SimServerCounters sum;
  for (const auto& server : servers_) sum.Add(server->counters());
  return sum;
}

uint64_t SimJob::trace() const {
  uint64_t trace = Mix64(trace_ ^ Mix64(network_->trace() ^ streams_->trace()));
  for (const auto& server : servers_) trace = Mix64(trace ^ server->trace());
  return trace;
}

void SimJob::Fail(const std::string& what) {
  failures_.push_back(absl::StrCat("generation ", start_.generation, ", at ",
                                   scheduler_.NowMicros(), " us: ", what));
}

}  // namespace thermocline
