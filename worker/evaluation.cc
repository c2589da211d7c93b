#include "worker/evaluation.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/auc.h"
#include "common/finite.h"
#include "common/status_macros.h"

namespace thermocline {
namespace {

absl::Status CheckFinite(const std::vector<float>& logits, size_t samples_before) {
  const size_t bad = FindNonFinite(logits);
  if (bad == logits.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "evaluation: the model gives ", logits[bad], " for held-out sample ", samples_before + bad,
      " (counted from 0): it has diverged, or the sample's ", "dense features are too large"));
}

absl::StatusOr<EvaluationResult> Score(StepPipeline* pipeline, EmbeddingSource* source,
                                       ModelStep* model, Step step, bool with_dense,
                                       const std::function<void(int64_t samples)>& on_scored) {
  std::vector<float> scores, labels, logits;
  ASSIGN_OR_RETURN(std::shared_ptr<StepWork> work, pipeline->Next());
  if (work == nullptr) return EvaluationResult{};
  source->FetchForEvaluation(work, step, with_dense);
  while (work != nullptr) {
    // The next batch's rows travel while this one is scored.
    ASSIGN_OR_RETURN(std::shared_ptr<StepWork> next, pipeline->Next());
    if (next != nullptr) source->FetchForEvaluation(next, step, /*with_dense=*/false);
    RETURN_IF_ERROR(source->Await(work.get(), model->arenas()));
    if (with_dense) model->WriteDense();
    model->Forward(work.get());
    RETURN_IF_ERROR(model->CopyLogits(&logits));
    RETURN_IF_ERROR(CheckFinite(logits, scores.size()));
    scores.insert(scores.end(), logits.begin(), logits.end());
    labels.insert(labels.end(), work->batch->labels.begin(), work->batch->labels.end());
    on_scored(static_cast<int64_t>(scores.size()));
    work = std::move(next);
  }
  EvaluationResult result;
  result.samples = static_cast<int64_t>(scores.size());
  result.auc = Auc(scores, labels);
  result.logloss = LogLoss(scores, labels);
  return result;
}

}  // namespace

absl::StatusOr<EvaluationResult> ScoreHeldOut(
    StepPipeline* pipeline, EmbeddingSource* source, ModelStep* model, Step step, bool with_dense,
    const std::function<void(int64_t samples)>& on_scored) {
  absl::StatusOr<EvaluationResult> result =
      Score(pipeline, source, model, step, with_dense, on_scored);
  if (!result.ok()) source->Cancel(result.status());
  const absl::Status drained = source->Drain();
  if (result.ok() && !drained.ok()) return drained;
  return result;
}

void EvaluationDecisions::Take(Step step, bool stop) {
  absl::MutexLock lock(&mutex_);
  if (step < decided_) return;  // A retry that came late.
  decided_ = step;
  stop_ = stop;
}

bool EvaluationDecisions::AwaitGoingOn(Step step) {
  absl::MutexLock lock(&mutex_);
  const auto is_decided = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return decided_ >= step; };
  mutex_.Await(absl::Condition(&is_decided));
  return decided_ > step || !stop_;
}

}  // namespace thermocline
