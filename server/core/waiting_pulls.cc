#include "server/core/waiting_pulls.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {
namespace {

// The ticket that a caller gets: that of its lane, and which lane that is.
PullTicket TicketOf(PullTicket of_lane, wire::PullKind kind) {
  return 2 * of_lane + (kind == wire::PullKind::kRead ? 1 : 0);
}
wire::PullKind KindOf(PullTicket ticket) {
  return ticket % 2 == 1 ? wire::PullKind::kRead : wire::PullKind::kTrain;
}

}  // namespace

PullTicket HeldPulls::Hold(HeldPull pull) {
  CHECK(!full());
  const PullTicket ticket = ++last_ticket_;
  expiries_.emplace(pull.expires_us, ticket);
  pulls_.emplace_hint(pulls_.end(), ticket, std::move(pull));
  return ticket;
}

HeldPulls::Pulls::iterator HeldPulls::MoveOut(Pulls::iterator pull, std::vector<HeldPull>* out) {
  expiries_.erase({pull->second.expires_us, pull->first});
  out->push_back(std::move(pull->second));
  return pulls_.erase(pull);
}

std::vector<HeldPull> HeldPulls::TakeReady(absl::FunctionRef<bool(const HeldPull&)> is_ready) {
  std::vector<HeldPull> ready;
  for (auto pull = pulls_.begin(); pull != pulls_.end();) {
    pull = is_ready(pull->second) ? MoveOut(pull, &ready) : std::next(pull);
  }
  return ready;
}

std::vector<HeldPull> HeldPulls::TakeExpired(int64_t now_us) {
  if (pulls_.empty() || next_expiry_us() > now_us) return {};
  return TakeReady([now_us](const HeldPull& pull) { return pull.expires_us <= now_us; });
}

std::vector<HeldPull> HeldPulls::TakeAll() {
  return TakeReady([](const HeldPull&) { return true; });
}

std::optional<HeldPull> HeldPulls::Take(PullTicket ticket) {
  const auto pull = pulls_.find(ticket);
  if (pull == pulls_.end()) return std::nullopt;
  std::vector<HeldPull> taken;
  MoveOut(pull, &taken);
  return std::move(taken.front());
}

WaitingPulls::WaitingPulls(size_t capacity, int64_t hold_us)
    : hold_us_(hold_us), train_(capacity), read_(capacity) {}

absl::StatusOr<WaitingPulls::Admitted> WaitingPulls::Admit(const wire::PullRequest& request,
                                                           const PushState& pushes, int64_t now_us,
                                                           int64_t time_left_us, Done* done) {
  const wire::Header& header = request.header;
  const bool trains = request.kind == wire::PullKind::kTrain;
  if (trains || header.acked_through != kNoStep) RETURN_IF_ERROR(pushes.CheckAcknowledged(header));
  HeldPull pull;
  pull.kind = request.kind;
  pull.step = request.step;
  pull.needs_through = request.step - 1;
  pull.reads_rows = !request.tables.empty();
  if (trains) {
    pull.needs_through = std::max(request.step - 1 - request.staleness_steps, request.after_step);
  }
  Admitted admitted;
  if (IsReady(pull, pushes)) {
    admitted.answer = ReadyAnswer(pull, pushes);
    return admitted;
  }
  Lane& lane = LaneOf(request.kind);
  if (lane.held.full()) {
    ++lane.refused;
    return absl::ResourceExhaustedError(absl::StrCat(
        "rank ", header.rank.value(), ", step ", request.step.value(), ": ", lane.held.size(),
        trains ? " pulls" : " reads", " are held already (cluster.max_held_pulls)"));
  }
  pull.held_since_us = now_us;
  pull.expires_us = now_us + std::min(hold_us_, std::max<int64_t>(0, time_left_us / 2));
  pull.done = std::move(*done);
  admitted.ticket = TicketOf(lane.held.Hold(std::move(pull)), request.kind);
  ++lane.num_held;
  return admitted;
}

bool WaitingPulls::IsReady(const HeldPull& pull, const PushState& pushes) {
  return pushes.complete_through() >= pull.needs_through;
}

wire::PullAnswer WaitingPulls::ReadyAnswer(const HeldPull& pull, const PushState& pushes) {
  if (pull.kind == wire::PullKind::kTrain && pull.reads_rows) {
    const int64_t missing = pull.step - 1 - pushes.complete_through();
    const uint64_t staleness = static_cast<uint64_t>(std::max<int64_t>(0, missing));
    ++staleness_.pulls;
    staleness_.sum += staleness;
    staleness_.max = std::max(staleness_.max, staleness);
  }
  return {wire::Readiness::kReady, pushes.complete_through()};
}

std::vector<WaitingPulls::Released> WaitingPulls::TakeReady(const PushState& pushes,
                                                            int64_t now_us) {
  std::vector<Released> released;
  for (Lane* lane : {&train_, &read_}) {
    for (HeldPull& pull :
         lane->held.TakeReady([&](const HeldPull& held) { return IsReady(held, pushes); })) {
      if (lane == &train_) hold_time_.Record(now_us - pull.held_since_us);
      released.push_back({std::move(pull.done), ReadyAnswer(pull, pushes)});
    }
  }
  return released;
}

std::vector<WaitingPulls::Released> WaitingPulls::TakeExpired(const PushState& pushes,
                                                              int64_t now_us) {
  timers_us_.erase(timers_us_.begin(), timers_us_.upper_bound(now_us));
  std::vector<Released> released;
  for (Lane* lane : {&train_, &read_}) {
    for (HeldPull& pull : lane->held.TakeExpired(now_us)) {
      if (lane == &train_) hold_time_.Record(now_us - pull.held_since_us);
      ++lane->not_ready;
      released.push_back(
          {std::move(pull.done), {wire::Readiness::kNotReady, pushes.complete_through()}});
    }
  }
  return released;
}

WaitingPulls::Done WaitingPulls::Drop(PullTicket ticket) {
  std::optional<HeldPull> pull = LaneOf(KindOf(ticket)).held.Take(ticket / 2);
  return pull.has_value() ? std::move(pull->done) : Done();
}

std::vector<WaitingPulls::Done> WaitingPulls::TakeAll() {
  std::vector<Done> all;
  for (Lane* lane : {&train_, &read_}) {
    for (HeldPull& pull : lane->held.TakeAll()) all.push_back(std::move(pull.done));
  }
  return all;
}

// A timer is needed only before the first of those that run: what expires later is looked at then.
std::optional<int64_t> WaitingPulls::ArmTimer(int64_t now_us) {
  if (num_held() == 0) return std::nullopt;
  int64_t due_us = kNoDeadline;
  for (const Lane* lane : {&train_, &read_}) {
    if (lane->held.size() > 0) due_us = std::min(due_us, lane->held.next_expiry_us());
  }
  due_us = std::max(now_us, due_us);
  if (!timers_us_.empty() && *timers_us_.begin() <= due_us) return std::nullopt;
  timers_us_.insert(due_us);
  return due_us - now_us;
}

void WaitingPulls::FillStats(ServerStats* stats) const {
  stats->set_pulls_held(train_.num_held);
  stats->set_pulls_waiting(train_.held.size());
  stats->set_pulls_not_ready(train_.not_ready);
  stats->set_reads_held(read_.num_held);
  stats->set_reads_waiting(read_.held.size());
  stats->set_reads_not_ready(read_.not_ready);
  stats->set_max_staleness_seen(staleness_.max);
  stats->set_mean_staleness_seen(static_cast<double>(staleness_.sum) /
                                 static_cast<double>(std::max<uint64_t>(1, staleness_.pulls)));
  stats->set_requests_refused(stats->requests_refused() + train_.refused + read_.refused);
  hold_time_.Snapshot().CopyTo(stats->mutable_hold_time());
}

}  // namespace thermocline
