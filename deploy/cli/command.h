// What the commands of `thermocline` share on the command line. A command is one file,
// X_command.cc: its flags, its run, and its help page, which AddX puts on the command line. CLI11
// parses the flags and renders the pages.
//
// A flag of type text that was not given leaves its value empty.
#ifndef THERMOCLINE_DEPLOY_CLI_COMMAND_H_
#define THERMOCLINE_DEPLOY_CLI_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/process_limits.h"  // the exit codes
#include "common/net/tls_files.h"
#include "deploy/cli/run_setup.h"

namespace thermocline {

// What the command line asks for; set while CLI11 parses it, run afterwards. Returns the exit code.
using Action = std::function<int()>;

// Makes `run(flags)` the action of `command`.
template <typename Flags>
void OnCommand(CLI::App* command, Action* action, int (*run)(const Flags&),
               const std::shared_ptr<Flags>& flags) {
  command->callback([=] { *action = [=] { return run(*flags); }; });
}

// `summary` is one line; `details` stand below the flags on the page.
CLI::App* AddCommand(CLI::App* parent, const char* name, const char* summary,
                     const std::string& details);

template <typename Value>
CLI::Option* AddValue(CLI::App* command, const char* name, Value* value, const char* type,
                      const std::string& help) {
  return command->add_option(name, *value, help)->type_name(type);
}

// Accepts a whole number in [low, high] in decimal. (CLI11 alone reads "010" as eight.)
CLI::Validator WholeNumber(int64_t low, int64_t high);

// The flags that name a job and change it. `trains`: with those of workers. run_dir_help null:
// without --run-dir.
void AddJobFlags(CLI::App* command, JobFlags* flags, bool trains, const char* run_dir_help);

// The address of the job's page.
void AddHttpFlag(CLI::App* command, JobFlags* flags);

// The certificate of a process that connects to a job.
void AddTlsFlags(CLI::App* command, TlsFiles* files);

// The commands, in the order in which `thermocline help` lists them.
void AddTrain(CLI::App* app, Action* action);
void AddNode(CLI::App* app, Action* action);
void AddLogs(CLI::App* app, Action* action);
void AddEval(CLI::App* app, Action* action);
void AddPredict(CLI::App* app, Action* action);
void AddGenerate(CLI::App* app, Action* action);
void AddInspect(CLI::App* app, Action* action);
void AddPlan(CLI::App* app, Action* action);
void AddCalibrate(CLI::App* app, Action* action);
void AddSubmit(CLI::App* app, Action* action);
void AddJobs(CLI::App* app, Action* action);
void AddStop(CLI::App* app, Action* action);
void AddStats(CLI::App* app, Action* action);
void AddReport(CLI::App* app, Action* action);
void AddCheckpoint(CLI::App* app, Action* action);
void AddCertificates(CLI::App* app, Action* action);
void AddBench(CLI::App* app, Action* action);
// Not listed: the controller of a job starts it.
void AddHttpChild(CLI::App* app, Action* action);

// Replaces this process by the benchmark of pulls and pushes, with these arguments ("pull" or
// "push" first), which it parses itself. Returns only if that fails.
int RunBenchProgram(const std::vector<std::string>& arguments);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CLI_COMMAND_H_
