// thermocline checkpoint: what checkpoints there are, whether they are whole, and what is in them.
#include "deploy/cli/checkpoint_command.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "deploy/cli/command.h"

namespace thermocline {
namespace {

const std::vector<CheckpointAction>& AllActions() {
  static const auto* const actions = new std::vector<CheckpointAction>{
      CheckpointListAction(),
      CheckpointVerifyAction(),
      CheckpointExportAction(),
      CheckpointNowAction(),
  };
  return *actions;
}

int Checkpoint(const std::vector<std::string>& arguments) {
  if (std::any_of(arguments.begin(), arguments.end(), IsHelpFlag)) {
    std::fputs(CommandHelp(CheckpointCommand()).c_str(), stdout);
    return kExitDone;
  }
  const std::string see = "; see thermocline help checkpoint";
  if (arguments.empty()) return Complain("checkpoint: what to do is missing" + see, kExitUsage);
  std::vector<std::string> names;
  for (const CheckpointAction& action : AllActions()) {
    names.push_back(action.name);
    if (action.name != arguments[0]) continue;
    const auto flags = Flags::Parse(action.flags, {arguments.begin() + 1, arguments.end()});
    if (!flags.ok()) return Complain(absl::StrCat(flags.status().message(), see), kExitUsage);
    return action.run(*flags);
  }
  return Complain(absl::StrCat("checkpoint: unknown action '", arguments[0], "'",
                               DidYouMean(arguments[0], names), see),
                  kExitUsage);
}

}  // namespace

absl::StatusOr<CheckpointPath> CheckpointArgument(const std::string& path) {
  std::vector<std::string> notices;
  auto resolved = ResolveCheckpointPath(path, &notices);
  if (!resolved.ok()) return resolved;  // Its message has all that they say.
  for (const std::string& notice : notices) Complain(notice, kExitDone);
  return resolved;
}

const char* VerdictOn(const absl::Status& status) {
  if (status.ok()) return "whole";
  return absl::IsDataLoss(status) ? "damaged" : "unreadable";
}

Command CheckpointCommand() {
  Command command;
  command.name = "checkpoint";
  command.arguments = "ACTION ...";
  command.summary = "lists, verifies, exports and makes checkpoints";
  command.details = "actions:\n";
  for (const CheckpointAction& action : AllActions()) {
    absl::StrAppend(&command.details, "  ", action.name, " ", action.arguments, "\n      ",
                    action.summary, "\n");
    for (const FlagSpec& flag : action.flags) {
      absl::StrAppend(&command.details, "      --", flag.name, flag.value.empty() ? "" : " ",
                      flag.value, ": ", flag.help, "\n");
    }
  }
  absl::StrAppend(
      &command.details,
      "\nPATH is a checkpoint directory, a run directory, or one checkpoint\n"
      "(DIRECTORY/epoch-1-step-999); \"best\" in one of the two is the best one (evaluate in\n"
      "the job). Exit code 1 if anything is not whole.\n");
  command.examples =
      "  thermocline checkpoint list runs/quickstart-20240101-120000\n"
      "  thermocline checkpoint verify runs/quickstart-20240101-120000/checkpoints\n"
      "  thermocline checkpoint export runs/kaggle/checkpoints/epoch-1-step-999 m.safetensors\n"
      "  thermocline checkpoint now --run-dir runs/quickstart-20240101-120000\n";
  command.passes_arguments = true;
  command.run_raw = Checkpoint;
  return command;
}

}  // namespace thermocline
