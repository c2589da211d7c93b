#include "server/core/pull_gate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

PullGate::PullGate(size_t capacity, int64_t hold_us) : hold_us_(hold_us), held_(capacity) {}

absl::StatusOr<PullGate::Admitted> PullGate::Admit(const wire::PullRequest& request,
                                                   const PushState& pushes, int64_t now_us,
                                                   int64_t time_left_us, Done* done) {
  const wire::Header& header = request.header;
  HeldPull pull;
  pull.kind = request.kind;
  pull.rank = header.rank;
  pull.step = request.step;
  pull.needs_through = request.step - 1;
  pull.reads_rows = !request.tables.empty();
  if (request.kind == wire::PullKind::kTrain) {
    RETURN_IF_ERROR(pushes.CheckAcknowledged(header));
    pull.needs_through = request.step - 1 - request.staleness_steps;
    pull.after_step = request.after_step;
  }
  Admitted admitted;
  if (IsReady(pull, pushes)) {
    admitted.answer = ReadyAnswer(pull, pushes);
    return admitted;
  }
  if (held_.full()) {
    ++counters_.refused;
    return absl::ResourceExhaustedError(absl::StrCat("rank ", header.rank.value(), ", step ",
                                                     request.step.value(), ": ", held_.size(),
                                                     " pulls are held already"));
  }
  pull.held_since_us = now_us;
  pull.expires_us = now_us + std::min(hold_us_, std::max<int64_t>(0, time_left_us / 2));
  pull.done = std::move(*done);
  admitted.ticket = held_.Hold(std::move(pull));
  ++counters_.held;
  return admitted;
}

bool PullGate::IsReady(const HeldPull& pull, const PushState& pushes) {
  if (pushes.complete_through() < pull.needs_through) return false;
  return pull.kind == wire::PullKind::kRead || pushes.applied_through(pull.rank) >= pull.after_step;
}

wire::PullAnswer PullGate::ReadyAnswer(const HeldPull& pull, const PushState& pushes) {
  if (pull.kind == wire::PullKind::kTrain && pull.reads_rows) {
    const int64_t missing = pull.step - 1 - pushes.complete_through();
    const uint64_t staleness = static_cast<uint64_t>(std::max<int64_t>(0, missing));
    ++counters_.training_answered;
    counters_.staleness_sum += staleness;
    counters_.staleness_max = std::max(counters_.staleness_max, staleness);
  }
  return {wire::Readiness::kReady, pushes.complete_through()};
}

std::vector<PullGate::Released> PullGate::TakeReady(const PushState& pushes, int64_t now_us) {
  std::vector<Released> released;
  for (HeldPull& pull :
       held_.TakeReady([&](const HeldPull& held) { return IsReady(held, pushes); })) {
    hold_time_.Record(now_us - pull.held_since_us);
    released.push_back({std::move(pull.done), ReadyAnswer(pull, pushes)});
  }
  return released;
}

std::vector<PullGate::Released> PullGate::TakeExpired(const PushState& pushes, int64_t now_us) {
  timers_us_.erase(timers_us_.begin(), timers_us_.upper_bound(now_us));
  std::vector<Released> released;
  for (HeldPull& pull : held_.TakeExpired(now_us)) {
    hold_time_.Record(now_us - pull.held_since_us);
    ++counters_.not_ready;
    released.push_back(
        {std::move(pull.done), {wire::Readiness::kNotReady, pushes.complete_through()}});
  }
  return released;
}

PullGate::Done PullGate::Drop(PullTicket ticket) {
  std::optional<HeldPull> pull = held_.Take(ticket);
  return pull.has_value() ? std::move(pull->done) : Done();
}

std::vector<PullGate::Done> PullGate::TakeAll() {
  std::vector<Done> all;
  for (HeldPull& pull : held_.TakeAll()) all.push_back(std::move(pull.done));
  return all;
}

// A timer is needed only before the first of those that run: what expires later is looked at then.
std::optional<int64_t> PullGate::ArmTimer(int64_t now_us) {
  if (held_.size() == 0) return std::nullopt;
  const int64_t due_us = std::max(now_us, held_.next_expiry_us());
  if (!timers_us_.empty() && *timers_us_.begin() <= due_us) return std::nullopt;
  timers_us_.insert(due_us);
  return due_us - now_us;
}

void PullGate::FillStats(ServerStats* stats) const {
  stats->set_pulls_held(counters_.held);
  stats->set_pulls_waiting(held_.size());
  stats->set_pulls_not_ready(counters_.not_ready);
  stats->set_max_staleness_seen(counters_.staleness_max);
  stats->set_mean_staleness_seen(static_cast<double>(counters_.staleness_sum) /
                                 std::max<uint64_t>(1, counters_.training_answered));
  stats->set_requests_refused(stats->requests_refused() + counters_.refused);
  hold_time_.Snapshot().CopyTo(stats->mutable_hold_time());
}

}  // namespace thermocline
