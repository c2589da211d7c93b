// Scores the held-out rows with the model as the servers hold it.
#ifndef THERMOCLINE_WORKER_TRAIN_EVALUATION_H_
#define THERMOCLINE_WORKER_TRAIN_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/metrics.h"
#include "common/model/model_spec.h"
#include "proto/job.pb.h"
#include "worker/data/batch.h"
#include "worker/dense/dense_parameters.h"
#include "worker/rows/row_source.h"
#include "worker/rows/step_pipeline.h"
#include "worker/session/ps_session.h"
#include "worker/train/model_step.h"

namespace thermocline {

struct TaskMetrics : PredictionMetrics {  // samples: those that have its label
  std::string label;
};

// The metrics are those of the task that decides.
struct EvaluationResult : PredictionMetrics {
  std::optional<double> own_metric;  // A script computes it.
  // What training makes less of: the sum of the tasks' losses times their weights. Not a number
  // where no sample has a label.
  double loss = 0;
  std::string task;                // The one that decides; "": there is one.
  std::vector<TaskMetrics> tasks;  // Where there are several: each task's.
};

// "auc", "logloss", ... as metrics.jsonl and the result of the worker have them.
void AddMetrics(const EvaluationResult& result, nlohmann::json* json);

// Errors: kFailedPrecondition (no row that was scored for `purpose` has a label, and so no loss).
absl::Status CheckLoss(const Job& job, const EvaluationResult& scored, const char* purpose);

// The scored samples of a job's tasks, from which the metrics are computed. Memory: 8 bytes for
// each sample and task, with weights or groups up to 20.
class TaskSamples {
 public:
  // count_alike: neither weights nor groups are taken.
  explicit TaskSamples(const Job& job, bool count_alike = false);

  // Adds the batch's samples, but for what goes beyond `most` in all (0: no limit). Samples whose
  // label is missing don't count for its task. logits: [tasks, batch.size]
  void Add(const Batch& batch, absl::Span<const float> logits, int64_t most = 0);

  int64_t rows() const { return rows_; }
  int64_t num_labels() const;  // of all tasks
  // The labels of the tasks that no sample has, where there are samples.
  std::vector<std::string> WithoutLabels() const;
  EvaluationResult Compute() const;

 private:
  void AddTask(const Batch& batch, absl::Span<const float> logits, size_t task, int64_t samples);

  std::vector<TaskSpec> tasks_;
  size_t deciding_;
  bool count_alike_;
  bool labels_may_be_missing_;
  std::vector<ScoredSamples> scored_;  // [tasks]
  int64_t rows_ = 0;
};

// What an evaluation is made with.
struct EvaluationParts {
  StepPipeline* held_out = nullptr;
  RowSource* source = nullptr;
  DenseParameters* dense = nullptr;  // null: the model's own are those to score with
  ModelStep* model = nullptr;
  PsSession* session = nullptr;  // the source's
  const Job* job = nullptr;
  int64_t max_samples = 0;  // The first so many are scored; 0: all.
  std::function<void(const std::string& text)> warn;
};

// Reads rows, and the dense parameters, once every worker's pushes up to `step` - 1 are in them,
// and scores the held-out samples: 0 where there are none. Calls `on_scored` with the
// samples scored so far, batch by batch. Warns of a task whose label no sample has: its metrics are
// not numbers. An error fails the session. Memory: beside TaskSamples, 16 bytes for each sample;
// with weights or groups up to 60.
absl::StatusOr<EvaluationResult> ScoreHeldOut(
    const EvaluationParts& parts, Step step, const std::function<void(int64_t samples)>& on_scored);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_EVALUATION_H_
