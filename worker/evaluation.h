// Scores the held-out rows with the model as the servers hold it.
#ifndef THERMOCLINE_WORKER_EVALUATION_H_
#define THERMOCLINE_WORKER_EVALUATION_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "worker/model_step.h"
#include "worker/sparse/embedding_source.h"
#include "worker/sparse/step_pipeline.h"

namespace thermocline {

struct EvaluationResult {
  int64_t samples = 0;
  double auc = 0;
  double logloss = 0;  // mean
};

// Reads rows once every worker's pushes up to `step` - 1 are in them, and scores all of `pipeline`.
// `with_dense`: the dense parameters are the servers' too, else the model's own. 0 samples where
// nothing is held out.
absl::StatusOr<EvaluationResult> Evaluate(StepPipeline* pipeline, EmbeddingSource* source,
                                          ModelStep* model, Step step, bool with_dense);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EVALUATION_H_
