// Runs one job on this machine, from the first process to the last file.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_JOB_CONTROLLER_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_JOB_CONTROLLER_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/backends/local/signal_watch.h"
#include "deploy/console/progress_bar.h"
#include "deploy/console/stats_table.h"
#include "deploy/controller/epoch_run.h"
#include "deploy/controller/run_directory.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobResult {
  nlohmann::ordered_json summary;  // as in summary.json
  std::vector<ServerReport> servers;
};

// What the caller may show while a job runs; each may be empty.
struct JobObserver {
  std::function<void(const std::vector<std::string>& addresses)> on_servers_up;
  std::function<void(const Progress& progress)> on_progress;
  // A server has ended and is started again; it goes on from its push log.
  std::function<void(const std::string& name, const std::string& how_it_ended)> on_server_restart;
  std::function<void()> on_training_done;
};

// Starts the servers, configures them, starts the workers, waits for them, collects digest and
// stats and writes the run directory's files. However it ends, no process is left.
//
// Errors: kAborted (a process failed; with its last log lines), kCancelled (Ctrl-C or SIGTERM),
// kDeadlineExceeded (a process didn't come up or answer, or nothing advances), kDataLoss (a worker
// left no result), and those of starting programs and writing files. REQUIRES: called on the main
// thread; `job` as LoadJob returns it.
absl::StatusOr<JobResult> RunJob(const Job& job, const JobPrograms& programs,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_JOB_CONTROLLER_H_
