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
#include "tests/simulation/sim_worker.h"
#include "worker/sparse/part_split.h"

namespace thermocline {
namespace {

constexpr int64_t kTimeLimitMicros = int64_t{600} * 1'000'000;
constexpr char kJobId[] = "simulated";
constexpr uint64_t kEpoch = 7;

struct Setup {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t staleness_steps = 0;
  int64_t num_steps = 10;
  uint64_t num_keys = 40;
  int keys_per_table = 8;
  int64_t slow_rank_us = 0;  // Rank 0 computes so long, at the most; the others not at all.
  size_t max_part_bytes = 512;
  ServerLimits limits;
  NetworkFaults faults;
  std::vector<TableLayout> tables;
};

std::vector<TableLayout> ChooseTables(SimRandom* random) {
  const OptimizerKind kinds[] = {OptimizerKind::kSgd, OptimizerKind::kAdagrad,
                                 OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam};
  std::vector<TableLayout> tables(1 + random->Below(3));
  for (size_t i = 0; i < tables.size(); ++i) {
    tables[i].id = TableId(static_cast<uint32_t>(3 * i + random->Below(3)));
    tables[i].name = absl::StrCat("T", i);
    tables[i].dim = static_cast<int>(random->Between(1, 9));
    tables[i].optimizer.kind = kinds[random->Below(4)];
    tables[i].init_scale = 0.1f;
  }
  return tables;
}

// Large pushes, and room for just one of every worker: with less a step might never become
// complete. Workers that run ahead of one that is slow find no room.
void LimitPendingBytes(SimRandom* random, Setup* setup) {
  setup->num_servers = 1;
  setup->num_workers = static_cast<uint32_t>(random->Between(3, 4));
  setup->slow_rank_us = 300'000;
  setup->staleness_steps = 3;
  setup->num_keys = static_cast<uint64_t>(random->Between(20, 40));
  setup->keys_per_table = static_cast<int>(10 * setup->num_keys);  // Nearly all of them.
  setup->max_part_bytes = kMaxHeaderBytes + static_cast<size_t>(random->Between(8000, 16000));
  uint64_t push_bytes = 0;
  for (TableLayout& table : setup->tables) {
    table.dim = static_cast<int>(random->Between(16, 32));
    table.optimizer.kind = OptimizerKind::kSgd;  // Gradients are as large as rows.
    push_bytes += setup->num_keys * (sizeof(Key) + sizeof(uint32_t) + table.dim * sizeof(float));
  }
  // Two waves; parts are at least half full, and hold gradients and rows of each table.
  const uint64_t num_parts = 2 + push_bytes / 4000;
  push_bytes +=
      num_parts * (2 * sizeof(wire::PushPart) + 2 * setup->tables.size() * sizeof(wire::PushRange));
  setup->limits.max_pending_push_bytes = setup->num_workers * push_bytes;
}

Setup ChooseSetup(SimRandom* random) {
  Setup setup;
  setup.num_servers = static_cast<uint32_t>(random->Between(1, 4));
  setup.num_workers = static_cast<uint32_t>(random->Between(1, 4));
  setup.staleness_steps = random->Chance(0.5) ? 0 : static_cast<uint32_t>(random->Between(1, 3));
  setup.num_steps = random->Between(5, 15);
  setup.num_keys = static_cast<uint64_t>(random->Between(5, 60));
  setup.keys_per_table = static_cast<int>(random->Between(1, 20));
  setup.max_part_bytes = kMaxHeaderBytes + static_cast<size_t>(random->Between(50, 1000));
  setup.limits.hold_us = random->Between(5'000, 500'000);
  setup.limits.max_held_pulls = static_cast<uint32_t>(random->Between(2, 100));
  setup.limits.apply_threads = 1;
  // Every third network is kind.
  if (random->Chance(0.67)) {
    setup.faults.drop = 0.01 * random->Between(0, 20);
    setup.faults.duplicate = 0.01 * random->Between(0, 30);
    setup.faults.refuse = 0.01 * random->Between(0, 10);
    setup.faults.straggle = 0.01 * random->Between(0, 20);
  }
  setup.tables = ChooseTables(random);
  if (random->Chance(0.3)) setup.slow_rank_us = random->Between(1, 100'000);
  if (random->Chance(0.3)) LimitPendingBytes(random, &setup);
  return setup;
}

std::string Describe(const Setup& setup) {
  return absl::StrCat(setup.num_servers, " servers, ", setup.num_workers, " workers, staleness ",
                      setup.staleness_steps, ", ", setup.num_steps, " steps, ", setup.tables.size(),
                      " tables, ", setup.num_keys, " keys, parts of ", setup.max_part_bytes,
                      " bytes, drop ", setup.faults.drop, ", duplicate ", setup.faults.duplicate,
                      ", pending ", setup.limits.max_pending_push_bytes, ", rank 0 slow by ",
                      setup.slow_rank_us, " us, refuse ", setup.faults.refuse, ", straggle ",
                      setup.faults.straggle);
}

class Simulation {
 public:
  Simulation(uint64_t seed, PlantedFault planted);
  SimulationResult Run();

 private:
  ServerCore* StartServer(ServerIndex server);
  void CheckEnd();
  void CheckRows(uint32_t server);
  void FillResult();
  bool WorkersDone() const;

  const uint64_t seed_;
  SimRandom random_;
  const Setup setup_;
  SimulationResult result_;
  VirtualScheduler scheduler_;
  SequentialModel model_;
  Saboteur saboteur_;
  std::vector<std::unique_ptr<ServerCore>> servers_;  // [num_servers]
  std::vector<std::unique_ptr<ServerCore>> stopped_servers_;
  std::unique_ptr<SimNetwork> network_;
  std::vector<std::unique_ptr<SimWorker>> workers_;
};

Simulation::Simulation(uint64_t seed, PlantedFault planted)
    : seed_(seed),
      random_(seed),
      setup_(ChooseSetup(&random_)),
      model_(setup_.tables, seed, setup_.num_workers),
      saboteur_(planted, seed, setup_.staleness_steps),
      servers_(setup_.num_servers) {
  result_.setup = Describe(setup_);
  std::vector<ServerCore*> cores;
  for (uint32_t i = 0; i < setup_.num_servers; ++i) cores.push_back(StartServer(ServerIndex(i)));
  network_ =
      std::make_unique<SimNetwork>(random_.Next(), setup_.faults, cores, &scheduler_, &saboteur_,
                                   [this](ServerIndex server) { return StartServer(server); });
  for (uint32_t rank = 0; rank < setup_.num_workers; ++rank) {
    SimWorkerOptions options;
    options.seed = random_.Next();
    options.rank = WorkerRank(rank);
    options.num_servers = setup_.num_servers;
    options.staleness_steps = setup_.staleness_steps;
    options.num_steps = setup_.num_steps;
    options.num_keys = setup_.num_keys;
    options.keys_per_table = setup_.keys_per_table;
    if (rank == 0) options.compute_us = setup_.slow_rank_us;
    options.tables = setup_.tables;
    PsSessionOptions session;
    session.job_id = kJobId;
    session.epoch = kEpoch;
    session.rank = options.rank;
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
}

// In place of the one that was there, if any, and without anything of it.
ServerCore* Simulation::StartServer(ServerIndex server) {
  ServerConfig config;
  config.job_id = kJobId;
  config.epoch = kEpoch;
  config.server_index = server;
  config.num_servers = setup_.num_servers;
  config.num_workers = setup_.num_workers;
  config.seed = seed_;
  config.staleness_steps = setup_.staleness_steps;
  config.tables = setup_.tables;
  std::unique_ptr<ServerCore>& place = servers_[server.value()];
  if (place != nullptr) {
    place->Shutdown();
    stopped_servers_.push_back(std::move(place));
  }
  place = std::make_unique<ServerCore>(setup_.limits, &scheduler_);
  CHECK(place->Configure(config).ok());
  return place.get();
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
  // Late copies of old messages still arrive; nothing may come of them.
  while (scheduler_.RunNext()) {
  }
  if (failures.empty()) {
    CheckEnd();
  } else {
    result_.failures = failures;  // Without what the end of the sessions added.
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
    servers_[i]->FillStats(&stats);
    if (stats.complete_through() != last.value() || stats.pending_push_bytes() != 0 ||
        stats.pulls_waiting() != 0) {
      result_.failures.push_back(absl::StrCat("server ", i, " ended at step ",
                                              stats.complete_through(), " with ",
                                              stats.pending_push_bytes(), " bytes pending and ",
                                              stats.pulls_waiting(), " pulls waiting"));
    }
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
    const absl::Status visited = servers_[server]->VisitRows(
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
  servers_[server]->ComputeDigest(
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
  result_.events = scheduler_.events_run();
  result_.messages_lost = network_->messages_lost();
  result_.parts_of_many = network_->parts_of_many();
  result_.parts_refused = network_->parts_refused();
  for (const auto& worker : workers_) {
    result_.max_staleness = std::max(result_.max_staleness, worker->max_staleness());
  }
  for (const auto& server : servers_) {
    ServerStats stats;
    server->FillStats(&stats);
    result_.duplicates += stats.push_duplicates();
    result_.pulls_held += stats.pulls_held();
  }
}

}  // namespace

SimulationResult RunSimulation(uint64_t seed, PlantedFault planted) {
  return Simulation(seed, planted).Run();
}

}  // namespace thermocline
