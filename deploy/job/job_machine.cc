#include "deploy/job/job_machine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/resolved_job.h"

namespace thermocline {
namespace {

constexpr absl::Duration kConfigureRetryPeriod = absl::Milliseconds(20);
constexpr absl::Duration kIntroduceRetryPeriod = absl::Milliseconds(100);

std::string WhereItBegins(const GenerationStart& start) {
  return start.base.empty() ? "the beginning" : absl::StrCat("step ", start.first_step().value());
}

}  // namespace

JobMachine::JobMachine(JobMachineOptions options)
    : options_(std::move(options)),
      writes_checkpoints_(WritesCheckpoints(options_.job) && !options_.eval_only),
      generation_(options_.start, options_.job.cluster()),
      budgets_(options_.job, CanGoBack(), options_.start.spent),
      samples_(options_.job.train().batch_size()),
      hosts_(options_.build) {}

std::vector<JobAction> JobMachine::Begin(absl::Duration now) {
  const GenerationStart& start = options_.start;
  samples_.Report(start.first_step().value(), start.base_samples);
  for (const std::string& notice : options_.notices) Tell(notice);
  if (options_.is_resumed) {
    Do(action::ReportStart{"resume", absl::StrJoin(options_.notices, "; "), start});
    Tell("resuming at ", WhereItBegins(start), " (generation ", start.generation, ")");
  }
  Open(start);
  return Take(now, event::Tick{});
}

std::vector<JobAction> JobMachine::Take(absl::Duration now, const JobEvent& event) {
  now_ = std::max(now_, now);
  std::visit([this](const auto& e) { On(e); }, event);
  Advance();
  return std::exchange(actions_, {});
}

bool JobMachine::CanGoBack() const {
  return writes_checkpoints_ && options_.job.checkpoint().max_rollbacks() > 0;
}

// Without rows to load servers answer the first configuration at once; a host may be cut off.
bool JobMachine::TakesConfigurationAtOnce() const {
  return generation_.start.base.empty() && !options_.job.has_init() && options_.num_hosts == 0;
}

bool JobMachine::IsConfiguredOnce() const {
  return stage_ >= Stage::kStartingWorkers && stage_ <= Stage::kAsking;
}

bool JobMachine::OrdersDataByLoss() const {
  return options_.job.has_fae() && !options_.job.fae().schedule().fixed();
}

bool JobMachine::TakesReports() const {
  return !options_.eval_only && (options_.job.has_evaluate() || OrdersDataByLoss());
}

// Does everything that is due or has become possible.
void JobMachine::Advance() {
  if (stage_ == Stage::kWaitingForHosts) LookAtHosts();
  if (stage_ == Stage::kStartingServers) CheckStartup(ProcessRole::kServer);
  if (stage_ == Stage::kConfiguring && generation_.processes.AllConfigured()) StartWorkers();
  if (stage_ == Stage::kStartingWorkers) CheckStartup(ProcessRole::kWorker);
  if (IsRunning()) StartDueServers();
  if (stage_ == Stage::kTraining) Introduce();
  WorkOnCheckpoints();
  WorkOnEvaluations();
  if (stage_ == Stage::kTraining && generation_.processes.AllWorkersEndedWell()) OnTrained();
  if (stage_ == Stage::kAsking) Ask();
  WatchForStalls();
  if (stage_ == Stage::kSettling && now_ >= generation_.settled_at && !AwaitsCheckpoint()) {
    OnSettled();
  }
  ConcludeIfStopped();
}

absl::Duration JobMachine::next_tick() const {
  absl::Duration next = absl::InfiniteDuration();
  const GenerationState& g = generation_;
  if (stage_ == Stage::kSettling) {
    next = g.settled_at + (AwaitsCheckpoint() ? kWritePatience : absl::ZeroDuration());
    if (MayWorkOnCheckpoints() && g.checkpoints->is_idle()) next = std::min(next, g.round_at);
    return g.is_status_asked ? next : std::min(next, g.look_at);
  }
  if (!IsRunning()) return next;
  const bool has_round =
      g.checkpoints != nullptr && g.checkpoints->is_idle() && !g.checkpoints->finished();
  const bool is_committing = g.checkpoints != nullptr && g.checkpoints->is_committing();
  next = std::min({g.hosts_deadline, g.startup_deadline, has_round ? g.round_at : next,
                   g.is_status_asked ? next : g.look_at, g.is_decision_sent ? next : g.decide_at,
                   g.restart_seen_by, g.introduce_at});
  for (const ProcessState& server : g.processes.servers) {
    if (server.start_at.has_value() && !is_committing) next = std::min(next, *server.start_at);
    if (server.configure_at.has_value()) next = std::min(next, *server.configure_at);
  }
  return next;
}

// The first process of a generation starts after the answer: nothing happens in a generation that
// is not on the medium.
void JobMachine::Open(const GenerationStart& start) {
  generation_ = GenerationState(start, options_.job.cluster());
  generation_.start.spent = budgets_.spent();
  stage_ = Stage::kOpening;
  Do(action::Open{generation_.start});
}

void JobMachine::On(const event::Opened& opened) {
  if (stage_ != Stage::kOpening || !IsOurs(opened.generation)) return;
  if (!opened.status.ok()) return Fail(opened.status);
  generation_.base = opened.base;
  if (TakesReports()) {
    generation_.evaluations = std::make_unique<EvaluationCoordinator>(
        options_.job.evaluate(), generation_.start, opened.base.evaluations(),
        writes_checkpoints_ && options_.job.evaluate().keep_best());
  }
  WaitForHosts();
}

action::StartProcess JobMachine::NextProcess(ProcessRole role, size_t index) {
  action::StartProcess start;
  start.id = generation_.processes.Begin(role, index);
  start.host = generation_.placement.HostOf(role, index);
  return start;
}

void JobMachine::StartServers() {
  stage_ = Stage::kStartingServers;
  generation_.startup_deadline = now_ + StartupTimeout();
  for (size_t i = 0; i < generation_.processes.servers.size(); ++i) {
    action::StartProcess start = NextProcess(ProcessRole::kServer, i);
    if (HasEmbeddedServer(options_.job.cluster())) SetPlaceInData(&start);
    Do(std::move(start));
  }
}

// The loss of a host is known before its processes are late.
absl::Duration JobMachine::StartupTimeout() const {
  const Cluster& cluster = options_.job.cluster();
  return absl::Seconds(cluster.startup_timeout_s() +
                       (options_.num_hosts == 0 ? 0 : cluster.host_timeout_s()));
}

void JobMachine::CheckStartup(ProcessRole role) {
  const std::optional<size_t> missing = generation_.processes.FirstNotUp(role);
  const bool is_server = role == ProcessRole::kServer;
  if (!missing.has_value()) {
    generation_.startup_deadline = absl::InfiniteDuration();
    return is_server ? ConfigureServers() : BeginTraining();
  }
  if (now_ < generation_.startup_deadline) return;
  GiveUp(absl::DeadlineExceededError(
      absl::StrCat(ProcessName(role, *missing), " did not come up within ",
                   absl::FormatDuration(StartupTimeout()),
                   options_.num_hosts == 0 ? " (cluster.startup_timeout_s"
                                           : " (cluster.startup_timeout_s and host_timeout_s",
                   "); its log: ", LogOf(role, *missing))));
}

void JobMachine::On(const event::ProcessStarted& started) {
  ProcessState* const process = generation_.processes.Find(started.id);
  if (process == nullptr || !process->is_running) return;
  process->came_up = true;
  process->address = started.address;
  if (started.id.role == ProcessRole::kServer && IsConfiguredOnce()) Configure(started.id.index);
}

void JobMachine::On(const event::NotStarted& failed) {
  ProcessState* const process = generation_.processes.Find(failed.id);
  if (process == nullptr || !process->is_running) return;
  process->is_running = false;
  const bool is_again = failed.id.incarnation > 1;
  // If this machine lacks something, such as a program, it will lack it the next time, too. Among
  // several hosts one may be broken, and any may be short of processes for a while.
  if (!is_again && options_.num_hosts == 0 && !IsUnanswered(failed.why)) return Fail(failed.why);
  const std::string how =
      absl::StrCat("can't be started", is_again ? " again" : "", ": ", failed.why.message());
  process->end = ProcessEnd{std::nullopt, how, how};
  if (!IsRunning()) return;
  Tell(failed.id.Name(), " ", how);
  Settle();
}

// Servers
// ------------------------------------------------------------------------------------------------

void JobMachine::ConfigureServers() {
  stage_ = Stage::kConfiguring;
  Do(action::ReportAddresses{generation_.processes.Addresses(ProcessRole::kServer), {}});
  for (size_t i = 0; i < generation_.processes.servers.size(); ++i) {
    generation_.processes.servers[i].advanced_at = now_;
    Configure(i);
  }
  if (!TakesConfigurationAtOnce()) generation_.look_at = now_;
}

// The server loads the rows of its base and replays its log in the background: the call is repeated
// until that is done.
void JobMachine::Configure(size_t server) {
  const GenerationState& g = generation_;
  generation_.processes.servers[server].configure_at.reset();
  const ProcessId id = g.processes.Id(ProcessRole::kServer, server);
  if (g.checkpoints == nullptr) {
    Do(action::Configure{id, g.start.base, g.start.base_generation});
  } else {
    Do(action::Configure{id, g.checkpoints->newest(), g.checkpoints->newest_generation()});
  }
}

void JobMachine::On(const event::Configured& configured) {
  ProcessState* const server = generation_.processes.Find(configured.id);
  if (server == nullptr || !IsRunning() || !server->is_running) return;
  const absl::Status& status = configured.status;
  if (status.ok()) {
    server->is_configured = true;
    return;
  }
  const bool is_first = stage_ == Stage::kConfiguring;
  if (IsUnanswered(status)) {
    if (is_first && TakesConfigurationAtOnce()) return GiveUp(status);
    server->not_configured = status;
    server->configure_at = now_ + kConfigureRetryPeriod;
    return;
  }
  if (is_first) {
    generation_.fatal = status;
  } else if (generation_.restart_error.ok()) {
    generation_.restart_error = absl::Status(
        status.code(), absl::StrCat(configured.id.Name(), " can't recover: ", status.message()));
  }
  Settle();
}

void JobMachine::On(const event::ProcessEnded& ended) {
  ProcessState* const process = generation_.processes.Find(ended.id);
  if (process == nullptr || !process->is_running) return;
  process->is_running = false;
  process->configure_at.reset();
  process->end = ended.end;
  if (!IsRunning()) return;
  if (ended.id.role == ProcessRole::kServer) return OnServerEnd(ended.id.index);
  if (!process->ended_well()) Settle();
}

// Workers repeat the pushes that the server did not acknowledge.
void JobMachine::OnServerEnd(size_t index) {
  GenerationState& g = generation_;
  ProcessState& server = g.processes.servers[index];
  const bool has_log = options_.job.cluster().durability() != NONE;
  if (!has_log || !IsConfiguredOnce() || g.is_server_lost) return Settle();
  const RestartPolicy::Decision decision = budgets_.restarts.OnEnd(index, server.came_up, reached_);
  const std::string name = ProcessName(ProcessRole::kServer, index);
  const std::string end = absl::StrCat(name, " ", server.end->how);
  if (!decision.restart) {
    Tell(end, "; not started again: ", decision.why_not);
    if (decision.is_exhausted) {
      Do(action::ReportLimit{"cluster.max_server_restarts", end,
                             options_.job.cluster().max_server_restarts()});
    }
    g.is_server_lost = true;
    return Settle();
  }
  ++g.restarts;
  server.is_configured = false;
  server.start_at = now_ + decision.delay;
  Do(action::ReportRestart{name, server.end->how});
  Tell(end, "; started again",
       decision.delay > absl::ZeroDuration()
           ? absl::StrCat(" in ", absl::FormatDuration(decision.delay))
           : "");
}

void JobMachine::StartDueServers() {
  GenerationState& g = generation_;
  for (size_t i = 0; i < g.processes.servers.size(); ++i) {
    ProcessState& server = g.processes.servers[i];
    if (server.configure_at.has_value() && now_ >= *server.configure_at) Configure(i);
    if (!server.start_at.has_value() || now_ < *server.start_at) continue;
    if (g.checkpoints != nullptr) {
      // A server that starts removes its parts of what is not committed.
      if (g.checkpoints->is_committing()) continue;
      g.checkpoints->OnServerReplaced(i);
    }
    action::StartProcess start = NextProcess(ProcessRole::kServer, i);
    start.address = server.address;
    Do(std::move(start));
  }
}

// Workers
// ------------------------------------------------------------------------------------------------

void JobMachine::SetPlaceInData(action::StartProcess* start) const {
  start->first_step = generation_.start.first_step();
  if (OrdersDataByLoss()) start->data_place = generation_.base.evaluations().data_place();
}

void JobMachine::StartWorkers() {
  GenerationState& g = generation_;
  g.look_at = absl::InfiniteDuration();
  Do(action::ReportServersUp{g.processes.Addresses(ProcessRole::kServer)});
  stage_ = Stage::kStartingWorkers;
  g.startup_deadline = now_ + StartupTimeout();
  for (size_t rank = 0; rank < g.processes.workers.size(); ++rank) {
    action::StartProcess start = NextProcess(ProcessRole::kWorker, rank);
    start.local_rank = g.placement.LocalRank(rank);
    SetPlaceInData(&start);
    start.servers = g.processes.Addresses(ProcessRole::kServer);
    Do(std::move(start));
  }
}

void JobMachine::On(const event::WorkerResult& result) {
  ProcessState* const worker = generation_.processes.Find(result.id);
  if (worker != nullptr) worker->steps = result.steps;
}

void JobMachine::BeginTraining() {
  GenerationState& g = generation_;
  Do(action::ReportAddresses{g.processes.Addresses(ProcessRole::kServer),
                             g.processes.Addresses(ProcessRole::kWorker)});
  stage_ = Stage::kTraining;
  num_trained_hosts_ = placed_.size();
  g.stall = StallWatch(g.processes.servers.size());
  g.stall_began = g.last_write = g.look_at = now_;
  if (options_.introduces_workers) g.introduce_at = now_;
  if (!writes_checkpoints_) return;
  g.checkpoints = std::make_unique<CheckpointCoordinator>(OptionsOfCheckpoints());
  g.round_at = now_;
  for (const std::string& id : requests_) g.checkpoints->clients().Add(id);
  requests_.clear();
}

// Their addresses are known only now.
void JobMachine::Introduce() {
  GenerationState& g = generation_;
  if (now_ < g.introduce_at) return;
  g.introduce_at = absl::InfiniteDuration();
  g.introduced_ranks.clear();
  for (const uint32_t rank : g.processes.RunningWorkers()) {
    if (!g.processes.workers[rank].knows_peers) g.introduced_ranks.push_back(rank);
  }
  if (g.introduced_ranks.empty()) return;
  Do(action::Introduce{g.start.generation, g.introduced_ranks,
                       g.processes.Addresses(ProcessRole::kWorker)});
}

// A worker that misses it waits, and all others for it. Whatever else it says is its failure, which
// its end and those of others may explain.
void JobMachine::On(const event::Introduced& introduced) {
  GenerationState& g = generation_;
  if (!IsOurs(introduced.generation) || stage_ != Stage::kTraining) return;
  for (size_t i = 0; i < introduced.answers.size(); ++i) {
    const absl::Status& answer = introduced.answers[i];
    const uint32_t rank = g.introduced_ranks[i];
    ProcessState& worker = g.processes.workers[rank];
    if (!worker.is_running) continue;
    if (answer.ok()) {
      worker.knows_peers = true;
    } else if (IsUnanswered(answer)) {
      g.introduce_at = now_ + kIntroduceRetryPeriod;
    } else if (g.fatal.ok()) {
      g.fatal = absl::Status(answer.code(),
                             absl::StrCat(ProcessName(ProcessRole::kWorker, rank),
                                          " does not take the other workers: ", answer.message()));
    }
  }
  if (!g.fatal.ok()) Settle();
}

CheckpointOptions JobMachine::OptionsOfCheckpoints() {
  const Job& job = options_.job;
  CheckpointOptions options;
  options.num_servers = NumServers(job.cluster());
  options.num_workers = job.cluster().workers();
  options.manifest = options_.manifest;
  options.manifest.set_generation(generation_.start.generation);
  options.base = generation_.start.base;
  options.base_manifest = generation_.base;
  options.base_step = generation_.start.base_step;
  options.every_steps = job.checkpoint().every_steps();
  options.at_end = job.checkpoint().at_end();
  options.keep = job.checkpoint().keep();
  if (job.cluster().durability() != NONE) options.max_log_bytes = options_.max_log_bytes;
  options.staleness_steps = job.train().staleness_steps();
  options.samples_through = [this](Step step) { return samples_.Through(step); };
  if (const EvaluationCoordinator* evaluations = generation_.evaluations.get()) {
    options.evaluations_through = [evaluations](Step step) {
      return evaluations->board().Through(step);
    };
  }
  return options;
}

void JobMachine::On(const event::CheckpointRequested& requested) {
  CheckpointCoordinator* const checkpoints = generation_.checkpoints.get();
  if (checkpoints == nullptr || !IsRunning()) {
    requests_.push_back(requested.id);
  } else if (!checkpoints->finished()) {
    checkpoints->clients().Add(requested.id);
  } else if (checkpoints->error().ok()) {
    Do(action::AnswerRequest{{requested.id, checkpoints->newest()}});
  } else {
    Do(action::AnswerRequest{{requested.id, checkpoints->error()}});
  }
}

// Hosts
// ------------------------------------------------------------------------------------------------

void JobMachine::On(const event::HostUp& up) {
  const Host& host = up.host;
  if (hosts_.Knows(host.name, host.nonce)) return;
  // Processes of the agent before are gone, or end without a lease.
  if (const Host* const before = hosts_.Find(host.name)) {
    On(event::HostLost{host.name, before->nonce, "its agent was started again"});
  }
  if (hosts_.Add(host) && stage_ > Stage::kWaitingForHosts) {
    Tell("host ", host.name, " came; it is used from the next generation on");
  }
}

void JobMachine::On(const event::HostLost& lost) {
  if (!hosts_.Lose(lost.name, lost.nonce, lost.why)) return;
  Tell("host ", lost.name, " is lost: ", lost.why);
  // Ends of processes while the others are stopped have no meaning.
  if (!IsRunning() && stage_ != Stage::kSettling) return;
  GenerationState& g = generation_;
  const std::string how = absl::StrCat("was lost with host ", lost.name);
  const ProcessEnd end = {std::nullopt, how, absl::StrCat(how, ": ", lost.why)};
  bool any = false;
  for (const ProcessRole role : {ProcessRole::kServer, ProcessRole::kWorker}) {
    const bool is_server = role == ProcessRole::kServer;
    std::vector<ProcessState>& processes = is_server ? g.processes.servers : g.processes.workers;
    for (size_t i = 0; i < processes.size(); ++i) {
      ProcessState& process = processes[i];
      if (g.placement.HostOf(role, i) != lost.name) continue;
      // A server's log is gone even where its process had ended before, and what was not started
      // yet has no place any more.
      const bool is_to_start = process.incarnation == 0 || (is_server && process.start_at);
      if (!process.is_running && !is_to_start) continue;
      process.is_running = process.is_configured = false;
      process.start_at.reset();
      process.configure_at.reset();
      process.end = end;
      g.is_server_lost |= is_server;
      any = true;
    }
  }
  if (any) Settle();
}

void JobMachine::WaitForHosts() {
  if (options_.num_hosts == 0) return StartServers();
  stage_ = Stage::kWaitingForHosts;
  generation_.hosts_deadline = now_ + absl::Seconds(options_.job.cluster().host_wait_s());
  LookAtHosts();
  if (stage_ != Stage::kWaitingForHosts) return;
  Tell("waiting for hosts; there so far: ", hosts_.Describe());
}

// The first time all hosts that the user asked for take part. Later those that are left do, unless
// they can't run everything. Where none is left, as many as before are waited for: they come back
// one by one, and the first would get all that ran on all of them.
size_t JobMachine::HostsToWaitFor() const {
  for (const Host& placed : placed_) {
    const Host* const host = hosts_.Find(placed.name);
    if (host != nullptr && host->nonce == placed.nonce) return 1;
  }
  return num_trained_hosts_ > 0 ? num_trained_hosts_ : options_.num_hosts;
}

void JobMachine::LookAtHosts() {
  const Cluster& cluster = options_.job.cluster();
  const std::vector<Host> usable = hosts_.Usable();
  absl::StatusOr<Placement> placement =
      Place(usable, NumServers(cluster), cluster.workers(), options_.job.device());
  const bool is_first = placed_.empty();
  const size_t wanted = HostsToWaitFor();
  const std::string waited =
      absl::StrCat(" after ", absl::FormatDuration(absl::Seconds(cluster.host_wait_s())),
                   " (cluster.host_wait_s)");
  const bool is_over = now_ >= generation_.hosts_deadline;
  if (placement.ok() && (usable.size() >= wanted || (!is_first && is_over))) {
    if (usable.size() < wanted) {
      Tell(usable.size(), " of ", wanted, " hosts are there", waited,
           "; going on without the others");
    }
    placed_.clear();
    for (const Host& host : usable) {
      if (placement->Uses(host.name)) placed_.push_back(host);
    }
    generation_.hosts_deadline = absl::InfiniteDuration();
    generation_.placement = *std::move(placement);
    Tell(generation_.placement.Describe());
    for (const std::string& notice : generation_.placement.notices) Tell(notice);
    return StartServers();
  }
  const bool are_few = is_first && usable.size() < options_.num_hosts;
  const std::string why =
      are_few ? absl::StrCat(usable.size(), " of ", options_.num_hosts, " hosts can be used")
              : std::string(placement.status().message());
  const std::string there = absl::StrCat("hosts that are there: ", hosts_.Describe());
  if (is_first && hosts_.size() >= options_.num_hosts) {
    return Fail(absl::FailedPreconditionError(absl::StrCat(why, "; ", there)));
  }
  if (!is_over) return;
  generation_.lacks_hosts = true;
  Fail(absl::DeadlineExceededError(absl::StrCat(
      why, waited, "; ", there, is_first ? "" : "; the job can be resumed once there are hosts")));
}

// Where to look: "server-0.log", "server-0.log (on h1)".
std::string JobMachine::LogOf(ProcessRole role, size_t index) const {
  const std::string host = generation_.placement.HostOf(role, index);
  const std::string& log =
      (role == ProcessRole::kServer ? options_.server_logs : options_.worker_logs)[index];
  return host.empty() ? log : absl::StrCat(log, " (on ", host, ")");
}

}  // namespace thermocline
