// One subcommand of `thermocline`, and the table of all.
#ifndef THERMOCLINE_DEPLOY_CLI_COMMAND_H_
#define THERMOCLINE_DEPLOY_CLI_COMMAND_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/process_limits.h"
#include "deploy/cli/flags.h"

namespace thermocline {

struct Command {
  std::string name;
  std::string arguments;  // after the name in the usage line: "JOB"
  std::string summary;    // one line
  std::string details;    // paragraphs, ended lines
  std::string examples;   // lines, each a command
  std::vector<FlagSpec> flags;
  // Takes the arguments as they are instead of flags: for programs that this one runs.
  bool passes_arguments = false;
  int (*run)(const Flags& flags) = nullptr;
  int (*run_raw)(const std::vector<std::string>& arguments) = nullptr;
};

Command TrainCommand();
Command EvalCommand();
Command GenerateCommand();
Command StatsCommand();
Command CheckpointCommand();
Command BenchCommand();

// All commands, in the order of the help.
const std::vector<Command>& AllCommands();

// The page of `thermocline help COMMAND`, and the one of `thermocline help`.
std::string CommandHelp(const Command& command);
std::string OverviewHelp();

// Whether an argument asks for the command's page.
bool IsHelpFlag(const std::string& argument);

// Prints "thermocline: ..." to standard error and returns `exit_code`.
int Complain(absl::string_view message, int exit_code);

// Runs the command line, without the program's name. Returns the exit code.
int RunCommandLine(const std::vector<std::string>& arguments);

// Replaces this process by `program`, found as FindProgram does; where it isn't, `target` is what
// Bazel makes it from. Returns only with an error's exit code.
int ExecProgram(absl::string_view program, absl::string_view target,
                const std::vector<std::string>& arguments);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_COMMAND_H_
