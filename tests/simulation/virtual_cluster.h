// The inside of the simulation of a cluster: its hosts with their agents and processes, and its
// controllers.
#ifndef THERMOCLINE_TESTS_SIMULATION_VIRTUAL_CLUSTER_H_
#define THERMOCLINE_TESTS_SIMULATION_VIRTUAL_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/nodes/node_agent.h"
#include "deploy/nodes/node_table.h"
#include "server/core/server_config.h"
#include "tests/simulation/network_disk.h"
#include "tests/simulation/pausable_scheduler.h"
#include "tests/simulation/saboteur.h"
#include "tests/simulation/sequential_model.h"
#include "tests/simulation/sim_cluster.h"
#include "tests/simulation/sim_network.h"
#include "tests/simulation/sim_random.h"
#include "tests/simulation/sim_runner.h"
#include "tests/simulation/sim_server.h"
#include "tests/simulation/sim_streams.h"
#include "tests/simulation/sim_worker.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {

inline constexpr int64_t kSecond = 1'000'000;  // In microseconds.

class VirtualCluster {
 public:
  explicit VirtualCluster(const ClusterSetup& setup);
  ~VirtualCluster();

  ClusterResult Run();

 private:
  static constexpr char kJobId[] = "simulated";
  static constexpr char kDirectory[] = "/shared";  // It has the checkpoints; all hosts see it.
  static constexpr char kBuild[] = "build";
  static constexpr absl::Duration kLease = absl::Seconds(2);

  struct Host;
  // A server of a generation, over its processes; or a worker of one.
  struct Place {
    explicit Place(Host* h);

    Host* host;
    PausableScheduler scheduler;
    uint64_t generation = 0;
    std::string address;
    std::unique_ptr<SimServer> server;
    std::unique_ptr<SimNetwork> network;
    std::unique_ptr<SimWorker> worker;  // Null once it has ended.
  };
  struct Running {
    NodeProcess id;
    Place* place = nullptr;
    std::string address;  // Until it is said.
    std::optional<int> exit_code;
    bool has_ended = false;
  };
  struct Host {
    explicit Host(Scheduler* base) : scheduler(base), agent_scheduler(&scheduler) {}

    std::string name;
    PausableScheduler scheduler, agent_scheduler;
    std::unique_ptr<NodeAgent> agent;  // Null: it is not there.
    uint64_t agents = 0;               // So many agents have lived.
    uint64_t registrations = 0;        // This agent has registered so often.
    size_t controller = 0;             // Its agent speaks to this one.
    std::map<std::string, Running> running;
    bool in_cut = false, out_cut = false;
    int64_t reported_us = 0;
    uint64_t heartbeat = 0;
    // When a heartbeat was sent, and the newest of each nonce that has come to a controller.
    std::map<std::pair<uint64_t, uint64_t>, absl::Duration> sent;
    std::map<uint64_t, absl::Duration> heard;
  };
  struct Generation {
    GenerationStart start;
    std::unique_ptr<SequentialModel> model;
    std::vector<std::unique_ptr<Place>> servers, workers;  // Null: not started.
    std::vector<std::string> failures;                     // Void once another has begun.
  };
  struct Controller {
    explicit Controller(Scheduler* base) : scheduler(base) {}

    PausableScheduler scheduler;
    std::shared_ptr<bool> ended = std::make_shared<bool>(false);
    std::unique_ptr<SimulatedDisk> share;
    std::unique_ptr<NetworkDisk> disk;
    std::unique_ptr<CheckpointStore> store;
    std::unique_ptr<NodeTable> table;
    std::unique_ptr<SimRunner> runner;       // Null: it has not begun.
    std::map<std::string, uint64_t> nonces;  // The newest reports name them.
    Digest digest;                           // The servers named it at the end.
  };

  void Fail(const std::string& what);
  bool IsGood();
  void Later(int64_t delay_us, std::function<void()> task) {
    base_.RunAfter(delay_us, std::move(task));
  }
  int64_t Delay() { return random_.Between(1, 3'000); }

  // Controllers
  void StartController();
  void BeginController(size_t index);
  void EndController(Controller* controller);
  void EnsureController();
  bool HasController() const;
  void Between(Controller* controller);
  JobMachineOptions MachineOptions(const GenerationStart& start) const;
  SimWorld WorldOf(size_t index);
  void LookAtNodes(size_t index);
  void LookAtHistory(size_t index);
  void OnOpen(const GenerationStart& start, const absl::Status& status);
  void OnCommitted(Controller* controller, const CheckpointEvent& event);
  void OnFinish(size_t index, const GenerationOutcome& outcome);
  void SendOrders(size_t index);
  void SendOrder(size_t index, Host* host);
  Host* Find(const std::string& name);
  Place* PlaceOf(uint64_t generation, ProcessRole role, size_t index) const;

  // Hosts
  void StartAgent(Host* host);
  void KillAgent(Host* host);
  void KillHost(Host* host);
  void LookOfAgent(Host* host, uint64_t life);
  void Do(Host* host, const NodeAction& action);
  void StartProcess(Host* host, const WantedProcess& wanted);
  void StartServer(Host* host, const WantedProcess& wanted);
  void StartWorker(Host* host, const WantedProcess& wanted);
  bool HoldsParameters() const { return setup_.exchange.has_value(); }
  std::unique_ptr<SimTraining> JoinOthers(const WantedProcess& wanted, Place& place,
                                          SimTrainee* worker, PsSession* session,
                                          Scheduler* scheduler, std::function<void()> wake);
  void EndProcess(Running* running, std::optional<int> exit_code);
  void NoticeEnds(Host* host);
  void Report(Host* host);
  void CheckLease(Host* host);
  ServerConfig ConfigFor(const Generation& generation, size_t index) const;
  bool Passes(const Host* from, const Host* to) const {
    return from == to || !(from->out_cut || to->in_cut);
  }

  // Troubles
  void Trouble();
  void MakeTrouble();
  void CutOff(Host* host);
  void Pause(PausableScheduler* scheduler, bool stops_clock);
  void PauseProcess(Host* host, bool kills);
  void PauseController();

  const ClusterSetup setup_;
  SimRandom random_;
  VirtualScheduler base_;
  std::vector<std::string> failures_;
  Saboteur saboteur_;
  SimulatedDisk medium_;
  std::vector<std::function<void()>> late_;
  std::vector<TableLayout> tables_;
  std::set<TableId> held_;
  std::unique_ptr<SimStreams> streams_;
  std::vector<std::unique_ptr<Host>> hosts_;
  std::map<uint64_t, std::unique_ptr<Generation>> generations_;
  std::vector<std::unique_ptr<Controller>> controllers_;
  std::map<std::string, Place*> addresses_;  // What listens there, or did last.
  std::set<std::string> started_;
  uint64_t nonces_ = 0;
  int troubles_left_;
  bool is_nested_ = false, is_start_due_ = false, is_finished_ = false;
  ClusterResult result_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_VIRTUAL_CLUSTER_H_
