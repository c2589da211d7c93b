#include "tests/simulation/sim_server.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/check.h"
#include "common/hash.h"
#include "proto/parameter_server.pb.h"
#include "server/storage/journal_opener.h"
#include "tests/simulation/process_scheduler.h"
#include "tests/simulation/sabotaged_journals.h"

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
  replayed_parts += other.replayed_parts;
  torn_ends += other.torn_ends;
  pushes_forgotten += other.pushes_forgotten;
  messages_unheard += other.messages_unheard;
  messages_early += other.messages_early;
  duplicates += other.duplicates;
  pulls_held += other.pulls_held;
}

bool SimServer::Held::operator==(const Held& other) const {
  return accepted_through == other.accepted_through && pushes_accepted == other.pushes_accepted &&
         complete_through == other.complete_through && pending_bytes == other.pending_bytes;
}

std::string SimServer::Held::ToString() const {
  return absl::StrCat(pushes_accepted, " pushes, through steps ",
                      absl::StrJoin(accepted_through, " "), ", applied through ", complete_through,
                      ", ", pending_bytes, " bytes pending");
}

// What dies with a process. The core goes first.
struct SimServer::Process {
  Process(Scheduler* scheduler, int64_t sync_us, uint64_t seed)
      : timers(scheduler, ended, 0, 0), syncs(scheduler, ended, sync_us, seed) {}

  const std::shared_ptr<bool> ended = std::make_shared<bool>(false);
  ProcessScheduler timers;
  ProcessScheduler syncs;
  std::unique_ptr<JournalOpener> journals;
  std::unique_ptr<ServerCore> core;
  bool configured = false;
  bool disk_may_fail = false;
};

SimServer::SimServer(const SimServerOptions& options, VirtualScheduler* scheduler,
                     Saboteur* saboteur, std::vector<std::string>* failures)
    : options_(options),
      scheduler_(scheduler),
      saboteur_(saboteur),
      failures_(failures),
      random_(options.seed),
      host_random_(options.seed),
      disk_(std::make_unique<SimulatedDisk>()),
      crashes_left_(options.config.durability.has_value() ? options.faults.max_crashes : 0),
      acknowledged_(options.config.num_workers, kNoStep) {
  Start();
  Configure();
}

SimServer::~SimServer() {
  if (process_ != nullptr) *process_->ended = true;
  process_.reset();  // While what its last answers touch is there.
}

ServerCore* SimServer::core() const { return process_ == nullptr ? nullptr : process_->core.get(); }

// Messages
// ------------------------------------------------------------------------------------------------

// An answer that the process gives while it dies leads nowhere.
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

void SimServer::Pull(const wire::PullRequest& request, ServerCore::PullDone done,
                     const Gone& gone) {
  if (!Hears()) return gone();
  process_->core->Pull(request, WhileAlive(std::move(done), gone));
}

void SimServer::Push(wire::PushPart part, ServerCore::PushDone done, const Gone& gone) {
  if (!Hears()) return gone();
  const uint32_t rank = part.header.rank.value();
  const Step last_step = part.last_step;
  ServerCore::PushDone answered =
      [this, rank, last_step, done = std::move(done)](absl::StatusOr<wire::PushAnswer> answer) {
        if (answer.ok() && answer->accepted_through >= last_step) {
          acknowledged_[rank] = std::max(acknowledged_[rank], answer->accepted_through);
        }
        done(std::move(answer));
      };
  process_->core->Push(std::move(part), WhileAlive(std::move(answered), gone));
}

// Deaths
// ------------------------------------------------------------------------------------------------

bool SimServer::SpendCrash(double probability) {
  if (crashes_left_ == 0 || !random_.Chance(probability)) return false;
  --crashes_left_;
  return true;
}

void SimServer::MaybeDie() {
  if (process_ == nullptr || *process_->ended) return;
  if (SpendCrash(options_.faults.stop)) {
    InProcess(random_.Between(0, options_.faults.stop_us), [this] { Die(); });
  } else if (SpendCrash(options_.faults.break_write)) {
    ArmDisk();
  }
}

void SimServer::ArmDisk() {
  process_->disk_may_fail = true;
  disk_->DieAfter(static_cast<int>(random_.Below(kMaxWritesBeforeDeath)));
}

// The core is in the middle of a call: it goes afterwards, and nobody hears of it again.
void SimServer::OnBroken(const absl::Status& why) {
  CHECK(absl::IsUnavailable(why));
  if (*process_->ended) return;
  ++counters_.broken_writes;
  *process_->ended = true;
  ++deaths_;
  scheduler_->RunAfter(0, [this] { Die(); });
}

void SimServer::Crash() {
  if (durable() && process_ != nullptr && !*process_->ended) Die();
}

void SimServer::Die() {
  if (process_ == nullptr) return;
  if (!*process_->ended) ++deaths_;
  *process_->ended = true;
  AddCounters(&counters_);
  ++counters_.crashes;
  if (process_->configured) {
    held_ = WhatIsHeld();
    host_crashed_since_ = false;
  }
  process_.reset();
  if (random_.Chance(options_.faults.take_host)) {
    Note(kHostDied);
    ++counters_.host_crashes;
    host_crashed_since_ = true;
    disk_->CrashHost(&host_random_);
  } else {
    Note(kDied);
    disk_->CrashProcess();
  }
  scheduler_->RunAfter(random_.Between(1, options_.faults.down_us), [this] {
    Start();
    InProcess(random_.Between(0, options_.faults.configure_us), [this] { Configure(); });
  });
}

void SimServer::Forget() {
  if (process_ != nullptr) *process_->ended = true;
  process_.reset();
  disk_ = std::make_unique<SimulatedDisk>();
  held_.reset();
  std::fill(acknowledged_.begin(), acknowledged_.end(), kNoStep);
  Start();
  Configure();
}

// Recoveries
// ------------------------------------------------------------------------------------------------

void SimServer::Start() {
  if (process_ != nullptr) return;
  Note(kStarted);
  process_ = std::make_unique<Process>(scheduler_, options_.faults.sync_us, random_.Next());
  if (durable()) process_->journals = MakeJournals();
  process_->core =
      std::make_unique<ServerCore>(options_.limits, &process_->timers, process_->journals.get());
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
      std::make_unique<LogJournalOpener>(disk_.get(), &process_->syncs, options),
      options_.config.server_index, saboteur_);
}

void SimServer::Configure() {
  if (SpendCrash(options_.faults.break_recovery)) ArmDisk();
  const absl::Status status = process_->core->Configure(options_.config);
  if (absl::IsAborted(status) && process_->disk_may_fail) {
    ++counters_.broken_recoveries;
    return Die();
  }
  if (!status.ok()) return Fail(absl::StrCat("can't be configured: ", status.ToString()));
  process_->configured = true;
  CheckRecovered();
  if (!random_.Chance(0.3)) return;
  const absl::Status again = process_->core->Configure(options_.config);
  if (!again.ok()) Fail(absl::StrCat("can't be configured again: ", again.ToString()));
}

// The death of a process takes nothing of a log; that of a host only what nobody was told of.
void SimServer::CheckRecovered() {
  const Held now = WhatIsHeld();
  Note(kRecovered);
  Note(now.pushes_accepted);
  if (deaths_ > 0) ++counters_.recoveries;
  for (size_t rank = 0; rank < acknowledged_.size(); ++rank) {
    if (Step(now.accepted_through[rank]) >= acknowledged_[rank]) continue;
    Fail(absl::StrCat("acknowledged step ", acknowledged_[rank].value(), " to rank ", rank,
                      ", and holds it no longer"));
  }
  if (!held_.has_value()) return;
  if (host_crashed_since_ && now.pushes_accepted <= held_->pushes_accepted) {
    counters_.pushes_forgotten += held_->pushes_accepted - now.pushes_accepted;
  } else if (!(now == *held_)) {
    Fail(absl::StrCat("held ", held_->ToString(), " when it died, and recovered ", now.ToString()));
  }
}

SimServer::Held SimServer::WhatIsHeld() const {
  ServerStats stats;
  process_->core->FillStats(&stats);
  Held held;
  held.accepted_through.assign(stats.accepted_through().begin(), stats.accepted_through().end());
  held.pushes_accepted = stats.pushes_accepted();
  held.complete_through = stats.complete_through();
  held.pending_bytes = stats.pending_push_bytes();
  return held;
}

void SimServer::AddCounters(SimServerCounters* sum) const {
  ServerStats stats;
  process_->core->FillStats(&stats);
  sum->replayed_parts += stats.replayed_parts();
  sum->duplicates += stats.push_duplicates();
  sum->pulls_held += stats.pulls_held();
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
  failures_->push_back(absl::StrCat("server ", options_.config.server_index.value(), ", at ",
                                    scheduler_->NowMicros(), " us: ", what));
}

}  // namespace thermocline
