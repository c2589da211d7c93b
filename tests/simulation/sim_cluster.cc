#include "tests/simulation/sim_cluster.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/checkpoint/verify_checkpoint.h"
#include "deploy/checkpoints/resume.h"
#include "tests/simulation/sim_checks.h"
#include "tests/simulation/virtual_cluster.h"

namespace thermocline {
namespace {

constexpr int64_t kClusterLimitMicros = 3600 * kSecond;
constexpr absl::Duration kHostTimeout = absl::Seconds(3);
// Between two looks of a controller at its nodes, and at HISTORY.
constexpr int64_t kControllerMicros = 100'000;
constexpr int64_t kHistoryMicros = kSecond;
constexpr int64_t kTroubleMicros = 100'000;
constexpr double kTroubles = 0.04;  // The chance of trouble, each kTroubleMicros.
// Others work in the midst of so many of a controller's operations on its disk.
constexpr double kDiskInterrupts = 0.01;
constexpr int64_t kLongestPause = 8 * kSecond;

std::vector<TableLayout> SparseTables() {
  std::vector<TableLayout> tables(2);
  for (uint32_t i = 0; i < 2; ++i) {
    tables[i].id = TableId(i);
    tables[i].name = absl::StrCat("T", i);
    tables[i].dim = 4;
    tables[i].optimizer.kind = i == 0 ? OptimizerKind::kAdagrad : OptimizerKind::kAdam;
    tables[i].init_scale = 0.1f;
  }
  return tables;
}

PlantedFault PlantedIn(ClusterFault fault) {
  if (fault == ClusterFault::kOldGenerations) return PlantedFault::kOldGenerations;
  return fault == ClusterFault::kOldBlocks ? PlantedFault::kOldBlocks : PlantedFault::kNone;
}

}  // namespace

void ClusterCounters::Add(const ClusterCounters& other) {
  controllers += other.controllers;
  generations += other.generations;
  overtaken += other.overtaken;
  interrupted += other.interrupted;
  cuts += other.cuts;
  one_way += other.one_way;
  pauses += other.pauses;
  stopped_clocks += other.stopped_clocks;
  agents_killed += other.agents_killed;
  hosts_killed += other.hosts_killed;
  processes_killed += other.processes_killed;
  controllers_killed += other.controllers_killed;
  leases_lost += other.leases_lost;
  left_behind += other.left_behind;
  strays += other.strays;
  committed += other.committed;
  disk.lost += other.disk.lost;
  disk.late += other.disk.late;
  disk.stale += other.disk.stale;
  streams.Add(other.streams);
}

VirtualCluster::VirtualCluster(const ClusterSetup& setup)
    : setup_(setup),
      random_(Mix64(setup.seed)),
      saboteur_(PlantedIn(setup.fault), setup.seed, /*staleness_steps=*/0),
      tables_(SparseTables()),
      troubles_left_(setup.troubles) {
  for (const DenseTable& tensor : setup.dense) tables_.push_back(tensor.layout);
  if (setup.exchange.has_value()) held_ = HeldTables(*setup.exchange, tables_);
  const auto is_cut = [this](const void* from, const void* to) {
    return !Passes(static_cast<const Host*>(from), static_cast<const Host*>(to));
  };
  streams_ = std::make_unique<SimStreams>(Mix64(setup.seed ^ 2),
                                          setup.exchange.value_or(ExchangeSetup()).streams, is_cut,
                                          &base_, &saboteur_);
  CHECK(CheckpointStore(&medium_, kDirectory).Prepare().ok());
  for (uint32_t i = 0; i < setup.num_hosts; ++i) {
    hosts_.push_back(std::make_unique<Host>(&base_));
    hosts_.back()->name = absl::StrCat("h", i);
    StartAgent(hosts_.back().get());
  }
  StartController();
  Later(kTroubleMicros, [this] { Trouble(); });
}

// Workers answer what is under way as they end.
VirtualCluster::~VirtualCluster() {
  for (auto& [number, generation] : generations_) {
    for (auto& place : generation->workers) {
      if (place != nullptr) place->worker.reset();
    }
    for (auto& place : generation->servers) {
      if (place != nullptr) place->server->End();
    }
  }
}

void VirtualCluster::Fail(const std::string& what) {
  failures_.push_back(absl::StrCat("at ", base_.NowMicros(), " us: ", what));
}

// What processes of an earlier generation run into, such as a base that is removed by now, is
// theirs.
bool VirtualCluster::IsGood() {
  for (auto& [number, generation] : generations_) {
    const bool is_newest = number == generations_.rbegin()->first;
    for (std::string& failure : std::exchange(generation->failures, {})) {
      if (is_newest) failures_.push_back(std::move(failure));
    }
  }
  return failures_.empty();
}

ClusterResult VirtualCluster::Run() {
  while (!is_finished_ && IsGood()) {
    if (!base_.RunNext() || base_.NowMicros() > kClusterLimitMicros) Fail("the job is stuck");
  }
  for (const auto& controller : controllers_) {
    if (controller->runner == nullptr) continue;
    const SimWork& work = controller->runner->work();
    result_.traffic.work.events += work.events;
    result_.traffic.work.actions += work.actions;
    result_.traffic.work.calls += work.calls;
  }
  result_.failures = failures_;
  result_.counters.streams = streams_->counters();
  result_.micros = base_.NowMicros();
  result_.trace = Mix64(result_.trace ^ base_.events_run());
  return result_;
}

// Controllers
// ------------------------------------------------------------------------------------------------

bool VirtualCluster::HasController() const {
  return std::any_of(controllers_.begin(), controllers_.end(),
                     [](const auto& controller) { return !*controller->ended; });
}

// An engine starts one where none is left.
void VirtualCluster::EnsureController() {
  if (is_finished_ || HasController() || std::exchange(is_start_due_, true)) return;
  Later(random_.Between(1, 2 * kSecond), [this] {
    is_start_due_ = false;
    if (!is_finished_ && !HasController()) StartController();
  });
}

void VirtualCluster::StartController() {
  ++result_.counters.controllers;
  const size_t index = controllers_.size();
  controllers_.push_back(std::make_unique<Controller>(&base_));
  Controller* const controller = controllers_.back().get();
  controller->share = medium_.Share();
  NetworkDiskFaults faults;
  if (setup_.troubles == 0) faults = {0, 0, 0};
  faults.trusts_links = setup_.fault == ClusterFault::kCommitsInThePast;
  faults.links_by_looking = setup_.fault == ClusterFault::kTrustsOldFolders;
  controller->disk = std::make_unique<NetworkDisk>(
      controller->share.get(), faults, &random_, [this, controller] { Between(controller); },
      &late_, &result_.counters.disk);
  controller->store = std::make_unique<CheckpointStore>(controller->disk.get(), kDirectory,
                                                        [this] { return random_.Next(); });
  for (auto& host : hosts_) {
    Later(random_.Between(0, 3 * kSecond),
          [host = host.get(), index] { host->controller = std::max(host->controller, index); });
  }
  controller->scheduler.RunAfter(1, [this, index] { BeginController(index); });
}

// As `thermocline train --restarted` does.
void VirtualCluster::BeginController(size_t index) {
  Controller* const controller = controllers_[index].get();
  const auto point = FindNextGeneration(*controller->store, kJobId, "");
  if (*controller->ended) return;
  if (!point.ok() && !absl::IsNotFound(point.status())) return EndController(controller);
  GenerationStart start;
  if (point.ok()) {
    start = point->start;
    start.spent = point->spent;
  }
  NodeTable::Options table;
  table.build = kBuild;
  table.host_timeout = kHostTimeout;
  table.num_workers = setup_.num_workers;
  table.order.set_job(kJobId);
  table.order.set_run_dir(kDirectory);
  table.order.set_lease_ms(static_cast<uint32_t>(absl::ToInt64Milliseconds(kLease)));
  controller->table = std::make_unique<NodeTable>(std::move(table));
  SimRunnerOptions options;
  options.seed = random_.Next();
  options.machine = MachineOptions(start);
  options.max_server_restarts = 1'000'000;
  options.faults.call_us = 5'000;
  options.clock_speed = 1;
  options.ended = controller->ended;
  options.nodes = controller->table.get();
  controller->runner =
      std::make_unique<SimRunner>(std::move(options), WorldOf(index), controller->store.get(),
                                  &controller->scheduler, &saboteur_, &failures_);
  controller->runner->Begin();
  controller->scheduler.RunAfter(kControllerMicros, [this, index] { LookAtNodes(index); });
  controller->scheduler.RunAfter(kHistoryMicros, [this, index] { LookAtHistory(index); });
}

// It does nothing any more, also where it is in the middle of something.
void VirtualCluster::EndController(Controller* controller) {
  if (std::exchange(*controller->ended, true)) return;
  controller->share->DieAfter(0);
  for (auto& host : hosts_) {
    Later(random_.Between(0, 3 * kSecond), [this, host = host.get()] {
      for (size_t i = 0; i < controllers_.size(); ++i) {
        const bool is_better = i > host->controller || *controllers_[host->controller]->ended;
        if (!*controllers_[i]->ended && is_better) host->controller = i;
      }
    });
  }
  EnsureController();
}

// In the middle of a controller's operation the others go on, and another one may be started.
void VirtualCluster::Between(Controller* controller) {
  if (troubles_left_ == 0 || is_nested_ || is_finished_ || *controller->ended) return;
  if (!random_.Chance(kDiskInterrupts)) return;
  is_nested_ = true;
  ++result_.counters.interrupted;
  controller->scheduler.Pause(/*stops_clock=*/false);
  if (random_.Chance(0.5)) Later(random_.Between(1, kSecond), [this] { StartController(); });
  const int64_t until_us = base_.NowMicros() + random_.Between(1, kLongestPause);
  while (base_.NowMicros() < until_us && !is_finished_ && IsGood() && base_.RunNext()) {
  }
  controller->scheduler.Resume();
  is_nested_ = false;
}

JobMachineOptions VirtualCluster::MachineOptions(const GenerationStart& start) const {
  JobMachineOptions machine;
  machine.start = start;
  machine.is_resumed = start.generation > 1;
  machine.num_hosts = setup_.num_hosts;
  machine.build = kBuild;
  Job& job = machine.job;
  job.set_name(kJobId);
  job.set_seed(setup_.seed);
  job.mutable_train()->set_batch_size(1);
  Cluster& cluster = *job.mutable_cluster();
  cluster.set_servers(setup_.num_servers);
  cluster.set_workers(setup_.num_workers);
  cluster.set_durability(LOG_SYNC);
  cluster.set_max_server_restarts(3);
  cluster.set_startup_timeout_s(120);
  cluster.set_host_timeout_s(static_cast<uint32_t>(absl::ToInt64Seconds(kHostTimeout)));
  cluster.set_host_wait_s(600);
  cluster.set_stall_timeout_s(60);
  CheckpointPolicy& checkpoint = *job.mutable_checkpoint();
  checkpoint.set_directory(kDirectory);
  checkpoint.set_every_steps(setup_.every_steps);
  checkpoint.set_at_end(true);
  checkpoint.set_keep(2);
  checkpoint.set_max_rollbacks(3);
  for (uint32_t i = 0; i < setup_.num_servers; ++i) machine.server_logs.push_back("a log");
  for (uint32_t i = 0; i < setup_.num_workers; ++i) machine.worker_logs.push_back("a log");
  machine.manifest.set_format_version(kCheckpointFormatVersion);
  machine.manifest.set_job_id(kJobId);
  machine.manifest.set_num_servers(setup_.num_servers);
  machine.manifest.set_num_workers(setup_.num_workers);
  machine.manifest.set_seed(setup_.seed);
  for (const TableLayout& table : tables_) {
    *machine.manifest.add_tables() = TableLayoutToProto(table);
  }
  return machine;
}

SimWorld VirtualCluster::WorldOf(size_t index) {
  Controller* const controller = controllers_[index].get();
  const auto place_of = [this, controller](ProcessRole role, size_t i) {
    return PlaceOf(controller->runner->generation(), role, i);
  };
  SimWorld world;
  world.num_servers = setup_.num_servers;
  world.server = [place_of](size_t i) -> SimServer* {
    Place* const place = place_of(ProcessRole::kServer, i);
    return place == nullptr ? nullptr : place->server.get();
  };
  world.worker = [place_of](size_t rank) -> SimWorker* {
    Place* const place = place_of(ProcessRole::kWorker, rank);
    return place == nullptr ? nullptr : place->worker.get();
  };
  world.reaches = [place_of](ProcessRole role, size_t i) {
    const Place* const place = place_of(role, i);
    return place != nullptr && !place->host->in_cut && !place->host->out_cut &&
           !place->scheduler.is_paused() && !place->host->scheduler.is_paused();
  };
  world.on_open = [this](const GenerationStart& start, const absl::Status& status) {
    OnOpen(start, status);
  };
  world.on_rollback = [](const action::ReportStart&) {};
  world.on_committed = [this, controller](const CheckpointEvent& event) {
    OnCommitted(controller, event);
  };
  world.on_result = [controller](const action::WriteResult& written) {
    if (written.digest.ok()) controller->digest = *written.digest;
  };
  world.finish = [this, index](const GenerationOutcome& outcome) { OnFinish(index, outcome); };
  world.on_orders = [this, index] { SendOrders(index); };
  return world;
}

void VirtualCluster::LookAtNodes(size_t index) {
  Controller* const controller = controllers_[index].get();
  if (*controller->ended) return;
  controller->runner->OnNodes();
  controller->scheduler.RunAfter(kControllerMicros, [this, index] { LookAtNodes(index); });
}

void VirtualCluster::LookAtHistory(size_t index) {
  Controller* const controller = controllers_[index].get();
  if (*controller->ended) return;
  const absl::Status looked = controller->store->Look();
  if (*controller->ended) return;
  if (!looked.ok()) controller->runner->Take(event::RunnerFailed{looked});
  controller->scheduler.RunAfter(kHistoryMicros, [this, index] { LookAtHistory(index); });
}

void VirtualCluster::OnOpen(const GenerationStart& start, const absl::Status& status) {
  if (!status.ok()) return;
  ++result_.counters.generations;
  auto generation = std::make_unique<Generation>();
  generation->start = start;
  generation->servers.resize(setup_.num_servers);
  generation->workers.resize(setup_.num_workers);
  generation->model = std::make_unique<SequentialModel>(tables_, setup_.seed, setup_.num_workers);
  if (!start.base.empty()) {
    const auto base = generations_.find(start.base_generation);
    if (base == generations_.end() || base->second->model->complete_through() < start.base_step) {
      return Fail(absl::StrCat("generation ", start.generation, " begins with ", start.base,
                               ", which generation ", start.base_generation, " can't have made"));
    }
    generation->model->GoBack(base->second->model->LineThrough(start.base_step),
                              setup_.num_workers);
  }
  for (const auto& host : hosts_) {
    for (const auto& [text, running] : host->running) {
      if (!running.has_ended) ++result_.counters.left_behind;
    }
  }
  if (!generations_.emplace(start.generation, std::move(generation)).second) {
    Fail(absl::StrCat("generation ", start.generation, " began twice"));
  }
}

// It is the model after its step, and counts as long as its controller does.
void VirtualCluster::OnCommitted(Controller* controller, const CheckpointEvent& event) {
  ++result_.counters.committed;
  const uint64_t generation = controller->runner->generation();
  CheckpointStore store(&medium_, kDirectory);
  const auto manifest = store.Load(event.name, generation);
  // Another controller's may have taken its place since.
  const auto last = store.LastRecord();
  if (!last.ok() || !last->has_value()) return Fail("no HISTORY");
  if ((*last)->state().generation() != generation) return;
  if (!manifest.ok()) return Fail(manifest.status().ToString());
  const auto verified = VerifyCheckpoint(&medium_, kDirectory, *manifest);
  if (!verified.ok()) return Fail(verified.status().ToString());
  const SequentialModel& model = *generations_.at(generation)->model;
  if (!(verified->model_digest == DigestOf(model.RowsAfter(event.step)))) {
    Fail(absl::StrCat("checkpoint ", event.name, " is not the model of its step"));
  }
}

void VirtualCluster::OnFinish(size_t index, const GenerationOutcome& outcome) {
  Controller* const controller = controllers_[index].get();
  if (absl::IsAborted(outcome.status)) ++result_.counters.overtaken;
  controller->table->End();
  SendOrders(index);
  if (outcome.status.ok()) {
    const auto last = CheckpointStore(&medium_, kDirectory).LastRecord();
    const bool is_newest = last.ok() && last->has_value() &&
                           (*last)->state().generation() == controller->runner->generation();
    // One that was overtaken while it finished has trained the job, too; the other goes on.
    if (is_newest) {
      const Generation& generation = *generations_.at(controller->runner->generation());
      result_.last_step = generation.model->complete_through();
      result_.digest = controller->digest;
      if (!(result_.digest == DigestOf(generation.model->RowsAfter(result_.last_step)))) {
        Fail("the job has ended with another digest than the model's");
      }
      is_finished_ = true;
    }
  }
  Later(0, [this, controller] { EndController(controller); });
}

VirtualCluster::Place* VirtualCluster::PlaceOf(uint64_t generation, ProcessRole role,
                                               size_t index) const {
  const auto found = generations_.find(generation);
  if (found == generations_.end()) return nullptr;
  const auto& places =
      role == ProcessRole::kServer ? found->second->servers : found->second->workers;
  return places[index].get();
}

VirtualCluster::Host* VirtualCluster::Find(const std::string& name) {
  for (auto& host : hosts_) {
    if (host->name == name) return host.get();
  }
  return nullptr;
}

// Orders
// ------------------------------------------------------------------------------------------------

void VirtualCluster::SendOrders(size_t index) {
  if (*controllers_[index]->ended) return;
  for (const std::string& name : controllers_[index]->table->TakeChanged()) {
    SendOrder(index, Find(name));
  }
}

void VirtualCluster::SendOrder(size_t index, Host* host) {
  Controller* const controller = controllers_[index].get();
  const auto nonce = controller->nonces.find(host->name);
  if (!controller->table->MayOrder() || nonce == controller->nonces.end()) return;
  const NodeOrder order = controller->table->OrderFor(host->name, nonce->second);
  ++result_.traffic.orders;
  result_.traffic.order_bytes += order.ByteSizeLong();
  Later(Delay(), [this, index, host, order] {
    if (host->in_cut || host->controller != index) return;
    host->agent_scheduler.RunAfter(0, [this, host, order, life = host->agents] {
      if (host->agent == nullptr || host->agents != life) return;
      NodeOrder arrived = order;
      if (setup_.fault == ClusterFault::kOneWayLease) arrived.set_heartbeat(host->heartbeat);
      host->agent->OnOrder(absl::Microseconds(host->agent_scheduler.NowMicros()), arrived);
    });
  });
}

// Troubles
// ------------------------------------------------------------------------------------------------

void VirtualCluster::Trouble() {
  for (const auto& operation : std::exchange(late_, {})) operation();
  if (troubles_left_ > 0 && random_.Chance(kTroubles)) {
    --troubles_left_;
    MakeTrouble();
  }
  Later(kTroubleMicros, [this] { Trouble(); });
}

void VirtualCluster::MakeTrouble() {
  Host* const host = hosts_[random_.Below(hosts_.size())].get();
  switch (random_.Below(10)) {
    case 0:
    case 1:
      return CutOff(host);
    case 2:
      return Pause(&host->agent_scheduler, /*stops_clock=*/false);
    case 3: {
      const bool stops_clock = random_.Chance(0.5);
      if (stops_clock) ++result_.counters.stopped_clocks;
      return Pause(&host->scheduler, stops_clock);
    }
    case 4:
    case 5:
      return PauseProcess(host, /*kills=*/false);
    case 6:
      return PauseProcess(host, /*kills=*/true);
    case 7:
      ++result_.counters.agents_killed;
      return KillAgent(host);
    case 8:
      if (random_.Chance(0.5)) return PauseController();
      ++result_.counters.hosts_killed;
      return KillHost(host);
    default:
      if (random_.Chance(0.6)) return PauseController();
      ++result_.counters.controllers_killed;
      return EndController(controllers_.back().get());
  }
}

// From the others and the controllers, in one direction or both.
void VirtualCluster::CutOff(Host* host) {
  const uint64_t which = random_.Below(3);
  ++(which == 2 ? result_.counters.cuts : result_.counters.one_way);
  host->in_cut = which != 0;
  host->out_cut = which != 1;
  Later(random_.Between(1, kLongestPause), [host] { host->in_cut = host->out_cut = false; });
}

void VirtualCluster::Pause(PausableScheduler* scheduler, bool stops_clock) {
  ++result_.counters.pauses;
  scheduler->Pause(stops_clock);
  Later(random_.Between(1, kLongestPause), [scheduler] { scheduler->Resume(); });
}

void VirtualCluster::PauseProcess(Host* host, bool kills) {
  if (host->running.empty()) return;
  Running& running =
      std::next(host->running.begin(), static_cast<int>(random_.Below(host->running.size())))
          ->second;
  if (!kills) return Pause(&running.place->scheduler, /*stops_clock=*/false);
  if (running.has_ended) return;
  ++result_.counters.processes_killed;
  EndProcess(&running, std::nullopt);
}

// Its user, or an engine, may take it for dead.
void VirtualCluster::PauseController() {
  Controller* const controller = controllers_.back().get();
  if (*controller->ended) return;
  Pause(&controller->scheduler, /*stops_clock=*/false);
  if (random_.Chance(0.5)) Later(random_.Between(1, kSecond), [this] { StartController(); });
}

ClusterSetup ChooseCluster(uint64_t seed, ClusterFault fault) {
  SimRandom random(seed);
  ClusterSetup setup;
  setup.seed = seed;
  setup.fault = fault;
  setup.num_hosts = static_cast<uint32_t>(random.Between(2, 4));
  setup.num_servers = static_cast<uint32_t>(random.Between(1, 3));
  setup.num_workers = static_cast<uint32_t>(random.Between(1, 3));
  setup.num_steps = random.Between(30, 60);
  setup.every_steps = static_cast<uint64_t>(random.Between(3, 9));
  setup.compute_us = random.Between(50'000, 300'000);
  setup.troubles = static_cast<int>(random.Between(4, 16));
  // Workers that wait for each other seldom call another generation's server.
  if (setup.num_workers == 1 || fault == ClusterFault::kOldGenerations) return setup;
  setup.exchange = ChooseExchange(&random);
  if (fault == ClusterFault::kOldBlocks) setup.exchange->streams = LateStreams();
  setup.dense = ChooseDense(&random, SparseTables());
  return setup;
}

ClusterSetup Undisturbed(ClusterSetup setup) {
  setup.troubles = 0;
  setup.fault = ClusterFault::kNone;
  setup.exchange.reset();
  return setup;
}

ClusterResult RunCluster(const ClusterSetup& setup) {
  // One controller is interrupted by another while it holds its locks, in any order: in one thread.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return VirtualCluster(setup).Run();
}

}  // namespace thermocline
