#include "worker/train/evaluation.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"

namespace thermocline {
namespace {

// logits: [tasks, size]
absl::Status CheckFinite(const std::vector<float>& logits, size_t size, int64_t samples_before) {
  const size_t bad = FindNonFinite(logits);
  if (bad == logits.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "evaluation: the model gives ", logits[bad], " for held-out sample ",
      samples_before + static_cast<int64_t>(bad % size),
      " (counted from 0): it has diverged, or the sample's ", "dense features are too large"));
}

void Fetch(const EvaluationParts& parts, Step step, const std::shared_ptr<StepContext>& context) {
  parts.source->AddReads(step, context.get());
  context->pulls.Start(parts.session, step - 1, context);
}

absl::StatusOr<EvaluationResult> Score(const EvaluationParts& parts, Step step,
                                       const std::function<void(int64_t samples)>& on_scored) {
  TaskSamples scored(*parts.job);
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
        parts.max_samples > 0 && scored.rows() + context->batch->size >= parts.max_samples;
    if (!are_enough) {
      ASSIGN_OR_RETURN(next, parts.held_out->Next());
    }
    if (next != nullptr) Fetch(parts, step, next);
    parts.source->Receive(context.get(), &tasks);
    RETURN_IF_ERROR(RunAll(&tasks, /*exchange=*/nullptr));
    RETURN_IF_ERROR(parts.model->Score(context.get(), &logits));
    RETURN_IF_ERROR(CheckFinite(logits, context->batch->size, scored.rows()));
    scored.Add(*context->batch, logits, parts.max_samples);
    on_scored(scored.rows());
    context = std::move(next);
  }
  // Where those are enough, the pipeline hasn't come to its end yet.
  ASSIGN_OR_RETURN(context, parts.held_out->Next());
  if (context != nullptr) return absl::InternalError("there are more batches than are scored");
  for (const std::string& label : scored.WithoutLabels()) {
    parts.warn(
        absl::StrCat("no held-out row has the label '", label, "', so its metrics are unknown"));
  }
  return scored.Compute();
}

void AddMetricsOfOne(const PredictionMetrics& metrics, nlohmann::json* json) {
  (*json)["auc"] = metrics.auc;
  if (metrics.gauc.has_value()) (*json)["gauc"] = *metrics.gauc;
  (*json)["logloss"] = metrics.logloss;
  (*json)["normalized_entropy"] = metrics.normalized_entropy;
  (*json)["calibration"] = metrics.calibration;
}

PredictionMetrics NoMetrics() {
  PredictionMetrics none;
  none.auc = none.logloss = NAN;
  return none;
}

double SumOfWeights(const ScoredSamples& samples) {
  if (samples.weights.empty()) return static_cast<double>(samples.logits.size());
  return std::accumulate(samples.weights.begin(), samples.weights.end(), 0.0);
}

}  // namespace

void AddMetrics(const EvaluationResult& result, nlohmann::json* json) {
  AddMetricsOfOne(result, json);
  if (result.own_metric.has_value()) (*json)["own_metric"] = *result.own_metric;
  if (result.tasks.empty()) return;
  (*json)["loss"] = result.loss;
  (*json)["task"] = result.task;
  for (const TaskMetrics& task : result.tasks) {
    nlohmann::json of_task = {{"label", task.label}, {"samples", task.samples}};
    AddMetricsOfOne(task, &of_task);
    (*json)["tasks"].push_back(std::move(of_task));
  }
}

absl::Status CheckLoss(const Job& job, const EvaluationResult& scored, const char* purpose) {
  if (!job.data().label().may_be_missing() || !std::isnan(scored.loss)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the job has ", purpose, ", and none of the ", scored.samples,
      " held-out rows that it scores has the label '", absl::StrJoin(LearnedLabels(job), "' or '"),
      "', so that there is no loss to follow; hold out other rows, or score more"));
}

TaskSamples::TaskSamples(const Job& job, bool count_alike)
    : tasks_(DescribeModel(job).tasks),
      deciding_(DecidingTask(job)),
      count_alike_(count_alike),
      labels_may_be_missing_(job.data().label().may_be_missing()) {
  if (tasks_.empty()) tasks_.push_back({LearnedLabels(job)[0], 1});  // A script's.
  scored_.resize(tasks_.size());
}

void TaskSamples::Add(const Batch& batch, absl::Span<const float> logits, int64_t most) {
  int64_t samples = batch.size;
  if (most > 0) samples = std::min(samples, most - rows_);
  for (size_t t = 0; t < tasks_.size(); ++t) {
    AddTask(batch, logits.subspan(t * batch.size, batch.size), t, samples);
  }
  rows_ += samples;
}

void TaskSamples::AddTask(const Batch& batch, absl::Span<const float> logits, size_t task,
                          int64_t samples) {
  ScoredSamples& scored = scored_[task];
  for (int64_t b = 0; b < samples; ++b) {
    const size_t at = b * tasks_.size() + task;
    // Where no labels are needed, one that is missing is not a number; else its weight is 0.
    const bool is_missing =
        std::isnan(batch.labels[at]) || (labels_may_be_missing_ && batch.weights[at] == 0);
    if (is_missing) continue;
    scored.logits.push_back(logits[b]);
    scored.labels.push_back(batch.labels[at]);
    if (count_alike_) continue;
    if (!batch.weights.empty()) scored.weights.push_back(batch.weights[at]);
    if (!batch.groups.empty()) scored.groups.push_back(batch.groups[b]);
  }
}

int64_t TaskSamples::num_labels() const {
  int64_t labels = 0;
  for (const ScoredSamples& scored : scored_) labels += static_cast<int64_t>(scored.labels.size());
  return labels;
}

std::vector<std::string> TaskSamples::WithoutLabels() const {
  std::vector<std::string> labels;
  for (size_t t = 0; t < tasks_.size() && rows_ > 0; ++t) {
    if (scored_[t].logits.empty()) labels.push_back(tasks_[t].label);
  }
  return labels;
}

EvaluationResult TaskSamples::Compute() const {
  EvaluationResult result;
  if (rows_ == 0) return result;
  double loss = num_labels() > 0 ? 0 : NAN;
  for (size_t t = 0; t < tasks_.size(); ++t) {
    const ScoredSamples& scored = scored_[t];
    TaskMetrics metrics;
    static_cast<PredictionMetrics&>(metrics) =
        scored.logits.empty() ? NoMetrics() : ComputeMetrics(scored);
    metrics.label = tasks_[t].label;
    const double share = SumOfWeights(scored) / static_cast<double>(rows_);
    if (share > 0) loss += tasks_[t].weight * share * metrics.logloss;
    result.tasks.push_back(std::move(metrics));
  }
  static_cast<PredictionMetrics&>(result) = result.tasks[deciding_];
  result.loss = loss;
  if (tasks_.size() > 1) {
    result.task = tasks_[deciding_].label;
  } else {
    result.loss = result.logloss;
    result.tasks.clear();
  }
  result.samples = rows_;
  return result;
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
