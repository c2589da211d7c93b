#include "deploy/nodes/node.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "common/base/timing.h"
#include "common/job/resolved_job.h"
#include "common/net/certificates.h"
#include "common/net/tls_files.h"
#include "deploy/nodes/controller_stream.h"
#include "deploy/nodes/host_facts.h"
#include "deploy/nodes/log_requests.h"
#include "deploy/nodes/node_agent.h"
#include "deploy/nodes/node_table.h"
#include "deploy/processes/local_processes.h"
#include "deploy/processes/run_directory.h"
#include "deploy/processes/supervisor.h"

namespace thermocline {
namespace {

constexpr absl::Duration kLockPatience = absl::Seconds(2);
constexpr absl::Duration kKillPatience = absl::Seconds(10);     // For what a predecessor left.
constexpr absl::Duration kNewsPeriod = absl::Milliseconds(20);  // Between reports.
constexpr absl::Duration kRegisterPeriod = absl::Seconds(1);    // Without a lease.
constexpr int kHeartbeatsALease = 4;
constexpr absl::Duration kLeastSilence = absl::Seconds(5);
constexpr absl::Duration kFarewell = absl::Seconds(1);
// From an engine's SIGTERM: Slurm kills 30 s after it (KillWait).
constexpr absl::Duration kEnginePatience = absl::Seconds(25);
constexpr absl::Duration kHandshakeTimeout = absl::Seconds(2);
constexpr absl::Duration kComplainPeriod = absl::Seconds(10);

uint64_t MakeNonce() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;  // Not 0.
}

// The keys and certificates of the agent's processes, where each needs one of its own
// (LocalProcesses::NeedsOwnCertificate): keys are made on this host and stay here; the controller
// signs.

// Makes a key, writes it where the process takes it, and returns the request that the controller
// signs. Errors: those of writing.
absl::StatusOr<std::string> MakeKey(const LocalProcesses& processes, const ProcessId& id) {
  ASSIGN_OR_RETURN(const KeyAndRequest made, MakeKeyAndRequest());
  RETURN_IF_ERROR(WritePrivateFile(processes.TlsOf(id).private_key, made.private_key,
                                   /*replaces=*/true));
  return made.request;
}

// Writes the signed certificate; a process that runs takes the file by itself (common/net/rpc.h).
absl::Status WriteCertificate(const LocalProcesses& processes, const WantedProcess& wanted) {
  const TlsFiles files = processes.TlsOf(FromNodeProcess(wanted.id()));
  return WritePrivateFile(files.certificate, wanted.certificate(), /*replaces=*/true);
}

// Removes what a process that has ended had. What can't be removed expires.
void RemoveKey(const LocalProcesses& processes, const RunDirectory& directory,
               const ProcessId& id) {
  if (!processes.NeedsOwnCertificate(id.role)) return;
  for (const char* extension : {"key", "pem"}) {
    directory.Remove(ProcessFileName(id.Name(), extension)).IgnoreError();
  }
}

void RemoveKeys(const LocalProcesses& processes, const RunDirectory& directory,
                const Cluster& cluster) {
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    const uint32_t count = role == ProcessRole::kServer ? cluster.servers() : cluster.workers();
    for (uint32_t i = 0; i < count; ++i) RemoveKey(processes, directory, ProcessId{role, i});
  }
}

// ------------------------------------------------------------------------------------------------

class Node {
 public:
  Node(const NodeOptions& options, const NodeHello& hello, RunDirectory directory,
       SignalWatch* signals)
      : options_(options),
        hello_(hello),
        directory_(std::move(directory)),
        signals_(*signals),
        wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
        agent_(hello, MakeNonce),
        log_requests_(hello.host(), directory_) {
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
  void Do(const node_action::Renew& renew);
  void Do(const node_action::Signal& signal);
  absl::Status StartProcess(const WantedProcess& wanted);
  absl::Status AskForCertificate(const WantedProcess& wanted);
  void OnNoController(const absl::Status& why);
  absl::Status BeginGeneration(const NodeOrder& order);
  void Report();
  void TakeTermination();
  bool IsToLeave() const;
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
  absl::Duration leave_at_ = absl::InfiniteDuration();
  absl::Duration answered_at_;       // By the controller.
  bool signs_certificates_ = false;  // The controller.
  LogRequests log_requests_;
  absl::Duration reported_at_ = -absl::InfiniteDuration();
  bool is_attached_ = false;
  std::string unreachable_;     // Why the controller can't be reached, as it was said last.
  absl::Duration complain_at_;  // Not before.
  uint64_t nonce_ = 0;
  std::unique_ptr<ControllerStream> stream_;
};

// Without the readers of an earlier generation.
void Node::MakeSupervisor() {
  processes_.reset();
  // An engine that takes its hosts away sends SIGTERM to all that runs there.
  supervisor_ = std::make_unique<Supervisor>(&signals_, /*stop_signal=*/SIGINT);
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
    TakeTermination();
    if (IsToLeave()) {
      Leave(absl::StrCat("the agent of host ", hello_.host(), " was ", signals_.stop_reason()));
      return absl::CancelledError(signals_.stop_reason());
    }
    RETURN_IF_ERROR(TakeOrders());
    if (!agent_.HasLease(watch_.Elapsed()) &&
        watch_.Elapsed() >= answered_at_ + options_.controller_timeout) {
      Leave("no controller");
      return absl::UnavailableError(
          absl::StrCat("no controller has answered at ", options_.controller, " for ",
                       absl::FormatDuration(options_.controller_timeout)));
    }
    TakeEvents();
    agent_.OnTick(watch_.Elapsed());
    CarryOut();
    for (const LogLines& lines : log_requests_.Answer(watch_.Elapsed(), agent_.has_ended())) {
      agent_.OnLog(lines);
    }
    if (agent_.MayReport() && std::exchange(nonce_, agent_.nonce()) != agent_.nonce()) {
      LogLine("the lease is over: no process is left; registering anew");
    }
    Report();
    if (!agent_.has_ended()) supervisor_->Poll(UntilNextLook());
  }
  // The last report says that no process is left, and has the last lines of their logs.
  stream_->AwaitWritten(kFarewell);
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
  until = std::min(until, leave_at_ - now);
  if (processes_ != nullptr) until = std::min(until, processes_->UntilNextLook());
  until = std::min(until, log_requests_.UntilNextLook());
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

// An engine that takes the hosts away sends SIGTERM to the controller as well, and that needs the
// processes here for a last checkpoint.
void Node::TakeTermination() {
  if (signals_.terminations() == 0 || leave_at_ < absl::InfiniteDuration()) return;
  const absl::Duration now = watch_.Elapsed();
  leave_at_ = agent_.HasLease(now) && agent_.running() > 0 ? now + kEnginePatience : now;
  LogLine(absl::StrCat(signals_.stop_reason(), ": the job may end within ",
                       absl::FormatDuration(leave_at_ - now)));
}

bool Node::IsToLeave() const {
  return signals_.stop_requests() > signals_.terminations() || watch_.Elapsed() >= leave_at_ ||
         (signals_.terminations() > 0 && !agent_.HasLease(watch_.Elapsed()));
}

// A host that leaves says so: the job need not wait for it.
void Node::Leave(const std::string& why) {
  LogLine(absl::StrCat(why, ": ending its processes"));
  if (processes_ != nullptr) RemoveKeys(*processes_, directory_, job_.cluster());
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
    OnNoController(why);
    return absl::OkStatus();
  }
  for (const NodeOrder& order : *orders) {
    RETURN_IF_ERROR(CheckRun(options_, order));
    TakeOrder(order);
  }
  return absl::OkStatus();
}

void Node::TakeOrder(const NodeOrder& order) {
  answered_at_ = watch_.Elapsed();
  if (!std::exchange(is_attached_, true)) {
    LogLine(absl::StrCat("controller ", options_.controller, ": job '", order.job(), "', ",
                         order.run_dir()));
  }
  const std::string check = absl::StrCat(order.run_dir(), "/", order.check_file());
  if (std::exchange(checked_, check) != check) {
    const absl::Status checked = CheckFolders(hello_.host(), order);
    if (!checked.ok()) agent_.OnUnfit(std::string(checked.message()));
  }
  agent_.OnOrder(watch_.Elapsed(), order);
  CarryOut();
  log_requests_.Take(watch_.Elapsed(), order.logs());
}

// Says so once for each reason, and not too often.
void Node::OnNoController(const absl::Status& why) {
  std::string text(why.message());
  const absl::Duration now = watch_.Elapsed();
  if (std::exchange(is_attached_, false)) {
    LogLine(absl::StrCat("lost the controller: ", text));
  } else if (text == unreachable_ || now < complain_at_) {
    return;
  } else {
    LogLine(absl::StrCat("host ", hello_.host(), " at ", hello_.address(),
                         " can't reach the controller at ", text, "; trying again"));
  }
  unreachable_ = std::move(text);
  complain_at_ = now + kComplainPeriod;
  // It blocks: not while processes depend on this thread.
  if (agent_.HasLease(now) || agent_.running() > 0 || options_.tls.empty()) return;
  const std::string handshake =
      ExplainHandshake(options_.controller, options_.tls, kHandshakeTimeout);
  if (!handshake.empty()) LogLine(handshake);
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
  options.own_ca = options_.tls.ca;
  signs_certificates_ = order.signs_certificates();
  ASSIGN_OR_RETURN(job_, LoadJobOf(order));
  job_.mutable_cluster()->set_listen_host(hello_.address());
  MakeFilesFor(job_.readers());
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
  const ProcessId id = FromNodeProcess(wanted.id());
  const bool asks = processes_ != nullptr && processes_->NeedsOwnCertificate(id.role) &&
                    wanted.certificate().empty();
  const absl::Status started = asks ? AskForCertificate(wanted) : StartProcess(wanted);
  LogLine(absl::StrCat(id.Name(), " of generation ", id.generation, ": ",
                       !started.ok() ? started.message()
                       : asks        ? "asking for a certificate"
                                     : "started"));
  if (started.ok()) return;
  ProcessEndReport end;
  end.set_not_started(true);
  end.set_code(static_cast<int>(started.code()));
  end.set_how(std::string(started.message()));
  agent_.OnEnd(watch_.Elapsed(), wanted.id(), end);
}

absl::Status Node::StartProcess(const WantedProcess& wanted) {
  if (processes_ == nullptr) return absl::InternalError("no generation");
  action::StartProcess process;
  process.id = FromNodeProcess(wanted.id());
  process.host = hello_.host();
  process.local_rank = wanted.local_rank();
  process.address = wanted.address();
  process.first_step = Step(wanted.first_step());
  process.data_place = wanted.data_place();
  process.servers = {wanted.servers().begin(), wanted.servers().end()};
  if (!wanted.certificate().empty()) RETURN_IF_ERROR(WriteCertificate(*processes_, wanted));
  if (process.id.role == ProcessRole::kWorker && process.id.index == 0) rank_0_ = wanted.id();
  return processes_->Start(process);
}

absl::Status Node::AskForCertificate(const WantedProcess& wanted) {
  const ProcessId id = FromNodeProcess(wanted.id());
  if (!signs_certificates_) {
    const Role role = CertificateRole(id.role);
    return absl::FailedPreconditionError(absl::StrCat(
        "there is no certificate for it (", TlsFilesOf(job_.cluster().tls(), role).certificate,
        "), and the controller has no ca.key to sign one"));
  }
  ASSIGN_OR_RETURN(const std::string request, MakeKey(*processes_, id));
  agent_.OnNeedsCertificate(wanted.id(), request);
  return absl::OkStatus();
}

void Node::Do(const node_action::Renew& renew) {
  if (processes_ == nullptr) return;
  const absl::Status written = WriteCertificate(*processes_, renew.process);
  LogLine(absl::StrCat(FromNodeProcess(renew.process.id()).Name(), ": ",
                       written.ok() ? "has a new certificate" : written.message()));
}

void Node::Do(const node_action::Signal& signal) {
  const ProcessId id = FromNodeProcess(signal.id);
  signal.kill ? supervisor_->Kill(id) : supervisor_->AskToEnd(id);
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
      end.set_reason(ended->end.reason);
      end.set_lacked_memory(ended->end.lacked_memory);
      if (ended->id.role == ProcessRole::kWorker && ended->end.exit_code == 0) {
        const nlohmann::ordered_json& result = processes_->results()[ended->id.index];
        if (!result.is_null()) end.set_result(result.dump());
      }
      LogLine(absl::StrCat(ended->id.Name(), " ", ended->end.how));
      RemoveKey(*processes_, directory_, ended->id);
      agent_.OnEnd(watch_.Elapsed(), ToNodeProcess(ended->id), end);
    }
  }
}

}  // namespace

absl::Status RunNode(const NodeOptions& options, SignalWatch* signals) {
  RETURN_IF_ERROR(CheckMayConnect(options.controller, options.tls, options.insecure));
  RETURN_IF_ERROR(CheckThreads());
  ASSIGN_OR_RETURN(const std::string dir, MakeOwnFolder(options.dir, geteuid()));
  MakeFilesFor(Job::OWNER);
  ASSIGN_OR_RETURN(RunDirectory directory, RunDirectory::Open(dir));
  // Earlier builds made a lock file that other users could read, and so lock.
  chmod(directory.File("lock").c_str(), 0600);
  ASSIGN_OR_RETURN(RunLock lock, RunLock::Take(directory.path(), kLockPatience));
  lock.KeepFromChildren();
  RETURN_IF_ERROR(EndLeftovers(directory.path(), kKillPatience));
  ASSIGN_OR_RETURN(const NodeHello hello, MakeHello(options));
  Node node(options, hello, std::move(directory), signals);
  RETURN_IF_ERROR(node.Connect());
  LogLine(absl::StrCat("host ", hello.host(), " at ", hello.address(), ", build ", hello.build(),
                       "; connecting to ", options.controller));
  return node.Run();
}

}  // namespace thermocline
