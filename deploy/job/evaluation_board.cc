#include "deploy/job/evaluation_board.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/checkpoint/checkpoint_manifest.h"

namespace thermocline {
namespace {

EvaluationState Fresh(Evaluate::Metric metric) {
  EvaluationState state;
  state.set_metric(metric);
  state.set_last_step(kNoStep.value());
  state.set_best_step(kNoStep.value());
  return state;
}

}  // namespace

EvaluationBoard::EvaluationBoard(const Evaluate& policy, uint64_t generation,
                                 const EvaluationState& before)
    : policy_(policy), generation_(generation) {
  const bool counts = before.evaluations() > 0 && before.metric() == policy.metric();
  states_.push_back(counts ? before : Fresh(policy.metric()));
}

// What has no value of the metric is never the best: the AUC of rows that all have one label.
bool EvaluationBoard::IsBetter(const EvaluationReport& report, const EvaluationState& state) const {
  const bool is_loss = policy_.metric() == Evaluate::LOGLOSS;
  const double now = is_loss ? -report.logloss : report.auc;
  const double best = is_loss ? -state.best_logloss() : state.best_auc();
  if (std::isnan(now)) return false;
  return state.best_step() < 0 || now > best;
}

bool EvaluationBoard::Stops(const EvaluationState& state) const {
  return policy_.patience() > 0 && state.without_improvement() >= policy_.patience();
}

EvaluationBoard::Verdict EvaluationBoard::Take(const EvaluationReport& report) {
  EvaluationState state = states_.back();
  const int64_t step = report.step.value();
  if (step <= state.last_step()) {
    return {step == state.last_step() && step == state.best_step(),
            step == state.last_step() && Stops(state)};
  }
  Verdict verdict;
  state.set_last_step(step);
  state.set_evaluations(state.evaluations() + 1);
  verdict.is_best = IsBetter(report, state);
  if (verdict.is_best) {
    state.set_best_step(step);
    state.set_best_auc(report.auc);
    state.set_best_logloss(report.logloss);
    state.set_without_improvement(0);
    best_checkpoint_before_ = state.best_checkpoint();
    // The manifest of this very step names itself.
    if (policy_.keep_best()) state.set_best_checkpoint(CheckpointName({generation_, report.step}));
  } else if (report.is_scheduled) {
    state.set_without_improvement(state.without_improvement() + 1);
  }
  verdict.stops = report.is_scheduled && Stops(state);
  states_.push_back(std::move(state));
  return verdict;
}

void EvaluationBoard::SetBestCheckpoint(const absl::StatusOr<std::string>& name) {
  states_.back().set_best_checkpoint(name.ok() ? *name : best_checkpoint_before_);
}

EvaluationState EvaluationBoard::Through(Step cut) const {
  const auto after = std::find_if(states_.begin() + 1, states_.end(), [cut](const auto& state) {
    return state.last_step() > cut.value();
  });
  return *(after - 1);
}

EvaluationState EvaluationBoard::latest() const { return states_.back(); }

}  // namespace thermocline
