// The servers and workers of a job as child processes on this machine: their commands, files and
// pipes.
#ifndef THERMOCLINE_DEPLOY_RUNNER_LOCAL_PROCESSES_H_
#define THERMOCLINE_DEPLOY_RUNNER_LOCAL_PROCESSES_H_

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "deploy/job/job_actions.h"
#include "deploy/job/job_events.h"
#include "deploy/runner/run_directory.h"
#include "deploy/runner/supervisor.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobPrograms {
  std::string server;
  std::string worker;
  std::string build;  // what checkpoints say of it
};

// Where the process called `name` ("server 0") has its file: ".../server-0.port" for "port".
std::string ProcessFile(const RunDirectory& directory, absl::string_view name,
                        absl::string_view extension);

// Not thread-safe; lives on the main thread.
class LocalProcesses {
 public:
  // All references must outlive it. `data_index`: the folder of the workers' indexes of text files.
  LocalProcesses(const Job& job, const JobPrograms& programs, const RunDirectory& directory,
                 bool eval_only, std::string data_index, Supervisor* supervisor);
  ~LocalProcesses();

  // A generation begins: there are no results yet. `on_metrics` gets what rank 0 reports, during
  // Supervisor::Poll.
  void BeginGeneration(std::function<void(absl::string_view data)> on_metrics);

  // Errors: those of files and of starting a program.
  absl::Status Start(const action::StartProcess& start);
  // What happened to processes since the call before, in the order in which the job machine is to
  // learn of it. A worker that ended well ends here once its metrics have been read.
  std::vector<JobEvent> TakeEvents();
  // Whether any process has still to come up. Its port file shows that it has; the loop polls for
  // it.
  bool AnyComesUp() const { return !coming_up_.empty(); }
  // No process is left.
  void Stop(ProcessRole role, absl::Duration grace);

  // By rank, of workers that ended well; they come through memory: a full disk takes none away.
  const std::vector<nlohmann::ordered_json>& results() const { return results_; }

 private:
  absl::Status StartServer(const action::StartProcess& start);
  absl::Status StartWorker(const action::StartProcess& start);
  absl::Status MakeResultFile(uint32_t rank);
  absl::StatusOr<int> MakeMetricsPipe();
  void CloseResults();
  bool LookForAddress(const ProcessId& id, std::vector<JobEvent>* events);
  event::WorkerResult ReadResult(const ProcessId& id);

  const Job& job_;
  const JobPrograms& programs_;
  const RunDirectory& directory_;
  const bool eval_only_;
  const std::string data_index_;
  Supervisor& supervisor_;
  std::function<void(absl::string_view)> on_metrics_;
  uint64_t metrics_of_ = 0;  // Which pipe of metrics is rank 0's.
  bool metrics_ended_ = true;
  std::vector<ProcessId> coming_up_;
  std::vector<Supervisor::Ended> held_back_;  // Of rank 0, until its metrics have ended.
  std::vector<int> result_fds_;               // By rank; in memory; -1: none.
  std::vector<nlohmann::ordered_json> results_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_RUNNER_LOCAL_PROCESSES_H_
