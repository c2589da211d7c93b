// What a submission was given on the command line, kept in RUN_DIR/submit/flags.json, so that the
// next one of the run needs to name only what changes.
#ifndef THERMOCLINE_DEPLOY_CLI_SUBMIT_FLAGS_H_
#define THERMOCLINE_DEPLOY_CLI_SUBMIT_FLAGS_H_

#include "absl/status/status.h"
#include "deploy/cli/host_commands.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {

// Errors: those of RunDirectory::Write
absl::Status KeepFlags(const SubmitFlags& flags, const RunDirectory& directory);

// Fills in what `flags` leaves out, where it goes on with a run (--resume) or submits one again
// that has never begun (no JOB): the latter with its job file, all that changed it, and the folder
// that its relative paths begin at, which becomes this process's. Hosts that are named anew take
// the place of the kept ones, of their number and of the controller's; another engine takes nothing
// of the kept one. OK where nothing is kept. Errors: kFailedPrecondition (there is no such folder),
// kDataLoss, kUnavailable
absl::Status TakeKeptFlags(SubmitFlags* flags);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_SUBMIT_FLAGS_H_
