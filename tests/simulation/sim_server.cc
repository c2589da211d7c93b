#include "tests/simulation/sim_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "proto/parameter_server.pb.h"
#include "server/storage/journal_opener.h"
#include "tests/simulation/forgetful_disk.h"
#include "tests/simulation/process_scheduler.h"

namespace thermocline {
namespace {

constexpr int kMaxWritesBeforeDeath = 6;
enum Event : uint64_t { kDied = 1, kHostDied, kStarted, kRecovered };

}  // namespace

void SimServerCounters::Add(const SimServerCounters& other) {
  crashes += other.crashes;
  broken_writes += other.broken_writes;
  broken_recoveries += other.broken_recoveries;
  host_crashes += other.host_crashes;
  recoveries += other.recoveries;
  replayed_chunks += other.replayed_chunks;
  torn_ends += other.torn_ends;
  pushes_forgotten += other.pushes_forgotten;
  messages_unheard += other.messages_unheard;
  messages_early += other.messages_early;
  duplicates += other.duplicates;
  pulls_held += other.pulls_held;
  loaded_rows += other.loaded_rows;
  overloads += other.overloads;
  image_waits += other.image_waits;
}

// A replay applies every step that is complete. A step that was complete before may not have been
// applied: it waits where old images that a checkpoint still needs take too much memory.
bool SimServer::Held::IsHeldBy(const Held& next) const {
  if (accepted_through != next.accepted_through) return false;
  if (complete_through == next.complete_through) return pending_bytes == next.pending_bytes;
  const int64_t complete = *std::min_element(accepted_through.begin(), accepted_through.end());
  return waited_for_images && complete_through < complete && next.complete_through == complete &&
         next.pending_bytes < pending_bytes;
}

std::string SimServer::Held::ToString() const {
  return absl::StrCat("pushes through steps ", absl::StrJoin(accepted_through, " "),
                      ", applied through ", complete_through, ", ", pending_bytes,
                      " bytes pending");
}

// The state that ends with a process. The core is destroyed first.
struct SimServer::Process {
  Process(Scheduler* scheduler, const CrashFaults& faults, uint64_t seed)
      : timers(scheduler, ended, 0, 0),
        syncs(scheduler, ended, faults.sync_us, seed),
        slices(scheduler, ended, faults.slice_us, Mix64(seed)) {}

  const std::shared_ptr<bool> ended = std::make_shared<bool>(false);
  ProcessScheduler timers;
  ProcessScheduler syncs;
  ProcessScheduler slices;
  std::unique_ptr<JournalOpener> journals;
  std::unique_ptr<Disk> checkpoints;
  std::unique_ptr<ServerCore> core;
  bool configured = false;
};

SimServer::SimServer(const SimServerOptions& options, SimServerEvents events,
                     std::unique_ptr<SimulatedDisk> checkpoints, Scheduler* scheduler,
                     Saboteur* saboteur, std::vector<std::string>* failures)
    : options_(options),
      events_(std::move(events)),
      scheduler_(scheduler),
      saboteur_(saboteur),
      failures_(failures),
      random_(options.seed),
      host_random_(options.seed),
      disk_(std::make_unique<SimulatedDisk>()),
      checkpoints_(std::move(checkpoints)),
      crashes_left_(options.faults.max_crashes),
      failures_left_(options.faults.max_checkpoint_failures),
      overloads_left_(options.overload.max_times) {}

SimServer::~SimServer() {
  Bury();  // While the objects that its last answers use exist.
}

ServerCore* SimServer::core() const { return process_ == nullptr ? nullptr : process_->core.get(); }

bool SimServer::process_serves() const { return process_->configured && !*process_->ended; }

void SimServer::BeginGeneration(const ServerConfig& config) {
  End();
  config_ = config;
  for (TableLayout& table : config_.tables) {
    if (saboteur_->Has(PlantedFault::kNoAdmission)) table.min_count = 0;
    if (saboteur_->Has(PlantedFault::kNothingForgotten)) table.unused_steps = 0;
  }
  held_.reset();
  host_crashed_since_ = lacks_acknowledged_ = spared_ = false;
  const Step base =
      config.base_checkpoint.empty() ? kNoStep : ParseCheckpointName(config.base_checkpoint)->step;
  acknowledged_.assign(config.num_workers, base);
}

void SimServer::End() {
  ++life_;
  Fall();
}

// Messages
// ------------------------------------------------------------------------------------------------

// Drops an answer that the process gives while it dies.
template <typename Done>
Done SimServer::WhileAlive(Done done, const Gone& gone) {
  return [this, ended = process_->ended, done = std::move(done), gone](auto answer) {
    if (!*ended) return done(std::move(answer));
    ++counters_.messages_unheard;
    gone();
  };
}

// Whether a process is there that takes this message.
bool SimServer::Hears() {
  MaybeDie();
  if (process_ == nullptr || *process_->ended) {
    ++counters_.messages_unheard;
    return false;
  }
  if (!process_->configured) ++counters_.messages_early;
  return true;
}

// Whether it has no room for this message. Its state is as it was.
bool SimServer::Refuses() {
  const OverloadFaults& faults = options_.overload;
  if (overloads_left_ > 0 && !overloaded() && !spared_ && random_.Chance(faults.begin)) {
    --overloads_left_;
    ++counters_.overloads;
    const int64_t us = random_.Chance(0.5) ? faults.most_us : random_.Between(1, faults.most_us);
    overloaded_until_us_ = scheduler_->NowMicros() + us;
  }
  return overloaded();
}

void SimServer::Pull(const wire::PullRequest& request, int64_t time_left_us,
                     ServerCore::PullDone done, const Gone& gone) {
  if (!Hears()) return gone();
  if (Refuses()) return done(absl::ResourceExhaustedError("simulated: overloaded"));
  wire::PullRequest heard = request;
  if (saboteur_->Has(PlantedFault::kOldGenerations)) heard.header.generation = config_.generation;
  process_->core->Pull(heard, WhileAlive(std::move(done), gone), time_left_us);
}

void SimServer::Push(wire::PushChunk chunk, ServerCore::PushDone done, const Gone& gone) {
  if (!Hears()) return gone();
  if (Refuses()) return done(absl::ResourceExhaustedError("simulated: overloaded"));
  if (saboteur_->Has(PlantedFault::kOldGenerations)) chunk.header.generation = config_.generation;
  const uint32_t rank = chunk.header.rank.value();
  const Step step = chunk.step;
  ServerCore::PushDone answered =
      [this, rank, step, done = std::move(done)](absl::StatusOr<wire::PushAnswer> answer) {
        if (answer.ok() && answer->accepted_through >= step && rank < acknowledged_.size()) {
          acknowledged_[rank] = std::max(acknowledged_[rank], answer->accepted_through);
        }
        done(std::move(answer));
      };
  process_->core->Push(std::move(chunk), WhileAlive(std::move(answered), gone));
}

absl::StatusOr<CheckpointReply> SimServer::Checkpoint(const CheckpointRequest& request) {
  if (!Hears()) return absl::UnavailableError("simulated: no process there");
  absl::StatusOr<CheckpointReply> reply = absl::UnknownError("no answer");
  const std::shared_ptr<bool> ended = process_->ended;
  process_->core->Checkpoint(request,
                             [&](absl::StatusOr<CheckpointReply> r) { reply = std::move(r); });
  if (*ended) return absl::UnavailableError("simulated: it died");
  return reply;
}

absl::StatusOr<uint64_t> SimServer::LogBytes() {
  if (!Hears()) return absl::UnavailableError("simulated: no process there");
  ServerStats stats;
  process_->core->FillStats(&stats);
  return stats.push_log_bytes();
}

// Deaths
// ------------------------------------------------------------------------------------------------

bool SimServer::SpendCrash(double probability) {
  if (spared_ || crashes_left_ == 0 || !random_.Chance(probability)) return false;
  --crashes_left_;
  return true;
}

void SimServer::MaybeDie() {
  if (process_ == nullptr || *process_->ended) return;
  if (checkpoints_ != nullptr && failures_left_ > 0 &&
      random_.Chance(options_.faults.fail_checkpoint)) {
    --failures_left_;
    checkpoints_->FailAfter(static_cast<int>(random_.Below(kMaxWritesBeforeDeath)));
  }
  if (SpendCrash(options_.faults.stop)) {
    InProcess(random_.Between(0, options_.faults.stop_us), [this] {
      if (!spared_) Die();
    });
  } else if (SpendCrash(options_.faults.break_write)) {
    ArmDisk();
  }
}

void SimServer::ArmDisk() {
  const bool writes_both = durable() && checkpoints_ != nullptr;
  SimulatedDisk* const disk =
      !durable() || (writes_both && random_.Chance(0.5)) ? checkpoints_.get() : disk_.get();
  disk->DieAfter(static_cast<int>(random_.Below(kMaxWritesBeforeDeath)), [this] { OnDiskDeath(); });
}

// The log reports its final error: its disk is dead.
void SimServer::OnBroken(const absl::Status& why) {
  CHECK(absl::IsUnavailable(why));
  CHECK(*process_->ended);
}

// The core is in the middle of a call: it is destroyed afterwards, and its answers are dropped.
void SimServer::OnDiskDeath() {
  if (*process_->ended) return;
  ++(process_->configured ? counters_.broken_writes : counters_.broken_recoveries);
  *process_->ended = true;
  ++deaths_;
  scheduler_->RunAfter(0, [this, life = life_] {
    if (life == life_) Die();
  });
}

void SimServer::Spare() {
  spared_ = true;
  for (SimulatedDisk* disk : {disk_.get(), checkpoints_.get()}) {
    if (disk != nullptr) disk->FailAfter(-1);
  }
}

void SimServer::Crash(const std::string& base, uint64_t base_generation) {
  if (!durable() || process_ == nullptr || *process_->ended) return;
  Spare();
  Fall();
  Start(incarnation_ + 1);
  config_.base_checkpoint = base;
  config_.base_generation = base_generation;
  const absl::Status status = ConfigureNow();
  if (!status.ok()) Fail(absl::StrCat("can't be configured: ", status.ToString()));
}

// The process writes nothing more to a disk.
void SimServer::Bury() {
  if (process_ == nullptr) return;
  if (!*process_->ended) ++deaths_;
  *process_->ended = true;
  disk_->DieAfter(0);
  if (checkpoints_ != nullptr) checkpoints_->DieAfter(0);
  AddCounters(&counters_);
  process_.reset();
}

// The process is gone, and maybe its host.
void SimServer::Fall() {
  if (process_ == nullptr) return;
  ++counters_.crashes;
  if (process_->configured) {
    held_ = WhatIsHeld();
    host_crashed_since_ = false;
  }
  Bury();
  const bool host = random_.Chance(options_.faults.take_host);
  Note(host ? kHostDied : kDied);
  for (SimulatedDisk* disk : {disk_.get(), checkpoints_.get()}) {
    if (disk != nullptr) host ? disk->CrashHost(&host_random_) : disk->CrashProcess();
  }
  if (host) ++counters_.host_crashes;
  host_crashed_since_ = host_crashed_since_ || host;
}

void SimServer::Die() {
  Fall();
  events_.on_ended(this);
}

void SimServer::LoseHost() {
  if (spared_) return;
  End();
  Note(kHostDied);
  ++counters_.host_crashes;
  disk_ = std::make_unique<SimulatedDisk>();
}

void SimServer::Forget() {
  if (process_ == nullptr) return;
  Bury();
  disk_ = std::make_unique<SimulatedDisk>();
  if (checkpoints_ != nullptr) checkpoints_->CrashProcess();
  held_.reset();
  std::fill(acknowledged_.begin(), acknowledged_.end(), kNoStep);
  Start(incarnation_ + 1);
  const absl::Status status = ConfigureNow();
  if (!status.ok()) Fail(absl::StrCat("can't be configured: ", status.ToString()));
}

// Recoveries
// ------------------------------------------------------------------------------------------------

void SimServer::Configure(const std::string& base, uint64_t base_generation,
                          std::function<void(const absl::Status&)> done) {
  if (process_ == nullptr || *process_->ended) return;
  const int64_t delay_us = random_.Between(0, options_.faults.configure_us);
  InProcess(delay_us, [this, base, base_generation, done = std::move(done)] {
    config_.base_checkpoint = base;
    config_.base_generation = base_generation;
    const std::shared_ptr<bool> ended = process_->ended;
    const absl::Status status = ConfigureNow();
    if (!*ended) done(status);
  });
}

void SimServer::Start(uint64_t incarnation) {
  Note(kStarted);
  incarnation_ = incarnation;
  process_ = std::make_unique<Process>(scheduler_, options_.faults, random_.Next());
  if (durable()) process_->journals = MakeJournals();
  CheckpointIo io;
  if (checkpoints_ != nullptr) {
    DiskDeceptions deceptions;
    deceptions.files = saboteur_->Has(PlantedFault::kUnsyncedShards);
    deceptions.generations = saboteur_->Has(PlantedFault::kSharedFileNames);
    process_->checkpoints = std::make_unique<ForgetfulDisk>(checkpoints_.get(), deceptions);
    io.disk = process_->checkpoints.get();
    io.tasks = &process_->slices;
    io.incarnation = incarnation_;
    io.num_files = 2;
  }
  process_->core = std::make_unique<ServerCore>(options_.limits, &process_->timers,
                                                process_->journals.get(), io);
}

std::unique_ptr<JournalOpener> SimServer::MakeJournals() {
  LogJournalOptions options;
  options.directory = "/log";
  options.segment_bytes = options_.faults.segment_bytes;
  options.on_broken = [this](const absl::Status& why) { OnBroken(why); };
  options.log_line = [this](absl::string_view line) {
    if (absl::StrContains(line, "torn end")) ++counters_.torn_ends;
  };
  return std::make_unique<SabotagedJournals>(
      std::make_unique<LogJournalOpener>(disk_.get(), &process_->syncs, options), options_.index,
      saboteur_);
}

bool SimServer::LogMayLack() const {
  return host_crashed_since_ && config_.durability != LogDurability::kHost;
}

absl::Status SimServer::ConfigureNow() {
  if (SpendCrash(options_.faults.break_recovery)) ArmDisk();
  const std::shared_ptr<bool> ended = process_->ended;
  const absl::Status status = process_->core->Configure(config_);
  if (*ended) return absl::UnavailableError("simulated: it died");
  if (!status.ok()) {
    // An error even where pushes were lost with the host: the rest of the log is a valid beginning.
    Fail(absl::StrCat("can't be configured: ", status.ToString()));
    return status;
  }
  if (std::exchange(process_->configured, true)) return status;
  CheckRecovered();
  if (random_.Chance(0.3)) {
    const absl::Status again = process_->core->Configure(config_);
    if (!again.ok()) Fail(absl::StrCat("can't be configured again: ", again.ToString()));
  }
  events_.on_serving(this);
  return status;
}

// The death of a process loses nothing of a log. The death of a host loses only pushes that were
// not acknowledged, where the job's durability promises that.
void SimServer::CheckRecovered() {
  const Held now = WhatIsHeld();
  Note(kRecovered);
  for (const int64_t step : now.accepted_through) Note(static_cast<uint64_t>(step));
  if (held_.has_value()) ++counters_.recoveries;
  bool gained = false;
  for (size_t rank = 0; rank < acknowledged_.size(); ++rank) {
    const Step through(now.accepted_through[rank]);
    if (through < acknowledged_[rank] && LogMayLack()) {
      lacks_acknowledged_ = true;
      acknowledged_[rank] = through;  // A worker that had more acknowledged will notice.
    } else if (through < acknowledged_[rank]) {
      Fail(absl::StrCat("acknowledged step ", acknowledged_[rank].value(), " to rank ", rank,
                        ", and holds it no longer"));
    }
    if (!held_.has_value()) continue;
    const Step before(held_->accepted_through[rank]);
    if (through < before) counters_.pushes_forgotten += static_cast<uint64_t>(before - through);
    gained = gained || through > before;
  }
  if (!held_.has_value() || held_->IsHeldBy(now) || (host_crashed_since_ && !gained)) return;
  Fail(absl::StrCat("held ", held_->ToString(), " when it died, and recovered ", now.ToString()));
}

SimServer::Held SimServer::WhatIsHeld() const {
  ServerStats stats;
  process_->core->FillStats(&stats);
  Held held;
  held.accepted_through.assign(stats.accepted_through().begin(), stats.accepted_through().end());
  held.complete_through = stats.complete_through();
  held.pending_bytes = stats.pending_push_bytes();
  for (const auto& table : stats.tables()) held.waited_for_images |= table.old_image_waits() > 0;
  return held;
}

void SimServer::AddCounters(SimServerCounters* sum) const {
  ServerStats stats;
  process_->core->FillStats(&stats);
  sum->replayed_chunks += stats.replayed_chunks();
  sum->duplicates += stats.push_duplicates();
  sum->pulls_held += stats.pulls_held();
  sum->loaded_rows += stats.loaded_rows();
  for (const auto& table : stats.tables()) sum->image_waits += table.old_image_waits();
}

SimServerCounters SimServer::counters() const {
  SimServerCounters sum = counters_;
  if (process_ != nullptr) AddCounters(&sum);
  return sum;
}

void SimServer::InProcess(int64_t delay_us, std::function<void()> task) {
  process_->timers.RunAfter(delay_us, std::move(task));
}

void SimServer::Note(uint64_t what) {
  trace_ = Mix64(trace_ ^ static_cast<uint64_t>(scheduler_->NowMicros()));
  trace_ = Mix64(trace_ ^ what);
}

void SimServer::Fail(absl::string_view what) {
  failures_->push_back(absl::StrCat("server ", options_.index.value(), ", at ",
                                    scheduler_->NowMicros(), " us: ", what));
}

}  // namespace thermocline
