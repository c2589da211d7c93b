// `thermocline checkpoint ACTION ...`: the table of its actions.
#ifndef THERMOCLINE_DEPLOY_CLI_CHECKPOINT_COMMAND_H_
#define THERMOCLINE_DEPLOY_CLI_CHECKPOINT_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/cli/flags.h"

namespace thermocline {

struct CheckpointAction {
  std::string name;
  std::string arguments;  // after the name in the usage line: "PATH"
  std::string summary;    // one line
  std::vector<FlagSpec> flags;
  int (*run)(const Flags& flags) = nullptr;  // Returns the exit code.
};

CheckpointAction CheckpointListAction();
CheckpointAction CheckpointVerifyAction();
CheckpointAction CheckpointExportAction();
CheckpointAction CheckpointNowAction();

// What PATH means to all of them.
struct CheckpointPath {
  std::string directory;
  std::string name;  // Empty: all checkpoints of the directory.
};
// A checkpoint directory, a run directory, or one checkpoint in its directory.
// Errors: kNotFound (no such folder), kInvalidArgument (the run directory's job can't be read).
absl::StatusOr<CheckpointPath> ResolveCheckpointPath(std::string path);

// What a listed checkpoint is: "whole", "damaged", or "unreadable": here or now, which says nothing
// against it (another format version; the disk).
const char* VerdictOn(const absl::Status& status);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_CHECKPOINT_COMMAND_H_
