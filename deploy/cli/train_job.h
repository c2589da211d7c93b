// What `train`, `eval` and `bench train` share: from flags to a job, and running it with a progress
// bar.
#ifndef THERMOCLINE_DEPLOY_CLI_TRAIN_JOB_H_
#define THERMOCLINE_DEPLOY_CLI_TRAIN_JOB_H_

#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/job/job_loader.h"
#include "deploy/cli/flags.h"
#include "deploy/runner/local_runner.h"
#include "deploy/runner/signal_watch.h"
#include "proto/job.pb.h"

namespace thermocline {

// Flags that name a job and change it: --data, --servers, --workers, --insecure, --set, --clear,
// --bin-dir.
std::vector<FlagSpec> JobFlags();
// Those of them that mean something to a command that doesn't train: all but --workers.
std::vector<FlagSpec> EvaluationJobFlags();

// Loads the job that the one positional argument names, or else the one at `default_path`, changed
// by the flags, then by `more_overrides`, and without the fields `more_cleared`, its paths made
// absolute. Errors: kInvalidArgument and others: all of them bad usage or a bad job file.
absl::StatusOr<Job> JobFromFlags(const Flags& flags, const std::string& default_path = "",
                                 const std::vector<std::string>& more_overrides = {},
                                 const std::vector<std::string>& more_cleared = {},
                                 JobUse use = JobUse::kTrain);

// The first of test_*.npy in the folder of a DLRM_NPY job's data; "": there is none.
std::string HeldOutFile(const Data& data);

absl::StatusOr<JobPrograms> ProgramsFromFlags(const Flags& flags);

// Where the job's checkpoints go: RUN_DIR/checkpoints, where the job file names no other folder.
void FillCheckpointDirectory(const RunDirectory& directory, Job* job);

// Runs the job and shows how far it is on the descriptor `fd`. Never waits for who reads that.
absl::StatusOr<JobResult> RunJobOnConsole(const Job& job, const JobOptions& options,
                                          const RunDirectory& directory, SignalWatch* signals,
                                          int fd = STDOUT_FILENO);

// Prints "thermocline: ..." to standard error; a request to stop ends it.
void ReportFailure(absl::string_view message, SignalWatch* signals);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_TRAIN_JOB_H_
