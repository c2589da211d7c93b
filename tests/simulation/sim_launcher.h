// What a launcher keeps while an epoch runs: the real keeper of checkpoints, over calls that get
// lost or arrive late, and over a disk that fails and dies.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_LAUNCHER_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_LAUNCHER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/checkpoint/checkpoint_store.h"
#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/cut_participants.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_faults.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_worker.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {

struct SimLauncherCounters {
  uint64_t committed = 0;
  uint64_t increments = 0;  // Of those: that build on others.
  uint64_t called_off = 0;
  uint64_t not_removed = 0;
  uint64_t answered = 0;  // To those who asked for a checkpoint.
  uint64_t late_calls = 0;

  void Add(const SimLauncherCounters& other);
};

struct SimLauncherOptions {
  uint64_t seed = 0;
  std::string job_id;
  CheckpointKeeperOptions keeper;
  LauncherFaults faults;
  std::vector<SimServer*> servers;
  size_t num_workers = 0;
  std::function<SimWorker*(size_t rank)> worker;  // Null: it is dead.
  std::shared_ptr<const bool> ended;              // The process is dead.
};

class SimLauncher {
 public:
  // Borrows all but the options. What goes wrong is appended to `failures`.
  SimLauncher(SimLauncherOptions options, CheckpointStore* store, VirtualScheduler* scheduler,
              Saboteur* saboteur, std::vector<std::string>* failures);
  ~SimLauncher();

  // One round. The process may die in the middle of it.
  void Poll();
  CheckpointKeeper& keeper() { return keeper_; }
  // What was committed since the last call.
  std::vector<std::string> TakeCommitted() { return std::exchange(new_, {}); }
  const SimLauncherCounters& counters() const { return counters_; }

 private:
  class Calls;

  void TakeEvents();

  const SimLauncherOptions options_;
  CheckpointStore* const store_;
  std::vector<std::string>* const failures_;
  SimRandom random_;
  SimLauncherCounters counters_;
  std::vector<std::string> new_;
  const std::unique_ptr<Calls> calls_;
  CheckpointKeeper keeper_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_LAUNCHER_H_
