// From the command line of `train` and `eval` to a run that can begin: its job, its folders, and
// the locks on them.
#ifndef THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_
#define THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/cli/flags.h"
#include "deploy/controller/job_controller.h"
#include "deploy/controller/run_directory.h"
#include "deploy/controller/run_lock.h"
#include "proto/job.pb.h"

namespace thermocline {

struct RunSetup {
  Job job;
  JobOptions options;
  RunDirectory directory;
  std::vector<RunLock> locks;  // as long as the run takes
};

// A run that begins, or with --resume or --resume-from one that goes on in its run directory.
// Errors: all of them bad usage, a bad job file, or folders that can't be used so.
absl::StatusOr<RunSetup> SetUpTraining(const Flags& flags);

// A run that scores the held-out rows with the checkpoint that --checkpoint names.
// Errors: as above.
absl::StatusOr<RunSetup> SetUpEvaluation(const Flags& flags);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_
