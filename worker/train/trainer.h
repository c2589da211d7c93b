// One worker's training run: takes steps from the pipeline, and drives each through its parts
// (step_order.h) and the model's (Trainer::TrainStep). It waits in one place (Trainer::Finish).
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
// The order of the data may have breaks (BatchOrder), from one to the next of which one pipeline
// goes. The last step before a break writes back, so that the servers have the whole model there.
//
// Where there are several workers, some wait for what others send or push. So in the midst of a
// step a worker of several takes from the pipeline only what is ready.
#ifndef THERMOCLINE_WORKER_TRAIN_TRAINER_H_
#define THERMOCLINE_WORKER_TRAIN_TRAINER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "proto/job.pb.h"
#include "worker/data/batch_order.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/step_order.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/row_source.h"
#include "worker/rows/step_pipeline.h"
#include "worker/session/ps_session.h"
#include "worker/train/evaluation.h"
#include "worker/train/label_watch.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/model_step.h"
#include "worker/train/trainer_report.h"

namespace thermocline {

class Trainer {
 public:
  struct Parts {
    const BatchOrder* order = nullptr;
    StepPipeline* pipeline = nullptr;  // Plans the steps up to the order's next break.
    // Called behind each break: plans those up to the one after it. Nothing uses the pipeline of
    // before any more.
    std::function<absl::StatusOr<StepPipeline*>()> open_pipeline;
    RowSource* source = nullptr;
    DenseParameters* dense = nullptr;
    ModelStep* model = nullptr;
    PsSession* session = nullptr;                   // the source's and the dense parameters'
    Exchange* exchange = nullptr;                   // the same; null: there is none
    NamedCheckpoints* named_checkpoints = nullptr;  // null: none is named
    LabelWatch* labels = nullptr;                   // null: labels are never missing
    // Null: the job doesn't evaluate while it trains, and its order has no break before the end.
    // Else it is called where an evaluation is due, and at breaks; behind these it has moved the
    // order on. The servers have, or get, the whole model after the step; nothing of later ones is
    // under way. False: it was the last step.
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

  // The whole job's; new_samples() are this run's.
  int64_t steps() const { return report_.steps; }
  uint64_t samples() const { return report_.samples; }
  uint32_t pass() const { return report_.pass; }                 // of the last step, from 1
  float learning_rate() const { return report_.learning_rate; }  // of the last step
  uint64_t new_samples() const { return new_samples_; }
  uint64_t skipped_steps() const { return report_.skipped_steps; }  // of this run
  const TrainerStages& stages() const { return stages_; }
  const StalenessMeter& staleness() const { return staleness_; }  // of the rows it computed with

 private:
  absl::Status TrainSteps();
  absl::Status TrainToStop();
  absl::Status TrainStep(const std::shared_ptr<StepContext>& context);
  void PlanNext();
  void FetchAhead(size_t queued_beyond, bool owes);
  absl::Status Compute(StepContext* context);
  bool WritesBack(Step step, bool stops);
  absl::Status PushEmbeddings(const std::shared_ptr<StepContext>& context, size_t queued_beyond);
  absl::Status ComputeDense(StepContext* context);
  absl::Status FinishPush(StepContext* context);
  absl::Status Finish(StepTasks* tasks) { return RunAll(tasks, parts_.exchange); }
  absl::Status FinishPipelined(size_t queued_beyond);
  absl::Status CountStep(StepContext* context);
  void AddLosses(const StepContext& context);
  bool ReportsAfter(int64_t steps, bool last) const;
  absl::Status Report(const StepContext& context);
  absl::Status EndAtOnce();
  bool EvaluationIsDueBefore(const StepContext& next) const;
  bool StopsAfter(const StepContext& context) const;
  bool IsLast(const StepContext& context) const;
  absl::StatusOr<bool> StopHere();
  absl::StatusOr<bool> EvaluateHere();
  bool IsScheduledHere() const;

  const Job job_;
  const Parts parts_;
  const OnReport on_report_;
  StepOrder order_;
  const bool pipelines_steps_;
  const bool is_alone_;  // The only worker.

  std::deque<std::shared_ptr<StepContext>> fetched_;  // their fetches have begun, in order
  // Planned, to be fetched next; null: not taken from the pipeline yet, or there is none.
  std::shared_ptr<StepContext> next_;
  StepPipeline* pipeline_;
  BatchOrder::Break break_;  // Where the pipeline ends.
  bool has_ended_ = false;   // The pipeline has no more steps.
  absl::Status end_;         // Why: the pipeline's error; OK: the break is reached.
  // Queued on the device; its results are not looked at yet. Null: there is none.
  std::shared_ptr<StepContext> pipelined_;
  TrainerStages stages_;
  StalenessMeter staleness_;
  TrainerReport report_;
  Step evaluated_ = kNoStep;  // The last step whose evaluation is over.
  // The time since the end of the last step; empty: none has ended since training began or went on.
  std::optional<Stopwatch> step_watch_;
  uint64_t new_samples_ = 0;

  // A task's losses in the window.
  struct WindowLoss {
    double sum = 0;
    double weights = 0;  // The sum of the weights of its labels.
  };
  const std::vector<TaskSpec> tasks_;
  std::vector<WindowLoss> window_losses_;  // [tasks]
  uint64_t window_loss_samples_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_TRAINER_H_
