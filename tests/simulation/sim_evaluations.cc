#include "tests/simulation/sim_evaluations.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/data_place.h"

namespace thermocline {
namespace {

// A simple recount of all scores, one after the other.
struct Recount {
  Step end;  // The last evaluation.
  Step best = kNoStep;
  uint64_t evaluations = 0;
  uint32_t without_improvement = 0;
};

Recount CountAgain(const EvaluationSetup& setup, const SequentialModel& model, Step last,
                   uint64_t num_keys) {
  Recount count;
  double best_score = 0;
  for (Step step{0}; step <= last; step = step + 1) {
    const bool is_due = static_cast<uint64_t>(step.value() + 1) % setup.every_steps == 0;
    if (!is_due && step < last) continue;
    const double score = model.ScoreAfter(step, num_keys);
    count.end = step;
    ++count.evaluations;
    if (count.best == kNoStep || score > best_score) {
      best_score = score;
      count.best = step;
      count.without_improvement = 0;
    } else if (is_due && ++count.without_improvement == setup.patience) {
      break;
    }
  }
  return count;
}

}  // namespace

void SimEvaluationCounters::Add(const SimEvaluationCounters& other) {
  decided += other.decided;
  best += other.best;
  unmade += other.unmade;
  stopped += other.stopped;
}

EvaluationReport SimEvaluations::ReportOf(Step step, double score,
                                          const std::optional<ScheduleState>& next) const {
  EvaluationReport report;
  report.step = step;
  report.is_scheduled = static_cast<uint64_t>(step.value() + 1) % setup_.every_steps == 0;
  report.is_evaluation = report.is_scheduled || !next.has_value();
  if (next.has_value()) report.data_place = MakeDataPlace(*next);
  report.auc = score;
  return report;
}

void SimEvaluations::OnDecided(const EvaluationEvent& event, bool keeps_best) {
  if (!event.report.is_evaluation) return;
  keeps_best_ = keeps_best;
  state_ = event.state;
  ++counters_.decided;
  if (event.decision.is_best) ++counters_.best;
  if (event.decision.stops) ++counters_.stopped;
  if (event.checkpoint_error.ok()) return;
  ++counters_.unmade;
  unmade_.insert(event.report.step);
}

void SimEvaluations::CheckEnd(const SequentialModel& model, Step last, uint64_t num_keys,
                              const CheckpointStore* store,
                              std::vector<std::string>* failures) const {
  const Recount count = CountAgain(setup_, model, last, num_keys);
  const EvaluationState& state = state_;
  if (count.end != last) {
    failures->push_back(absl::StrCat("training should have ended with the evaluation of step ",
                                     count.end.value(), ", and ended with step ", last.value()));
  }
  if (state.last_step() != last.value() || state.best_step() != count.best.value() ||
      state.evaluations() != count.evaluations ||
      state.without_improvement() != count.without_improvement) {
    failures->push_back(absl::StrCat(
        "the best of ", count.evaluations, " evaluations is that of step ", count.best.value(),
        ", with ", count.without_improvement, " since; decided was ", state.ShortDebugString()));
  }
  if (!keeps_best_ || unmade_.count(count.best) > 0) return;
  const std::string wrong = CheckBest(*store);
  if (!wrong.empty()) failures->push_back(wrong);
}

// The checkpoint of the best step exists, and its manifest names it as the best.
std::string SimEvaluations::CheckBest(const CheckpointStore& store) const {
  const EvaluationState& state = state_;
  const std::string& name = state.best_checkpoint();
  const std::string about = absl::StrCat("the best checkpoint '", name, "': ");
  const auto manifest = store.Load(name, state.best_generation());
  if (!manifest.ok()) return absl::StrCat(about, manifest.status().ToString());
  if (manifest->step() != state.best_step()) {
    return absl::StrCat(about, "step ", state.best_step(), " is the best");
  }
  const EvaluationState& known = manifest->evaluations();
  if (known.last_step() == state.best_step() && known.best_step() == state.best_step() &&
      known.best_auc() == state.best_auc() && known.best_checkpoint() == name &&
      known.best_generation() == state.best_generation()) {
    return "";
  }
  return absl::StrCat(about, "its manifest says ", known.ShortDebugString());
}

}  // namespace thermocline
