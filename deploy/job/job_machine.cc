#include "deploy/job/job_machine.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/job/resolved_job.h"
#include "deploy/job/job_machine_state.h"

namespace thermocline {
namespace {

constexpr absl::Duration kConfigureRetryPeriod = absl::Milliseconds(20);
constexpr absl::Duration kIntroduceRetryPeriod = absl::Milliseconds(100);

std::string WhereItBegins(const GenerationStart& start) {
  return start.base.empty() ? "the beginning" : absl::StrCat("step ", start.first_step().value());
}

}  // namespace

JobMachine::JobMachine(JobMachineOptions options)
    : state_(std::make_unique<State>(std::move(options))) {}
JobMachine::~JobMachine() = default;

std::vector<JobAction> JobMachine::Begin(absl::Duration now) {
  state_->Begin();
  state_->Take(now, event::Tick{});
  return state_->TakeActions();
}

std::vector<JobAction> JobMachine::Take(absl::Duration now, const JobEvent& event) {
  state_->Take(now, event);
  return state_->TakeActions();
}

absl::Duration JobMachine::next_tick() const { return state_->next_tick(); }
JobMachine::Stage JobMachine::stage() const { return state_->stage(); }
const GenerationStart& JobMachine::start() const { return state_->start(); }
Step JobMachine::reached() const { return state_->reached(); }

JobMachine::State::State(JobMachineOptions options)
    : options_(std::move(options)),
      writes_checkpoints_(WritesCheckpoints(options_.job) && !options_.eval_only),
      generation_(options_.start, options_.job.cluster()),
      budgets_(options_.job, CanGoBack(), options_.start.spent),
      samples_(options_.job.train().batch_size()),
      hosts_(options_.build) {}

void JobMachine::State::Begin() {
  const GenerationStart& start = options_.start;
  samples_.Report(start.first_step().value(), start.base_samples);
  for (const std::string& notice : options_.notices) Tell(notice);
  if (options_.is_resumed) {
    Do(action::ReportStart{"resume", absl::StrJoin(options_.notices, "; "), start});
    Tell(
        absl::StrCat("resuming at ", WhereItBegins(start), " (generation ", start.generation, ")"));
  }
  Open(start);
}

void JobMachine::State::Take(absl::Duration now, const JobEvent& event) {
  now_ = std::max(now_, now);
  std::visit([this](const auto& e) { On(e); }, event);
  Advance();
}

bool JobMachine::State::CanGoBack() const {
  return writes_checkpoints_ && options_.job.checkpoint().max_rollbacks() > 0;
}

// Without rows to load servers answer the first configuration at once; a host may be cut off.
bool JobMachine::State::TakesConfigurationAtOnce() const {
  return generation_.start.base.empty() && !options_.job.has_init() && options_.num_hosts == 0;
}

bool JobMachine::State::IsConfiguredOnce() const {
  return stage_ >= Stage::kStartingWorkers && stage_ <= Stage::kAsking;
}

bool JobMachine::State::SchedulesBatches() const {
  return options_.job.has_fae() && !options_.job.fae().schedule().fixed();
}

bool JobMachine::State::TakesReports() const {
  return !options_.eval_only && (options_.job.has_evaluate() || SchedulesBatches());
}

// What is due, or has become possible.
void JobMachine::State::Advance() {
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
  if (stage_ == Stage::kSettling && now_ >= generation_.settled_at) OnSettled();
  ConcludeIfStopped();
}

absl::Duration JobMachine::State::next_tick() const {
  absl::Duration next = absl::InfiniteDuration();
  const GenerationState& g = generation_;
  if (stage_ == Stage::kSettling) {
    return g.is_status_asked ? g.settled_at : std::min(g.settled_at, g.look_at);
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
void JobMachine::State::Open(const GenerationStart& start) {
  generation_ = GenerationState(start, options_.job.cluster());
  generation_.start.spent = budgets_.spent();
  stage_ = Stage::kOpening;
  Do(action::Open{generation_.start});
}

void JobMachine::State::On(const event::Opened& opened) {
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

void JobMachine::State::StartServers() {
  stage_ = Stage::kStartingServers;
  generation_.startup_deadline = now_ + StartupTimeout();
  for (size_t i = 0; i < generation_.processes.servers.size(); ++i) {
    action::StartProcess start;
    start.id = generation_.processes.Begin(ProcessRole::kServer, i);
    start.host = generation_.placement.HostOf(ProcessRole::kServer, i);
    Do(std::move(start));
  }
}

// The loss of a host is known before its processes are late.
absl::Duration JobMachine::State::StartupTimeout() const {
  const Cluster& cluster = options_.job.cluster();
  return absl::Seconds(cluster.startup_timeout_s() +
                       (options_.num_hosts == 0 ? 0 : cluster.host_timeout_s()));
}

void JobMachine::State::CheckStartup(ProcessRole role) {
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

void JobMachine::State::On(const event::ProcessStarted& started) {
  ProcessState* const process = generation_.processes.Find(started.id);
  if (process == nullptr || !process->is_running) return;
  process->came_up = true;
  process->address = started.address;
  if (started.id.role == ProcessRole::kServer && IsConfiguredOnce()) Configure(started.id.index);
}

void JobMachine::State::On(const event::NotStarted& failed) {
  ProcessState* const process = generation_.processes.Find(failed.id);
  if (process == nullptr || !process->is_running) return;
  process->is_running = false;
  const bool is_again = failed.id.incarnation > 1;
  // What this machine lacks, a program say, it lacks the next time, too. Of several hosts one may
  // be broken; and each may be short of processes for a while.
  if (!is_again && options_.num_hosts == 0 && !IsUnanswered(failed.why)) return Fail(failed.why);
  const std::string how =
      absl::StrCat("can't be started", is_again ? " again" : "", ": ", failed.why.message());
  process->end = ProcessEnd{std::nullopt, how, how};
  if (!IsRunning()) return;
  Tell(absl::StrCat(failed.id.Name(), " ", how));
  Settle();
}

// Servers
// ------------------------------------------------------------------------------------------------

void JobMachine::State::ConfigureServers() {
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
void JobMachine::State::Configure(size_t server) {
  const GenerationState& g = generation_;
  generation_.processes.servers[server].configure_at.reset();
  const ProcessId id = g.processes.Id(ProcessRole::kServer, server);
  if (g.checkpoints == nullptr) {
    Do(action::Configure{id, g.start.base, g.start.base_generation});
  } else {
    Do(action::Configure{id, g.checkpoints->newest(), g.checkpoints->newest_generation()});
  }
}

void JobMachine::State::On(const event::Configured& configured) {
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

void JobMachine::State::On(const event::ProcessEnded& ended) {
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
void JobMachine::State::OnServerEnd(size_t index) {
  GenerationState& g = generation_;
  ProcessState& server = g.processes.servers[index];
  const bool has_log = options_.job.cluster().durability() != NONE;
  if (!has_log || !IsConfiguredOnce() || g.is_server_lost) return Settle();
  const RestartPolicy::Decision decision = budgets_.restarts.OnEnd(index, server.came_up, reached_);
  const std::string name = ProcessName(ProcessRole::kServer, index);
  const std::string end = absl::StrCat(name, " ", server.end->how);
  if (!decision.restart) {
    Tell(absl::StrCat(end, "; not started again: ", decision.why_not));
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
  Tell(absl::StrCat(end, "; started again",
                    decision.delay > absl::ZeroDuration()
                        ? absl::StrCat(" in ", absl::FormatDuration(decision.delay))
                        : ""));
}

void JobMachine::State::StartDueServers() {
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
    action::StartProcess start;
    start.address = server.address;
    start.id = g.processes.Begin(ProcessRole::kServer, i);
    start.host = g.placement.HostOf(ProcessRole::kServer, i);
    Do(std::move(start));
  }
}

// Workers
// ------------------------------------------------------------------------------------------------

void JobMachine::State::StartWorkers() {
  GenerationState& g = generation_;
  g.look_at = absl::InfiniteDuration();
  Do(action::ReportServersUp{g.processes.Addresses(ProcessRole::kServer)});
  stage_ = Stage::kStartingWorkers;
  g.startup_deadline = now_ + StartupTimeout();
  for (size_t rank = 0; rank < g.processes.workers.size(); ++rank) {
    action::StartProcess start;
    start.id = g.processes.Begin(ProcessRole::kWorker, rank);
    start.host = g.placement.HostOf(ProcessRole::kWorker, rank);
    start.local_rank = g.placement.LocalRank(rank);
    start.first_step = g.start.first_step();
    if (SchedulesBatches() && g.base.evaluations().has_schedule()) {
      start.schedule = g.base.evaluations().schedule();
    }
    start.servers = g.processes.Addresses(ProcessRole::kServer);
    Do(std::move(start));
  }
}

void JobMachine::State::On(const event::WorkerResult& result) {
  ProcessState* const worker = generation_.processes.Find(result.id);
  if (worker != nullptr) worker->steps = result.steps;
}

void JobMachine::State::BeginTraining() {
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
void JobMachine::State::Introduce() {
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
void JobMachine::State::On(const event::Introduced& introduced) {
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

CheckpointOptions JobMachine::State::OptionsOfCheckpoints() {
  const Job& job = options_.job;
  CheckpointOptions options;
  options.num_servers = job.cluster().servers();
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

void JobMachine::State::On(const event::CheckpointRequested& requested) {
  if (generation_.checkpoints != nullptr && IsRunning()) {
    generation_.checkpoints->clients().Add(requested.id);
  } else {
    requests_.push_back(requested.id);
  }
}

}  // namespace thermocline
