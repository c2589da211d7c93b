// One worker's training run: the only place that orders the parts of a step (Trainer::TrainStep).
//
//   fetch       the rows that the step reads; begun up to fetch_ahead() steps before
//   compute     forward, backward to the embeddings; update of the rows held here
//   push        the embeddings' gradients: now the servers can answer the next step's fetch
//   compute     the dense gradients, while those rows travel; update of the dense parameters
//   push        what the dense parameters send; the push is whole
//   checkpoint  a step with a checkpoint writes back: its push has all that the worker alone holds
//
// Steps are pipelined on a device of its own, which is so kept busy: where the next step doesn't
// need what this one pushes, it is queued on the device before this one's results are looked at and
// pushed.
//
// Where there are several workers, some wait for what others send or push. So in the midst of a
// step a worker of several takes from the pipeline only what is ready.
#ifndef THERMOCLINE_WORKER_TRAIN_TRAINER_H_
#define THERMOCLINE_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/timing.h"
#include "proto/job.pb.h"
#include "worker/session/ps_session.h"
#include "worker/source/dense_parameters.h"
#include "worker/source/embedding_source.h"
#include "worker/source/step_pipeline.h"
#include "worker/train/evaluation.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/model_step.h"

namespace thermocline {

// Where a step's time goes, on the training thread.
struct TrainerStages {
  StageTimer wait_data;            // for a planned batch
  StageTimer wait_rows;            // for the rows to arrive
  StageTimer forward;              // pooling, MLPs, interaction
  StageTimer backward_embeddings;  // loss, top MLP, interaction, segment sums
  StageTimer update_rows;          // those held here; on a device of its own: queueing it
  StageTimer wait_device;          // for what was queued on a device of its own
  StageTimer push_embeddings;      // handing their gradients to the source
  StageTimer backward_dense;       // bottom MLP and all weight gradients
  StageTimer apply_dense;          // where the dense parameters live here
  StageTimer push_dense;           // else; where they are exchanged, with the update of the slice
  StageTimer report;
};

// What is done so far; the window is since the report before.
struct TrainerReport {
  // Of the whole job, those before this run included.
  int64_t steps = 0;
  uint32_t pass = 0;            // that the last of them was of, from 1
  float learning_rate = 0;      // of the last of them
  uint64_t samples = 0;         // this worker's
  uint64_t global_samples = 0;  // all workers' in these steps, malformed lines included
  double progress = 0;          // share of the data, in [0, 1]
  double window_loss = 0;       // mean per sample of this worker
  uint64_t window_samples = 0;
  uint64_t window_global_samples = 0;
  double batch_auc = 0;  // of this worker's last batch; NaN: it has one class only
};

class Trainer {
 public:
  struct Parts {
    StepPipeline* pipeline = nullptr;
    EmbeddingSource* source = nullptr;
    DenseParameters* dense = nullptr;
    ModelStep* model = nullptr;
    PsSession* session = nullptr;                   // the source's and the dense parameters'
    NamedCheckpoints* named_checkpoints = nullptr;  // null: none is named
    // Where the job evaluates while it trains. The servers have, or get, the whole model after the
    // step; nothing of later ones is under way. False: it was the last step.
    std::function<absl::StatusOr<bool>(const EvaluationPlace& place)> evaluate;
  };
  using OnReport = std::function<void(const TrainerReport&)>;

  // The parts outlive the trainer. `on_report` runs on the training thread every
  // job.train.metrics_every_steps steps and after the last.
  Trainer(const Job& job, const Parts& parts, OnReport on_report);

  // Trains from the pipeline's first step to the end of the data, or until an evaluation ends it,
  // and waits until every push is acknowledged. A run that begins where an evaluation is due begins
  // with it: the run before may not have come to it. REQUIRES: where the dense parameters are
  // updated here, they are those as of that step. Errors: the reader's, the session's;
  // kInvalidArgument (the loss or a gradient is not finite: names the step); kFailedPrecondition
  // (there is no row to train on).
  absl::Status Run();

  // Of the whole job; `new_samples`: of this run.
  int64_t steps() const { return report_.steps; }
  uint64_t samples() const { return report_.samples; }
  uint32_t pass() const { return report_.pass; }  // of the last step, from 1
  uint64_t new_samples() const { return new_samples_; }
  const TrainerStages& stages() const { return stages_; }
  const StalenessMeter& staleness() const { return staleness_; }  // of the rows it computed with

 private:
  absl::Status TrainSteps();
  absl::Status TrainToStop();
  absl::Status TrainStep(const std::shared_ptr<StepContext>& context);
  void PlanNext();
  void FetchAhead(size_t queued_beyond, bool owes);
  absl::Status Compute(StepContext* context);
  bool WritesBack(Step step, bool last);
  absl::Status PushEmbeddings(const std::shared_ptr<StepContext>& context, size_t queued_beyond);
  absl::Status ComputeDense(StepContext* context);
  absl::Status FinishPush(StepContext* context);
  absl::Status FinishPipelined(size_t queued_beyond);
  absl::Status CountStep(StepContext* context);
  bool ReportsAfter(int64_t steps, bool last) const;
  absl::Status Report(const StepContext& context);
  absl::Status EndAtOnce();
  bool EvaluationIsDueBefore(const StepContext& next) const;
  bool StopsAfter(const StepContext& context) const;
  absl::StatusOr<bool> EvaluateHere();

  const Job job_;
  const Parts parts_;
  const OnReport on_report_;
  const bool pipelines_steps_;
  const bool is_alone_;  // The only worker.

  std::deque<std::shared_ptr<StepContext>> fetched_;  // their fetches have begun, in order
  // Planned, to be fetched next; null: not taken from the pipeline yet, or there is none.
  std::shared_ptr<StepContext> next_;
  bool has_ended_ = false;  // The pipeline has no more steps.
  absl::Status end_;        // Why: its error; OK: the data end.
  // Queued on the device; its results are not looked at yet. Null: there is none.
  std::shared_ptr<StepContext> pipelined_;
  TrainerStages stages_;
  StalenessMeter staleness_;
  TrainerReport report_;
  Step evaluated_ = kNoStep;  // The last step whose evaluation is over.
  uint64_t new_samples_ = 0;
  double window_loss_sum_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_TRAINER_H_
