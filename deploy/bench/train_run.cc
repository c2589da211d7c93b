#include "deploy/bench/train_run.h"

#include <poll.h>

#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "deploy/processes/child_process.h"
#include "deploy/report/summary.h"

namespace thermocline {
namespace {

constexpr absl::Duration kPollPeriod = absl::Milliseconds(20);
// How long a run may take to end after Ctrl-C; a second one kills it.
constexpr absl::Duration kStopGrace = absl::Seconds(40);
// How long the controller of a run over hosts may take to listen.
constexpr absl::Duration kControllerWait = absl::Seconds(60);
constexpr int kLogLines = 40;

// What the run says of its failure: the line that names it, with the program's name left out.
std::string FailureIn(const std::string& log_path) {
  std::string failure;
  for (const std::string& line : LogTail(log_path, kLogLines)) {
    if (absl::StartsWith(line, "thermocline: ")) {
      failure = line.substr(line.find(' ') + 1);
    } else if (absl::StartsWith(line, "  | ") && !failure.empty()) {
      absl::StrAppend(&failure, "; ", line.substr(4));
    }
  }
  return failure.empty() ? "it left no error" : failure;
}

// The processes of one run; the launcher is the first.
class RunProcesses {
 public:
  RunProcesses(const TrainRun& run, SignalWatch* signals) : run_(run), signals_(*signals) {}

  absl::Status Start(const std::string& name, std::vector<std::string> command) {
    ChildProcessOptions options;
    options.name = name;
    options.command = std::move(command);
    options.log_path = run_.run_dir + ".log";
    ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(options));
    processes_.push_back(std::move(process));
    return absl::OkStatus();
  }

  // Waits a moment for signals. Errors: kCancelled (the run was asked to stop, and has ended)
  absl::Status Wait() {
    pollfd waiting = {signals_.fd(), POLLIN, 0};
    poll(&waiting, 1, static_cast<int>(absl::ToInt64Milliseconds(kPollPeriod)));
    signals_.Drain();
    if (signals_.stop_requests() == 0) return absl::OkStatus();
    Stop();
    return absl::CancelledError(signals_.stop_reason());
  }

  bool LauncherEnded() { return processes_.front().HasEnded(); }

  // Waits until all have ended. Errors: kAborted (the launcher failed), kCancelled
  absl::Status AwaitEnd() {
    while (!AllEnded()) {
      RETURN_IF_ERROR(Wait());
      // Agents end with their job; one that can't must not hold up the others' results.
      if (LauncherEnded() && !ended_.has_value()) ended_ = watch_.Elapsed();
      if (ended_.has_value() && watch_.Elapsed() - *ended_ > kStopGrace) break;
    }
    const ChildProcess& launcher = processes_.front();
    if (launcher.exit_code() == 0) return absl::OkStatus();
    const std::string log = run_.run_dir + ".log";
    return absl::AbortedError(absl::StrCat(FailureIn(log), " (", log, ")"));
  }

 private:
  bool AllEnded() {
    bool all = true;
    for (ChildProcess& process : processes_) all &= process.HasEnded();
    return all;
  }

  void Stop() {
    const int requests = signals_.stop_requests();
    const Stopwatch watch;
    processes_.front().Signal(SIGINT);
    while (!LauncherEnded() && watch.Elapsed() < kStopGrace &&
           signals_.stop_requests() == requests) {
      absl::SleepFor(kPollPeriod);
      signals_.Drain();
    }
    processes_.clear();  // Kills what is left.
  }

  const TrainRun& run_;
  SignalWatch& signals_;
  std::deque<ChildProcess> processes_;
  const Stopwatch watch_;
  std::optional<absl::Duration> ended_;  // The launcher's end, as this process saw it.
};

std::vector<std::string> LauncherCommand(const TrainRun& run, const ShapedHosts* hosts) {
  std::vector<std::string> command = {ThisProgram(), "train"};
  command.insert(command.end(), run.arguments.begin(), run.arguments.end());
  command.insert(command.end(), {"--run-dir", run.run_dir});
  if (hosts != nullptr) {
    command.insert(command.end(), {"--nodes", absl::StrCat(run.servers + run.workers), "--listen",
                                   hosts->own_address() + ":0", "--insecure"});
  }
  return command;
}

// Where the controller listens, once it does.
absl::StatusOr<std::string> AwaitController(const TrainRun& run, RunProcesses* processes) {
  const Stopwatch watch;
  while (!processes->LauncherEnded() && watch.Elapsed() < kControllerWait) {
    const auto found = ReadJsonFile(run.run_dir + "/controller.json");
    if (const std::string address = TextAt(found, "address"); !address.empty()) return address;
    RETURN_IF_ERROR(processes->Wait());
  }
  RETURN_IF_ERROR(processes->AwaitEnd());
  return absl::AbortedError("the controller does not listen");
}

absl::Status StartAgents(const TrainRun& run, const ShapedHosts& hosts,
                         const std::string& controller, RunProcesses* processes) {
  for (int host = 0; host < hosts.count(); ++host) {
    const bool is_server = host < static_cast<int>(run.servers);
    const std::string name = absl::StrCat(is_server ? "server-host-" : "worker-host-", host);
    std::vector<std::string> command = {ThisProgram(),
                                        "node",
                                        "--controller",
                                        controller,
                                        "--name",
                                        name,
                                        "--insecure",
                                        "--dir",
                                        absl::StrCat(run.run_dir, ".hosts/", name),
                                        "--address",
                                        hosts.address(host),
                                        "--role",
                                        is_server ? "server" : "worker"};
    if (!run.bin_dir.empty()) command.insert(command.end(), {"--bin-dir", run.bin_dir});
    RETURN_IF_ERROR(processes->Start(name, hosts.CommandOn(host, command)));
  }
  return absl::OkStatus();
}

// A word as a shell reads it.
std::string ShellWord(const std::string& word) {
  if (!word.empty() && word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                              "0123456789_-./=:,@%+") == std::string::npos) {
    return word;
  }
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string CommandLineOf(const TrainRun& run) {
  std::vector<std::string> words = {"thermocline", "train"};
  for (const std::string& argument : run.arguments) words.push_back(ShellWord(argument));
  words.push_back("--run-dir");
  words.push_back(ShellWord(run.run_dir));
  return absl::StrJoin(words, " ");
}

absl::StatusOr<RunFigures> RunTraining(const TrainRun& run, const ShapedHosts* hosts,
                                       SignalWatch* signals) {
  {
    RunProcesses processes(run, signals);
    RETURN_IF_ERROR(processes.Start("train", LauncherCommand(run, hosts)));
    if (hosts != nullptr) {
      ASSIGN_OR_RETURN(const std::string controller, AwaitController(run, &processes));
      RETURN_IF_ERROR(StartAgents(run, *hosts, controller, &processes));
    }
    RETURN_IF_ERROR(processes.AwaitEnd());
  }
  std::error_code ignored;
  std::filesystem::remove_all(run.run_dir + ".hosts", ignored);
  return ReadRun(run.run_dir);
}

}  // namespace thermocline
