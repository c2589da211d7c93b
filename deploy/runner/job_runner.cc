#include "deploy/runner/job_runner.h"

#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/process_limits.h"
#include "common/base/status_macros.h"
#include "common/base/task_queue.h"
#include "common/base/text.h"
#include "common/base/threads.h"
#include "common/base/timing.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/disk/disk.h"
#include "common/disk/file_list.h"
#include "common/job/resolved_job.h"
#include "common/trace/process_trace.h"
#include "common/version/version.h"
#include "deploy/checkpoints/checkpoint_match.h"
#include "deploy/checkpoints/resume.h"
#include "deploy/job/job_events.h"
#include "deploy/job/job_machine.h"
#include "deploy/nodes/node_processes.h"
#include "deploy/processes/local_processes.h"
#include "deploy/processes/supervisor.h"
#include "deploy/runner/checkpoint_requests.h"
#include "deploy/runner/host_watch.h"
#include "deploy/runner/process_calls.h"
#include "deploy/trace/job_trace.h"

namespace thermocline {
namespace {

// Events on their way to the job's machine. Any thread posts them; they wake Supervisor::Poll.
class Mailbox {
 public:
  Mailbox() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) { CHECK_GE(fd_, 0); }

  // Readable when something was posted; its reader closes it.
  int fd() const { return fd_; }
  void Post(JobEvent event) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
    Wake();
  }
  void Wake() const {
    const uint64_t one = 1;
    CHECK_EQ(write(fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  std::deque<JobEvent> TakeAll() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(events_, {});
  }

 private:
  const int fd_;
  absl::Mutex mutex_;
  std::deque<JobEvent> events_ ABSL_GUARDED_BY(mutex_);
};

// Requests of other programs are looked for so often.
constexpr absl::Duration kRequestPeriod = absl::Milliseconds(200);
// So many files of a checkpoint are looked for at once, since each takes a while on a shared disk.
constexpr int kFilesAtOnce = 8;
// Whether another controller has taken over.
constexpr absl::Duration kHistoryPeriod = absl::Seconds(10);

JobMachineOptions MachineOptions(const Job& job, const JobOptions& options,
                                 const RunDirectory& directory) {
  JobMachineOptions machine;
  machine.job = job;
  machine.start = options.start;
  machine.is_resumed = options.is_resumed;
  machine.notices = options.notices;
  machine.eval_only = options.eval_only;
  machine.introduces_workers = ExchangesBlocks(job) && !options.eval_only;
  machine.manifest = ManifestOf(job, options.programs.build);
  machine.max_log_bytes = ParseByteSize(job.cluster().max_log_size()).value_or(UINT64_MAX);
  machine.num_hosts = options.num_hosts;
  machine.build = options.programs.digest;
  const auto log_of = [&](ProcessRole role, uint32_t index) {
    if (HasEmbeddedServer(job.cluster())) role = ProcessRole::kWorker;
    const std::string name = ProcessName(role, index);
    if (options.num_hosts == 0) return ProcessFile(directory, name, "log");
    return ProcessFileName(name, "log");  // In its agent's folder.
  };
  for (uint32_t i = 0; i < NumServers(job.cluster()); ++i) {
    machine.server_logs.push_back(log_of(ProcessRole::kServer, i));
  }
  for (uint32_t i = 0; i < job.cluster().workers(); ++i) {
    machine.worker_logs.push_back(log_of(ProcessRole::kWorker, i));
  }
  return machine;
}

TraceMergeOptions TraceOptions(const Job& job, const JobOptions& options,
                               const RunDirectory& directory) {
  TraceMergeOptions trace;
  trace.job = job.name();
  trace.run_dir = directory.path();
  trace.steps = job.trace();
  trace.workers = job.cluster().workers();
  trace.servers = job.cluster().servers();  // A worker's trace has its embedded server's part.
  trace.has_scripts = job.has_worker();
  trace.first_generation = options.start.generation;
  trace.version = THERMOCLINE_VERSION;
  return trace;
}

class JobRunner {
 public:
  JobRunner(const Job& job, const JobOptions& options, const RunDirectory& directory,
            SignalWatch* signals, JobReporter* reporter)
      : job_(job),
        writes_checkpoints_(WritesCheckpoints(job) && !options.eval_only),
        directory_(directory),
        signals_(*signals),
        reporter_(*reporter),
        http_(options.http),
        store_(&disk_, job.checkpoint().directory(), RandomNonces(), kFilesAtOnce),
        supervisor_(signals),
        requests_(directory.path()),
        machine_(MachineOptions(job, options, directory)) {
    supervisor_.ReadFrom(mailbox_.fd(), [](absl::string_view) {});
    if (job.has_trace() && !options.eval_only) {
      trace_ = std::make_unique<JobTrace>(TraceOptions(job, options, directory), &trace_tasks_);
    }
  }

  // Before Run. Errors: those of listening for nodes.
  absl::Status MakeProcesses(const JobOptions& options) {
    const std::string data_index =
        options.data_index.empty() ? directory_.File("data_index") : options.data_index;
    if (options.num_hosts == 0) {
      processes_ = std::make_unique<LocalProcesses>(
          job_, options.programs, directory_,
          LocalProcessesOptions{directory_.File("job.textproto"), data_index, options.eval_only},
          &supervisor_);
      return absl::OkStatus();
    }
    NodeProcessesOptions nodes;
    nodes.listen = options.listen;
    nodes.build = options.programs.digest;
    nodes.data_index = data_index;
    nodes.eval_only = options.eval_only;
    nodes.wake = [this] { mailbox_.Wake(); };
    nodes.tell = [this](const std::string& text) { reporter_.Report(action::Tell{text}); };
    ASSIGN_OR_RETURN(processes_,
                     NodeProcesses::Create(job_, nodes, directory_, &signals_, &supervisor_));
    return absl::OkStatus();
  }

  // Until the job has ended.
  absl::Status Run() {
    CarryOut(machine_.Begin(watch_.Elapsed()));
    while (!outcome_.has_value()) {
      Collect();
      for (JobEvent& event : mailbox_.TakeAll()) {
        if (!outcome_.has_value()) Deliver(event);
      }
      if (!outcome_.has_value() && watch_.Elapsed() >= machine_.next_tick()) {
        Deliver(event::Tick{});
      }
      if (!outcome_.has_value()) supervisor_.Poll(UntilNextLook());
    }
    return outcome_->status;
  }
  // Writes the trace of the job, which has ended.
  void EndTrace() {
    if (trace_ == nullptr) return;
    trace_tasks_.AwaitIdle();
    TellTrace(trace_->End());
  }
  // For requests that the job has not answered.
  void RefuseRequests() {
    requests_.RefuseAll(absl::AbortedError(
        writes_checkpoints_ ? "the job has ended"
                            : "the job writes no checkpoints (checkpoint.none)"));
  }

 private:
  void Deliver(const JobEvent& event) {
    if (const auto* answered = std::get_if<event::StatusAnswered>(&event)) {
      for (const WorkerReport& worker : answered->workers) {
        if (!worker.stats.ok() || worker.stats->device().empty()) continue;
        reporter_.OnDevice(worker.stats->worker_rank(), worker.stats->device_warning());
      }
      reporter_.OnWorkers(answered->workers);
      if (trace_ != nullptr) {
        trace_->OnStatus(answered->servers, answered->workers);
        TellTrace(trace_->TakeLine());
      }
      const auto found = hosts_.Look(watch_.Elapsed(), answered->servers, answered->workers);
      reporter_.OnHosts(found, hosts_.slow());
      if (http_ != nullptr) {
        http_->OnStats(answered->servers, answered->workers, answered->checkpoint_bytes);
      }
    }
    CarryOut(machine_.Take(watch_.Elapsed(), event));
  }
  void CarryOut(const std::vector<JobAction>& actions) {
    for (const JobAction& action : actions) {
      std::visit([this](const auto& each) { Do(each); }, action);
    }
  }
  void Collect();
  absl::Duration UntilNextLook() const;
  void OnMetrics(absl::string_view data);
  // Runs `call`, which returns in bounded time, on a thread of its own; its event comes by the
  // mailbox.
  template <typename Call>
  void InBackground(Call call) {
    background_.Run([this, call = std::move(call)] { mailbox_.Post(call()); });
  }

  void Do(const action::Open& open);
  absl::Status Prepare(const GenerationStart& start, CheckpointManifest* base);
  void Do(const action::StartProcess& start);
  void Do(const action::Configure& configure);
  void Do(const action::AskStatus& ask);
  void Do(const action::CallProcesses& call);
  void Do(const action::Commit& commit);
  void Do(const action::Remove& remove);
  void Do(const action::Decide& decide) {
    InBackground([=] { return event::Decided{decide.generation, calls_->Decide(decide)}; });
  }
  void Do(const action::Introduce& all) {
    InBackground([=] { return event::Introduced{all.generation, calls_->Introduce(all)}; });
  }
  void Do(const action::AskDigest& ask) {
    InBackground([=] { return event::DigestReady{ask.generation, calls_->GetDigest(ask)}; });
  }
  void Do(const action::WriteResult& result);
  void Do(const action::StopProcesses& stop);
  void Do(const action::AnswerRequest& answer) {
    requests_.Answer(answer.answer.id, answer.answer.name);
  }
  void Do(const action::Finish& finish);
  void Do(const action::ReportAddresses& addresses);
  template <typename Report>
  void Do(const Report& report) {
    reporter_.Report(report);
  }
  absl::Status WriteAddresses(const action::ReportAddresses& addresses) const;
  void TellTrace(const std::string& line) {
    if (!line.empty()) reporter_.Report(action::Tell{line});
  }

  const Job& job_;
  const bool writes_checkpoints_;
  const RunDirectory& directory_;
  SignalWatch& signals_;
  JobReporter& reporter_;
  HttpFeed* const http_;  // Null: the job has no page.
  const Stopwatch watch_;
  PosixDisk disk_;
  CheckpointStore store_;
  Mailbox mailbox_;
  Supervisor supervisor_;
  std::unique_ptr<Processes> processes_;
  CheckpointRequests requests_;
  absl::Duration requests_due_, history_due_ = kHistoryPeriod;
  JobMachine machine_;
  int stops_delivered_ = 0;  // How many of signals_' stop requests the machine has.
  bool is_stop_delivered_ = false;
  uint64_t generation_ = 0;
  HostWatch hosts_;
  std::unique_ptr<ProcessCalls> calls_;
  std::optional<GenerationOutcome> outcome_;
  std::unique_ptr<JobTrace> trace_;    // Null: the job has none.
  TaskQueue trace_tasks_{1};           // Uses trace_. Merging a trace may take seconds.
  TaskQueue background_{kMaxThreads};  // Uses all above.
};

void JobRunner::Collect() {
  if (std::exchange(stops_delivered_, signals_.stop_requests()) < signals_.stop_requests()) {
    mailbox_.Post(event::UserStop{signals_.stop_reason(),
                                  signals_.stop_requests() == signals_.terminations()});
  }
  for (JobEvent& event : processes_->TakeEvents()) {
    // A new connection for each process; those to one that has ended are closed.
    if (const auto* started = std::get_if<event::ProcessStarted>(&event)) {
      const absl::Status connected =
          calls_->Connect(started->id.role, started->id.index, started->address);
      if (!connected.ok()) mailbox_.Post(event::RunnerFailed{connected});
    } else if (const auto* ended = std::get_if<event::ProcessEnded>(&event)) {
      calls_->Disconnect(ended->id.role, ended->id.index);
      hosts_.OnEnd(ended->id);
      if (http_ != nullptr) http_->OnEnd(ended->id, ended->end.exit_code == 0);
    }
    mailbox_.Post(std::move(event));
  }
  if (watch_.Elapsed() < requests_due_) return;
  requests_due_ = watch_.Elapsed() + kRequestPeriod;
  if (http_ != nullptr) {
    if (const auto ended = http_->Look()) reporter_.Report(action::Tell{*ended});
  }
  if (requests_.IsStopRequested() && !std::exchange(is_stop_delivered_, true)) {
    // The command has asked for a checkpoint before.
    mailbox_.Post(event::UserStop{"stopped by `thermocline stop`", false, /*at_once=*/true});
  }
  if (!writes_checkpoints_) return;
  for (std::string& id : requests_.TakeNew()) {
    mailbox_.Post(event::CheckpointRequested{std::move(id)});
  }
  if (watch_.Elapsed() < history_due_) return;
  history_due_ = watch_.Elapsed() + kHistoryPeriod;
  background_.Run([this] {
    const absl::Status looked = store_.Look();
    if (!looked.ok()) mailbox_.Post(event::RunnerFailed{looked});
  });
}

absl::Duration JobRunner::UntilNextLook() const {
  absl::Duration until = std::min(kRequestPeriod, machine_.next_tick() - watch_.Elapsed());
  until = std::min(until, processes_->UntilNextLook());
  return std::max(until, absl::ZeroDuration());
}

void JobRunner::OnMetrics(absl::string_view data) {
  if (reporter_.OnMetrics(data)) {
    const Progress& progress = reporter_.metrics().progress();
    mailbox_.Post(
        event::Progressed{generation_, static_cast<int64_t>(progress.step), progress.samples});
  }
  for (const EvaluationReport& report : reporter_.TakeEvaluations()) {
    mailbox_.Post(event::Evaluated{generation_, report});
  }
  if (const std::optional<Step> step = reporter_.TakeScriptFailure()) {
    mailbox_.Post(event::ScriptFailed{generation_, *step});
  }
  if (const std::optional<Step> last = reporter_.TakeTrained()) {
    mailbox_.Post(event::Trained{generation_, *last});
  }
}

// Processes
// ------------------------------------------------------------------------------------------------

void JobRunner::Do(const action::Open& open) {
  generation_ = open.start.generation;
  hosts_.BeginGeneration();
  calls_ = std::make_unique<ProcessCalls>(job_, generation_,
                                          AbsolutePath(directory_.File(kTraceFolder)));
  if (trace_ != nullptr) trace_->BeginGeneration(generation_, open.start.first_step());
  event::Opened opened;
  opened.generation = generation_;
  opened.status = Prepare(open.start, &opened.base);
  // Nodes hear of a generation that is on the medium.
  if (opened.status.ok()) {
    processes_->BeginGeneration(generation_, [this](absl::string_view data) { OnMetrics(data); });
  }
  mailbox_.Post(std::move(opened));
}

// Nothing is done in a generation that is not on the medium; and its logs begin empty.
absl::Status JobRunner::Prepare(const GenerationStart& start, CheckpointManifest* base) {
  if (writes_checkpoints_) {
    RETURN_IF_ERROR(store_.Prepare());
    RETURN_IF_ERROR(store_.Open(StateOf(job_.name(), start), start.history));
    RETURN_IF_ERROR(RemoveServerData(directory_));
  }
  if (start.base.empty() && job_.has_init()) RETURN_IF_ERROR(CheckInitIsThere(&disk_, job_.init()));
  // After HISTORY: a job file says that there is something to resume.
  RETURN_IF_ERROR(reporter_.OnOpen());
  if (!writes_checkpoints_ || start.base.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(*base, store_.Load(start.base, start.base_generation));
  return absl::OkStatus();
}

void JobRunner::Do(const action::StartProcess& start) {
  hosts_.OnStart(start.id, start.host);
  if (http_ != nullptr) http_->OnStart(start.id, start.host);
  const absl::Status started = processes_->Start(start);
  if (!started.ok()) mailbox_.Post(event::NotStarted{start.id, started});
}

void JobRunner::Do(const action::StopProcesses& stop) {
  processes_->Stop(ProcessRole::kWorker, stop.grace);
  calls_->End();
  processes_->Stop(ProcessRole::kServer, stop.grace);
  // Tasks under way end when the processes have ended, and post their results.
  background_.AwaitIdle();
  // An error is ignored: empty folders do no harm.
  if (writes_checkpoints_) store_.RemoveEmptyFolders().IgnoreError();
  mailbox_.Post(event::AllStopped{});
}

// For `thermocline stats`.
absl::Status JobRunner::WriteAddresses(const action::ReportAddresses& addresses) const {
  nlohmann::ordered_json json;
  json["job"] = job_.name();
  json["servers"] = addresses.servers;
  json["workers"] = addresses.workers;
  return directory_.Write("servers.json", json.dump(2) + "\n");
}

void JobRunner::Do(const action::ReportAddresses& addresses) {
  const absl::Status written = WriteAddresses(addresses);
  // Only `stats --run-dir` misses the workers if this fails.
  if (!written.ok() && addresses.workers.empty()) mailbox_.Post(event::RunnerFailed{written});
}

void JobRunner::Do(const action::Finish& finish) {
  outcome_ = finish.outcome;
  if (!writes_checkpoints_) return;
  const absl::Status noted = store_.End(RecordOf(finish.outcome));
  if (noted.ok() || !outcome_->status.ok()) return;
  reporter_.Report(action::Tell{absl::StrCat("the outcome can't be noted: ", noted.message())});
}

// Calls
// ------------------------------------------------------------------------------------------------

void JobRunner::Do(const action::Configure& configure) {
  InBackground([this, configure] {
    return event::Configured{configure.id, calls_->Configure(configure)};
  });
}

void JobRunner::Do(const action::AskStatus& ask) {
  InBackground([this, ask] {
    event::StatusAnswered answered;
    answered.generation = ask.generation;
    answered.servers = calls_->ServerStats(ask.timeout);
    answered.workers = calls_->WorkerStats(ask.timeout);
    if (writes_checkpoints_) answered.checkpoint_bytes = BytesOfCheckpoints(store_.directory());
    return answered;
  });
}

void JobRunner::Do(const action::CallProcesses& call) {
  InBackground([this, call] {
    return event::CheckpointAnswered{call.generation, calls_->Call(call.calls)};
  });
}

// Files
// ------------------------------------------------------------------------------------------------

void JobRunner::Do(const action::Commit& commit) {
  InBackground([this, commit] {
    event::Committed committed;
    committed.generation = commit.generation;
    committed.status = store_.Commit(commit.checkpoint.manifest, &committed.may_exist);
    return committed;
  });
}

void JobRunner::Do(const action::Remove& remove) {
  InBackground([this, remove] {
    const RemoveCheckpoints& removal = remove.removal;
    const auto removed = store_.RemoveUnneeded(removal.keep, removal.in_progress, removal.kept);
    return event::Removed{remove.generation, removed.ok()
                                                 ? removed->held_back
                                                 : std::string(removed.status().message())};
  });
}

void JobRunner::Do(const action::WriteResult& result) {
  mailbox_.Post(event::ResultWritten{reporter_.WriteResult(result, processes_->results())});
}

}  // namespace

uint64_t BytesOfCheckpoints(const std::string& directory) {
  uint64_t bytes = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::end(entry); entry.increment(error)) {
    if (entry->path().filename() == kHistoryName) {
      entry.disable_recursion_pending();
      continue;
    }
    std::error_code no_file;  // It is a folder, or was removed meanwhile.
    const uint64_t size = entry->file_size(no_file);
    if (!no_file) bytes += size;
  }
  return bytes;
}

absl::StatusOr<JobResult> RunJob(const Job& job, const JobOptions& options,
                                 const RunDirectory& directory, const JobObserver& observer,
                                 SignalWatch* signals) {
  JobReporterOptions reporting;
  reporting.start = options.start;
  reporting.is_resumed = options.is_resumed;
  reporting.hot_rows = options.hot_rows;
  reporting.http = options.http;
  reporting.writes_checkpoints = WritesCheckpoints(job) && !options.eval_only;
  ASSIGN_OR_RETURN(const std::unique_ptr<JobReporter> reporter,
                   JobReporter::Create(job, reporting, directory, observer));
  JobRunner runner(job, options, directory, signals, reporter.get());
  absl::Status status = CheckThreads();
  if (status.ok()) status = runner.MakeProcesses(options);
  if (status.ok()) status = runner.Run();
  runner.EndTrace();
  absl::StatusOr<JobResult> result = reporter->OnEnd(status);
  runner.RefuseRequests();
  return result;
}

}  // namespace thermocline
