#include "worker/train/evaluation.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

absl::Status CheckFinite(const std::vector<float>& logits, size_t samples_before) {
  const size_t bad = FindNonFinite(logits);
  if (bad == logits.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "evaluation: the model gives ", logits[bad], " for held-out sample ", samples_before + bad,
      " (counted from 0): it has diverged, or the sample's ", "dense features are too large"));
}

template <typename From, typename To>
void Append(const From& from, To* to) {
  to->insert(to->end(), from.begin(), from.end());
}

void Truncate(size_t samples, ScoredSamples* scored) {
  const auto shorten = [samples](auto* values) {
    if (values->size() > samples) values->resize(samples);
  };
  shorten(&scored->logits);
  shorten(&scored->labels);
  shorten(&scored->weights);
  shorten(&scored->groups);
}

void Fetch(const EvaluationParts& parts, Step step, const std::shared_ptr<StepContext>& context) {
  parts.source->AddReads(step, context.get());
  context->pulls.Start(parts.session, step - 1, context);
}

absl::StatusOr<EvaluationResult> Score(const EvaluationParts& parts, Step step,
                                       const std::function<void(int64_t samples)>& on_scored) {
  ScoredSamples scored;
  std::vector<float> logits;
  ASSIGN_OR_RETURN(std::shared_ptr<StepContext> context, parts.held_out->Next());
  if (context == nullptr) return EvaluationResult{};
  Fetch(parts, step, context);
  StepTasks tasks;  // No task waits for other ranks.
  if (parts.dense != nullptr) parts.dense->Load(step, /*with_state=*/false, &tasks);
  while (context != nullptr) {
    // The next batch's rows travel while this one is scored.
    std::shared_ptr<StepContext> next;
    const bool are_enough =
        parts.max_samples > 0 &&
        static_cast<int64_t>(scored.logits.size()) + context->batch->size >= parts.max_samples;
    if (!are_enough) {
      ASSIGN_OR_RETURN(next, parts.held_out->Next());
    }
    if (next != nullptr) Fetch(parts, step, next);
    parts.source->Receive(context.get(), &tasks);
    RETURN_IF_ERROR(RunAll(&tasks, /*exchange=*/nullptr));
    RETURN_IF_ERROR(parts.model->Score(context.get(), &logits));
    RETURN_IF_ERROR(CheckFinite(logits, scored.logits.size()));
    Append(logits, &scored.logits);
    Append(context->batch->labels, &scored.labels);
    Append(context->batch->weights, &scored.weights);
    Append(context->batch->groups, &scored.groups);
    on_scored(static_cast<int64_t>(scored.logits.size()));
    context = std::move(next);
  }
  if (parts.max_samples > 0) Truncate(parts.max_samples, &scored);
  // Where those are enough, the pipeline hasn't come to its end yet.
  ASSIGN_OR_RETURN(context, parts.held_out->Next());
  if (context != nullptr) return absl::InternalError("there are more batches than are scored");
  return EvaluationResult{ComputeMetrics(scored), std::nullopt};
}

}  // namespace

void AddMetrics(const EvaluationResult& result, nlohmann::json* json) {
  (*json)["auc"] = result.auc;
  if (result.gauc.has_value()) (*json)["gauc"] = *result.gauc;
  (*json)["logloss"] = result.logloss;
  (*json)["normalized_entropy"] = result.normalized_entropy;
  (*json)["calibration"] = result.calibration;
  if (result.own_metric.has_value()) (*json)["own_metric"] = *result.own_metric;
}

absl::StatusOr<EvaluationResult> ScoreHeldOut(
    const EvaluationParts& parts, Step step,
    const std::function<void(int64_t samples)>& on_scored) {
  absl::StatusOr<EvaluationResult> result = Score(parts, step, on_scored);
  if (!result.ok()) parts.session->Fail(result.status());
  const absl::Status drained = parts.session->Drain();
  if (result.ok() && !drained.ok()) return drained;
  return result;
}

}  // namespace thermocline
