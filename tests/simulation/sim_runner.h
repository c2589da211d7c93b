// One launcher of the simulation: the real job machine, over virtual processes, calls that get lost
// or arrive late, and a disk that fails and dies.
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_RUNNER_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_RUNNER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/scheduler.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/job_machine.h"
#include "deploy/nodes/node_table.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_setup.h"
#include "tests/simulation/sim_worker.h"

namespace thermocline {

struct SimLauncherCounters {
  uint64_t committed = 0;
  uint64_t increments = 0;  // Committed checkpoints that build on others.
  uint64_t called_off = 0;
  uint64_t not_removed = 0;
  uint64_t answered = 0;  // Requests for a checkpoint.
  uint64_t late_calls = 0;
  uint64_t restarts = 0;  // Servers that were started again.
  uint64_t hosts_lost = 0;
  uint64_t moved = 0;  // Processes that started on another host than before.

  void Add(const SimLauncherCounters& other);
};

// The environment of a launcher.
struct SimWorld {
  size_t num_servers = 0;
  std::function<SimServer*(size_t index)> server;  // Null: none was started.
  std::function<SimWorker*(size_t rank)> worker;   // Null: it is dead.
  // Whether a call to a process and its answer arrive, as far as hosts and links are concerned.
  // Empty: they do.
  std::function<bool(ProcessRole role, size_t index)> reaches;
  std::function<void(const action::StartProcess&)> start_worker;
  std::function<void(size_t rank)> lose_worker;  // With its host.
  // A generation begins: `status` says whether that is on the medium.
  std::function<void(const GenerationStart&, const absl::Status& status)> on_open;
  std::function<void(const action::ReportStart&)> on_rollback;
  std::function<void(const CheckpointEvent&)> on_committed;
  std::function<void(const EvaluationEvent&)> on_evaluation;
  // No process is left, unless the job is done.
  std::function<void(bool is_done)> stop;
  std::function<void(const action::WriteResult&)> on_result;  // Empty: it is of no interest.
  std::function<void(const GenerationOutcome&)> finish;
  std::function<void()> on_orders;  // With nodes: orders to them may have changed.
};

struct SimRunnerOptions {
  uint64_t seed = 0;
  JobMachineOptions machine;
  uint32_t max_server_restarts = 0;  // What the job allows.
  LauncherFaults faults;
  int64_t notice_us = 50'000;  // Until it sees that a process died, at the most.
  int64_t start_us = 100'000;  // Until a process is there, at the most.
  int64_t clock_speed = 10;    // Its clock runs faster than all others: no rule compares them.
  std::shared_ptr<const bool> ended;  // The process is dead.
  // Processes run on hosts, under agents that report to this table. Null: start_worker and the
  // servers of SimWorld start them, and hosts, if any, are those of MakeHosts.
  NodeTable* nodes = nullptr;
};

// What a controller has done, for what it costs to have more processes.
struct SimWork {
  uint64_t events = 0, actions = 0, calls = 0;
};

class SimRunner {
 public:
  // Borrows all but the options. What goes wrong is appended to `failures`.
  SimRunner(SimRunnerOptions options, SimWorld world, CheckpointStore* store, Scheduler* scheduler,
            Saboteur* saboteur, std::vector<std::string>* failures);
  ~SimRunner();

  void Begin();
  const JobMachine& machine() const { return machine_; }
  // The generation that was opened last. The machine may be further already, while what it wanted
  // before is being carried out.
  uint64_t generation() const { return generation_; }

  // Events of processes and of the user.
  void OnServerEnded(size_t index);
  void OnWorkerEnded(size_t rank, std::optional<int> exit_code, int64_t steps = 0);
  void OnScored(const EvaluationReport& report);
  void RequestCheckpoint();
  void StopByUser();
  // With all that it runs. It comes back as another registration.
  void LoseHost(size_t index);
  // With nodes: a report has come, or time has passed.
  void OnNodes();
  // Hands over an event from outside.
  void Take(JobEvent event) { Post(0, std::move(event)); }

  const SimLauncherCounters& counters() const { return counters_; }
  const SimWork& work() const { return work_; }
  absl::Duration Now() const;

 private:
  struct Batch;  // Calls to processes that are made together.
  struct SimHost {
    Host host;            // Its nonce is that of the registration that came last.
    bool is_up = false;   // In fact.
    int64_t told_us = 0;  // When the machine learns of that registration.
    uint64_t known = 0;   // The nonce by which the machine knows it; 0: as lost, or not at all.
  };
  struct Place {
    std::string host;
    uint64_t nonce = 0;
  };

  void Post(int64_t delay_us, JobEvent event);
  void PostOf(const ProcessId& id, int64_t delay_us, JobEvent event);
  void Deliver(const JobEvent& event);
  void CarryOut(const std::vector<JobAction>& actions);
  void StopNext();
  void Tick();
  void RunLater(int64_t delay_us, std::function<void()> task);
  bool LosesCall() { return random_.Chance(options_.faults.lose_call); }
  bool Reaches(ProcessRole role, size_t index) const {
    return !world_.reaches || world_.reaches(role, index);
  }
  int64_t CallMicros() { return random_.Between(0, options_.faults.call_us / 2); }

  void Do(const action::Open& open);
  void Do(const action::StartProcess& start);
  void Do(const action::Configure& configure);
  void Do(const action::AskStatus& ask);
  void Do(const action::CallProcesses& call);
  void Do(const action::Commit& commit);
  void Do(const action::Remove& remove);
  void Do(const action::Decide& decide);
  void Do(const action::Introduce& introduce);
  void Do(const action::AskDigest& ask);
  void Do(const action::WriteResult& result);
  void Do(const action::StopProcesses& stop);
  void Do(const action::AnswerRequest& answer);
  void Do(const action::Finish& finish);
  void Do(const action::ReportStart& start);
  void Do(const action::ReportRestart&);
  void Do(const action::ReportCheckpoint& report);
  void Do(const action::ReportEvaluation& report) { world_.on_evaluation(report.event); }
  template <typename Report>
  void Do(const Report&) {}

  void MakeHosts();
  void BringHostUp(size_t index);
  SimHost* Find(const std::string& host);
  void NoteHosts(const JobEvent& event);
  void PlaceProcess(const action::StartProcess& start);
  bool IsHostKnown(const ProcessId& id);
  bool CanStart(const action::StartProcess& start);
  void StartServer(const action::StartProcess& start);
  void CallNext(const std::shared_ptr<Batch>& batch, size_t chain, size_t position);
  absl::StatusOr<CheckpointReply> CallOne(const CheckpointCall& call);
  void TamperStatus(CheckpointReply* reply) const;
  void Fail(const std::string& what) { failures_.push_back(what); }

  const SimRunnerOptions options_;
  const SimWorld world_;
  CheckpointStore& store_;
  Scheduler& scheduler_;
  Saboteur& saboteur_;
  std::vector<std::string>& failures_;
  SimRandom random_;
  const int64_t began_us_;
  JobMachine machine_;
  uint64_t generation_ = 0;
  std::unique_ptr<CheckpointRequestNumbers> numbers_;
  SimLauncherCounters counters_;
  SimWork work_;
  std::optional<ProcessRole> stopping_;  // With nodes: the processes whose end is waited for.
  uint64_t ticks_ = 0;                   // Scheduled; only the last one counts.
  uint64_t requests_ = 0;
  std::map<std::pair<ProcessRole, uint32_t>, ProcessId> processes_;
  std::vector<SimHost> hosts_;  // [num_hosts]
  std::map<std::pair<ProcessRole, uint32_t>, Place>
      places_;  // Where the generation's processes are.
  std::map<std::pair<ProcessRole, uint32_t>, Place> before_;     // Where those before it were.
  std::map<std::pair<ProcessRole, uint32_t>, int64_t> said_us_;  // Events of a process keep order.
  EvaluationReport last_report_;
  std::string newest_place_;     // The data place that a worker has reported last.
  uint32_t restarts_ = 0;        // Restarts before the job got beyond
  Step restarted_at_ = kNoStep;  // this step.
  bool job_is_at_fault_ = false, user_stopped_ = false, is_result_complete_ = false;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_RUNNER_H_
