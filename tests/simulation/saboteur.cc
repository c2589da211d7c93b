#include "tests/simulation/saboteur.h"

#include <algorithm>

namespace thermocline {
namespace {

bool HasGradient(const wire::PushPart& part, TableId table, Key key) {
  for (const wire::PushRange& range : part.tables) {
    const absl::Span<const Key> keys = part.KeysOf(range);
    if (range.table == table && std::find(keys.begin(), keys.end(), key) != keys.end()) return true;
  }
  return false;
}

}  // namespace

Saboteur::Saboteur(PlantedFault fault, uint64_t seed, uint32_t staleness_steps)
    : fault_(fault),
      staleness_steps_(staleness_steps),
      random_(seed),
      messages_left_(random_.Between(5, 100)) {}

bool Saboteur::ForgetsNow() {
  return fault_ == PlantedFault::kForgottenLedger && --messages_left_ == 0;
}

bool Saboteur::RepeatsNow() {
  return fault_ == PlantedFault::kReplayedTwice && --messages_left_ == 0;
}

wire::PushPart Saboteur::Tamper(ServerIndex server, wire::PushPart part) {
  if (fault_ == PlantedFault::kOtherEpoch && --messages_left_ == 0) ++part.header.epoch;
  if (fault_ == PlantedFault::kAppliedTwice) ApplyAgain(server, &part);
  if (fault_ == PlantedFault::kArrivalOrder && staleness_steps_ == 0) {
    part.header.rank = RankByArrival(server, part);
    part.header.acked_through = kNoStep;  // Of another rank.
  }
  if (fault_ == PlantedFault::kEarlyPush) {
    if (!early_.has_value() && --messages_left_ <= 0) {
      early_ = {part.header.rank, part.step};
    }
    if (early_ == std::make_pair(part.header.rank, part.step)) {
      part.step = part.step + 1;
    }
  }
  return part;
}

wire::PullRequest Saboteur::Tamper(wire::PullRequest request) {
  if (fault_ == PlantedFault::kOtherEpoch && --messages_left_ == 0) ++request.header.epoch;
  if (fault_ == PlantedFault::kArrivalOrder && staleness_steps_ == 0)
    request.header.acked_through = kNoStep;
  if (fault_ == PlantedFault::kStaleRows && request.step > Step(0)) {
    request.step = request.step - 1;
    request.after_step = std::min(request.after_step, request.step - 1);
  }
  return request;
}

wire::PushPart Saboteur::TamperReplayed(ServerIndex server, wire::PushPart part) {
  if (fault_ == PlantedFault::kAppliedInReplay) ApplyAgain(server, &part);
  return part;
}

absl::StatusOr<wire::PushAnswer> Saboteur::TamperAnswer(
    const wire::PushPart& sent, absl::StatusOr<wire::PushAnswer> answer) const {
  if (TakesForBroken(answer.status())) return absl::UnavailableError(answer.status().message());
  if (fault_ == PlantedFault::kArrivalOrder && answer.ok()) {
    answer->accepted_through = std::min(answer->accepted_through, sent.step);
  }
  return answer;
}

absl::StatusOr<wire::PullAnswer> Saboteur::TamperAnswer(
    const wire::PullRequest& sent, absl::StatusOr<wire::PullAnswer> answer) const {
  if (TakesForBroken(answer.status())) return absl::UnavailableError(answer.status().message());
  if (fault_ == PlantedFault::kStaleRows && answer.ok() &&
      answer->readiness == wire::Readiness::kReady) {
    const Step claimed =
        sent.kind == wire::PullKind::kTrain ? sent.step - 1 - sent.staleness_steps : sent.step - 1;
    answer->complete_through = std::max(answer->complete_through, claimed);
  }
  return answer;
}

// Adds the gradients of one push to the first part of the push after it.
void Saboteur::ApplyAgain(ServerIndex server, wire::PushPart* part) {
  if (!repeated_.has_value()) {
    if (!part->keys.empty() && --messages_left_ <= 0) repeated_ = {server, *part};
    return;
  }
  const wire::PushPart& before = repeated_->second;
  if (repeated_->first != server || before.header.rank != part->header.rank ||
      before.step + 1 != part->step || part->part != 0) {
    return;
  }
  for (const wire::PushRange& range : before.tables) {
    const size_t width = range.value_floats / std::max<size_t>(1, range.count);
    for (size_t i = 0; i < range.count && range.kind == wire::PushKind::kGradient; ++i) {
      const Key key = before.KeysOf(range)[i];
      if (HasGradient(*part, range.table, key)) continue;
      part->tables.push_back(
          {range.table, range.kind, part->keys.size(), 1, part->values.size(), width});
      part->keys.push_back(key);
      part->counts.push_back(before.CountsOf(range)[i]);
      const absl::Span<const float> gradient = before.ValuesOf(range).subspan(i * width, width);
      part->values.insert(part->values.end(), gradient.begin(), gradient.end());
    }
  }
}

// The workers of a step swap ranks, so that the one whose first part arrived first has rank 0.
WorkerRank Saboteur::RankByArrival(ServerIndex server, const wire::PushPart& part) {
  std::vector<WorkerRank>& order = arrivals_[{server, part.step}];
  auto place = std::find(order.begin(), order.end(), part.header.rank);
  if (place == order.end()) place = order.insert(order.end(), part.header.rank);
  return WorkerRank(static_cast<uint32_t>(place - order.begin()));
}

}  // namespace thermocline
