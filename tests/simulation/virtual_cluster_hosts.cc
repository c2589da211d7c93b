// The hosts of a simulated cluster: their agents, and the processes of servers and workers.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/process_limits.h"
#include "tests/simulation/sim_checks.h"
#include "tests/simulation/virtual_cluster.h"

namespace thermocline {
namespace {

constexpr int64_t kAgentMicros = 20'000;  // Between two looks of an agent.
constexpr int64_t kHeartbeatMicros = 400'000;

// Counts what passes.
class CountingTransport : public Transport {
 public:
  CountingTransport(std::unique_ptr<Transport> real, ClusterTraffic* traffic)
      : real_(std::move(real)), traffic_(*traffic) {}

  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    ++traffic_.pulls;
    for (const PullSlice& slice : call.tables) {
      traffic_.data_bytes += slice.keys.size() * sizeof(Key) + slice.rows.size() * sizeof(float);
    }
    real_->Pull(server, call, deadline_us, std::move(done));
  }
  void Push(ServerIndex server, const PushCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    ++traffic_.pushes;
    for (const wire::PushSlice& slice : call.tables) {
      traffic_.data_bytes += slice.keys.size() * (sizeof(Key) + sizeof(uint32_t)) +
                             slice.values.size() * sizeof(float);
    }
    real_->Push(server, call, deadline_us, std::move(done));
  }
  void Close() override { real_->Close(); }

 private:
  const std::unique_ptr<Transport> real_;
  ClusterTraffic& traffic_;
};

std::string Text(const NodeProcess& id) {
  return absl::StrCat(id.role() == NodeProcess::SERVER ? "server " : "worker ", id.index(),
                      " of generation ", id.generation(), ", incarnation ", id.incarnation());
}

}  // namespace

VirtualCluster::Place::Place(Host* h) : host(h), scheduler(&h->scheduler) {}

void VirtualCluster::StartAgent(Host* host) {
  NodeHello hello;
  hello.set_protocol_version(kNodeProtocolVersion);
  hello.set_host(host->name);
  hello.set_address(host->name);
  hello.set_takes_servers(true);
  hello.set_takes_workers(true);
  hello.set_build(kBuild);
  hello.set_memory_bytes(64);
  ++host->agents;
  host->registrations = 0;
  host->agent = std::make_unique<NodeAgent>(hello, [this, host] {
    if (++host->registrations > 1) ++result_.counters.leases_lost;
    const bool is_same = setup_.fault == ClusterFault::kSameNonce;
    return is_same ? 1000 + host->registrations : ++nonces_;
  });
  const int64_t delay_us = random_.Between(1, kAgentMicros);
  host->agent_scheduler.RunAfter(delay_us,
                                 [this, host, life = host->agents] { LookOfAgent(host, life); });
}

// Its processes end with it; another agent comes.
void VirtualCluster::KillAgent(Host* host) {
  if (host->agent == nullptr) return;
  host->agent.reset();
  ++host->agents;
  for (auto& [text, running] : host->running) EndProcess(&running, std::nullopt);
  host->running.clear();
  Later(random_.Between(1, 2 * kSecond), [this, host] { StartAgent(host); });
}

// With all that it wrote.
void VirtualCluster::KillHost(Host* host) {
  if (host->agent == nullptr) return;
  for (auto& [number, generation] : generations_) {
    for (auto& place : generation->servers) {
      if (place != nullptr && place->host == host) place->server->LoseHost();
    }
  }
  KillAgent(host);
}

void VirtualCluster::LookOfAgent(Host* host, uint64_t life) {
  if (host->agent == nullptr || host->agents != life) return;
  NodeAgent& agent = *host->agent;
  const auto now = [host] { return absl::Microseconds(host->agent_scheduler.NowMicros()); };
  NoticeEnds(host);
  agent.OnTick(now());
  for (auto actions = agent.TakeActions(); !actions.empty(); actions = agent.TakeActions()) {
    for (const NodeAction& action : actions) Do(host, action);
    NoticeEnds(host);
  }
  CheckLease(host);
  if (agent.has_ended()) {  // Its engine starts it for the next controller.
    return KillAgent(host);
  }
  Report(host);
  host->agent_scheduler.RunAfter(kAgentMicros, [this, host, life] { LookOfAgent(host, life); });
}

void VirtualCluster::Do(Host* host, const NodeAction& action) {
  if (const auto* start = std::get_if<node_action::Start>(&action)) {
    return StartProcess(host, start->process);
  }
  const auto* const signal = std::get_if<node_action::Signal>(&action);
  if (signal == nullptr) return;
  const auto running = host->running.find(Text(signal->id));
  if (running == host->running.end() || running->second.has_ended) return;
  // One that is paused ends later.
  if (!signal->kill && running->second.place->scheduler.is_paused()) return;
  EndProcess(&running->second, std::nullopt);
}

void VirtualCluster::StartProcess(Host* host, const WantedProcess& wanted) {
  const std::string text = Text(wanted.id());
  result_.trace = Mix64(result_.trace ^ static_cast<uint64_t>(base_.NowMicros()));
  if (!started_.insert(text).second) return Fail(text + " is started twice");
  for (const auto& [other, running] : host->running) {
    if (running.id.generation() == wanted.id().generation() || running.has_ended) continue;
    return Fail(absl::StrCat(text, " is started beside ", other));
  }
  wanted.id().role() == NodeProcess::SERVER ? StartServer(host, wanted) : StartWorker(host, wanted);
}

ServerConfig VirtualCluster::ConfigFor(const Generation& generation, size_t index) const {
  ServerConfig config;
  config.job_id = kJobId;
  config.generation = generation.start.generation;
  config.server_index = ServerIndex(static_cast<uint32_t>(index));
  config.num_servers = setup_.num_servers;
  config.num_workers = setup_.num_workers;
  config.seed = setup_.seed;
  config.durability = LogDurability::kHost;
  config.tables = tables_;
  config.checkpoint_directory = kDirectory;
  config.base_checkpoint = generation.start.base;
  config.base_generation = generation.start.base_generation;
  config.checkpoint_every_steps = setup_.every_steps;
  config.checkpoint_full_every = 2;
  return config;
}

void VirtualCluster::StartServer(Host* host, const WantedProcess& wanted) {
  const NodeProcess& id = wanted.id();
  Generation* const generation = generations_.at(id.generation()).get();
  std::unique_ptr<Place>& place = generation->servers[id.index()];
  if (place == nullptr) {
    place = std::make_unique<Place>(host);
    place->generation = id.generation();
    place->address = absl::StrCat(host->name, ":", id.index());
    SimServerEvents events;
    events.on_serving = [this, generation](SimServer* server) {
      CheckServerRows(*generation->model, {held_, /*are_written=*/!HoldsParameters()},
                      setup_.num_servers, server, &failures_);
    };
    events.on_ended = [host, p = place.get()](SimServer*) {
      for (auto& [text, running] : host->running) running.has_ended |= running.place == p;
    };
    SimServerOptions options;
    options.index = ServerIndex(id.index());
    options.seed = random_.Next();
    options.limits.apply_threads = 1;
    place->server = std::make_unique<SimServer>(options, events, medium_.Share(), &place->scheduler,
                                                &saboteur_, &generation->failures);
    place->server->BeginGeneration(ConfigFor(*generation, id.index()));
  } else if (place->host != host) {
    return Fail(
        absl::StrCat(Text(id), " starts on ", host->name, ", and ran on ", place->host->name));
  } else if (place->server->core() != nullptr) {
    return Fail(absl::StrCat(Text(id), " is started, and the one before lives"));
  }
  if (!wanted.address().empty() && wanted.address() != place->address) {
    return Fail(absl::StrCat(Text(id), " is to listen at ", wanted.address()));
  }
  addresses_[place->address] = place.get();
  while (place->scheduler.is_paused()) place->scheduler.Resume();
  place->server->Start(id.incarnation());
  host->running[Text(id)] = {id, place.get(), place->address, std::nullopt, false};
}

void VirtualCluster::StartWorker(Host* host, const WantedProcess& wanted) {
  const NodeProcess& id = wanted.id();
  Generation* const generation = generations_.at(id.generation()).get();
  std::unique_ptr<Place>& place = generation->workers[id.index()];
  if (place != nullptr) return Fail(absl::StrCat(Text(id), " was started before"));
  place = std::make_unique<Place>(host);
  place->generation = id.generation();
  const std::vector<std::string> servers(wanted.servers().begin(), wanted.servers().end());
  SimRoutes routes;
  routes.worker = &place->scheduler;
  const auto at = [this, servers](ServerIndex server) {
    const auto found = addresses_.find(servers[server.value()]);
    return found == addresses_.end() ? nullptr : found->second;
  };
  routes.server = [this, at, number = id.generation()](ServerIndex server) -> SimServer* {
    Place* const there = at(server);
    if (there == nullptr) return nullptr;
    if (there->generation != number) ++result_.counters.strays;
    return there->server.get();
  };
  routes.arrival = [at, p = place.get()](ServerIndex server) -> Scheduler* {
    Place* const there = at(server);
    return there == nullptr ? &p->scheduler : &there->scheduler;
  };
  routes.is_cut = [this, at, host](ServerIndex server, bool to_server) {
    Place* const there = at(server);
    if (there == nullptr) return true;
    return to_server ? !Passes(host, there->host) : !Passes(there->host, host);
  };
  place->network =
      std::make_unique<SimNetwork>(random_.Next(), NetworkFaults(), routes, &base_, &saboteur_);
  SimWorkerOptions options;
  options.seed = random_.Next();
  options.data_seed = setup_.seed;
  options.rank = WorkerRank(id.index());
  options.num_servers = setup_.num_servers;
  options.start_step = Step(wanted.first_step());
  options.num_steps = setup_.num_steps;
  options.checkpoint_every_steps = setup_.every_steps;
  options.compute_us = setup_.compute_us;
  options.num_keys = setup_.num_keys;
  options.keys_per_table = setup_.keys_per_table;
  options.tables = tables_;
  options.dense = setup_.dense;
  options.lacks_gradients = MayLackGradients(setup_.dense, setup_.num_workers);
  if (HoldsParameters()) {
    options.held = held_;
    options.join = [this, wanted, p = place.get()](SimTrainee* worker, PsSession* of_worker,
                                                   Scheduler* scheduler,
                                                   std::function<void()> wake) {
      return JoinOthers(wanted, *p, worker, of_worker, scheduler, std::move(wake));
    };
  }
  PsSessionOptions session;
  session.job_id = kJobId;
  session.generation = id.generation();
  session.rank = options.rank;
  session.num_servers = setup_.num_servers;
  session.tables = tables_;
  session.start_step = options.start_step;
  session.rpc_deadline_us = kSecond;
  session.give_up_us = 20 * kSecond;
  session.jitter_seed = random_.Next();
  const std::string text = Text(id);
  place->worker = std::make_unique<SimWorker>(
      options, session,
      [host, text](SimWorker*, const absl::Status&) {
        const auto running = host->running.find(text);
        if (running == host->running.end()) return;
        running->second.exit_code = kExitServerLost;
        running->second.has_ended = true;
      },
      [](Step, double, const std::optional<ScheduleState>&) {},
      std::make_unique<CountingTransport>(place->network->Connect(), &result_.traffic),
      &place->scheduler, generation->model.get(), &generation->failures);
  host->running[text] = {id, place.get(), text, std::nullopt, false};
  place->worker->Start();
}

std::unique_ptr<SimTraining> VirtualCluster::JoinOthers(const WantedProcess& wanted, Place& place,
                                                        SimTrainee* worker, PsSession* session,
                                                        Scheduler* scheduler,
                                                        std::function<void()> wake) {
  SimTrainingOptions options = TrainingOptions(*setup_.exchange, tables_, setup_.dense);
  options.seed = random_.Next();
  options.job_seed = setup_.seed;
  options.exchange.rank = WorkerRank(wanted.id().index());
  options.exchange.num_ranks = options.rows.num_workers = setup_.num_workers;
  options.exchange.start_step = options.rows.start_step = Step(wanted.first_step());
  options.rows.num_servers = setup_.num_servers;
  options.num_steps = setup_.num_steps;
  SimStreamPlace at;
  at.generation = place.generation;
  at.rank = options.exchange.rank;
  at.scheduler = &place.scheduler;
  at.host = place.host;
  at.credit_steps = options.exchange.credit_steps;
  at.after_event = std::move(wake);
  return std::make_unique<SimTraining>(
      options, worker, setup_.num_workers > 1 ? streams_->Connect(std::move(at)) : nullptr, session,
      scheduler, &saboteur_);
}

void VirtualCluster::EndProcess(Running* running, std::optional<int> exit_code) {
  if (running->id.role() == NodeProcess::SERVER) {
    running->place->server->End();
  } else {
    running->place->worker.reset();
  }
  running->exit_code = exit_code;
  running->has_ended = true;
}

void VirtualCluster::NoticeEnds(Host* host) {
  for (auto each = host->running.begin(); each != host->running.end();) {
    Running& running = each->second;
    const SimWorker* const worker = running.place->worker.get();
    if (worker != nullptr && worker->done()) {
      running.exit_code = kExitDone;
      running.has_ended = true;
    }
    if (!running.has_ended) {
      if (!running.address.empty()) {
        host->agent->OnServes(running.id, std::exchange(running.address, ""), "a log");
      }
      ++each;
      continue;
    }
    ProcessEndReport end;
    end.set_has_exit_code(running.exit_code.has_value());
    end.set_exit_code(running.exit_code.value_or(0));
    end.set_how("ended");
    if (worker != nullptr && running.exit_code == kExitDone) {
      end.set_result(absl::StrCat("{\"steps\": ", worker->last_step().value() + 1, "}"));
    }
    if (running.id.role() == NodeProcess::WORKER) running.place->worker.reset();
    const NodeProcess id = running.id;
    each = host->running.erase(each);
    host->agent->OnEnd(absl::Microseconds(host->agent_scheduler.NowMicros()), id, end);
  }
}

void VirtualCluster::Report(Host* host) {
  NodeAgent& agent = *host->agent;
  const int64_t now_us = host->agent_scheduler.NowMicros();
  const bool is_due = agent.HasNews() || now_us - host->reported_us >= kHeartbeatMicros;
  if (!agent.MayReport() || !is_due) return;
  host->reported_us = now_us;
  const NodeReport report = agent.MakeReport(absl::Microseconds(now_us));
  host->heartbeat = report.heartbeat();
  host->sent[{report.nonce(), report.heartbeat()}] = absl::Microseconds(now_us);
  ++result_.traffic.reports;
  result_.traffic.report_bytes += report.ByteSizeLong();
  const size_t index = host->controller;
  Later(Delay(), [this, host, report, index] {
    Controller* const controller = controllers_[index].get();
    if (host->out_cut || *controller->ended) return;
    controller->scheduler.RunAfter(0, [this, host, report, index, controller] {
      if (*controller->ended || controller->runner == nullptr) return;
      absl::Duration& heard = host->heard[report.nonce()];
      heard = std::max(heard, host->sent[{report.nonce(), report.heartbeat()}]);
      controller->nonces[host->name] = report.nonce();
      const absl::Status taken = controller->table->OnReport(controller->runner->Now(), report);
      if (!taken.ok()) return Fail(taken.ToString());
      controller->runner->OnNodes();
      SendOrder(index, host);
    });
  });
}

// Nothing runs for longer than the lease of the newest heartbeat that has come to a controller.
void VirtualCluster::CheckLease(Host* host) {
  if (host->running.empty() || setup_.fault == ClusterFault::kSameNonce) return;
  const auto heard = host->heard.find(host->agent->nonce());
  const absl::Duration now = absl::Microseconds(host->agent_scheduler.NowMicros());
  if (heard != host->heard.end() && now < heard->second + kLease) return;
  Fail(absl::StrCat(host->running.begin()->first, " runs on ", host->name, " without a lease"));
}

}  // namespace thermocline
