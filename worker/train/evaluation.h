// Scores the held-out rows with the model as the servers hold it, and what follows from that while
// the job trains.
#ifndef THERMOCLINE_WORKER_TRAIN_EVALUATION_H_
#define THERMOCLINE_WORKER_TRAIN_EVALUATION_H_

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "worker/session/ps_session.h"
#include "worker/source/dense_parameters.h"
#include "worker/source/embedding_source.h"
#include "worker/source/step_pipeline.h"
#include "worker/train/model_step.h"

namespace thermocline {

struct EvaluationResult {
  int64_t samples = 0;
  double auc = 0;      // NaN: the rows have one class only
  double logloss = 0;  // mean
};

// What an evaluation is made with.
struct EvaluationParts {
  StepPipeline* held_out = nullptr;
  EmbeddingSource* source = nullptr;
  DenseParameters* dense = nullptr;  // null: the model's own are those to score with
  ModelStep* model = nullptr;
  PsSession* session = nullptr;  // the source's
};

// Reads rows, and the dense parameters, once every worker's pushes up to `step` - 1 are in them,
// and scores all of the held-out samples: 0 where there are none. Calls `on_scored` with the
// samples scored so far, batch by batch. An error fails the session.
absl::StatusOr<EvaluationResult> ScoreHeldOut(
    const EvaluationParts& parts, Step step, const std::function<void(int64_t samples)>& on_scored);

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

#endif  // THERMOCLINE_WORKER_TRAIN_EVALUATION_H_
