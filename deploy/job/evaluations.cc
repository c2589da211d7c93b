#include "deploy/job/evaluations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/data_place.h"

namespace thermocline {
namespace {

EvaluationState Fresh(const Evaluate& policy) {
  EvaluationState state;
  state.set_metric(policy.metric());
  state.set_own_metric(policy.own_metric());
  state.set_minimize(policy.minimize());
  state.set_task(policy.task());
  state.set_last_step(kNoStep.value());
  state.set_best_step(kNoStep.value());
  return state;
}

// The step whose evaluation decided where the data go on; kNoStep: none has.
Step DecidedAt(const EvaluationState& state) {
  const Step first_step = FirstStepAt(state.data_place());
  return first_step == kNoStep ? kNoStep : first_step - 1;
}

}  // namespace

EvaluationBoard::EvaluationBoard(const Evaluate& policy, const GenerationStart& start,
                                 const EvaluationState& before)
    : policy_(policy), start_(start) {
  const bool counts = before.evaluations() > 0 && before.metric() == policy.metric() &&
                      before.own_metric() == policy.own_metric() &&
                      before.minimize() == policy.minimize() && before.task() == policy.task();
  EvaluationState state = counts ? before : Fresh(policy);
  // Which batches were trained does not depend on the metric.
  state.set_data_place(before.data_place());
  entries_.push_back({start.base_step, std::move(state)});
}

// A report without a value of the metric, such as the AUC of rows that all have one label, is never
// the best.
bool EvaluationBoard::IsBetter(const EvaluationReport& report, const EvaluationState& state) const {
  const bool is_own = !policy_.own_metric().empty();
  const bool is_loss = policy_.metric() == Evaluate::LOGLOSS;
  const double now = is_own ? report.own_metric : is_loss ? report.logloss : report.auc;
  const double best = is_own ? state.best_own() : is_loss ? state.best_logloss() : state.best_auc();
  if (std::isnan(now)) return false;
  const bool less_is_better = is_own ? policy_.minimize() : is_loss;
  return state.best_step() < 0 || (less_is_better ? now < best : now > best);
}

bool EvaluationBoard::Stops(const EvaluationState& state) const {
  return policy_.patience() > 0 && state.without_improvement() >= policy_.patience();
}

EvaluationBoard::Decision EvaluationBoard::Take(const EvaluationReport& report) {
  EvaluationState state = entries_.back().state;
  Decision decision;
  if (report.is_evaluation) decision = TakeEvaluation(report, &state);
  if (!report.data_place.empty() && report.step > DecidedAt(state)) {
    state.set_data_place(report.data_place);
  }
  if (report.step == DecidedAt(state)) decision.data_place = state.data_place();
  if (report.step > entries_.back().step) entries_.push_back({report.step, {}});
  entries_.back().state = std::move(state);
  return decision;
}

EvaluationBoard::Decision EvaluationBoard::TakeEvaluation(const EvaluationReport& report,
                                                          EvaluationState* state) {
  const int64_t step = report.step.value();
  Decision decision;
  if (step <= state->last_step()) {
    decision.is_best = step == state->last_step() && step == state->best_step();
    decision.stops = step == state->last_step() && Stops(*state);
    return decision;
  }
  state->set_last_step(step);
  state->set_evaluations(state->evaluations() + 1);
  decision.is_best = IsBetter(report, *state);
  if (decision.is_best) {
    state->set_best_step(step);
    state->set_best_auc(report.auc);
    state->set_best_logloss(report.logloss);
    if (!policy_.own_metric().empty()) state->set_best_own(report.own_metric);
    state->set_without_improvement(0);
    best_checkpoint_before_ = state->best_checkpoint();
    best_generation_before_ = state->best_generation();
    // The manifest of this very step names itself.
    if (policy_.keep_best()) {
      const bool is_base = report.step <= start_.base_step;
      state->set_best_checkpoint(is_base ? start_.base : CheckpointName(report.step));
      state->set_best_generation(is_base ? start_.base_generation : start_.generation);
    }
  } else if (report.is_scheduled) {
    state->set_without_improvement(state->without_improvement() + 1);
  }
  decision.stops = report.is_scheduled && Stops(*state);
  return decision;
}

void EvaluationBoard::SetBestCheckpoint(const absl::StatusOr<std::string>& name) {
  EvaluationState& state = entries_.back().state;
  if (name.ok()) {
    state.set_best_checkpoint(*name);
  } else {
    state.set_best_checkpoint(best_checkpoint_before_);
    state.set_best_generation(best_generation_before_);
  }
}

EvaluationState EvaluationBoard::Through(Step cut) const {
  const auto after = std::find_if(entries_.begin() + 1, entries_.end(),
                                  [cut](const Entry& entry) { return entry.step > cut; });
  return (after - 1)->state;
}

EvaluationState EvaluationBoard::latest() const { return entries_.back().state; }

// The decision on its way to the workers
// ------------------------------------------------------------------------------------------------

std::optional<Step> EvaluationCoordinator::Begin() {
  if (stage_ != Stage::kIdle || reports_.empty()) return std::nullopt;
  event_ = {};
  event_.report = reports_.front();
  reports_.pop_front();
  event_.decision = board_.Take(event_.report);
  stage_ = Stage::kDecided;
  if (!event_.decision.is_best || !keeps_best_) return std::nullopt;
  stage_ = Stage::kMakingCheckpoint;
  return event_.report.step;
}

void EvaluationCoordinator::OnCheckpoint(const absl::StatusOr<std::string>& name) {
  CHECK(stage_ == Stage::kMakingCheckpoint);
  board_.SetBestCheckpoint(name);
  event_.checkpoint_error = name.status();
  stage_ = Stage::kDecided;
}

std::optional<EvaluationEvent> EvaluationCoordinator::TakeDecided(
    const std::vector<uint32_t>& running_ranks) {
  if (stage_ != Stage::kDecided) return std::nullopt;
  stage_ = Stage::kDeciding;
  event_.state = board_.latest();
  unanswered_ = {running_ranks.begin(), running_ranks.end()};
  return event_;
}

std::vector<uint32_t> EvaluationCoordinator::Unanswered(
    const std::vector<uint32_t>& running_ranks) {
  std::vector<uint32_t> ranks;
  for (const uint32_t rank : running_ranks) {
    if (unanswered_.count(rank) > 0) ranks.push_back(rank);
  }
  if (ranks.empty() && stage_ == Stage::kDeciding) stage_ = Stage::kIdle;
  return ranks;
}

void EvaluationCoordinator::OnAnswered(uint32_t rank) { unanswered_.erase(rank); }

}  // namespace thermocline
