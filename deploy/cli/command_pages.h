// How commands and their flags are put on the command line, for command_line.cc, host_pages.cc,
// log_pages.cc, engine_pages.cc, bench_pages.cc and certificates_command.cc: the only files that
// include CLI11, which is slow to compile.
#ifndef THERMOCLINE_DEPLOY_CLI_COMMAND_PAGES_H_
#define THERMOCLINE_DEPLOY_CLI_COMMAND_PAGES_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "deploy/cli/command_line.h"

namespace thermocline {

// What the command line asks for; set while CLI11 parses it, run afterwards.
using Action = std::function<int()>;

// Makes `command` the action `run(flags)`.
template <typename Flags>
void OnCommand(CLI::App* command, Action* action, int (*run)(const Flags&),
               const std::shared_ptr<Flags>& flags) {
  command->callback([=] { *action = [=] { return run(*flags); }; });
}

// `summary` is one line; `details` stand below the flags on the page.
inline CLI::App* AddCommand(CLI::App* parent, const char* name, const char* summary,
                            const std::string& details) {
  CLI::App* command = parent->add_subcommand(name, summary)->group("commands")->footer(details);
  command->get_help_ptr()->group("flags");
  return command;
}

// Accepts a whole number in [low, high] in decimal. (CLI11 alone reads "010" as eight.)
inline CLI::Validator WholeNumber(int64_t low, int64_t high) {
  return CLI::Validator(
      [=](std::string& text) {
        int64_t value = 0;
        if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
          return absl::StrCat("'", text, "' is not a whole number in [", low, ", ", high, "]");
        }
        text = absl::StrCat(value);
        return std::string();
      },
      "");
}

template <typename Value>
CLI::Option* AddValue(CLI::App* command, const char* name, Value* value, const char* type,
                      const std::string& help) {
  return command->add_option(name, *value, help)->type_name(type);
}

// The flags that name a job and change it. `trains`: with those of workers. run_dir_help null:
// without --run-dir.
void AddJobFlags(CLI::App* command, JobFlags* flags, bool trains, const char* run_dir_help);

// Commands of jobs over several hosts, in host_pages.cc.
void AddNode(CLI::App* app, Action* action);
void AddLogs(CLI::App* app, Action* action);

// Commands about logs, in log_pages.cc.
void AddGenerate(CLI::App* app, Action* action);
void AddInspect(CLI::App* app, Action* action);
void AddPlan(CLI::App* app, Action* action);
void AddCalibrate(CLI::App* app, Action* action);
// Commands of engines, in engine_pages.cc: submit; jobs and stop.
void AddSubmit(CLI::App* app, Action* action);
void AddJobs(CLI::App* app, Action* action);

// In bench_pages.cc.
void AddBench(CLI::App* app, Action* action);
// In certificates_command.cc.
void AddCertificates(CLI::App* app, Action* action);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_COMMAND_PAGES_H_
