#include "tests/simulation/simulation.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/cluster_map.h"
#include "common/hash.h"
#include "common/virtual_scheduler.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_network.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_setup.h"
#include "tests/simulation/sim_worker.h"

namespace thermocline {
namespace {

constexpr int64_t kTimeLimitMicros = int64_t{600} * 1'000'000;
constexpr char kJobId[] = "simulated";
constexpr uint64_t kEpoch = 7;

class Simulation {
 public:
  Simulation(uint64_t seed, PlantedFault planted);
  SimulationResult Run();

 private:
  void StartServers();
  void AddWorker(WorkerRank rank);
  void CheckEnd();
  void CheckRows(uint32_t server);
  void FillResult();
  bool WorkersDone() const;

  const uint64_t seed_;
  SimRandom random_;
  const SimSetup setup_;
  SimulationResult result_;
  VirtualScheduler scheduler_;
  SequentialModel model_;
  Saboteur saboteur_;
  std::unique_ptr<SimNetwork> network_;
  std::vector<std::unique_ptr<SimServer>> servers_;  // [num_servers]
  std::vector<std::unique_ptr<SimWorker>> workers_;
};

Simulation::Simulation(uint64_t seed, PlantedFault planted)
    : seed_(seed),
      random_(seed),
      setup_(ChooseSetup(&random_)),
      model_(setup_.tables, seed, setup_.num_workers),
      saboteur_(planted, seed, setup_.staleness_steps) {
  result_.setup = Describe(setup_);
  StartServers();
  for (uint32_t rank = 0; rank < setup_.num_workers; ++rank) AddWorker(WorkerRank(rank));
}

void Simulation::StartServers() {
  std::vector<SimServer*> servers;
  for (uint32_t i = 0; i < setup_.num_servers; ++i) {
    SimServerOptions options;
    options.config.job_id = kJobId;
    options.config.epoch = kEpoch;
    options.config.server_index = ServerIndex(i);
    options.config.num_servers = setup_.num_servers;
    options.config.num_workers = setup_.num_workers;
    options.config.seed = seed_;
    options.config.staleness_steps = setup_.staleness_steps;
    options.config.durability = setup_.durability;
    options.config.tables = setup_.tables;
    options.limits = setup_.limits;
    options.faults = setup_.crashes;
    options.seed = random_.Next();
    servers_.push_back(
        std::make_unique<SimServer>(options, &scheduler_, &saboteur_, &result_.failures));
    servers.push_back(servers_.back().get());
  }
  network_ =
      std::make_unique<SimNetwork>(random_.Next(), setup_.faults, servers, &scheduler_, &saboteur_);
}

void Simulation::AddWorker(WorkerRank rank) {
  SimWorkerOptions options;
  options.seed = random_.Next();
  options.rank = rank;
  options.num_servers = setup_.num_servers;
  options.staleness_steps = setup_.staleness_steps;
  options.num_steps = setup_.num_steps;
  options.num_keys = setup_.num_keys;
  options.keys_per_table = setup_.keys_per_table;
  if (rank == WorkerRank(0)) options.compute_us = setup_.slow_rank_us;
  options.tables = setup_.tables;
  PsSessionOptions session;
  session.job_id = kJobId;
  session.epoch = kEpoch;
  session.rank = rank;
  session.num_servers = setup_.num_servers;
  session.staleness_steps = setup_.staleness_steps;
  session.tables = setup_.tables;
  session.max_part_bytes = setup_.max_part_bytes;
  session.max_calls_in_flight = static_cast<int>(random_.Between(1, 16));
  session.rpc_deadline_us = random_.Between(10'000, 300'000);
  session.give_up_us = kTimeLimitMicros;
  session.jitter_seed = random_.Next();
  workers_.push_back(std::make_unique<SimWorker>(options, session, network_.get(), &scheduler_,
                                                 &model_, &result_.failures));
}

bool Simulation::WorkersDone() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->done(); });
}

SimulationResult Simulation::Run() {
  for (const auto& worker : workers_) worker->Start();
  while (!WorkersDone() && result_.failures.empty()) {
    if (!scheduler_.RunNext() || scheduler_.NowMicros() > kTimeLimitMicros) {
      result_.failures.push_back("the workers are stuck");
    }
  }
  const std::vector<std::string> failures = result_.failures;
  if (!failures.empty()) network_->BreakDown();
  // Everything is acknowledged, and so survives what the job's durability promises to survive.
  for (const auto& server : servers_) {
    if (setup_.crash_at_end) server->Crash();
  }
  // Late copies of old messages still arrive; nothing may come of them.
  while (scheduler_.RunNext()) {
  }
  if (!failures.empty()) {
    result_.failures = failures;  // Without what the end of the sessions added.
  } else if (result_.failures.empty()) {
    CheckEnd();
  }
  FillResult();
  return std::move(result_);
}

void Simulation::CheckEnd() {
  const Step last(setup_.num_steps - 1);
  CHECK_EQ(model_.complete_through(), last);
  uint64_t pushes = 0;  // Every server gets each of them.
  for (const auto& worker : workers_) {
    pushes += worker->pushes();
    if (worker->session().acked_through() != last) {
      result_.failures.push_back("a push was never acknowledged");
    }
  }
  for (uint32_t i = 0; i < setup_.num_servers; ++i) {
    ServerStats stats;
    servers_[i]->core()->FillStats(&stats);
    if (stats.complete_through() != last.value() || stats.pending_push_bytes() != 0 ||
        stats.pulls_waiting() != 0) {
      result_.failures.push_back(absl::StrCat("server ", i, " ended at step ",
                                              stats.complete_through(), " with ",
                                              stats.pending_push_bytes(), " bytes pending and ",
                                              stats.pulls_waiting(), " pulls waiting"));
    }
    // One process accepted them all: anew, or as it replayed them.
    if (stats.pushes_accepted() != pushes) {
      result_.failures.push_back(
          absl::StrCat("server ", i, " accepted ", stats.pushes_accepted(), " pushes of ", pushes));
    }
    CheckRows(i);
  }
}

// Every row, its state and its count, bit for bit; and no row that no push created.
void Simulation::CheckRows(uint32_t server) {
  const ClusterMap cluster(setup_.num_servers);
  Digest expected;
  uint64_t expected_rows = 0;
  for (const TableLayout& table : setup_.tables) {
    const auto& rows = model_.rows(table.id);
    for (const auto& [key, row] : rows) {
      const uint64_t hash = KeyHash(TableSalt(table.id), key);
      if (cluster.ServerOfHash(hash).value() != server) continue;
      expected.Add(RowDigest(table.id, key, row.floats));
      ++expected_rows;
    }
    const absl::Status visited = servers_[server]->core()->VisitRows(
        table.id, [&](Key key, absl::Span<const float> row, uint32_t count, Step) {
          const auto found = rows.find(key);
          if (found != rows.end() && found->second.count == count &&
              std::equal(row.begin(), row.end(), found->second.floats.begin(),
                         found->second.floats.end())) {
            return;
          }
          result_.failures.push_back(absl::StrCat(
              "server ", server, ", table ", table.id.value(), ", key ", key,
              found == rows.end() ? ": no push created this row" : ": row or count differ"));
        });
    CHECK(visited.ok());
  }
  absl::StatusOr<ServerCore::DigestAnswer> digest = absl::UnknownError("no answer");
  servers_[server]->core()->ComputeDigest(
      kJobId, kEpoch,
      [&](absl::StatusOr<ServerCore::DigestAnswer> answer) { digest = std::move(answer); });
  CHECK(digest.ok());
  if (!(digest->digest == expected) || digest->rows != expected_rows) {
    result_.failures.push_back(absl::StrCat("server ", server, " holds ", digest->rows,
                                            " rows with another digest than the ", expected_rows,
                                            " of the model"));
  }
}

void Simulation::FillResult() {
  result_.trace = network_->trace();
  for (const auto& server : servers_) {
    result_.trace = Mix64(result_.trace ^ server->trace());
    result_.servers.Add(server->counters());
  }
  result_.events = scheduler_.events_run();
  result_.messages_lost = network_->messages_lost();
  result_.parts_of_many = network_->parts_of_many();
  result_.parts_refused = network_->parts_refused();
  result_.answers_of_the_dead = network_->answers_of_the_dead();
  for (const auto& worker : workers_) {
    result_.max_staleness = std::max(result_.max_staleness, worker->max_staleness());
  }
}

}  // namespace

SimulationResult RunSimulation(uint64_t seed, PlantedFault planted) {
  return Simulation(seed, planted).Run();
}

}  // namespace thermocline
