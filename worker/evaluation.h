// Scores the held-out rows with the model as the servers hold it, and what follows from that while
// the job trains.
#ifndef THERMOCLINE_WORKER_EVALUATION_H_
#define THERMOCLINE_WORKER_EVALUATION_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/ids.h"
#include "worker/model_step.h"
#include "worker/sparse/embedding_source.h"
#include "worker/sparse/step_pipeline.h"

namespace thermocline {

struct EvaluationResult {
  int64_t samples = 0;
  double auc = 0;      // NaN: the rows have one class only
  double logloss = 0;  // mean
};

// Reads rows once every worker's pushes up to `step` - 1 are in them, and scores all of `pipeline`.
// `with_dense`: the dense parameters are the servers' too, else the model's own. 0 samples where
// nothing is held out. `on_scored` is told the samples scored so far, batch by batch.
absl::StatusOr<EvaluationResult> ScoreHeldOut(
    StepPipeline* pipeline, EmbeddingSource* source, ModelStep* model, Step step, bool with_dense,
    const std::function<void(int64_t samples)>& on_scored);

// Which evaluation an evaluation is.
struct EvaluationPlace {
  Step step = kNoStep;        // Its model is the one after this step.
  uint32_t pass = 0;          // That the step was of, from 1.
  float learning_rate = 0;    // Of the step.
  bool is_scheduled = false;  // By Job.evaluate, not only because training ends.
};

// What the launcher decides upon evaluations, on its way to the training thread.
//
// Thread-safe.
class EvaluationDecisions {
 public:
  // What follows from the evaluation of `step`; later ones count for earlier ones, too.
  void Take(Step step, bool stop);
  // Waits for that. False: training ends.
  bool AwaitGoingOn(Step step);

 private:
  absl::Mutex mutex_;
  Step decided_ ABSL_GUARDED_BY(mutex_) = kNoStep;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EVALUATION_H_
