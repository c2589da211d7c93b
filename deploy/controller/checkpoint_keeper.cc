#include "deploy/controller/checkpoint_keeper.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace {

// How many steps a cut is named ahead: the shortest that the workers haven't begun yet.
constexpr int64_t kFirstStepsAhead = 2;
constexpr int64_t kMostStepsAhead = 1024;
constexpr uint64_t kRoundsBetweenLooksAtLogs = 5;

CheckpointEvent CommittedEvent(const std::string& name, Step cut,
                               const std::vector<CutStatus>& parts) {
  CheckpointEvent event;
  event.kind = CheckpointEvent::kCommitted;
  event.cut = cut;
  event.name = name;
  event.is_full = true;
  for (const CutStatus& part : parts) {
    event.is_full = event.is_full && part.part().base_step() < 0;
    for (const CheckpointFile& file : part.part().files()) event.bytes += file.bytes();
    event.pause_s = std::max(event.pause_s, part.pause_s());
    event.write_s = std::max(event.write_s, part.write_s());
  }
  return event;
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(CheckpointKeeperOptions options, CutParticipants* participants,
                                   CheckpointStore* store)
    : options_(std::move(options)),
      participants_(*participants),
      store_(*store),
      messages_(participants,
                [this](size_t server) {
                  absl::MutexLock lock(&mutex_);
                  return board_.incarnation(server);
                }),
      log_size_(options_.max_log_bytes),
      board_(participants->num_servers()),
      newest_(options_.base),
      newest_step_(options_.base_step) {
  if (!options_.evaluations_through) return;
  kept_ = options_.evaluations_through(options_.base_step).best_checkpoint();
}

void CheckpointKeeper::Poll() {
  AskServers();
  SettleCuts();
  messages_.Deliver(answered_);
  std::optional<Step> last;
  {
    absl::MutexLock lock(&mutex_);
    if (finished_ || !error_.ok()) return;
    last = last_;
  }
  if (last) {
    WorkTowardsTheEnd(*last);
  } else {
    LookAtLogs();
    if (!NameExactly()) NameWhatIsWanted();
  }
  if (removal_due_) RemoveOld();
  ++rounds_;
}

bool CheckpointKeeper::IsPeriodic(Step cut) const {
  return options_.every_steps > 0 &&
         (static_cast<uint64_t>(cut.value()) + 1) % options_.every_steps == 0;
}

// The last step of which every server has acknowledged every worker's push, where one may have lost
// such a push: at the end, and where a server that began anew accepts nothing, since workers that
// wait for a decision don't ask it for anything. Else kNoStep.
Step CheckpointKeeper::Acknowledged() {
  {
    absl::MutexLock lock(&mutex_);
    if (is_ending_) return *last_;  // Training is over when every push is acknowledged.
    if (!board_.MayLackPushes()) return kNoStep;
  }
  Step acknowledged = Step(INT64_MAX);
  for (size_t rank = 0; rank < participants_.num_workers(); ++rank) {
    const auto reply = participants_.AskWorker(rank, CheckpointRequest::STATUS, kNoStep);
    if (!reply.ok()) return kNoStep;
    acknowledged = std::min(acknowledged, Step(reply->accepted_through()));
  }
  return acknowledged;
}

void CheckpointKeeper::AskServers() {
  const Step acknowledged = Acknowledged();  // Before the servers say what they have.
  const size_t num_servers = participants_.num_servers();
  std::vector<uint64_t> incarnations(num_servers);
  std::vector<absl::StatusOr<CheckpointReply>> replies(num_servers);
  participants_.ForEachServer([&](size_t i) {
    {
      absl::MutexLock lock(&mutex_);
      incarnations[i] = board_.incarnation(i);
    }
    replies[i] = participants_.AskServer(i, CheckpointRequest::STATUS, kNoStep);
  });
  answered_.assign(num_servers, false);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < num_servers; ++i) {
    answered_[i] = replies[i].ok();
    if (!answered_[i] || board_.incarnation(i) != incarnations[i]) continue;
    board_.Update(i, *replies[i]);
    const Step accepted(replies[i]->accepted_through());
    if (finished_ || !error_.ok() || accepted >= acknowledged) continue;
    error_ = absl::DataLossError(
        absl::StrCat("server ", i, " has lost pushes that it had acknowledged: it knows of none ",
                     "beyond step ", accepted.value(), ", and all workers have step ",
                     acknowledged.value(), " acknowledged"));
  }
  for (Wish& wish : wishes_) {
    if (!wish.at_least) wish.at_least = board_.Furthest();
  }
}

std::set<Step> CheckpointKeeper::OpenCuts() const {
  std::set<Step> open = named_;
  absl::MutexLock lock(&mutex_);
  for (const Step cut : board_.Cuts()) {
    if (settled_.count(cut) == 0) open.insert(cut);
  }
  return open;
}

void CheckpointKeeper::SettleCuts() {
  for (const Step cut : OpenCuts()) {
    CutVerdict verdict;
    {
      absl::MutexLock lock(&mutex_);
      verdict = board_.Judge(cut);
    }
    if (verdict.kind == CutVerdict::kWhole) {
      Commit(cut);
    } else if (verdict.kind == CutVerdict::kLost) {
      CallOff(cut, verdict.reason);
    } else {
      // Those that began anew since the cut was named.
      std::vector<size_t> unaware = verdict.there;
      if (named_.count(cut) > 0) {
        unaware.insert(unaware.end(), verdict.ahead.begin(), verdict.ahead.end());
      }
      const absl::Status named = NameTo(cut, unaware);
      if (!named.ok() && !IsUnanswered(named)) CallOff(cut, std::string(named.message()));
    }
  }
}

absl::Status CheckpointKeeper::NameTo(Step cut, const std::vector<size_t>& servers) {
  absl::Status first_error;
  for (const size_t server : servers) {
    const auto reply = participants_.AskServer(server, CheckpointRequest::NAME_CUT, cut);
    if (reply.ok()) {
      absl::MutexLock lock(&mutex_);
      board_.Named(server, cut);
    } else if (first_error.ok() || IsUnanswered(first_error)) {
      first_error = absl::Status(reply.status().code(),
                                 absl::StrCat("server ", server, ": ", reply.status().message()));
    }
  }
  return first_error;
}

absl::Status CheckpointKeeper::NameToAll(Step cut) {
  std::vector<size_t> all(participants_.num_servers());
  std::iota(all.begin(), all.end(), 0);
  return NameTo(cut, all);
}

void CheckpointKeeper::CallOff(Step cut, const std::string& reason) {
  const bool was_named = named_.erase(cut) > 0;
  settled_.insert(cut);
  messages_.Send(CheckpointRequest::CALL_OFF, cut);
  if (was_named && CountsAsFailure(cut, reason)) ++failures_;
  last_failure_ = reason;
  CheckpointEvent event;
  event.kind = CheckpointEvent::kCalledOff;
  event.cut = cut;
  event.name = CheckpointName({options_.manifest.epoch(), cut});
  event.reason = reason;
  {
    absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
    if (failures_ < kMostFailures || last_) return;
  }
  failures_ = 0;
  Answer(cut, absl::AbortedError(reason), /*exact_too=*/true);
}

absl::StatusOr<CheckpointManifest> CheckpointKeeper::Compose(
    Step cut, const std::vector<CutStatus>& parts) const {
  CheckpointManifest manifest = options_.manifest;
  manifest.set_step(cut.value());
  manifest.set_samples(options_.samples_through(cut));
  if (options_.evaluations_through) {
    *manifest.mutable_evaluations() = options_.evaluations_through(cut);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    CheckpointPart* part = manifest.add_parts();
    *part = parts[i].part();
    part->set_server_index(static_cast<uint32_t>(i));
    if (part->base_step() < 0) continue;
    const auto base = committed_.find(Step(part->base_step()));
    if (base == committed_.end()) {
      return absl::AbortedError(absl::StrCat("server ", i, " builds on the cut of step ",
                                             part->base_step(), ", which is not kept"));
    }
    part->clear_files();
    part->MergeFrom(base->second[i]);
    part->set_base_step(parts[i].part().base_step());
    for (const CheckpointFile& file : parts[i].part().files()) *part->add_files() = file;
  }
  RETURN_IF_ERROR(CheckManifest(manifest));  // What servers say is input.
  return manifest;
}

absl::Status CheckpointKeeper::WriteManifest(Step cut, const std::string& name) {
  absl::MutexLock no_restart(&restart_mutex_);
  std::vector<CutStatus> parts;
  CheckpointManifest manifest;
  {
    absl::MutexLock lock(&mutex_);
    if (board_.Judge(cut).kind != CutVerdict::kWhole) {
      return absl::AbortedError("a server began anew, and its part is void");
    }
    parts = board_.Parts(cut);
    ASSIGN_OR_RETURN(manifest, Compose(cut, parts));
  }
  RETURN_IF_ERROR(store_.Commit(manifest));
  absl::MutexLock lock(&mutex_);
  committed_[cut] = {manifest.parts().begin(), manifest.parts().end()};
  newest_ = name;
  newest_step_ = cut;
  events_.push_back(CommittedEvent(name, cut, parts));
  return absl::OkStatus();
}

void CheckpointKeeper::Commit(Step cut) {
  std::string name = CheckpointName({options_.manifest.epoch(), cut});
  const absl::Status status = WriteManifest(cut, name);
  if (absl::IsUnavailable(status) && !absl::IsNotFound(store_.Load(name).status())) {
    // It may be there, and may be lost again: neither to be counted on nor to be called off.
    absl::MutexLock lock(&mutex_);
    error_ = status;
    return;
  }
  if (!status.ok()) return CallOff(cut, std::string(status.message()));
  named_.erase(cut);
  settled_.insert(cut);
  failures_ = 0;
  removal_due_ = true;
  removed_beside_ = std::nullopt;
  log_size_.OnCheckpoint();
  messages_.Send(CheckpointRequest::COMMITTED, cut);
  next_try_ = 0;
  Answer(cut, name, /*exact_too=*/false);  // NameExactly sees that it has its evaluation.
}

// Those that the cut is late enough for.
void CheckpointKeeper::Answer(Step cut, const absl::StatusOr<std::string>& result, bool exact_too) {
  std::vector<Wish> answered;
  {
    absl::MutexLock lock(&mutex_);
    const auto waits = [&](const Wish& wish) {
      if (wish.is_exact) return !exact_too || *wish.at_least != cut;
      return !wish.at_least || *wish.at_least > cut;
    };
    const auto middle = std::stable_partition(wishes_.begin(), wishes_.end(), waits);
    std::move(middle, wishes_.end(), std::back_inserter(answered));
    wishes_.erase(middle, wishes_.end());
  }
  for (const Wish& wish : answered) wish.done(result);
}

void CheckpointKeeper::LookAtLogs() {
  if (options_.max_log_bytes == UINT64_MAX || rounds_ % kRoundsBetweenLooksAtLogs != 0) return;
  std::vector<uint64_t> bytes(participants_.num_servers());
  participants_.ForEachServer([&](size_t i) { bytes[i] = participants_.LogBytes(i).value_or(0); });
  log_size_.Look(*std::max_element(bytes.begin(), bytes.end()));
}

void CheckpointKeeper::NameWhatIsWanted() {
  bool wanted = log_size_.wants_checkpoint();
  Step furthest;
  {
    absl::MutexLock lock(&mutex_);
    wanted = wanted || !wishes_.empty();  // No exact one is among them here.
    furthest = board_.Furthest();
  }
  // What is being written may be what is wanted; besides, a server writes one at a time.
  if (!wanted || !OpenCuts().empty()) return;
  if (std::count(answered_.begin(), answered_.end(), false) > 0) return;
  const Step begun = furthest + static_cast<int64_t>(options_.staleness_steps);
  for (int64_t ahead = kFirstStepsAhead; ahead <= kMostStepsAhead; ahead *= 2) {
    const Step cut = begun + ahead;
    for (Step next = furthest + 1; next <= cut; next = next + 1) {
      if (IsPeriodic(next)) return;  // That one will do.
    }
    if (!messages_.IsPending(cut) && TryToName(cut)) return;
  }
}

// Workers first: as long as they all wait with its push, no server can pass the cut.
bool CheckpointKeeper::TryToName(Step cut) {
  absl::Status status;
  for (size_t rank = 0; status.ok() && rank < participants_.num_workers(); ++rank) {
    status = participants_.AskWorker(rank, CheckpointRequest::NAME_CUT, cut).status();
  }
  const bool workers_know = status.ok();
  if (workers_know) status = NameToAll(cut);
  if (status.ok()) {
    settled_.erase(cut);
    named_.insert(cut);
    return true;
  }
  settled_.insert(cut);
  if (workers_know) {
    messages_.Send(CheckpointRequest::CALL_OFF, cut);
  } else {
    messages_.CallOffAtWorkers(cut);
  }
  messages_.Deliver(answered_);
  return IsUnanswered(status);  // Not a matter of steps: another round may have more luck.
}

void CheckpointKeeper::Request(OnCheckpoint done) {
  absl::MutexLock lock(&mutex_);
  wishes_.push_back({std::move(done), std::nullopt});
}

void CheckpointKeeper::RemoveOld() {
  // What is being written may build on the newest but one, if its server had not heard of the
  // newest when it began.
  const std::set<Step> open = OpenCuts();
  // Each time the files of all that are kept are looked at: only once something has changed.
  if (removed_beside_ == open) return;
  removed_beside_ = open;
  const uint32_t keep = options_.keep + (open.empty() ? 0 : 1);
  std::vector<std::string> in_progress;
  for (const Step cut : open) {
    in_progress.push_back(CheckpointName({options_.manifest.epoch(), cut}));
  }
  std::string kept;
  {
    absl::MutexLock lock(&mutex_);
    kept = kept_;
  }
  const auto removed = store_.RemoveUnneeded(keep, in_progress, kept);
  removal_due_ = !open.empty();
  CheckpointEvent event;
  event.kind = CheckpointEvent::kNotRemoved;
  event.reason = removed.ok() ? removed->held_back : std::string(removed.status().message());
  const bool is_news = event.reason != not_removed_ && !event.reason.empty();
  not_removed_ = event.reason;
  absl::MutexLock lock(&mutex_);
  while (committed_.size() > keep) committed_.erase(committed_.begin());
  if (is_news) events_.push_back(std::move(event));
}

std::string CheckpointKeeper::RestartServer(size_t index) {
  absl::MutexLock no_commit(&restart_mutex_);
  absl::MutexLock lock(&mutex_);
  board_.Forget(index);
  return newest_;
}

std::string CheckpointKeeper::newest() const {
  absl::MutexLock lock(&mutex_);
  return newest_;
}

Step CheckpointKeeper::newest_step() const {
  absl::MutexLock lock(&mutex_);
  return newest_step_;
}

std::vector<CheckpointEvent> CheckpointKeeper::TakeEvents() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(events_, {});
}

}  // namespace thermocline
