// Scores the held-out rows with the model as the servers hold it.
#ifndef THERMOCLINE_WORKER_TRAIN_EVALUATION_H_
#define THERMOCLINE_WORKER_TRAIN_EVALUATION_H_

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/math/metrics.h"
#include "worker/dense/dense_parameters.h"
#include "worker/rows/row_source.h"
#include "worker/rows/step_pipeline.h"
#include "worker/session/ps_session.h"
#include "worker/train/model_step.h"

namespace thermocline {

struct EvaluationResult : PredictionMetrics {
  std::optional<double> own_metric;  // A script computes it.
};

// "auc", "logloss", ... as metrics.jsonl and the result of the worker have them.
void AddMetrics(const EvaluationResult& result, nlohmann::json* json);

// What an evaluation is made with.
struct EvaluationParts {
  StepPipeline* held_out = nullptr;
  RowSource* source = nullptr;
  DenseParameters* dense = nullptr;  // null: the model's own are those to score with
  ModelStep* model = nullptr;
  PsSession* session = nullptr;  // the source's
  int64_t max_samples = 0;       // The first so many are scored; 0: all.
};

// Reads rows, and the dense parameters, once every worker's pushes up to `step` - 1 are in them,
// and scores the held-out samples: 0 where there are none. Calls `on_scored` with the
// samples scored so far, batch by batch. An error fails the session. Memory: 24 bytes for each
// sample; with weights or groups up to 80.
absl::StatusOr<EvaluationResult> ScoreHeldOut(
    const EvaluationParts& parts, Step step, const std::function<void(int64_t samples)>& on_scored);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_EVALUATION_H_
