#include "tests/simulation/saboteur.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/status_macros.h"

namespace thermocline {
namespace {

bool HasGradient(const wire::PushChunk& chunk, TableId table, Key key) {
  for (const wire::PushRange& range : chunk.tables) {
    const absl::Span<const Key> keys = chunk.KeysOf(range);
    if (range.table == table && std::find(keys.begin(), keys.end(), key) != keys.end()) return true;
  }
  return false;
}

// Writes each chunk only when the next one comes; the last is lost with the process.
class LateJournal : public PushJournal {
 public:
  explicit LateJournal(std::unique_ptr<PushJournal> real) : real_(std::move(real)) {}

  absl::Status Append(const wire::PushChunk& chunk) override {
    if (held_back_.has_value()) RETURN_IF_ERROR(real_->Append(*held_back_));
    held_back_ = chunk;
    return absl::OkStatus();
  }
  void WhenDurable(Done done) override { real_->WhenDurable(std::move(done)); }
  absl::Status DropThroughStep(Step step) override { return real_->DropThroughStep(step); }
  uint64_t bytes() const override { return real_->bytes(); }
  std::string full() const override { return real_->full(); }

 private:
  const std::unique_ptr<PushJournal> real_;
  std::optional<wire::PushChunk> held_back_;
};

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

wire::PushChunk Saboteur::Tamper(ServerIndex server, wire::PushChunk chunk) {
  if (fault_ == PlantedFault::kOtherGeneration && --messages_left_ == 0) ++chunk.header.generation;
  if (fault_ == PlantedFault::kAppliedTwice) ApplyAgain(server, &chunk);
  // Each of its keys was pulled for the step.
  if (fault_ == PlantedFault::kPullsCount) {
    for (uint32_t& count : chunk.counts) ++count;
  }
  if (fault_ == PlantedFault::kUncountedLookups) {
    for (const wire::PushRange& range : chunk.tables) {
      if (range.kind != wire::PushKind::kCount) continue;
      std::fill_n(chunk.counts.begin() + range.begin, range.count, 0);
    }
  }
  if (fault_ == PlantedFault::kZeroGradients) GiveZeroGradients(&chunk);
  if (fault_ == PlantedFault::kArrivalOrder && staleness_steps_ == 0) {
    chunk.header.rank = RankByArrival(server, chunk);
    chunk.header.acked_through = kNoStep;  // It was another rank's.
  }
  if (fault_ == PlantedFault::kEarlyPush) {
    if (!early_.has_value() && --messages_left_ <= 0) {
      early_ = {chunk.header.rank, chunk.step};
    }
    if (early_ == std::make_pair(chunk.header.rank, chunk.step)) {
      chunk.step = chunk.step + 1;
    }
  }
  return chunk;
}

wire::PullRequest Saboteur::Tamper(wire::PullRequest request) {
  if (fault_ == PlantedFault::kOtherGeneration && --messages_left_ == 0)
    ++request.header.generation;
  if (fault_ == PlantedFault::kArrivalOrder && staleness_steps_ == 0)
    request.header.acked_through = kNoStep;
  if (fault_ == PlantedFault::kPullsEarly && request.kind == wire::PullKind::kTrain) {
    request.after_step = kNoStep;
    request.step = std::min(request.step, Step(0));
  }
  if (fault_ == PlantedFault::kStaleRows && request.step > Step(0)) {
    request.step = request.step - 1;
    request.after_step = std::min(request.after_step, request.step - 1);
  }
  return request;
}

wire::PushChunk Saboteur::TamperReplayed(ServerIndex server, wire::PushChunk chunk) {
  if (fault_ == PlantedFault::kAppliedInReplay) ApplyAgain(server, &chunk);
  if (fault_ == PlantedFault::kLimitsNotReplayed) {
    for (wire::RowLimit& limit : chunk.row_limits) limit.oldest_kept = 0;
  }
  return chunk;
}

absl::StatusOr<wire::PushAnswer> Saboteur::TamperAnswer(
    const wire::PushChunk& sent, absl::StatusOr<wire::PushAnswer> answer) const {
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

// Adds the gradients of one push to the first chunk of the push after it.
void Saboteur::ApplyAgain(ServerIndex server, wire::PushChunk* chunk) {
  if (!repeated_.has_value()) {
    if (!chunk->keys.empty() && --messages_left_ <= 0) repeated_ = {server, *chunk};
    return;
  }
  const wire::PushChunk& before = repeated_->second;
  if (repeated_->first != server || before.header.rank != chunk->header.rank ||
      before.step + 1 != chunk->step || chunk->chunk != 0) {
    return;
  }
  for (const wire::PushRange& range : before.tables) {
    const size_t width = range.value_floats / std::max<size_t>(1, range.count);
    for (size_t i = 0; i < range.count && range.kind == wire::PushKind::kGradient; ++i) {
      const Key key = before.KeysOf(range)[i];
      if (HasGradient(*chunk, range.table, key)) continue;
      chunk->tables.push_back(
          {range.table, range.kind, chunk->keys.size(), 1, chunk->values.size(), width});
      chunk->keys.push_back(key);
      chunk->counts.push_back(before.CountsOf(range)[i]);
      const absl::Span<const float> gradient = before.ValuesOf(range).subspan(i * width, width);
      chunk->values.insert(chunk->values.end(), gradient.begin(), gradient.end());
    }
  }
}

void Saboteur::GiveZeroGradients(wire::PushChunk* chunk) {
  UninitializedVector<float> values;  // In the order of the ranges.
  for (wire::PushRange& range : chunk->tables) {
    const absl::Span<const float> given = chunk->ValuesOf(range);
    if (range.kind == wire::PushKind::kGradient && range.count > 0) {
      dims_[range.table] = given.size() / range.count;
    }
    range.value_begin = values.size();
    values.insert(values.end(), given.begin(), given.end());
    const auto dim = dims_.find(range.table);
    if (range.kind != wire::PushKind::kCount || dim == dims_.end()) continue;
    range.kind = wire::PushKind::kGradient;
    range.value_floats = range.count * dim->second;
    values.insert(values.end(), range.value_floats, 0.0f);
  }
  chunk->values = std::move(values);
}

// The workers of a step swap ranks, so that the one whose first chunk arrived first has rank 0.
WorkerRank Saboteur::RankByArrival(ServerIndex server, const wire::PushChunk& chunk) {
  std::vector<WorkerRank>& order = arrivals_[{server, chunk.step}];
  auto place = std::find(order.begin(), order.end(), chunk.header.rank);
  if (place == order.end()) place = order.insert(order.end(), chunk.header.rank);
  return WorkerRank(static_cast<uint32_t>(place - order.begin()));
}

SabotagedJournals::SabotagedJournals(std::unique_ptr<JournalOpener> real, ServerIndex server,
                                     Saboteur* saboteur)
    : real_(std::move(real)), server_(server), saboteur_(saboteur) {}

absl::StatusOr<std::unique_ptr<PushJournal>> SabotagedJournals::Open(const JournalSpec& spec,
                                                                     Visit visit) {
  const auto sabotaged_visit = [&](wire::PushChunk&& chunk) -> absl::Status {
    if (saboteur_->RepeatsNow()) RETURN_IF_ERROR(visit(wire::PushChunk(chunk)));
    return visit(saboteur_->TamperReplayed(server_, std::move(chunk)));
  };
  ASSIGN_OR_RETURN(std::unique_ptr<PushJournal> journal, real_->Open(spec, sabotaged_visit));
  if (!saboteur_->Has(PlantedFault::kLoggedLate)) return journal;
  return std::make_unique<LateJournal>(std::move(journal));
}

}  // namespace thermocline
