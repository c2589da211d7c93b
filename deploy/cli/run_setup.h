// From the flags of a command to a run that can begin: its job, its folders, and the locks on them.
#ifndef THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_
#define THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/processes/run_directory.h"
#include "deploy/runner/job_runner.h"
#include "proto/job.pb.h"

namespace thermocline {

// The flags that name a job and change it. An empty text means that its flag was not given.
struct JobFlags {
  std::string job;                                          // the job file
  std::optional<std::string> data, servers, workers, http;  // values for fields of the job
  std::vector<std::string> set;                             // "FIELD=VALUE"
  std::vector<std::string> clear;                           // "FIELD"
  bool insecure = false;
  std::string bin_dir;
  std::string run_dir;
};

struct TrainFlags : JobFlags {
  bool resume = false;
  std::string resume_from;
  bool restarted = false;
  bool other_data = false;
  bool or_begin = false;
  bool embed = false;  // The worker holds the rows itself, where the job leaves that open.
  std::string init_from;
  std::string trace;   // "FIRST:LAST"
  int64_t nodes = 0;   // 0: on this machine
  std::string listen;  // for nodes
};

struct EvalFlags : JobFlags {
  std::string checkpoint;
  bool json = false;
};

struct RunSetup {
  Job job;
  JobOptions options;
  RunDirectory directory;
  std::vector<RunLock> locks;  // held as long as the run takes
  // --restarted: how the job has ended, which is all there is to report: nothing else is set up.
  // nullopt: the run goes on.
  std::optional<JobOutcome> outcome;
};

// A run that begins, or with --resume or --resume-from one that goes on in its run directory. With
// --restarted (an engine has started the controller again) it goes on unless it has ended, with the
// budgets that are left; a user who resumes it wants more of it, and begins with full ones. With
// --or-begin it begins, if it has not yet: nothing of another run is removed or gone on with.
// --resume-from best reads every byte of the newest checkpoint with `scan`. Errors: bad usage, a
// bad job file, folders that can't be used so; those of scan->on_progress.
absl::StatusOr<RunSetup> SetUpTraining(const TrainFlags& flags, ByteScan* scan);

// A run that scores rows with the checkpoint that --checkpoint names: a checkpoint's folder; or a
// run directory or checkpoint directory, whose newest whole one is taken, with a notice about each
// damaged one that is passed over; or "best" in one of those. Reads every byte of the checkpoint
// with `scan`; one that is named, or the best, has to be whole. The run scores all rows of --data
// or, without --data, the job's held-out rows. JOB may be left out if the checkpoint lies in a run
// directory. Errors: as above.
absl::StatusOr<RunSetup> SetUpEvaluation(const EvalFlags& flags, ByteScan* scan);

// Prints why a run could not be set up. Returns the exit code.
int ComplainAboutSetup(const absl::Status& why);

// Loads the job that the flags name and change, its paths made absolute, and finds what it begins
// with. Errors: bad usage or a bad job file.
absl::StatusOr<Job> LoadJobOf(const JobFlags& flags);

// Whether a job may run over several hosts. Errors: kInvalidArgument (its server is embedded)
absl::Status CheckMaySpread(const Job& job);

// Takes a field out of the job that the flags name; no --set of the user puts a part of it back.
void TakeOut(const std::string& field, JobFlags* flags);

// Finds the programs of servers and workers. Errors: kNotFound
absl::StatusOr<JobPrograms> FindProgramsOf(const JobFlags& flags);

// Sets the folder of the job's checkpoints to RUN_DIR/checkpoints, if the job file names none.
void FillCheckpointDirectory(const RunDirectory& directory, Job* job);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_RUN_SETUP_H_
