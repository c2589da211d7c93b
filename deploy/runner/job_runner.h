// Runs one job, from the first process to the last file: on this machine, or over several hosts.
#ifndef THERMOCLINE_DEPLOY_RUNNER_JOB_RUNNER_H_
#define THERMOCLINE_DEPLOY_RUNNER_JOB_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/http/http_feed.h"
#include "deploy/job/generation.h"
#include "deploy/processes/local_processes.h"
#include "deploy/processes/run_directory.h"
#include "deploy/processes/signal_watch.h"
#include "deploy/runner/job_reporter.h"
#include "proto/job.pb.h"

namespace thermocline {

struct JobOptions {
  JobPrograms programs;
  GenerationStart start;
  bool is_resumed = false;
  std::vector<std::string> notices;  // Shown as the job begins.
  // Scores the held-out rows with the checkpoint of `start`, and trains nothing.
  bool eval_only = false;
  // The folder of the workers' indexes of text files; "": RUN_DIR/data_index.
  std::string data_index;
  // What was found of the job's hot rows, for the summary; null: it has none.
  nlohmann::ordered_json hot_rows;
  // Over so many hosts, whose agents (`thermocline node`) connect to `listen`, host:port. 0: on
  // this machine.
  size_t num_hosts = 0;
  std::string listen;
  HttpFeed* http = nullptr;  // The job's web server, which outlives the run; null: there is none.
};

// The size of all files in the folders of checkpoints: it changes while servers write. HISTORY,
// which grows with each checkpoint, is left out.
uint64_t BytesOfCheckpoints(const std::string& directory);

// Carries out what the job machine (deploy/job/job_machine.h) wants done: with processes, gRPC and
// files. However the job ends, no process is left.
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

#endif  // THERMOCLINE_DEPLOY_RUNNER_JOB_RUNNER_H_
