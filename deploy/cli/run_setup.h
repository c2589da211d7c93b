// From the command line of `train` and `eval` to a run that can begin: its job, its folders, and
// the locks on them.
#ifndef THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_
#define THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deploy/cli/flags.h"
#include "deploy/runner/local_runner.h"
#include "deploy/runner/run_directory.h"
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

// What the PATH of a checkpoint means to every command.
struct CheckpointPath {
  std::string directory;
  std::string name;  // Empty: all checkpoints of the directory.
};
// A checkpoint directory, a run directory, or one checkpoint in its directory; "best" in one of the
// two is the best checkpoint (Job.evaluate), as the newest whole one knows it, by every byte; newer
// ones that are damaged are passed over, and `notices` gets a line for each. Errors: kNotFound (no
// such folder; a run without checkpoints, or without a whole or a best one), kInvalidArgument (the
// run directory's job can't be read).
absl::StatusOr<CheckpointPath> ResolveCheckpointPath(std::string path,
                                                     std::vector<std::string>* notices);

// A run that scores rows with the checkpoint that --checkpoint names: a checkpoint's folder, or a
// run directory or checkpoint directory, of which the newest whole one is taken and newer ones are
// named in the notices; with "/best" behind it the one that is kept as the best. One that is named,
// or kept as the best, has to be whole. Every byte of it is read for that. Scored are all rows of
// --data, where it is given, else the job's held-out rows. JOB may be left out where the checkpoint
// lies in a run directory. Errors: as above.
absl::StatusOr<RunSetup> SetUpEvaluation(const Flags& flags);

// Which rows that run scores: "all rows of 'day_23.gz'".
std::string DescribeScoredRows(const Data& data);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_
