#include "deploy/cli/command.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/text.h"
#include "deploy/cli/version.h"
#include "deploy/runner/child_process.h"

namespace thermocline {
namespace {

void Print(std::FILE* out, const std::string& text) { std::fputs(text.c_str(), out); }

const Command* FindCommand(const std::string& name) {
  for (const Command& command : AllCommands()) {
    if (command.name == name) return &command;
  }
  return nullptr;
}

int UnknownCommand(const std::string& name) {
  std::vector<std::string> names = {"help"};
  for (const Command& command : AllCommands()) names.push_back(command.name);
  return Complain(absl::StrCat("unknown command '", name, "'", DidYouMean(name, names),
                               "; see thermocline help"),
                  kExitUsage);
}

int Help(const std::vector<std::string>& arguments) {
  if (arguments.size() < 2) {
    Print(stdout, OverviewHelp());
    return kExitDone;
  }
  if (arguments[1] == "help") {
    Print(stdout, "thermocline help [COMMAND]: how to use a command\n");
    return kExitDone;
  }
  const Command* command = FindCommand(arguments[1]);
  if (command == nullptr) return UnknownCommand(arguments[1]);
  Print(stdout, CommandHelp(*command));
  return kExitDone;
}

int RunCommand(const Command& command, const std::vector<std::string>& arguments) {
  if (command.passes_arguments) {
    if (!arguments.empty() && IsHelpFlag(arguments[0])) {
      Print(stdout, CommandHelp(command));
      return kExitDone;
    }
    return command.run_raw(arguments);
  }
  if (std::any_of(arguments.begin(), arguments.end(), IsHelpFlag)) {
    Print(stdout, CommandHelp(command));
    return kExitDone;
  }
  const auto flags = Flags::Parse(command.flags, arguments);
  if (!flags.ok()) {
    return Complain(absl::StrCat(flags.status().message(), "; see thermocline help ", command.name),
                    kExitUsage);
  }
  return command.run(*flags);
}

}  // namespace

const std::vector<Command>& AllCommands() {
  static const auto* const commands = new std::vector<Command>{
      TrainCommand(), EvalCommand(),       GenerateCommand(),
      StatsCommand(), CheckpointCommand(), BenchCommand(),
  };
  return *commands;
}

std::string CommandHelp(const Command& command) {
  std::string text =
      absl::StrCat("usage: thermocline ", command.name, command.arguments.empty() ? "" : " ",
                   command.arguments, "\n\n", command.details);
  if (!command.flags.empty()) {
    size_t width = 0;
    const auto title = [](const FlagSpec& flag) {
      return absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    };
    for (const FlagSpec& flag : command.flags) width = std::max(width, title(flag).size());
    absl::StrAppend(&text, "\nflags:\n");
    for (const FlagSpec& flag : command.flags) {
      absl::StrAppendFormat(&text, "  %-*s  %s%s\n", static_cast<int>(width), title(flag),
                            flag.help, flag.repeated ? " (may be repeated)" : "");
    }
  }
  if (!command.examples.empty()) absl::StrAppend(&text, "\nexamples:\n", command.examples);
  return text;
}

std::string OverviewHelp() {
  std::string text =
      "thermocline trains click-through-rate models on parameter servers.\n\n"
      "usage: thermocline COMMAND [ARGUMENTS]\n\ncommands:\n";
  for (const Command& command : AllCommands()) {
    absl::StrAppendFormat(&text, "  %-12s%s\n", command.name, command.summary);
  }
  absl::StrAppendFormat(&text, "  %-12s%s\n", "help", "how to use a command");
  absl::StrAppend(&text,
                  "\n`thermocline help COMMAND` tells more; `thermocline --version` the version.\n"
                  "exit codes: 0 done, 1 the job failed or was stopped, 2 bad usage or job file\n");
  return text;
}

bool IsHelpFlag(const std::string& argument) { return argument == "--help" || argument == "-h"; }

int Complain(absl::string_view message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "thermocline: %.*s\n", static_cast<int>(message.size()), message.data());
  return exit_code;
}

int RunCommandLine(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    Print(stderr, OverviewHelp());
    return kExitUsage;
  }
  const std::string& name = arguments[0];
  if (name == "help" || IsHelpFlag(name)) return Help(arguments);
  if (name == "--version" || name == "version") {
    Print(stdout, absl::StrCat("thermocline ", kVersion, "\n"));
    return kExitDone;
  }
  const Command* command = FindCommand(name);
  if (command == nullptr) return UnknownCommand(name);
  return RunCommand(*command, {arguments.begin() + 1, arguments.end()});
}

int ExecProgram(absl::string_view program, absl::string_view target,
                const std::vector<std::string>& arguments) {
  const auto path = FindProgram(program, "");
  if (!path.ok()) {
    return Complain(absl::StrCat(path.status().message(), "; make it with: bazel build ", target),
                    kExitUsage);
  }
  std::vector<char*> argv = {const_cast<char*>(path->c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execv(path->c_str(), argv.data());
  return Complain(absl::StrCat("can't run ", *path, ": ", std::strerror(errno)), kExitFailed);
}

}  // namespace thermocline
