#include "worker/train/evaluation.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/math/auc.h"
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

absl::StatusOr<EvaluationResult> Score(const EvaluationParts& parts, Step step,
                                       const std::function<void(int64_t samples)>& on_scored) {
  std::vector<float> scores, labels, logits;
  ASSIGN_OR_RETURN(std::shared_ptr<StepContext> context, parts.held_out->Next());
  if (context == nullptr) return EvaluationResult{};
  parts.source->FetchForEvaluation(context, step);
  if (parts.dense != nullptr) RETURN_IF_ERROR(parts.dense->Load(step, /*with_state=*/false));
  while (context != nullptr) {
    // The next batch's rows travel while this one is scored.
    ASSIGN_OR_RETURN(std::shared_ptr<StepContext> next, parts.held_out->Next());
    if (next != nullptr) parts.source->FetchForEvaluation(next, step);
    RETURN_IF_ERROR(parts.source->Await(context.get()));
    parts.model->Forward(context.get());
    RETURN_IF_ERROR(parts.model->CopyLogits(&logits));
    RETURN_IF_ERROR(CheckFinite(logits, scores.size()));
    scores.insert(scores.end(), logits.begin(), logits.end());
    labels.insert(labels.end(), context->batch->labels.begin(), context->batch->labels.end());
    on_scored(static_cast<int64_t>(scores.size()));
    context = std::move(next);
  }
  EvaluationResult result;
  result.samples = static_cast<int64_t>(scores.size());
  result.auc = Auc(scores, labels);
  result.logloss = LogLoss(scores, labels);
  return result;
}

}  // namespace

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
