// Runs the processes of a job on other hosts, through the agents there.
#ifndef THERMOCLINE_DEPLOY_NODES_NODE_PROCESSES_H_
#define THERMOCLINE_DEPLOY_NODES_NODE_PROCESSES_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/net/grpc_server.h"
#include "deploy/nodes/node_service.h"
#include "deploy/nodes/shared_folder.h"
#include "deploy/processes/processes.h"
#include "deploy/processes/run_directory.h"
#include "deploy/processes/signal_watch.h"
#include "deploy/processes/supervisor.h"
#include "proto/job.pb.h"

namespace thermocline {

// A file of the run directory: {"address": where the controller listens for nodes}. The controller
// may have ended.
inline constexpr char kControllerFile[] = "controller.json";
// Another one: {"server 0": {"host": where it ran last, "log": the path of its log there}, ...}.
inline constexpr char kPlacesFile[] = "hosts.json";

// Whether a folder of certificates has the key of its authority (ca.key), so that the controller
// signs the certificates of processes.
bool HasAuthority(const std::string& folder);

struct NodeProcessesOptions {
  std::string listen;      // host:port
  std::string build;       // Nodes must have this build.
  std::string data_index;  // LocalProcessesOptions::data_index, on the hosts' shared file system.
  bool eval_only = false;
  // Called on any thread when TakeEvents is due.
  std::function<void()> wake;
  // Called with a line for the user, during TakeEvents.
  std::function<void(const std::string& text)> tell;
};

class NodeProcesses : public Processes {
 public:
  // Listens, and writes kControllerFile and the files by which nodes test the run directory and the
  // folder of checkpoints (shared_folder.h). All references must outlive it. Errors:
  // GrpcServer::Start's, those of writing files.
  static absl::StatusOr<std::unique_ptr<NodeProcesses>> Create(const Job& job,
                                                               const NodeProcessesOptions& options,
                                                               const RunDirectory& directory,
                                                               SignalWatch* signals,
                                                               Supervisor* supervisor);
  // Lets the nodes end.
  ~NodeProcesses() override;

  void BeginGeneration(uint64_t generation,
                       std::function<void(absl::string_view data)> on_metrics) override;
  absl::Status Start(const action::StartProcess& start) override;
  std::vector<JobEvent> TakeEvents() override;
  // A silent host is noticed this late.
  absl::Duration UntilNextLook() const override { return absl::Milliseconds(500); }
  void Stop(ProcessRole role, absl::Duration grace) override;
  const std::vector<nlohmann::ordered_json>& results() const override { return results_; }

 private:
  NodeProcesses(const NodeProcessesOptions& options, const RunDirectory& directory,
                NodeTable::Options table, SignalWatch* signals, Supervisor* supervisor);

  const NodeProcessesOptions options_;
  const RunDirectory& directory_;
  SignalWatch& signals_;
  Supervisor& supervisor_;
  NodeService service_;
  std::unique_ptr<GrpcServer> server_;
  std::vector<std::string> marked_folders_;  // Folders with mark_, by which nodes recognize them.
  FolderMark mark_;
  std::function<void(absl::string_view)> on_metrics_;
  std::vector<nlohmann::ordered_json> results_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_NODES_NODE_PROCESSES_H_
