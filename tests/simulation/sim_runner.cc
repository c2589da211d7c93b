#include "tests/simulation/sim_runner.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/process_limits.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

absl::Status Gone() { return absl::UnavailableError("simulated: it is not there"); }

}  // namespace

void SimLauncherCounters::Add(const SimLauncherCounters& other) {
  committed += other.committed;
  increments += other.increments;
  called_off += other.called_off;
  not_removed += other.not_removed;
  answered += other.answered;
  late_calls += other.late_calls;
  restarts += other.restarts;
  hosts_lost += other.hosts_lost;
  moved += other.moved;
}

SimRunner::SimRunner(SimRunnerOptions options, SimWorld world, CheckpointStore* store,
                     Scheduler* scheduler, Saboteur* saboteur, std::vector<std::string>* failures)
    : options_(std::move(options)),
      world_(std::move(world)),
      store_(*store),
      scheduler_(*scheduler),
      saboteur_(*saboteur),
      failures_(*failures),
      random_(options_.seed),
      began_us_(scheduler->NowMicros()),
      machine_(options_.machine) {}

SimRunner::~SimRunner() { *alive_ = false; }

// Events and time
// ------------------------------------------------------------------------------------------------

absl::Duration SimRunner::Now() const {
  return absl::Microseconds((scheduler_.NowMicros() - began_us_) * options_.clock_speed);
}

void SimRunner::Begin() {
  if (options_.nodes == nullptr) MakeHosts();
  CarryOut(machine_.Begin(Now()));
  Tick();
}

void SimRunner::CarryOut(const std::vector<JobAction>& actions) {
  for (const JobAction& action : actions) {
    ++work_.actions;
    std::visit([this](const auto& each) { Do(each); }, action);
    if (*options_.ended) return;
  }
  if (options_.nodes != nullptr) world_.on_orders();
}

void SimRunner::RunLater(int64_t delay_us, std::function<void()> task) {
  scheduler_.RunAfter(delay_us, [alive = alive_, ended = options_.ended, task = std::move(task)] {
    if (*alive && !*ended) task();
  });
}

void SimRunner::Post(int64_t delay_us, JobEvent event) {
  RunLater(delay_us, [this, event = std::move(event)] { Deliver(event); });
}

// Events of one process arrive in the order in which they happened.
void SimRunner::PostOf(const ProcessId& id, int64_t delay_us, JobEvent event) {
  int64_t& said_us = said_us_[{id.role, id.index}];
  said_us = std::max(said_us, scheduler_.NowMicros() + delay_us);
  Post(said_us - scheduler_.NowMicros(), std::move(event));
}

void SimRunner::Deliver(const JobEvent& event) {
  ++work_.events;
  if (options_.nodes == nullptr) NoteHosts(event);
  if (const auto* ended = std::get_if<event::ProcessEnded>(&event)) {
    const bool is_judged = machine_.stage() < JobMachine::Stage::kWritingResult ||
                           machine_.stage() == JobMachine::Stage::kSettling;
    // A process counts as lost with its host, whatever is heard of it later.
    if (ended->id.generation == generation() && is_judged && IsHostKnown(ended->id) &&
        ended->id.role == ProcessRole::kWorker && ended->end.how == "found bad data") {
      job_is_at_fault_ = true;
    }
  }
  CarryOut(machine_.Take(Now(), event));
  Tick();
}

void SimRunner::OnNodes() {
  options_.nodes->OnTick(Now());
  for (JobEvent& event : options_.nodes->TakeEvents()) Post(0, std::move(event));
  StopNext();
  world_.on_orders();
}

// Workers first.
void SimRunner::StopNext() {
  while (stopping_.has_value() && options_.nodes->AllGone(*stopping_)) {
    if (*stopping_ == ProcessRole::kServer) {
      stopping_.reset();
      Post(CallMicros(), event::AllStopped{});
    } else {
      stopping_ = ProcessRole::kServer;
      options_.nodes->Stop(ProcessRole::kServer, absl::Milliseconds(200));
    }
  }
}

void SimRunner::Tick() {
  const absl::Duration next = machine_.next_tick();
  const uint64_t tick = ++ticks_;
  if (next == absl::InfiniteDuration()) return;
  const int64_t left_us = absl::ToInt64Microseconds(std::max(next - Now(), absl::ZeroDuration()));
  RunLater(left_us / options_.clock_speed + 1, [this, tick] {
    if (tick == ticks_) Deliver(event::Tick{});
  });
}

// Processes
// ------------------------------------------------------------------------------------------------

void SimRunner::Do(const action::Open& open) {
  if (job_is_at_fault_) Fail("the job went back for what it had caused itself");
  if (user_stopped_) Fail("the job went on though the user had stopped it");
  generation_ = open.start.generation;
  GenerationStart start = open.start;
  const bool is_first = start.generation == options_.machine.start.generation;
  if (saboteur_.Has(PlantedFault::kSameGeneration) && !is_first) --start.generation;
  numbers_ =
      std::make_unique<CheckpointRequestNumbers>(options_.machine.job.name(), start.generation);
  processes_.clear();
  before_ = std::exchange(places_, {});
  event::Opened opened;
  opened.generation = open.start.generation;
  if (options_.machine.job.has_checkpoint()) {
    opened.status = store_.Prepare();
    if (opened.status.ok())
      opened.status = store_.Open(StateOf(options_.machine.job.name(), start), start.history);
    if (*options_.ended) return;
    if (opened.status.ok() && !start.base.empty()) {
      const auto base = store_.Load(start.base, start.base_generation);
      opened.status = base.status();
      if (base.ok()) opened.base = *base;
    }
  }
  world_.on_open(start, opened.status);
  if (options_.nodes != nullptr && opened.status.ok()) {
    options_.nodes->BeginGeneration(start.generation);
  }
  Post(CallMicros(), std::move(opened));
}

void SimRunner::Do(const action::StartProcess& wanted) {
  action::StartProcess start = wanted;
  if (saboteur_.Has(PlantedFault::kNewestSchedule) && !start.data_place.empty() &&
      !newest_place_.empty()) {
    start.data_place = newest_place_;
  }
  processes_[{start.id.role, start.id.index}] = start.id;
  if (options_.nodes != nullptr) return options_.nodes->Start(start);
  PlaceProcess(start);
  const int64_t delay_us = random_.Between(1, options_.start_us);
  if (start.id.role == ProcessRole::kWorker) {
    RunLater(delay_us, [this, start] {
      if (!CanStart(start)) return;
      world_.start_worker(start);
      PostOf(start.id, random_.Between(0, options_.notice_us),
             event::ProcessStarted{start.id, absl::StrCat("worker-", start.id.index)});
    });
    return;
  }
  RunLater(delay_us, [this, start] {
    if (CanStart(start)) StartServer(start);
  });
}

// Hosts
// ------------------------------------------------------------------------------------------------

// Some take one role only: where one of those is lost, the job waits for it.
void SimRunner::MakeHosts() {
  hosts_.resize(options_.machine.num_hosts);
  const bool have_roles = hosts_.size() > 1 && random_.Chance(0.3);
  for (size_t i = 0; i < hosts_.size(); ++i) {
    hosts_[i].host.name = absl::StrCat("h", i);
    hosts_[i].host.memory_bytes = 64;
    hosts_[i].host.takes_servers = !have_roles || i != 0;
    hosts_[i].host.takes_workers = !have_roles || i != 1;
    RunLater(random_.Between(0, options_.faults.host_away_us), [this, i] { BringHostUp(i); });
  }
}

// The machine learns of registrations in their order.
void SimRunner::BringHostUp(size_t index) {
  SimHost& host = hosts_[index];
  host.is_up = true;
  ++host.host.nonce;
  const int64_t now_us = scheduler_.NowMicros();
  host.told_us = std::max(host.told_us, now_us + random_.Between(0, options_.notice_us));
  Post(host.told_us - now_us, event::HostUp{host.host});
}

// Its end may be noticed after it has come back.
void SimRunner::LoseHost(size_t index) {
  SimHost& host = hosts_[index];
  if (!host.is_up) return;
  ++counters_.hosts_lost;
  host.is_up = false;
  for (const auto& [process, place] : places_) {
    if (place.host != host.host.name) continue;
    if (process.first == ProcessRole::kServer) {
      world_.server(process.second)->LoseHost();
    } else {
      world_.lose_worker(process.second);
    }
  }
  const int64_t told_us = host.told_us - scheduler_.NowMicros();
  Post(std::max(told_us, random_.Between(0, options_.notice_us)),
       event::HostLost{host.host.name, host.host.nonce, "simulated"});
  RunLater(random_.Between(1, options_.faults.host_away_us), [this, index] { BringHostUp(index); });
}

SimRunner::SimHost* SimRunner::Find(const std::string& host) {
  for (SimHost& each : hosts_) {
    if (each.host.name == host) return &each;
  }
  return nullptr;
}

// What the machine knows from this event on.
void SimRunner::NoteHosts(const JobEvent& event) {
  if (const auto* up = std::get_if<event::HostUp>(&event)) {
    SimHost& host = *Find(up->host.name);
    host.known = std::max(host.known, up->host.nonce);
  } else if (const auto* lost = std::get_if<event::HostLost>(&event)) {
    SimHost& host = *Find(lost->name);
    if (host.known == lost->nonce) host.known = 0;
  }
}

void SimRunner::PlaceProcess(const action::StartProcess& start) {
  const SimHost* const host = Find(start.host);
  if (host == nullptr) {
    if (!hosts_.empty()) Fail(absl::StrCat(start.id.Name(), " starts on no host"));
    return;
  }
  if (host->known == 0) {
    Fail(absl::StrCat(start.id.Name(), " starts on ", start.host, ", which is lost"));
  }
  const std::pair<ProcessRole, uint32_t> key = {start.id.role, start.id.index};
  const auto [place, is_first] = places_.try_emplace(key, Place{start.host, host->known});
  if (!is_first && (place->second.host != start.host || place->second.nonce != host->known)) {
    Fail(absl::StrCat(start.id.Name(), " starts again, and its log is gone with its host"));
  }
  const auto before = before_.find(key);
  if (is_first && before != before_.end() && before->second.host != start.host) ++counters_.moved;
}

// Whether the machine takes the host of the process for up.
bool SimRunner::IsHostKnown(const ProcessId& id) {
  const auto place = places_.find({id.role, id.index});
  if (place == places_.end()) return true;  // There are no hosts.
  return Find(place->second.host)->known == place->second.nonce;
}

bool SimRunner::CanStart(const action::StartProcess& start) {
  if (!(processes_[{start.id.role, start.id.index}] == start.id)) return false;
  const SimHost* const host = Find(start.host);
  if (host == nullptr) return hosts_.empty();
  return host->is_up && host->host.nonce == places_[{start.id.role, start.id.index}].nonce;
}

void SimRunner::StartServer(const action::StartProcess& start) {
  world_.server(start.id.index)->Start(start.id.incarnation);
  PostOf(start.id, random_.Between(0, options_.notice_us),
         event::ProcessStarted{start.id, absl::StrCat("server-", start.id.index)});
}

// Checks the number of restarts in a row here, where they are decided; they happen later.
void SimRunner::Do(const action::ReportRestart&) {
  ++counters_.restarts;
  if (machine_.reached() > restarted_at_) restarts_ = 0;
  restarted_at_ = std::max(restarted_at_, machine_.reached());
  if (++restarts_ > options_.max_server_restarts) {
    Fail(absl::StrCat("restart ", restarts_, " of servers, and ", options_.max_server_restarts,
                      " are allowed"));
  }
}

void SimRunner::OnServerEnded(size_t index) {
  const auto found = processes_.find({ProcessRole::kServer, static_cast<uint32_t>(index)});
  if (found == processes_.end()) return;
  const ProcessEnd end = {std::nullopt, "died", "died"};
  PostOf(found->second, random_.Between(0, options_.notice_us),
         event::ProcessEnded{found->second, end});
}

void SimRunner::OnWorkerEnded(size_t rank, std::optional<int> exit_code, int64_t steps) {
  const auto found = processes_.find({ProcessRole::kWorker, static_cast<uint32_t>(rank)});
  if (found == processes_.end()) return;
  const ProcessId id = found->second;
  const bool is_well = exit_code == kExitDone;
  if (saboteur_.Has(PlantedFault::kMissedEnds) && !is_well) return;
  ProcessEnd end = {exit_code, exit_code == kExitFailed ? "found bad data" : "ended", "ended"};
  if (saboteur_.Has(PlantedFault::kBadDataIsLoss) && exit_code == kExitFailed) {
    end.exit_code = kExitServerLost;
  }
  const int64_t delay_us = random_.Between(0, options_.notice_us);
  if (is_well) PostOf(id, delay_us, event::WorkerResult{id, steps});
  PostOf(id, is_well ? 0 : delay_us, event::ProcessEnded{id, end});
}

void SimRunner::Do(const action::Configure& configure) {
  std::string base = configure.base;
  uint64_t base_generation = configure.base_generation;
  if (saboteur_.Has(PlantedFault::kOldBases)) {
    base = machine_.start().base;
    base_generation = machine_.start().base_generation;
  }
  // As far as the launcher knows, the server isn't up yet.
  if (configure.id.incarnation > 1 && LosesCall()) {
    return PostOf(configure.id, CallMicros(), event::Configured{configure.id, Gone()});
  }
  SimServer* const server = world_.server(configure.id.index);
  if (!Reaches(ProcessRole::kServer, configure.id.index) || server == nullptr) {
    return PostOf(configure.id, CallMicros(), event::Configured{configure.id, Gone()});
  }
  server->Configure(base, base_generation,
                    [this, id = configure.id, alive = alive_](const absl::Status& status) {
                      if (*alive) PostOf(id, CallMicros(), event::Configured{id, status});
                    });
}

void SimRunner::Do(const action::StopProcesses& stop) {
  processes_.clear();
  if (options_.nodes != nullptr) {
    options_.nodes->Stop(ProcessRole::kWorker, stop.grace);
    stopping_ = ProcessRole::kWorker;
    return StopNext();
  }
  world_.stop(is_result_complete_);
  Post(CallMicros(), event::AllStopped{});
}

// Calls
// ------------------------------------------------------------------------------------------------

void SimRunner::Do(const action::AskStatus& ask) {
  RunLater(CallMicros(), [this, ask] {
    event::StatusAnswered answered;
    answered.generation = ask.generation;
    for (size_t i = 0; i < world_.num_servers; ++i) {
      ++work_.calls;
      SimServer* const server = world_.server(i);
      ServerReport report = {absl::StrCat("server-", i), Gone()};
      const bool is_there = server != nullptr && server->core() != nullptr;
      if (is_there && Reaches(ProcessRole::kServer, i) && !LosesCall()) {
        ServerStats stats;
        server->core()->FillStats(&stats);
        report.stats = std::move(stats);
      }
      answered.servers.push_back(std::move(report));
    }
    for (uint32_t rank = 0; rank < options_.machine.job.cluster().workers(); ++rank) {
      ++work_.calls;
      SimWorker* const worker = world_.worker(rank);
      WorkerReport report = {absl::StrCat("worker-", rank), Gone(), absl::ZeroDuration()};
      if (worker != nullptr && Reaches(ProcessRole::kWorker, rank) && !LosesCall()) {
        report.stats = worker->Stats();
      }
      answered.workers.push_back(std::move(report));
    }
    Post(CallMicros(), std::move(answered));
  });
}

// Calls to different processes go side by side, those to one process in order.
struct SimRunner::Batch {
  action::CallProcesses call;
  CheckpointAnswers answers;
  std::vector<std::vector<size_t>> chains;
  size_t pending = 0;
};

void SimRunner::Do(const action::CallProcesses& call) {
  const auto batch = std::make_shared<Batch>();
  batch->call = call;
  batch->answers.assign(call.calls.size(), absl::UnavailableError("not called"));
  std::map<std::pair<bool, size_t>, std::vector<size_t>> of_process;
  for (size_t i = 0; i < call.calls.size(); ++i) {
    of_process[{call.calls[i].to_worker, call.calls[i].index}].push_back(i);
  }
  for (auto& [process, chain] : of_process) batch->chains.push_back(std::move(chain));
  batch->pending = batch->chains.size();
  for (size_t chain = 0; chain < batch->chains.size(); ++chain) CallNext(batch, chain, 0);
}

void SimRunner::CallNext(const std::shared_ptr<Batch>& batch, size_t chain, size_t position) {
  if (position == batch->chains[chain].size()) {
    if (--batch->pending > 0) return;
    return Post(0, event::CheckpointAnswered{batch->call.generation, batch->answers});
  }
  const size_t i = batch->chains[chain][position];
  RunLater(CallMicros(), [this, batch, chain, position, i] {
    absl::StatusOr<CheckpointReply> reply = CallOne(batch->call.calls[i]);
    if (*options_.ended) return;
    RunLater(CallMicros(), [this, batch, chain, position, i, reply = std::move(reply)] {
      batch->answers[i] = reply;
      const bool goes_on = !IsUnanswered(reply.status());
      CallNext(batch, chain, goes_on ? position + 1 : batch->chains[chain].size());
    });
  });
}

// Some calls that the launcher abandoned arrive later, as long as the process is there that
// they were sent to.
absl::StatusOr<CheckpointReply> SimRunner::CallOne(const CheckpointCall& call) {
  CheckpointRequest request = numbers_->Next(call.action, call.step);
  if (saboteur_.Has(PlantedFault::kNoRequestOrder)) request.clear_sequence();
  ++work_.calls;
  const ProcessRole role = call.to_worker ? ProcessRole::kWorker : ProcessRole::kServer;
  if (LosesCall() || !Reaches(role, call.index)) return Gone();
  std::function<absl::StatusOr<CheckpointReply>()> deliver;
  if (call.to_worker) {
    deliver = [this, rank = call.index, request]() -> absl::StatusOr<CheckpointReply> {
      SimWorker* const worker = world_.worker(rank);
      if (worker == nullptr) return Gone();
      return worker->Checkpoint(request);
    };
  } else {
    SimServer* const server = world_.server(call.index);
    if (server == nullptr) return Gone();
    deliver = [server, request, deaths = server->deaths()]() -> absl::StatusOr<CheckpointReply> {
      if (server->deaths() != deaths) return Gone();
      return server->Checkpoint(request);
    };
  }
  const LauncherFaults& faults = options_.faults;
  if (call.action != CheckpointRequest::STATUS && random_.Chance(faults.late_call)) {
    ++counters_.late_calls;
    RunLater(random_.Between(0, faults.late_us), [deliver] { deliver().IgnoreError(); });
    return absl::DeadlineExceededError("simulated: too late");
  }
  absl::StatusOr<CheckpointReply> reply = deliver();
  if (LosesCall()) return absl::DeadlineExceededError("simulated: the answer was lost");
  if (!reply.ok()) return reply;
  numbers_->Learn(*reply);
  if (call.to_worker) return reply;
  if (saboteur_.Has(PlantedFault::kMissingShards)) TamperStatus(&*reply);
  if (!saboteur_.Has(PlantedFault::kEarlyCommits)) return reply;
  for (const CutStatus& cut : reply->cuts()) {
    if (cut.state() != CutStatus::WRITTEN) continue;
    // Without a number: it does not make the launcher's own requests late.
    CheckpointRequest early = numbers_->Next(CheckpointRequest::STATUS, Step(cut.step()));
    early.set_action(CheckpointRequest::COMMITTED);
    early.set_step(cut.step());
    world_.server(call.index)->Checkpoint(early).IgnoreError();
  }
  return reply;
}

void SimRunner::TamperStatus(CheckpointReply* reply) const {
  for (CutStatus& cut : *reply->mutable_cuts()) {
    if (cut.state() != CutStatus::NAMED && cut.state() != CutStatus::WRITING) continue;
    cut.set_state(CutStatus::WRITTEN);
    cut.mutable_shard()->set_base_step(-1);
  }
}

void SimRunner::Do(const action::Decide& decide) {
  event::Decided decided;
  decided.generation = decide.generation;
  for (const uint32_t rank : decide.ranks) {
    const bool is_lost = LosesCall();
    decided.answered.push_back(!is_lost);
    if (is_lost) continue;
    const auto tell = [this, decide, rank] {
      SimWorker* const worker = world_.worker(rank);
      if (worker != nullptr && generation() == decide.generation) {
        worker->Decide(decide.step, decide.stop, decide.data_place);
      }
    };
    RunLater(CallMicros(), tell);
    if (random_.Chance(0.3)) RunLater(random_.Between(0, 500'000), tell);
  }
  Post(2 * options_.faults.call_us, std::move(decided));
}

// Lost there or back, or carried out late; the answer of a dead worker never comes.
void SimRunner::Do(const action::Introduce& introduce) {
  event::Introduced introduced;
  introduced.generation = introduce.generation;
  for (const uint32_t rank : introduce.ranks) {
    introduced.answers.push_back(Gone());
    if (LosesCall() || !Reaches(ProcessRole::kWorker, rank)) continue;
    RunLater(CallMicros(), [this, rank, generation = introduce.generation] {
      SimWorker* const worker = world_.worker(rank);
      if (worker != nullptr && this->generation() == generation) worker->Introduce();
    });
    if (!LosesCall()) introduced.answers.back() = absl::OkStatus();
  }
  Post(2 * options_.faults.call_us, std::move(introduced));
}

void SimRunner::Do(const action::AskDigest& ask) {
  RunLater(CallMicros(), [this, ask] {
    const auto sum = std::make_shared<absl::StatusOr<Digest>>(Digest());
    for (size_t i = 0; i < world_.num_servers; ++i) {
      SimServer* const server = world_.server(i);
      if (server == nullptr || !server->serving() || !Reaches(ProcessRole::kServer, i)) {
        *sum = Gone();
        break;
      }
      server->core()->ComputeDigest(options_.machine.job.name(), ask.generation,
                                    [sum](const absl::StatusOr<ServerCore::DigestAnswer>& answer) {
                                      if (!sum->ok()) return;
                                      if (answer.ok()) {
                                        (*sum)->Add(answer->digest);
                                      } else {
                                        *sum = answer.status();
                                      }
                                    });
    }
    Post(CallMicros(), event::DigestReady{ask.generation, *sum});
  });
}

// Files
// ------------------------------------------------------------------------------------------------

void SimRunner::Do(const action::Commit& commit) {
  RunLater(CallMicros(), [this, commit] {
    event::Committed committed;
    committed.generation = commit.generation;
    committed.status = store_.Commit(commit.checkpoint.manifest, &committed.may_exist);
    if (*options_.ended) return;
    Post(CallMicros(), std::move(committed));
  });
}

void SimRunner::Do(const action::Remove& remove) {
  RunLater(CallMicros(), [this, remove] {
    const RemoveCheckpoints& removal = remove.removal;
    const auto removed = store_.RemoveUnneeded(removal.keep, removal.in_progress, removal.kept);
    if (*options_.ended) return;
    Post(CallMicros(),
         event::Removed{remove.generation, removed.ok() ? removed->held_back
                                                        : std::string(removed.status().message())});
  });
}

void SimRunner::Do(const action::Finish& finish) {
  if (options_.machine.job.has_checkpoint()) {
    store_.End(RecordOf(finish.outcome)).IgnoreError();
    if (*options_.ended) return;
  }
  world_.finish(finish.outcome);
}

void SimRunner::Do(const action::WriteResult& result) {
  is_result_complete_ = result.digest.ok() && result.last_checkpoint.ok();
  if (world_.on_result) world_.on_result(result);
  Post(0, event::ResultWritten{});
}

// People
// ------------------------------------------------------------------------------------------------

void SimRunner::OnScored(const EvaluationReport& report) {
  last_report_ = report;
  if (!report.data_place.empty()) newest_place_ = report.data_place;
  Post(random_.Between(0, options_.notice_us), event::Evaluated{generation(), report});
}

void SimRunner::RequestCheckpoint() {
  Post(0, event::CheckpointRequested{absl::StrCat("request-", ++requests_)});
}

void SimRunner::StopByUser() {
  RunLater(0, [this] {
    user_stopped_ = true;
    Deliver(event::UserStop{"stopped by the user"});
  });
}

void SimRunner::Do(const action::AnswerRequest& answer) {
  if (!answer.answer.name.ok()) return;
  ++counters_.answered;
  if (store_.Load(*answer.answer.name).ok()) return;
  Fail(absl::StrCat("a request for a checkpoint was answered with ", *answer.answer.name,
                    ", which is none"));
}

void SimRunner::Do(const action::ReportStart& start) {
  if (start.event != "rollback") return;
  world_.on_rollback(start);
  if (!saboteur_.Has(PlantedFault::kOldEvaluations) || last_report_.step == kNoStep) return;
  Post(2 * options_.start_us, event::Evaluated{start.start.generation, last_report_});
}

void SimRunner::Do(const action::ReportCheckpoint& report) {
  const CheckpointEvent& event = report.event;
  if (event.kind == CheckpointEvent::kCalledOff) ++counters_.called_off;
  if (event.kind == CheckpointEvent::kNotRemoved) ++counters_.not_removed;
  if (event.kind != CheckpointEvent::kCommitted) return;
  ++counters_.committed;
  if (!event.is_full) ++counters_.increments;
  world_.on_committed(event);
}

}  // namespace thermocline
