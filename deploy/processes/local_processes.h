// Runs the servers and workers of a job as child processes on this machine: their commands, files
// and pipes.
#ifndef THERMOCLINE_DEPLOY_PROCESSES_LOCAL_PROCESSES_H_
#define THERMOCLINE_DEPLOY_PROCESSES_LOCAL_PROCESSES_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/net/tls_files.h"
#include "deploy/job/job_actions.h"
#include "deploy/job/job_events.h"
#include "deploy/processes/processes.h"
#include "deploy/processes/run_directory.h"
#include "deploy/processes/supervisor.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobPrograms {
  std::string server;
  std::string worker;
  std::string build;   // The build that checkpoints name.
  std::string digest;  // A digest of the build and both programs; all hosts of a job have the same.
};

// Reads both programs. Errors: kUnavailable (one can't be read; names it)
absl::StatusOr<std::string> DigestOfPrograms(const JobPrograms& programs);

// The role in a process's certificate.
Role CertificateRole(ProcessRole role);

// Returns "server-0.port" for "server 0" and "port".
std::string ProcessFileName(absl::string_view name, absl::string_view extension);
// The path of that file of the process called `name` ("server 0"): ".../server-0.port" for "port".
std::string ProcessFile(const RunDirectory& directory, absl::string_view name,
                        absl::string_view extension);

// Removes the push logs and spilled rows of all servers in a folder: server-N.data, and nothing
// else.
absl::Status RemoveServerData(const RunDirectory& directory);

struct LocalProcessesOptions {
  std::string job_file;    // For workers.
  std::string data_index;  // The folder of the workers' indexes of text files.
  bool eval_only = false;
  // Whether workers, like servers, listen on the job's cluster.listen_host, which other hosts
  // reach; false: on loopback.
  bool workers_are_reached = false;
  // On a host other than the controller's: the CA file of processes whose certificates the
  // controller signs, since the job's files are not there. "": all processes use the job's files.
  std::string own_ca;
};

// Child processes on this machine.
class LocalProcesses : public Processes {
 public:
  // All references must outlive it.
  //   directory: has the processes' own files
  LocalProcesses(const Job& job, const JobPrograms& programs, const RunDirectory& directory,
                 LocalProcessesOptions options, Supervisor* supervisor);
  ~LocalProcesses() override;

  void BeginGeneration(uint64_t generation,
                       std::function<void(absl::string_view data)> on_metrics) override;
  absl::Status Start(const action::StartProcess& start) override;
  std::vector<JobEvent> TakeEvents() override;
  // It polls for port files, which show that processes have come up.
  absl::Duration UntilNextLook() const override;
  void Stop(ProcessRole role, absl::Duration grace) override;
  const std::vector<nlohmann::ordered_json>& results() const override { return results_; }

  // Whether the processes of a role need certificates of their own.
  bool NeedsOwnCertificate(ProcessRole role) const;
  // The TLS files of a process. Its own are beside its log. Empty: plain text.
  TlsFiles TlsOf(const ProcessId& id) const;

 private:
  absl::Status StartServer(const action::StartProcess& start);
  absl::Status StartWorker(const action::StartProcess& start);
  std::string DataFolder(uint32_t server) const;  // "": the server needs none.
  absl::Status MakeResultFile(uint32_t rank);
  absl::StatusOr<int> MakeMetricsPipe();
  void CloseResults();
  bool LookForAddress(const ProcessId& id, std::vector<JobEvent>* events);
  event::WorkerResult ReadResult(const ProcessId& id);
  void LookForEmbeddedEnd(std::vector<JobEvent>* events);

  const Job& job_;
  const JobPrograms& programs_;
  const RunDirectory& directory_;
  const LocalProcessesOptions options_;
  // Server 0 and worker 0 are one process: it lives as long as the server, and its end is reported
  // as the server's.
  const bool has_embedded_server_;
  Supervisor& supervisor_;
  std::function<void(absl::string_view)> on_metrics_;
  uint64_t metrics_of_ = 0;  // The number of rank 0's pipe of metrics.
  bool metrics_ended_ = true;
  std::vector<ProcessId> coming_up_;
  std::vector<Supervisor::Ended> held_back_;  // Rank 0's end, until its metrics have ended.
  std::optional<ProcessId> embedded_worker_;  // Until it is seen to end.
  std::vector<int> result_fds_;               // By rank; files in memory; -1: none.
  std::vector<nlohmann::ordered_json> results_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_PROCESSES_LOCAL_PROCESSES_H_
