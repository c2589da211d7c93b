// thermocline logs: what a job's processes have written, and with --follow what they write.
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/job/job_loader.h"
#include "common/job/resolved_job.h"
#include "common/net/rpc.h"
#include "common/net/tls_files.h"
#include "common/process/child_process.h"
#include "deploy/cli/command.h"
#include "deploy/cli/console.h"
#include "deploy/nodes/node_processes.h"
#include "deploy/processes/local_processes.h"
#include "deploy/report/metrics_log.h"
#include "deploy/report/summary.h"
#include "proto/node.grpc.pb.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

struct LogsFlags {
  std::string run_dir;
  std::string process;  // "server-0"; "": all
  int64_t lines = 100;
  bool follows = false;
  TlsFiles tls;
};

constexpr int kLogTimeoutS = 20;
constexpr absl::Duration kFollowPeriod = absl::Milliseconds(100);
constexpr absl::Duration kRetryPeriod = absl::Seconds(1);
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(2);

// The processes that the flags name, of a run.
struct Logs {
  RunDirectory directory;
  std::vector<std::string> processes;
  uint32_t max_lines;
  std::string controller;  // "": the job runs on this machine.
  TlsFiles tls;
  std::shared_ptr<Controller::Stub> stub;
};

absl::StatusOr<std::vector<std::string>> ProcessesOf(const LogsFlags& flags, const Job& job) {
  std::vector<std::string> processes;
  for (uint32_t i = 0; i < job.cluster().servers(); ++i) {  // An embedded one has its worker's.
    processes.push_back(ProcessName(ProcessRole::kServer, i));
  }
  for (uint32_t i = 0; i < job.cluster().workers(); ++i) {
    processes.push_back(ProcessName(ProcessRole::kWorker, i));
  }
  if (flags.process.empty()) return processes;
  const std::string wanted = absl::StrReplaceAll(flags.process, {{"-", " "}});
  if (std::find(processes.begin(), processes.end(), wanted) != processes.end()) {
    return std::vector<std::string>{wanted};
  }
  return absl::NotFoundError(absl::StrCat("the job in ", flags.run_dir, " has no process '",
                                          flags.process, "'; it has ", processes.front(), " to ",
                                          processes.back()));
}

absl::StatusOr<Logs> FindLogs(const LogsFlags& flags) {
  ASSIGN_OR_RETURN(RunDirectory directory, RunDirectory::Open(flags.run_dir));
  ASSIGN_OR_RETURN(const Job job, LoadJob(directory.File("job.textproto"), {}));
  ASSIGN_OR_RETURN(std::vector<std::string> processes, ProcessesOf(flags, job));
  const std::string controller = TextAt(ReadJsonFile(directory.File(kControllerFile)), "address");
  Logs logs = {std::move(directory),
               std::move(processes),
               static_cast<uint32_t>(flags.lines),
               controller,
               {},
               nullptr};
  if (controller.empty()) return logs;
  logs.tls = flags.tls;
  if (logs.tls.empty()) logs.tls = TlsFilesOf(job.cluster().tls(), Role::kReader);
  ASSIGN_OR_RETURN(const auto credentials, MakeChannelCredentials(logs.tls));
  logs.stub = Controller::NewStub(OpenChannel(controller, credentials, kDefaultMaxMessageBytes));
  return logs;
}

// The last lines
// ------------------------------------------------------------------------------------------------

std::string Text(const std::string& title, const std::vector<std::string>& lines) {
  std::string text = absl::StrCat("== ", title, "\n");
  for (const std::string& line : lines) absl::StrAppend(&text, line, "\n");
  return text;
}

// Returns the last lines of a job over several hosts, from the process's host; or says where the
// log is.
absl::StatusOr<std::string> AskForLast(const Logs& logs, const std::string& process) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kLogTimeoutS));
  LogRequest request;
  request.set_process(process);
  request.set_max_lines(logs.max_lines);
  LogLines reply;
  const absl::Status asked = FromGrpcStatus(logs.stub->GetLog(&context, request, &reply));
  if (asked.ok()) {
    return Text(absl::StrCat(process, " on host ", reply.host(), ": ", reply.path()),
                {reply.lines().begin(), reply.lines().end()});
  }
  const Json places = ReadJsonFile(logs.directory.File(kPlacesFile));
  if (!places.contains(process)) {
    return WithContext(asked, absl::StrCat("controller ", logs.controller));
  }
  return Text(absl::StrCat(process, " ran on host ", TextAt(places[process], "host"),
                           ", its log: ", TextAt(places[process], "log")),
              {});
}

absl::Status ShowLast(const Logs& logs) {
  for (const std::string& process : logs.processes) {
    std::string text;
    if (logs.controller.empty()) {
      const std::string path = ProcessFile(logs.directory, process, "log");
      text =
          Text(absl::StrCat(process, ": ", path), LogTail(path, static_cast<int>(logs.max_lines)));
    } else {
      ASSIGN_OR_RETURN(text, AskForLast(logs, process));
    }
    std::fputs(text.c_str(), stdout);
  }
  return absl::OkStatus();
}

// What comes
// ------------------------------------------------------------------------------------------------

// Asking again does not help.
bool IsRefusal(const absl::Status& status) {
  return absl::IsPermissionDenied(status) || absl::IsUnauthenticated(status);
}

// Follows the log of one process. Implementations: LocalLog, HostLog. Not thread-safe.
class FollowedLog {
 public:
  virtual ~FollowedLog() = default;
  // Returns the lines that came since the call before, the first time the last ones. Errors: lines
  // can't be had; a later call may have some, but for kPermissionDenied and kUnauthenticated. Each
  // error is returned once, until lines come again.
  virtual absl::StatusOr<std::vector<std::string>> Take() = 0;
  // No line comes any more.
  virtual bool has_ended() const = 0;
};

class LocalLog final : public FollowedLog {
 public:
  LocalLog(const Logs& logs, const std::string& process)
      : run_dir_(logs.directory.path()),
        path_(ProcessFile(logs.directory, process, "log")),
        max_lines_(static_cast<int>(logs.max_lines)) {}

  absl::StatusOr<std::vector<std::string>> Take() override {
    has_ended_ = !RunLock::IsHeld(run_dir_);  // Before the last look.
    if (std::exchange(is_first_, false)) return LogTail(path_, max_lines_, /*begin=*/0, &offset_);
    return NewLogLines(path_, &offset_);
  }
  bool has_ended() const override { return has_ended_; }

 private:
  const std::string run_dir_, path_;
  const int max_lines_;
  bool is_first_ = true, has_ended_ = false;
  uint64_t offset_ = 0;
};

// One request is always on its way; the host answers it when there are lines.
class HostLog final : public FollowedLog {
 public:
  HostLog(const Logs& logs, const std::string& process)
      : stub_(logs.stub), directory_(logs.directory) {
    request_.set_process(process);
    request_.set_max_lines(logs.max_lines);
    Ask();
  }
  ~HostLog() override {
    if (context_ != nullptr) context_->TryCancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&is_answered_));
  }

  absl::StatusOr<std::vector<std::string>> Take() override {
    {
      absl::MutexLock lock(&mutex_);
      if (!is_answered_) return std::vector<std::string>();
    }
    if (context_ != nullptr && status_.ok()) {
      request_.set_host(reply_.host());
      request_.set_offset(reply_.offset());
      std::vector<std::string> lines(reply_.lines().begin(), reply_.lines().end());
      said_ = absl::OkStatus();
      Ask();
      return lines;
    }
    // The process has not been started yet, or moves to another host; or the job has ended.
    if (std::exchange(context_, nullptr) != nullptr) ask_at_ = watch_.Elapsed() + kRetryPeriod;
    if (IsRefusal(status_)) return status_;
    if (watch_.Elapsed() < ask_at_) return std::vector<std::string>();
    has_ended_ = !absl::IsNotFound(status_) && HasEnded();
    if (has_ended_) return std::vector<std::string>();
    const absl::Status why =
        absl::IsNotFound(status_) ? absl::NotFoundError("not all processes have started") : status_;
    Ask();
    if (std::exchange(said_, why) == why) return std::vector<std::string>();
    return why;
  }
  bool has_ended() const override { return has_ended_; }

 private:
  // A controller that was killed wrote no end; its lock is free where this machine sees it.
  bool HasEnded() const {
    return ReadMetricsTail(directory_.File("metrics.jsonl")).end.has_value() ||
           !RunLock::IsHeld(directory_.path());
  }
  void Ask() {
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(kLogTimeoutS));
    reply_.Clear();
    {
      absl::MutexLock lock(&mutex_);
      is_answered_ = false;
    }
    stub_->async()->GetLog(context_.get(), &request_, &reply_, [this](const grpc::Status& status) {
      absl::MutexLock lock(&mutex_);
      status_ = FromGrpcStatus(status);
      is_answered_ = true;
    });
  }

  const std::shared_ptr<Controller::Stub> stub_;
  const RunDirectory& directory_;
  LogRequest request_;
  std::unique_ptr<grpc::ClientContext> context_;  // Null: none is asked for.
  const Stopwatch watch_;
  absl::Duration ask_at_;
  absl::Status said_;  // The error that Take() returned last; OK: lines have come since.
  bool has_ended_ = false;
  // gRPC's thread writes these; they are read when is_answered_.
  LogLines reply_;
  absl::Status status_;
  absl::Mutex mutex_;
  bool is_answered_ ABSL_GUARDED_BY(mutex_) = true;
};

std::vector<std::unique_ptr<FollowedLog>> FollowAll(const Logs& logs) {
  std::vector<std::unique_ptr<FollowedLog>> followed;
  for (const std::string& process : logs.processes) {
    if (logs.controller.empty()) {
      followed.push_back(std::make_unique<LocalLog>(logs, process));
    } else {
      followed.push_back(std::make_unique<HostLog>(logs, process));
    }
  }
  return followed;
}

// Why lines can't be had. gRPC does not tell of certificates that one side refuses.
absl::Status Explain(const Logs& logs, const absl::Status& status) {
  const std::string handshake = absl::IsUnavailable(status)
                                    ? ExplainHandshake(logs.controller, logs.tls, kHandshakeTimeout)
                                    : "";
  if (!handshake.empty()) return absl::UnauthenticatedError(handshake);
  return WithContext(status, absl::StrCat("controller ", logs.controller));
}

// Until the job has ended, or a request to stop comes. Errors: the controller refuses to show logs.
absl::Status Follow(const Logs& logs, SignalWatch* signals) {
  Console console(STDOUT_FILENO, signals);
  const std::vector<std::unique_ptr<FollowedLog>> followed = FollowAll(logs);
  std::set<std::string> said;  // Errors, which several processes share.
  while (true) {
    bool is_any_left = false;
    for (size_t i = 0; i < followed.size(); ++i) {
      const auto lines = followed[i]->Take();
      is_any_left |= !followed[i]->has_ended();
      if (!lines.ok()) {
        if (!said.insert(std::string(lines.status().message())).second) continue;
        const absl::Status why = Explain(logs, lines.status());
        if (IsRefusal(why)) return why;
        Complain(absl::StrCat(why.message(), "; trying again"), kExitDone);
        continue;
      }
      if (lines->empty()) continue;
      said.clear();
      std::string text;
      for (const std::string& line : *lines) {
        if (followed.size() > 1) absl::StrAppend(&text, logs.processes[i], " | ");
        absl::StrAppend(&text, line, "\n");
      }
      if (!console.Write(text)) return absl::OkStatus();
    }
    signals->Drain();
    if (!is_any_left || signals->stop_requests() > 0) return absl::OkStatus();
    absl::SleepFor(kFollowPeriod);
  }
}

int RunLogs(const LogsFlags& flags) {
  std::optional<SignalWatch> signals;  // before anything starts a thread
  if (flags.follows) signals.emplace();
  const absl::StatusOr<Logs> logs = FindLogs(flags);
  if (!logs.ok()) return Complain(logs.status().message(), kExitUsage);
  const absl::Status shown = flags.follows ? Follow(*logs, &*signals) : ShowLast(*logs);
  return shown.ok() ? kExitDone : Complain(shown.message(), kExitUsage);
}

}  // namespace

void AddLogs(CLI::App* app, Action* action) {
  const auto flags = std::make_shared<LogsFlags>();
  CLI::App* command = AddCommand(
      app, "logs", "shows the logs of a job's processes",
      R"(Prints the last lines of the log of a process, such as server-0 or worker-2, or of each process of
the run. Of a job over several hosts they come from the host through the controller; when the job
has ended, the command says on which host the log is, and where.

With --follow it goes on with what they write, wherever they run, until the job ends or Ctrl-C comes.

examples:
  thermocline logs runs/r
  thermocline logs /shared/run server-0 --lines 1000
  thermocline logs /shared/run worker-2 --follow)");
  AddValue(command, "RUN_DIR", &flags->run_dir, "DIR", "the run directory")->required();
  AddValue(command, "PROCESS", &flags->process, "PROCESS", "default: all");
  AddValue(command, "--lines", &flags->lines, "N", "how many; default: 100")
      ->check(WholeNumber(1, 10000));
  command->add_flag("--follow", flags->follows, "shows what comes as well, until the job ends");
  AddTlsFlags(command, &flags->tls);
  OnCommand(command, action, RunLogs, flags);
}

}  // namespace thermocline
