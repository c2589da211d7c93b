// `thermocline checkpoint ACTION ...`: the table of its actions.
#ifndef THERMOCLINE_DEPLOY_CLI_CHECKPOINT_COMMAND_H_
#define THERMOCLINE_DEPLOY_CLI_CHECKPOINT_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "deploy/cli/flags.h"
#include "deploy/cli/run_setup.h"

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

// What the argument PATH means. A checkpoint that is passed over is named on standard error.
absl::StatusOr<CheckpointPath> CheckpointArgument(const std::string& path);

// What a listed checkpoint is: "whole", "damaged", or "unreadable": here or now, which says nothing
// against it (another format version; the disk).
const char* VerdictOn(const absl::Status& status);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_CHECKPOINT_COMMAND_H_
