// Runs one job on this machine, from the first process to the last file.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_JOB_CONTROLLER_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_JOB_CONTROLLER_H_

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/console/progress_bar.h"
#include "deploy/console/stats_table.h"
#include "deploy/controller/epoch_run.h"
#include "deploy/controller/epoch_start.h"
#include "deploy/controller/run_directory.h"
#include "deploy/runner/signal_watch.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobResult {
  nlohmann::ordered_json summary;  // as in summary.json
  std::vector<ServerReport> servers;
  // Not OK: the job is trained to its end, and something is missing, as this says: the checkpoint
  // of the last step, the digest, or summary.json. The job has failed nevertheless.
  absl::Status shortfall;
};

struct JobOptions {
  JobPrograms programs;
  EpochStart start;
  bool is_resumed = false;
  std::vector<std::string> notices;  // Told as it begins.
  // Scores the held-out rows with the checkpoint of `start`, and trains nothing.
  bool eval_only = false;
};

// What the caller may show while a job runs; each may be empty.
struct JobObserver {
  std::function<void(const std::vector<std::string>& addresses)> on_servers_up;
  std::function<void(const Progress& progress)> on_progress;
  // Something that the user should know, in a line: a server was started again, the job went back
  // to a checkpoint, a checkpoint was called off.
  std::function<void(const std::string& text)> on_notice;
  std::function<void()> on_training_done;
};

// Starts the servers, configures them, starts the workers, waits for them, collects digest and
// stats and writes the run directory's files. A job with a checkpoint policy that loses a process
// goes back to its newest checkpoint and begins another epoch. However it ends, no process is left.
//
// Errors, where it was not trained to its end: kAborted (a process failed; with its last log
// lines), kCancelled (Ctrl-C or SIGTERM), kDeadlineExceeded (a process didn't come up or answer, or
// nothing advances), kDataLoss (a worker left no result; a checkpoint or log is damaged), and those
// of starting programs and writing files.
//
// REQUIRES: called on the main thread; `job` as LoadJob returns it; where it has a checkpoint
// policy, with a directory.
absl::StatusOr<JobResult> RunJob(const Job& job, const JobOptions& options,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_JOB_CONTROLLER_H_
