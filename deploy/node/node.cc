#include "deploy/node/node.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/timing.h"
#include "common/job/job_loader.h"
#include "deploy/node/controller_stream.h"
#include "deploy/node/host_facts.h"
#include "deploy/node/node_agent.h"
#include "deploy/runner/node_table.h"
#include "deploy/runner/run_directory.h"
#include "deploy/runner/supervisor.h"

namespace thermocline {
namespace {

constexpr absl::Duration kLockPatience = absl::Seconds(2);
constexpr absl::Duration kNewsPeriod = absl::Milliseconds(20);  // Between reports.
constexpr absl::Duration kRegisterPeriod = absl::Seconds(1);    // Without a lease.
constexpr int kHeartbeatsALease = 4;
constexpr absl::Duration kLeastSilence = absl::Seconds(5);
// How long a file that another host wrote may take to be seen.
constexpr absl::Duration kFilePatience = absl::Seconds(2);
constexpr absl::Duration kFarewell = absl::Seconds(1);

uint64_t MakeNonce() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // Not 0.
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Whether this host sees the controller's run directory; says why not.
std::string CheckRunDirectory(const std::string& host, const NodeOrder& order) {
  const std::string path = absl::StrCat(order.run_dir(), "/", order.check_file());
  const Stopwatch watch;
  while (ReadFile(path) != order.check_text()) {
    if (watch.Elapsed() >= kFilePatience) {
      return absl::StrCat("host ", host, " does not see the controller's run directory ",
                          order.run_dir(),
                          ": it lies on a file system that all hosts share, at "
                          "the same path on each (no ",
                          order.check_file(), " there)");
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return "";
}

class Node {
 public:
  Node(const NodeOptions& options, const NodeHello& hello, RunDirectory directory,
       SignalWatch* signals)
      : options_(options),
        hello_(hello),
        directory_(std::move(directory)),
        signals_(*signals),
        wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        agent_(hello, MakeNonce) {
    CHECK_GE(wake_fd_, 0);
    MakeSupervisor();
  }

  ~Node() {
    stream_.reset();  // It may wake this node.
    close(wake_fd_);
  }

  absl::Status Connect();
  absl::Status Run();

 private:
  void MakeSupervisor();
  absl::Status TakeOrders();
  void TakeOrder(const NodeOrder& order);
  void TakeEvents();
  void CarryOut();
  void Do(const node_action::Prepare& prepare);
  void Do(const node_action::Start& start);
  void Do(const node_action::Signal& signal);
  absl::Status BeginGeneration(const NodeOrder& order);
  void Report();
  void Leave(const std::string& why);
  absl::Duration HeartbeatPeriod() const;
  absl::Duration UntilNextLook() const;

  const NodeOptions& options_;
  const NodeHello hello_;
  const RunDirectory directory_;
  SignalWatch& signals_;
  const Stopwatch watch_;
  const int wake_fd_;  // The supervisor closes its copy.
  NodeAgent agent_;
  Job job_;
  std::unique_ptr<Supervisor> supervisor_;
  std::unique_ptr<LocalProcesses> processes_;  // Null: before the first generation.
  NodeProcess rank_0_;                         // The last that was started here.
  std::string checked_;                        // The last file that was compared.
  std::set<uint64_t> answered_;                // Requests for logs.
  absl::Duration reported_at_ = -absl::InfiniteDuration();
  bool is_attached_ = false;
  uint64_t nonce_ = 0;
  std::unique_ptr<ControllerStream> stream_;
};

// Without the readers of an earlier generation.
void Node::MakeSupervisor() {
  processes_.reset();
  supervisor_ = std::make_unique<Supervisor>(&signals_);
  supervisor_->ReadFrom(dup(wake_fd_), [](absl::string_view) {});
}

absl::Status Node::Connect() {
  const auto wake = [fd = wake_fd_] {
    const uint64_t one = 1;
    CHECK_EQ(write(fd, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  };
  ASSIGN_OR_RETURN(stream_, ControllerStream::Create(options_.controller, options_.tls, wake));
  return absl::OkStatus();
}

absl::Status Node::Run() {
  nonce_ = agent_.nonce();
  while (!agent_.has_ended()) {
    if (signals_.stop_requests() > 0) {
      Leave(absl::StrCat("the agent of host ", hello_.host(), " was ", signals_.stop_reason()));
      return absl::CancelledError(signals_.stop_reason());
    }
    RETURN_IF_ERROR(TakeOrders());
    TakeEvents();
    agent_.OnTick(watch_.Elapsed());
    CarryOut();
    if (agent_.MayReport() && std::exchange(nonce_, agent_.nonce()) != agent_.nonce()) {
      LogLine("the lease is over: no process is left; registering anew");
    }
    Report();
    if (!agent_.has_ended()) supervisor_->Poll(UntilNextLook());
  }
  // The last report says that no process is left.
  if (agent_.MayReport() && stream_->CanWrite())
    stream_->Write(agent_.MakeReport(watch_.Elapsed()));
  stream_->Close(kFarewell);
  LogLine("the job has ended");
  return absl::OkStatus();
}

absl::Duration Node::HeartbeatPeriod() const {
  if (!agent_.HasLease(watch_.Elapsed())) return kRegisterPeriod;
  return agent_.lease() / kHeartbeatsALease;
}

absl::Duration Node::UntilNextLook() const {
  const absl::Duration now = watch_.Elapsed();
  absl::Duration until = std::min(agent_.next_tick() - now, stream_->UntilNextLook());
  if (processes_ != nullptr) until = std::min(until, processes_->UntilNextLook());
  if (agent_.MayReport() && stream_->CanWrite()) {
    const absl::Duration period = agent_.HasNews() ? kNewsPeriod : HeartbeatPeriod();
    until = std::min(until, reported_at_ + period - now);
  }
  return std::max(absl::ZeroDuration(), std::min(until, HeartbeatPeriod()));
}

void Node::Report() {
  if (!agent_.MayReport() || !stream_->CanWrite()) return;
  const absl::Duration now = watch_.Elapsed();
  if (now - reported_at_ < (agent_.HasNews() ? kNewsPeriod : HeartbeatPeriod())) return;
  reported_at_ = now;
  stream_->Write(agent_.MakeReport(now));
}

// A host that leaves says so: the job need not wait for it.
void Node::Leave(const std::string& why) {
  LogLine(absl::StrCat(why, ": ending its processes"));
  MakeSupervisor();  // The one before kills what runs.
  agent_.OnUnfit(why);
  if (agent_.MayReport() && stream_->CanWrite())
    stream_->Write(agent_.MakeReport(watch_.Elapsed()));
  stream_->Close(kFarewell);
}

// Orders
// ------------------------------------------------------------------------------------------------

absl::Status Node::TakeOrders() {
  const auto orders = stream_->Work(std::max(kLeastSilence, agent_.lease() / 2));
  if (!orders.ok()) {
    const absl::Status why = WithContext(orders.status(), options_.controller);
    for (const absl::StatusCode code :
         {absl::StatusCode::kFailedPrecondition, absl::StatusCode::kPermissionDenied,
          absl::StatusCode::kUnauthenticated, absl::StatusCode::kUnimplemented}) {
      if (why.code() == code) return why;
    }
    if (std::exchange(is_attached_, false)) {
      LogLine(absl::StrCat("lost the controller: ", why.message()));
    }
    return absl::OkStatus();
  }
  for (const NodeOrder& order : *orders) TakeOrder(order);
  return absl::OkStatus();
}

void Node::TakeOrder(const NodeOrder& order) {
  if (!std::exchange(is_attached_, true)) {
    LogLine(absl::StrCat("controller ", options_.controller, ": job '", order.job(), "', ",
                         order.run_dir()));
  }
  const std::string check = absl::StrCat(order.run_dir(), "/", order.check_file());
  if (std::exchange(checked_, check) != check) {
    const std::string why = CheckRunDirectory(hello_.host(), order);
    if (!why.empty()) agent_.OnUnfit(why);
  }
  agent_.OnOrder(watch_.Elapsed(), order);
  CarryOut();
  for (const LogRequest& request : order.logs()) {
    if (!answered_.insert(request.id()).second) continue;
    LogLines lines;
    lines.set_id(request.id());
    lines.set_host(hello_.host());
    lines.set_path(ProcessFile(directory_, request.process(), "log"));
    for (std::string& line : LogTail(lines.path(), static_cast<int>(request.max_lines()))) {
      lines.add_lines(std::move(line));
    }
    agent_.OnLog(lines);
  }
}

// Processes
// ------------------------------------------------------------------------------------------------

void Node::CarryOut() {
  for (auto actions = agent_.TakeActions(); !actions.empty(); actions = agent_.TakeActions()) {
    for (const NodeAction& action : actions) {
      std::visit([this](const auto& each) { Do(each); }, action);
    }
  }
}

absl::Status Node::BeginGeneration(const NodeOrder& order) {
  MakeSupervisor();
  RETURN_IF_ERROR(RemoveServerData(directory_));
  LocalProcessesOptions options;
  options.job_file = absl::StrCat(order.run_dir(), "/job.textproto");
  options.data_index = order.data_index();
  options.eval_only = order.eval_only();
  options.workers_are_reached = true;
  ASSIGN_OR_RETURN(job_, LoadJob(options.job_file, {}));
  job_.mutable_cluster()->set_listen_host(hello_.address());
  if (job_.has_checkpoint() && job_.checkpoint().directory().empty()) {
    // The file leaves the default out.
    ASSIGN_OR_RETURN(const RunDirectory run, RunDirectory::Open(order.run_dir()));
    job_.mutable_checkpoint()->set_directory(run.CheckpointDirectory());
  }
  processes_ = std::make_unique<LocalProcesses>(job_, options_.programs, directory_,
                                                std::move(options), supervisor_.get());
  processes_->BeginGeneration(order.generation(),
                              [this](absl::string_view data) { agent_.OnMetrics(rank_0_, data); });
  return absl::OkStatus();
}

void Node::Do(const node_action::Prepare& prepare) {
  const absl::Status begun = BeginGeneration(prepare.order);
  if (!begun.ok()) agent_.OnUnfit(absl::StrCat("host ", hello_.host(), ": ", begun.message()));
}

void Node::Do(const node_action::Start& start) {
  const WantedProcess& wanted = start.process;
  action::StartProcess process;
  process.id = FromNodeProcess(wanted.id());
  process.host = hello_.host();
  process.local_rank = wanted.local_rank();
  process.address = wanted.address();
  process.first_step = Step(wanted.first_step());
  process.servers = {wanted.servers().begin(), wanted.servers().end()};
  if (process.id.role == ProcessRole::kWorker && process.id.index == 0) rank_0_ = wanted.id();
  const absl::Status started =
      processes_ == nullptr ? absl::InternalError("no generation") : processes_->Start(process);
  LogLine(absl::StrCat(process.id.Name(), " of generation ", process.id.generation, ": ",
                       started.ok() ? "started" : started.message()));
  if (started.ok()) return;
  ProcessEndReport end;
  end.set_not_started(true);
  end.set_code(static_cast<int>(started.code()));
  end.set_how(std::string(started.message()));
  agent_.OnEnd(watch_.Elapsed(), wanted.id(), end);
}

void Node::Do(const node_action::Signal& signal) {
  supervisor_->Signal(FromNodeProcess(signal.id), signal.kill ? SIGKILL : SIGTERM);
}

void Node::TakeEvents() {
  if (processes_ == nullptr) return;
  for (const JobEvent& event : processes_->TakeEvents()) {
    if (const auto* started = std::get_if<event::ProcessStarted>(&event)) {
      agent_.OnServes(ToNodeProcess(started->id), started->address,
                      ProcessFile(directory_, started->id.Name(), "log"));
    } else if (const auto* ended = std::get_if<event::ProcessEnded>(&event)) {
      ProcessEndReport end;
      if (ended->end.exit_code.has_value()) {
        end.set_has_exit_code(true);
        end.set_exit_code(*ended->end.exit_code);
      }
      end.set_how(ended->end.how);
      end.set_report(ended->end.report);
      if (ended->id.role == ProcessRole::kWorker && ended->end.exit_code == 0) {
        const nlohmann::ordered_json& result = processes_->results()[ended->id.index];
        if (!result.is_null()) end.set_result(result.dump());
      }
      LogLine(absl::StrCat(ended->id.Name(), " ", ended->end.how));
      agent_.OnEnd(watch_.Elapsed(), ToNodeProcess(ended->id), end);
    }
  }
}

}  // namespace

absl::Status RunNode(const NodeOptions& options, SignalWatch* signals) {
  RETURN_IF_ERROR(CheckMayConnect(options.controller, options.tls, options.insecure));
  std::error_code error;
  std::filesystem::create_directories(options.dir, error);
  const std::filesystem::path dir = std::filesystem::canonical(options.dir, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("can't make the folder ", options.dir, ": ", error.message()));
  }
  ASSIGN_OR_RETURN(RunDirectory directory, RunDirectory::Open(dir.string()));
  ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(directory.path(), kLockPatience));
  lock.KeepFromChildren();
  EndLeftovers(directory.path());
  ASSIGN_OR_RETURN(const NodeHello hello, MakeHello(options));
  Node node(options, hello, std::move(directory), signals);
  RETURN_IF_ERROR(node.Connect());
  LogLine(absl::StrCat("host ", hello.host(), " at ", hello.address(), ", build ", hello.build(),
                       "; connecting to ", options.controller));
  return node.Run();
}

}  // namespace thermocline
