// A job of the simulation across its launchers: decides what dies, and what the user does then. The
// real job machine decides everything else.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_JOB_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_JOB_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/generation.h"
#include "deploy/job/job_machine.h"
#include "server/core/server_config.h"
#include "tests/simulation/forgetful_disk.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_checks.h"
#include "tests/simulation/sim_evaluations.h"
#include "tests/simulation/sim_network.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_runner.h"
#include "tests/simulation/sim_schedule.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_setup.h"
#include "tests/simulation/sim_streams.h"
#include "tests/simulation/sim_worker.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {

inline constexpr char kSimJobId[] = "simulated";
inline constexpr char kSimCheckpoints[] = "/checkpoints";

struct SimJobCounters {
  uint64_t launcher_deaths = 0;
  uint64_t launcher_hosts = 0;  // Deaths of a launcher with its host.
  uint64_t broken_writes = 0;   // Deaths of a launcher in the middle of a write.
  uint64_t worker_deaths = 0;
  uint64_t rollbacks = 0;
  uint64_t resumes = 0;
  uint64_t resized = 0;     // Resumes with another number of servers or workers.
  uint64_t restored = 0;    // Generations that began with a checkpoint.
  uint64_t older = 0;       // Generations that began with one that the user named.
  uint64_t left = 0;        // Generations that began with one that the job had left behind.
  uint64_t made_again = 0;  // Checkpoints of a step of which an earlier generation left one.
  uint64_t lost_logs = 0;   // Logs that lacked what was acknowledged; all were noticed.
  uint64_t stalls = 0;      // Lost logs that were noticed because nothing advanced.
  uint64_t user_stops = 0;
  uint64_t job_faults = 0;  // Ends of a worker that the job itself had caused.
  uint64_t changes = 0;     // Between hot and cold batches.
  uint64_t amid = 0;        // Generations that began with a checkpoint amid those.
  uint64_t failures = 0;    // Jobs that ended before they were done, but for those two.
  SimLauncherCounters checkpoints;
  SimEvaluationCounters evaluations;

  void Add(const SimJobCounters& other);
};

class SimJob {
 public:
  // What goes wrong is appended to `failures`, which outlives this.
  SimJob(uint64_t seed, const SimSetup& setup, PlantedFault planted,
         std::vector<std::string>* failures);
  ~SimJob();

  // Until everything is pushed, acknowledged and, where the job wants that, written; or something
  // went wrong.
  void Run();
  // All servers that can die do so once more, and come back.
  void CrashServers();
  // Messages under way arrive; no process dies any more.
  void Drain();

  const SimSetup& setup() const { return setup_; }
  const SequentialModel& model() const { return model_; }
  const CheckpointLines& lines() const { return lines_; }
  const SimNetwork& network() const { return *network_; }
  const SimStreams& streams() const { return *streams_; }
  // The tables whose rows workers hold where there are several.
  const std::set<TableId>& held() const { return held_; }
  const std::vector<std::unique_ptr<SimWorker>>& workers() const { return workers_; }
  // The servers of the last generation.
  std::vector<SimServer*> servers() const;
  ServerConfig ConfigFor(ServerIndex index) const;
  SimulatedDisk* checkpoints() { return &disk_; }
  CheckpointStore* store() { return &*store_; }
  // How the newest generation began.
  const GenerationStart& start() const { return start_; }
  // The evaluations of the last generation; null where the job has none.
  const SimEvaluations* evaluations() const { return evaluations_.get(); }
  // The model's digest, which the servers sent the launcher at the end.
  const Digest& digest() const { return digest_; }
  // REQUIRES: training is over.
  Step last_step() const { return workers_[0]->last_step(); }
  SimJobCounters counters() const;
  SimServerCounters server_counters() const;
  uint64_t events() const { return scheduler_.events_run(); }
  uint64_t trace() const;
  uint64_t max_staleness() const;

 private:
  static constexpr uint32_t kMaxServers = 4;

  void MakeServers();
  void MakeStore();
  void AddWorker(const action::StartProcess& start);
  bool HoldsParameters() const { return setup_.exchange.has_value(); }
  std::unique_ptr<SimTraining> JoinOthers(WorkerRank rank, Step first_step, SimTrainee* worker,
                                          PsSession* session, Scheduler* scheduler,
                                          std::function<void()> wake);
  bool WorkersDone() const;

  void StartLauncher(const GenerationStart& start);
  JobMachineOptions MachineOptions(const GenerationStart& start) const;
  SimWorld World();
  int64_t ClockSpeed() const;

  void OnOpen(const GenerationStart& start, const absl::Status& status);
  void OnServing(SimServer* server);
  void OnScored(Step step, double score, const std::optional<ScheduleState>& next);
  void OnStretch(WorkerRank rank, const ScheduleState& state);
  void OnWorkerLost(SimWorker* worker, const absl::Status& why);
  void OnRollback(const action::ReportStart& start);
  void OnCommitted(const CheckpointEvent& event);
  void OnFinish(const GenerationOutcome& outcome);
  void StopProcesses();

  void Tick();
  void MaybeFail();
  void NoticeDoneWorkers();
  void OnLauncherDiskDeath();
  void KillLauncher();
  void EndLauncher(bool takes_host);
  void Resume();
  std::string ChooseOlder();
  // Whether the model has gone on from an earlier step of another line.
  bool IsLeftBehind(const CheckpointId& id) const;
  void KeepLines();
  void Resize();
  // Runs `task` unless the launcher is dead by then.
  void Later(int64_t delay_us, const std::function<void()>& task);
  bool Spend(int* budget, double probability);
  void Fail(const std::string& what);

  const uint64_t seed_;
  const SimSetup setup_;
  std::vector<std::string>& failures_;
  SimRandom random_;
  std::mt19937_64 host_random_;
  VirtualScheduler scheduler_;
  SequentialModel model_;
  Saboteur saboteur_;
  SimulatedDisk disk_;  // The folder of checkpoints, as the launcher's host sees it.
  ForgetfulDisk launcher_disk_;
  SimRandom nonces_;
  std::optional<CheckpointStore> store_;             // The running launcher has it.
  std::vector<std::unique_ptr<SimServer>> servers_;  // [kMaxServers] The rest have no process.
  std::unique_ptr<SimNetwork> network_;
  std::unique_ptr<SimStreams> streams_;
  std::set<TableId> held_;
  std::vector<std::unique_ptr<SimWorker>> workers_;  // By rank; null: it died.

  std::shared_ptr<bool> launcher_ended_ = std::make_shared<bool>(false);
  std::unique_ptr<SimRunner> runner_;  // Null: between two launchers.
  std::unique_ptr<SimEvaluations> evaluations_;
  std::optional<SimSchedule> schedule_;
  GenerationStart start_;
  Digest digest_;
  uint32_t num_servers_;
  uint32_t num_workers_;
  std::vector<bool> worker_noticed_;  // By rank: its end was reported.
  uint64_t newest_generation_ = 0;
  bool finished_ = false;
  Step newest_committed_ = kNoStep;
  int deaths_left_;
  int host_losses_left_;
  int worker_deaths_left_;
  int user_stops_left_ = 1;
  int job_faults_left_ = 1;
  bool stall_may_be_ = false;
  bool disk_dies_soon_ = false;  // The launcher's disk dies in one of its next writes.
  // The checkpoint that the generation began with, or the newest committed since; and the
  // generation that made it.
  std::string newest_base_;
  uint64_t newest_base_generation_ = 0;
  CheckpointLines lines_;
  uint64_t max_staleness_ = 0;  // The most of workers that have gone.
  uint64_t trace_ = 0;
  SimJobCounters counters_;  // The sum over launchers that have gone.
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_JOB_H_
