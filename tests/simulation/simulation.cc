#include "tests/simulation/simulation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "proto/parameter_server.pb.h"
#include "server/core/server_core.h"
#include "tests/simulation/sim_checks.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_setup.h"

namespace thermocline {
namespace {

class Simulation {
 public:
  Simulation(uint64_t seed, const SimSetup& setup, PlantedFault planted)
      : random_(Mix64(~seed)), job_(seed, setup, planted, &result_.failures) {
    result_.setup = Describe(setup);
  }

  SimulationResult Run() {
    job_.Run();
    if (result_.failures.empty()) {
      // Everything is acknowledged, so it must survive the crashes that the job's durability
      // covers.
      if (job_.setup().crash_at_end) job_.CrashServers();
      // Late copies of old messages still arrive; they must change nothing.
      job_.Drain();
    }
    if (result_.failures.empty()) CheckEnd();
    FillResult();
    return std::move(result_);
  }

 private:
  void CheckEnd();
  void CheckServer(SimServer* server, uint64_t pushes, Digest* held);
  void CheckCheckpointsLeft();
  void FillResult();

  Step last() const { return job_.last_step(); }
  void Fail(const std::string& what) { result_.failures.push_back(what); }

  SimulationResult result_;
  SimRandom random_;
  SimJob job_;
};

void Simulation::CheckEnd() {
  CHECK_EQ(job_.model().complete_through(), last());
  result_.last_step = last();
  uint64_t pushes = 0;  // Every server gets each of them.
  for (const auto& worker : job_.workers()) {
    pushes += worker->pushes();
    if (worker->session().acked_through() != last()) Fail("a push was never acknowledged");
  }
  result_.digest = job_.digest();
  Digest held;
  bool are_there = true;
  for (SimServer* server : job_.servers()) {
    // A server may have died after it sent its digest, and before the launcher stopped it.
    are_there = are_there && server->core() != nullptr;
    if (server->core() != nullptr) CheckServer(server, pushes, &held);
  }
  const Digest expected = DigestOf(job_.model().RowsAfter(last()));
  if (!(result_.digest == expected)) Fail("the launcher was told another digest than the model's");
  if (are_there && !(held == expected)) Fail("the servers hold another digest than the model");
  if (job_.setup().checkpoints.has_value()) CheckCheckpointsLeft();
  if (job_.evaluations() == nullptr) return;
  job_.evaluations()->CheckEnd(job_.model(), last(), job_.setup().num_keys, job_.store(),
                               &result_.failures);
  result_.best_step = job_.evaluations()->best_step();
}

// Adds the server's digest to `held`.
void Simulation::CheckServer(SimServer* server, uint64_t pushes, Digest* held) {
  const std::string name = absl::StrCat("server ", server->index().value());
  ServerStats stats;
  server->core()->FillStats(&stats);
  if (stats.complete_through() != last().value() || stats.pending_push_bytes() != 0 ||
      stats.pulls_waiting() != 0) {
    Fail(absl::StrCat(name, " ended at step ", stats.complete_through(), " with ",
                      stats.pending_push_bytes(), " bytes pending and ", stats.pulls_waiting(),
                      " pulls waiting"));
  }
  // One process accepted them all: anew, or as it replayed them.
  if (!job_.setup().checkpoints.has_value() && stats.pushes_accepted() != pushes) {
    Fail(absl::StrCat(name, " accepted ", stats.pushes_accepted(), " pushes of ", pushes));
  }
  const ServerConfig config = job_.ConfigFor(server->index());
  CheckServerRows(job_.model(), {job_.held(), /*are_written=*/true}, config.num_servers, server,
                  &result_.failures);
  server->core()->ComputeDigest(config.job_id, config.generation,
                                [&](const absl::StatusOr<ServerCore::DigestAnswer>& answer) {
                                  if (!answer.ok()) return Fail(answer.status().ToString());
                                  held->Add(answer->digest);
                                });
}

void Simulation::CheckCheckpointsLeft() {
  const auto num_servers = static_cast<uint32_t>(random_.Between(1, 5));
  result_.checkpoints_left =
      CheckCheckpoints(job_.model(), job_.lines(), job_.held(), job_.ConfigFor(ServerIndex(0)),
                       num_servers, job_.checkpoints(), *job_.store(), &result_.failures);
  if (!job_.setup().checkpoints->at_end) return;
  // The job's last generation makes one, or begins with it and has nothing left to do.
  const GenerationStart& start = job_.start();
  if (start.base_step == last()) {
    const auto base = job_.store()->Load(start.base, start.base_generation);
    if (!base.ok())
      Fail(absl::StrCat("the checkpoint of the last step: ", base.status().ToString()));
    return;
  }
  const auto newest = job_.store()->Newest();
  if (!newest.ok() || !newest->has_value() || (*newest)->step() != last().value()) {
    Fail("there is no checkpoint of the last step");
  }
}

void Simulation::FillResult() {
  const SimNetwork& network = job_.network();
  result_.trace = job_.trace();
  result_.servers = job_.server_counters();
  result_.job = job_.counters();
  result_.events = job_.events();
  result_.messages_lost = network.messages_lost();
  result_.chunks_of_many = network.chunks_of_many();
  result_.chunks_refused = network.chunks_refused();
  result_.answers_of_the_dead = network.answers_of_the_dead();
  result_.max_staleness = job_.max_staleness();
  result_.streams = job_.streams().counters();
  if (job_.setup().model != nullptr) {
    result_.steps_of_models = job_.model().complete_through() - kNoStep;
  }
  result_.digest_is_certain =
      job_.setup().staleness_steps == 0 && !job_.setup().launcher.resizes_workers;
}

}  // namespace

SimulationResult RunSimulation(uint64_t seed, PlantedFault planted) {
  SimRandom random(seed);
  // Other faults are looked for where servers merge what workers push, and hold all rows.
  SimSetup setup = ChooseSetup(&random, planted == PlantedFault::kNone || NeedsExchange(planted));
  // A worker under another rank is refused where rank 0 brings row limits: the order is to be
  // found.
  if (planted == PlantedFault::kArrivalOrder) {
    for (TableLayout& table : setup.tables) table.max_rows = 0;
  }
  const bool exchanges = setup.exchange.has_value() && setup.num_workers > 1;
  if (NeedsExchange(planted) && !exchanges) return {};  // There is nothing to find.
  if (planted == PlantedFault::kOldBlocks) setup.exchange->streams = LateStreams();
  if (planted == PlantedFault::kReceiptsOverwrite) setup.exchange->streams = SlowReceipts();
  return Simulation(seed, setup, planted).Run();
}

SimulationResult RunUndisturbed(uint64_t seed) {
  SimRandom random(seed);
  return Simulation(seed, Undisturbed(ChooseSetup(&random)), PlantedFault::kNone).Run();
}

}  // namespace thermocline
