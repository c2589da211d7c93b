#include "worker/train/trainer.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "common/base/trace.h"
#include "common/checkpoint/periodic_checkpoint.h"
#include "common/job/job_data.h"
#include "common/job/resolved_job.h"
#include "common/math/metrics.h"
#include "common/math/table_spec.h"
#include "kernels/trace_range.h"

namespace thermocline {

namespace {

// Other ranks acknowledge blocks within milliseconds, but one that has ended does so no more.
constexpr absl::Duration kFlushPatience = absl::Seconds(2);

// The pass that the step before `next` is of, counted from 1; null: there is no next step, and
// it was of pass `last`.
uint32_t PassBefore(const StepContext* next, uint32_t last) {
  if (next == nullptr) return last;
  return next->batch->pass + (next->batch->begins_pass ? 0 : 1);
}

// A script has one that it learns as it likes.
std::vector<TaskSpec> TasksOf(const Job& job) {
  std::vector<TaskSpec> tasks = DescribeModel(job).tasks;
  if (tasks.empty()) tasks.emplace_back();
  return tasks;
}

// The AUC of each task. logits: [tasks, batch.size], or none
std::vector<double> AucsOf(const std::vector<float>& logits, const Batch& batch) {
  std::vector<double> aucs(batch.num_tasks, std::nan(""));
  if (logits.empty()) return aucs;
  const auto of_task = [&](const UninitializedVector<float>& by_sample, int t) {
    std::vector<float> values;
    for (size_t i = t; i < by_sample.size(); i += batch.num_tasks) values.push_back(by_sample[i]);
    return values;
  };
  for (int t = 0; t < batch.num_tasks; ++t) {
    aucs[t] = Auc(absl::MakeConstSpan(logits).subspan(t * batch.size, batch.size),
                  of_task(batch.labels, t), of_task(batch.weights, t));
  }
  return aucs;
}

}  // namespace

Trainer::Trainer(const Job& job, const Parts& parts, OnReport on_report)
    : job_(job),
      parts_(parts),
      on_report_(std::move(on_report)),
      order_(parts.source, parts.dense, parts.session, parts.exchange),
      pipelines_steps_(parts.model->is_asynchronous() &&
                       parts.dense->home() == DenseParameters::Home::kHere &&
                       parts.source->fetch_ahead() > 0),
      is_alone_(job_.cluster().workers() == 1),
      pipeline_(parts.pipeline),
      break_(parts.order->next_break()),
      tasks_(TasksOf(job)),
      window_losses_(tasks_.size()) {}

absl::Status Trainer::Run() {
  absl::Status status = TrainSteps();
  if (!status.ok()) {
    // Where some rank's data can't be read, all ranks train the steps before.
    if (!end_.ok() && parts_.exchange != nullptr) parts_.exchange->Flush(kFlushPatience);
    parts_.session->Fail(status);
  }
  status.Update(parts_.session->Drain());
  fetched_.clear();
  next_ = nullptr;
  pipelined_ = nullptr;
  return status;
}

absl::Status Trainer::TrainSteps() {
  PlanNext();
  RETURN_IF_ERROR(end_);
  const BatchReader::Skipped skipped = pipeline_->skipped();
  report_.steps = skipped.steps;
  report_.samples = skipped.samples;
  report_.global_samples = skipped.global_samples;
  report_.pass = PassBefore(next_.get(), break_.pass);
  if (report_.steps > 0) {
    report_.learning_rate = LearningRateAt(job_.train().learning_rate(), Step(report_.steps - 1));
  }
  if (next_ == nullptr && break_.ends_training) RETURN_IF_ERROR(EndAtOnce());
  bool goes_on = true;
  if (next_ == nullptr || EvaluationIsDueBefore(*next_)) {
    ASSIGN_OR_RETURN(goes_on, StopHere());
  }
  while (goes_on && next_ != nullptr) {
    RETURN_IF_ERROR(TrainToStop());
    PlanNext();
    RETURN_IF_ERROR(end_);
    ASSIGN_OR_RETURN(goes_on, StopHere());
  }
  return absl::OkStatus();
}

// Trains up to the next break, or to the evaluation that comes before the next step. Every step
// before one that can't be had is trained.
absl::Status Trainer::TrainToStop() {
  while (true) {
    FetchAhead(/*queued_beyond=*/pipelined_ == nullptr ? 0 : 1, /*owes=*/false);
    if (fetched_.empty()) {
      RETURN_IF_ERROR(FinishPipelined(/*queued_beyond=*/0));
      return end_;
    }
    const std::shared_ptr<StepContext> context = std::move(fetched_.front());
    fetched_.pop_front();
    RETURN_IF_ERROR(TrainStep(context));
    if (!StopsAfter(*context)) continue;
    StepTasks tasks;
    parts_.dense->Settle(&tasks);
    return Finish(&tasks);
  }
}

// The life of a step, from its rows to its push.
absl::Status Trainer::TrainStep(const std::shared_ptr<StepContext>& context) {
  context->learning_rate = LearningRateAt(job_.train().learning_rate(), context->step());
  context->steps_before = static_cast<int64_t>(job_.init().steps());
  if (pipelined_ != nullptr && context->row_plan.awaits_push_of >= pipelined_->step()) {
    RETURN_IF_ERROR(FinishPipelined(/*queued_beyond=*/1));
  }
  RETURN_IF_ERROR(Compute(context.get()));
  const bool last = IsLast(*context);
  context->writes_back = WritesBack(context->step(), StopsAfter(*context));
  if (pipelines_steps_) {
    RETURN_IF_ERROR(ComputeDense(context.get()));
    RETURN_IF_ERROR(FinishPipelined(/*queued_beyond=*/1));
    pipelined_ = context;
    // A write-back and a report need the model of this very step.
    if (!context->writes_back && !ReportsAfter(report_.steps + 1, last)) return absl::OkStatus();
    RETURN_IF_ERROR(FinishPipelined(/*queued_beyond=*/0));
  } else {
    RETURN_IF_ERROR(PushEmbeddings(context, /*queued_beyond=*/0));
    RETURN_IF_ERROR(ComputeDense(context.get()));
    RETURN_IF_ERROR(FinishPush(context.get()));
  }
  if (IsTracing()) EndTraceOf(parts_.session->acked_through());
  return ReportsAfter(report_.steps, last) ? Report(*context) : absl::OkStatus();
}

// Takes the next planned step, if there is one; waits for it.
void Trainer::PlanNext() {
  if (next_ != nullptr || has_ended_) return;
  if (!pipeline_->NextIsReady()) end_ = order_.CheckOwesNothing();
  has_ended_ = !end_.ok();
  if (has_ended_) return;
  StageRange stage("wait for data", &stages_.wait_data);
  absl::StatusOr<std::shared_ptr<StepContext>> next = pipeline_->Next();
  end_ = next.status();
  if (next.ok()) next_ = *std::move(next);
  if (next_ != nullptr) stage.set_step(next_->step());
  has_ended_ = next_ == nullptr;
}

// Begins fetches until as many steps as the source allows are on their way. queued_beyond: fetched
// steps after the one pushed last that have left fetched_. owes: other workers may wait for
// something of the step under way.
void Trainer::FetchAhead(size_t queued_beyond, bool owes) {
  while (fetched_.size() + queued_beyond <= static_cast<size_t>(parts_.source->fetch_ahead())) {
    const bool waits = is_alone_ || (!owes && fetched_.empty());
    if (waits || pipeline_->NextIsReady()) PlanNext();
    if (next_ == nullptr || EvaluationIsDueBefore(*next_)) return;
    const TraceRange range("fetch", next_->step());
    order_.Fetch(next_);
    fetched_.push_back(std::move(next_));
  }
}

// Everything up to the gradients of the embeddings, and the update of the rows held here.
absl::Status Trainer::Compute(StepContext* context) {
  {
    const StageRange stage("wait for rows", &stages_.wait_rows, context->step());
    StepTasks tasks;
    order_.Receive(context, &tasks);
    RETURN_IF_ERROR(Finish(&tasks));
  }
  staleness_.Record(context->step(), context->complete_through);
  {
    const StageRange stage("forward", &stages_.forward, context->step());
    RETURN_IF_ERROR(parts_.model->Forward(context));
  }
  {
    const StageRange stage("backward to embeddings", &stages_.backward_embeddings, context->step());
    RETURN_IF_ERROR(parts_.model->BackwardToRows(context));
  }
  const StageRange stage("update rows", &stages_.update_rows, context->step());
  parts_.source->Update(context);
  parts_.model->RecordFinished(context);
  return absl::OkStatus();
}

// After a step at which training stops, and after one with a checkpoint, the servers have the whole
// model.
bool Trainer::WritesBack(Step step, bool stops) {
  const bool named =
      parts_.named_checkpoints != nullptr && parts_.named_checkpoints->BeginPush(step);
  return stops || named || IsPeriodicCheckpoint(step, job_.checkpoint().every_steps());
}

// Pushes the gradients of the embeddings first, so that the servers apply them and answer the next
// fetch while the rest is computed here. A loss that is not finite ends the job before any push.
absl::Status Trainer::PushEmbeddings(const std::shared_ptr<StepContext>& context,
                                     size_t queued_beyond) {
  {
    const StageRange stage("wait for device", &stages_.wait_device, context->step());
    RETURN_IF_ERROR(context->transfers->finished->Wait());
  }
  RETURN_IF_ERROR(CountStep(context.get()));
  {
    const StageRange stage("push embeddings", &stages_.push_embeddings, context->step());
    StepTasks tasks;
    order_.Push(context, &tasks);
    RETURN_IF_ERROR(Finish(&tasks));
  }
  FetchAhead(queued_beyond, /*owes=*/true);
  return absl::OkStatus();
}

// The rest of the backward pass, and the update of the dense parameters if they live here.
absl::Status Trainer::ComputeDense(StepContext* context) {
  {
    const StageRange stage("backward dense", &stages_.backward_dense, context->step());
    parts_.model->BackwardDense();
    if (!pipelines_steps_) RETURN_IF_ERROR(parts_.model->Synchronize());
  }
  if (parts_.dense->home() != DenseParameters::Home::kHere) return absl::OkStatus();
  const StageRange stage("dense update", &stages_.apply_dense, context->step());
  parts_.dense->Update(context);
  parts_.model->RecordFinished(context);
  return absl::OkStatus();
}

absl::Status Trainer::FinishPush(StepContext* context) {
  const StageRange stage("push dense", &stages_.push_dense, context->step());
  StepTasks tasks;
  order_.FinishPush(context, &tasks);
  return Finish(&tasks);
}

// Waits for the results of the pipelined step, if there is one, and pushes them.
absl::Status Trainer::FinishPipelined(size_t queued_beyond) {
  if (pipelined_ == nullptr) return absl::OkStatus();
  const std::shared_ptr<StepContext> context = std::exchange(pipelined_, nullptr);
  RETURN_IF_ERROR(PushEmbeddings(context, queued_beyond));
  return FinishPush(context.get());
}

absl::Status Trainer::CountStep(StepContext* context) {
  for (size_t t = 0; t < tasks_.size(); ++t) {
    const double loss = context->outcome()->loss_sums[t];
    if (std::isfinite(loss)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("step ", context->step().value(), ": the loss ",
                     tasks_.size() > 1 ? absl::StrCat("of '", tasks_[t].label, "' ") : "", "is ",
                     loss, "; nothing of this step was pushed", kRateHint));
  }
  if (parts_.labels != nullptr) RETURN_IF_ERROR(parts_.labels->Take(*context->batch));
  if (step_watch_.has_value()) {
    stages_.step.Record(absl::ToInt64Microseconds(step_watch_->Elapsed()));
  }
  step_watch_.emplace();
  ++report_.steps;
  report_.pass = context->batch->pass + 1;
  report_.learning_rate = context->learning_rate;
  report_.samples += context->batch->size;
  report_.global_samples += context->batch->global_samples;
  report_.window_samples += context->batch->size;
  report_.window_global_samples += context->batch->global_samples;
  new_samples_ += context->batch->size;
  AddLosses(*context);
  return absl::OkStatus();
}

void Trainer::AddLosses(const StepContext& context) {
  const Batch& batch = *context.batch;
  for (size_t t = 0; t < tasks_.size(); ++t) {
    window_losses_[t].sum += context.outcome()->loss_sums[t];
    if (batch.weights.empty()) window_losses_[t].weights += batch.size;
    for (size_t i = t; i < batch.weights.size(); i += tasks_.size()) {
      window_losses_[t].weights += batch.weights[i];
    }
  }
  if (context.is_skipped) {
    ++report_.skipped_steps;
  } else {
    window_loss_samples_ += batch.size;
  }
}

bool Trainer::ReportsAfter(int64_t steps, bool last) const {
  return last || steps % job_.train().metrics_every_steps() == 0;
}

absl::Status Trainer::Report(const StepContext& context) {
  const StageRange stage("report", &stages_.report, context.step());
  report_.progress = context.batch->progress;
  double loss_sum = 0;
  for (size_t t = 0; t < tasks_.size(); ++t) loss_sum += tasks_[t].weight * window_losses_[t].sum;
  report_.window_loss = window_loss_samples_ == 0 ? std::nan("") : loss_sum / window_loss_samples_;
  std::vector<float> logits;
  RETURN_IF_ERROR(parts_.model->CopyLogits(&logits));
  const std::vector<double> aucs = AucsOf(logits, *context.batch);
  report_.batch_auc = aucs[DecidingTask(job_)];
  report_.tasks.clear();
  for (size_t t = 0; t < tasks_.size() && tasks_.size() > 1; ++t) {
    const WindowLoss& window = window_losses_[t];
    const double loss = window.weights > 0 ? window.sum / window.weights : std::nan("");
    report_.tasks.push_back({tasks_[t].label, loss, aucs[t]});
  }
  on_report_(report_);
  report_.window_samples = 0;
  report_.window_global_samples = 0;
  window_losses_.assign(tasks_.size(), {});
  window_loss_samples_ = 0;
  return absl::OkStatus();
}

// A run that resumes after the last step has nothing to do.
absl::Status Trainer::EndAtOnce() {
  if (report_.steps > 0) {
    report_.progress = 1;
    on_report_(report_);
    return absl::OkStatus();
  }
  const Data data = DescribeData(job_.data());
  const Data::Split& split = data.split();
  const char* const share =
      job_.data().has_train() ? "; data.split.last_share " : "; data.test_share ";
  return absl::FailedPreconditionError(absl::StrCat(
      "'", data.train().path(0), "' has not a single row to train on",
      !split.column().empty()  ? absl::StrCat("; those whose ", split.column(), " is ",
                                              split.test_from(), " or more are held out")
      : split.last_share() > 0 ? absl::StrCat(share, split.last_share(), " of them is held out")
                               : ""));
}

// Whether an evaluation of the step before `next` is due and not yet over. No fetch of `next`
// begins before it is over: training may end with the evaluation.
bool Trainer::EvaluationIsDueBefore(const StepContext& next) const {
  const Step step = next.step() - 1;
  if (!parts_.evaluate || step < Step(0) || evaluated_ == step) return false;
  return EvaluationIsDue(job_.evaluate(), next.step().value(),
                         next.batch->begins_pass ? next.batch->pass : 0);
}

// Whether a break or an evaluation comes before the next step.
bool Trainer::StopsAfter(const StepContext& context) const {
  if (context.behind.kind != StepBehind::Kind::kStep) {
    return context.behind.kind == StepBehind::Kind::kEnd;
  }
  return parts_.evaluate &&
         EvaluationIsDue(job_.evaluate(), context.step().value() + 1, context.behind.ends_pass);
}

// As StopsAfter, but for breaks amid the training: a report at each would be too many.
bool Trainer::IsLast(const StepContext& context) const {
  return StopsAfter(context) &&
         (context.behind.kind != StepBehind::Kind::kEnd || break_.ends_training);
}

// Evaluates where that is due, and goes on behind a break. False: training ends here.
absl::StatusOr<bool> Trainer::StopHere() {
  ASSIGN_OR_RETURN(const bool goes_on, EvaluateHere());
  if (!goes_on || next_ != nullptr || break_.ends_training) return goes_on;
  RETURN_IF_ERROR(parts_.session->Drain());  // Contexts go back to their pipeline.
  ASSIGN_OR_RETURN(pipeline_, parts_.open_pipeline());
  break_ = parts_.order->next_break();
  has_ended_ = false;
  PlanNext();
  RETURN_IF_ERROR(end_);
  CHECK(next_ != nullptr);
  return true;
}

absl::StatusOr<bool> Trainer::EvaluateHere() {
  step_watch_.reset();
  if (!parts_.evaluate) return true;
  EvaluationPlace place;
  place.step = Step(report_.steps - 1);
  place.pass = report_.pass;
  place.learning_rate = report_.learning_rate;
  place.is_break = next_ == nullptr && !break_.ends_training;
  place.is_scheduled = IsScheduledHere();
  evaluated_ = place.step;
  const TraceSpan span("evaluation", place.step);
  return parts_.evaluate(place);
}

// Whether job.evaluate asks for an evaluation here.
bool Trainer::IsScheduledHere() const {
  if (next_ != nullptr) return true;
  bool ends_pass = break_.ends_pass;
  if (break_.ends_training) {
    // Whether it is due even if there were more passes.
    const uint64_t max_steps = job_.train().max_steps();
    ends_pass = max_steps == 0 || static_cast<uint64_t>(report_.steps) < max_steps;
  }
  return EvaluationIsDue(job_.evaluate(), report_.steps, ends_pass ? report_.pass : 0);
}

}  // namespace thermocline
