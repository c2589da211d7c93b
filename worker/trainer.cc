#include "worker/trainer.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/auc.h"
#include "common/finite.h"
#include "common/job/learning_rate.h"
#include "common/status_macros.h"
#include "kernels/trace_range.h"

namespace thermocline {

namespace {

// The pass that the step before `next` is of, counted from 1; null: there is no next step.
uint32_t PassBefore(const StepWork* next, uint32_t passes) {
  if (next == nullptr) return passes;
  return next->batch->pass + (next->batch->begins_pass ? 0 : 1);
}

// Whether an evaluation is due after the last step even if there were more passes.
bool IsScheduledEnd(const Evaluate& policy, uint64_t max_steps, const TrainerReport& report) {
  if (policy.every_steps() > 0) {
    return static_cast<uint64_t>(report.steps) % policy.every_steps() == 0;
  }
  const bool ends_a_pass = max_steps == 0 || static_cast<uint64_t>(report.steps) < max_steps;
  return ends_a_pass && report.pass % policy.every_passes() == 0;
}

}  // namespace

Trainer::Trainer(const Job& job, const Parts& parts, OnReport on_report)
    : job_(job),
      parts_(parts),
      on_report_(std::move(on_report)),
      may_lag_(parts.model->is_asynchronous() && parts.source->owns_dense() &&
               parts.source->fetch_ahead() > 0) {}

absl::Status Trainer::Run() {
  absl::Status status = TrainSteps();
  if (!status.ok()) parts_.source->Cancel(status);
  status.Update(parts_.source->Drain());
  fetched_.clear();
  next_ = nullptr;
  behind_ = Behind();
  return status;
}

absl::Status Trainer::TrainSteps() {
  RETURN_IF_ERROR(PlanNext());
  const BatchReader::Skipped skipped = parts_.pipeline->skipped();
  report_.steps = skipped.steps;
  report_.samples = skipped.samples;
  report_.global_samples = skipped.global_samples;
  report_.pass = PassBefore(next_.get(), job_.train().passes());
  if (report_.steps > 0) {
    report_.learning_rate = LearningRateAt(job_.train().learning_rate(), Step(report_.steps - 1));
  }
  if (next_ == nullptr) RETURN_IF_ERROR(EndAtOnce());
  bool goes_on = true;
  if (next_ == nullptr || EvaluationComesBefore(*next_)) {
    ASSIGN_OR_RETURN(goes_on, EvaluateHere());
  }
  while (goes_on && next_ != nullptr) {
    RETURN_IF_ERROR(FetchAhead(0));
    while (!fetched_.empty()) {
      const std::shared_ptr<StepWork> work = std::move(fetched_.front());
      fetched_.pop_front();
      RETURN_IF_ERROR(TrainStep(work));
    }
    // The data ends here, or an evaluation comes before the next step.
    ASSIGN_OR_RETURN(goes_on, EvaluateHere());
  }
  return absl::OkStatus();
}

// Whether the step before `next` is evaluated, and hasn't been yet. Nothing of `next` begins before
// that is over: an evaluation may find that there is no next step.
bool Trainer::EvaluationComesBefore(const StepWork& next) const {
  const Evaluate& policy = job_.evaluate();
  const Step step = next.step() - 1;
  if (!parts_.evaluate || step < Step(0) || evaluated_ == step) return false;
  if (policy.every_steps() > 0) {
    return static_cast<uint64_t>(next.step().value()) % policy.every_steps() == 0;
  }
  return policy.every_passes() > 0 && next.batch->begins_pass &&
         next.batch->pass % policy.every_passes() == 0;
}

absl::StatusOr<bool> Trainer::EvaluateHere() {
  if (!parts_.evaluate) return true;
  EvaluationPlace place;
  place.step = Step(report_.steps - 1);
  place.pass = report_.pass;
  place.learning_rate = report_.learning_rate;
  place.is_scheduled =
      next_ != nullptr || IsScheduledEnd(job_.evaluate(), job_.train().max_steps(), report_);
  evaluated_ = place.step;
  return parts_.evaluate(place);
}

// A run that goes on where training was over has nothing to do.
absl::Status Trainer::EndAtOnce() {
  if (report_.steps > 0) {
    report_.progress = 1;
    on_report_(report_);
    return absl::OkStatus();
  }
  const Data& data = job_.data();
  return absl::FailedPreconditionError(absl::StrCat(
      "'", data.path(), "' has not a single row to train on",
      data.test_share() > 0
          ? absl::StrCat("; data.test_share ", data.test_share(), " of them is held out")
          : ""));
}

// The servers' rows after the last step, and after a cut, are the whole model.
bool Trainer::WritesBack(Step step, bool last) {
  const bool named = parts_.named_cuts != nullptr && parts_.named_cuts->BeginPush(step);
  const int64_t every = static_cast<int64_t>(job_.checkpoint().every_steps());
  return last || named || (every > 0 && (step.value() + 1) % every == 0);
}

// Begins fetches until as many steps as the source allows are on their way. `queued_beyond`: steps
// after the one pushed last that were fetched and are not in fetched_ any more.
absl::Status Trainer::FetchAhead(size_t queued_beyond) {
  while (next_ != nullptr && !EvaluationComesBefore(*next_) &&
         fetched_.size() + queued_beyond <= static_cast<size_t>(parts_.source->fetch_ahead())) {
    {
      const TraceRange range("fetch");
      parts_.source->Fetch(next_);
    }
    fetched_.push_back(std::move(next_));
    RETURN_IF_ERROR(PlanNext());
  }
  return absl::OkStatus();
}

absl::Status Trainer::PlanNext() {
  const StageRange stage("wait for data", &stages_.wait_data);
  ASSIGN_OR_RETURN(next_, parts_.pipeline->Next());
  return absl::OkStatus();
}

absl::Status Trainer::TrainStep(const std::shared_ptr<StepWork>& work) {
  const float learning_rate = LearningRateAt(job_.train().learning_rate(), work->step());
  if (behind_.work != nullptr && parts_.source->AwaitsPushOf(*work) >= behind_.work->step()) {
    RETURN_IF_ERROR(FinishBehind(/*queued_beyond=*/1));
  }
  RETURN_IF_ERROR(Queue(work.get(), learning_rate));
  // Of the data, or before an evaluation.
  const bool last = fetched_.empty() && (next_ == nullptr || EvaluationComesBefore(*next_));
  const bool writes_back = WritesBack(work->step(), last);
  if (may_lag_) {
    RETURN_IF_ERROR(UpdateDense(work.get(), learning_rate));
    RETURN_IF_ERROR(FinishBehind(/*queued_beyond=*/1));
    behind_ = {work, learning_rate, writes_back};
    // What is written back, or shown, is the model of this step.
    if (!writes_back && !ReportsAfter(report_.steps + 1, last)) return absl::OkStatus();
    RETURN_IF_ERROR(FinishBehind(/*queued_beyond=*/0));
  } else {
    RETURN_IF_ERROR(Push(work, learning_rate, writes_back, /*queued_beyond=*/0));
    RETURN_IF_ERROR(UpdateDense(work.get(), learning_rate));
    RETURN_IF_ERROR(PushDense(work));
  }
  return ReportsAfter(report_.steps, last) ? Report(*work) : absl::OkStatus();
}

bool Trainer::ReportsAfter(int64_t steps, bool last) const {
  return last || steps % job_.train().metrics_every_steps() == 0;
}

// Everything up to the gradients of the embeddings, and the update of the rows held here.
absl::Status Trainer::Queue(StepWork* work, float learning_rate) {
  {
    const StageRange stage("wait for rows", &stages_.wait_rows);
    RETURN_IF_ERROR(parts_.source->Await(work, parts_.model->arenas()));
    if (!parts_.source->owns_dense()) parts_.model->WriteDense();
  }
  staleness_.Record(work->step(), work->complete_through);
  {
    const StageRange stage("forward", &stages_.forward);
    parts_.model->Forward(work);
  }
  {
    const StageRange stage("backward to embeddings", &stages_.backward_embeddings);
    parts_.model->BackwardToEmbeddings(work);
  }
  const StageRange stage("update rows", &stages_.update_rows);
  parts_.source->Update(work, learning_rate);
  parts_.model->RecordFinished(work);
  return absl::OkStatus();
}

// The servers answer the next fetch once they have applied this push: while the rest is computed
// here. Nothing is pushed from a loss that is not finite.
absl::Status Trainer::Push(const std::shared_ptr<StepWork>& work, float learning_rate,
                           bool writes_back, size_t queued_beyond) {
  {
    const StageRange stage("wait for device", &stages_.wait_device);
    RETURN_IF_ERROR(work->transfers->finished->Wait());
  }
  RETURN_IF_ERROR(CheckLoss(work.get()));
  {
    const StageRange stage("push embeddings", &stages_.push_embeddings);
    RETURN_IF_ERROR(parts_.source->PushEmbeddings(work, learning_rate, writes_back));
  }
  return FetchAhead(queued_beyond);
}

absl::Status Trainer::CheckLoss(StepWork* work) {
  const double loss = work->outcome()->loss_sum;
  if (!std::isfinite(loss)) {
    return absl::InvalidArgumentError(absl::StrCat("step ", work->step().value(), ": the loss is ",
                                                   loss, "; nothing of this step was pushed",
                                                   kRateHint));
  }
  ++report_.steps;
  report_.pass = work->batch->pass + 1;
  report_.learning_rate = LearningRateAt(job_.train().learning_rate(), work->step());
  report_.samples += work->batch->size;
  report_.global_samples += work->batch->global_samples;
  report_.window_samples += work->batch->size;
  report_.window_global_samples += work->batch->global_samples;
  new_samples_ += work->batch->size;
  window_loss_sum_ += loss;
  return absl::OkStatus();
}

absl::Status Trainer::UpdateDense(StepWork* work, float learning_rate) {
  {
    const StageRange stage("backward dense", &stages_.backward_dense);
    parts_.model->BackwardDense();
    if (!may_lag_) RETURN_IF_ERROR(parts_.model->Synchronize());
  }
  if (!parts_.source->owns_dense()) return absl::OkStatus();
  const StageRange stage("dense update", &stages_.apply_dense);
  parts_.model->ApplyDense(work, learning_rate);
  parts_.model->RecordFinished(work);
  return absl::OkStatus();
}

absl::Status Trainer::PushDense(const std::shared_ptr<StepWork>& work) {
  const StageRange stage("push dense", &stages_.push_dense);
  if (parts_.source->owns_dense()) {
    RETURN_IF_ERROR(work->transfers->finished->Wait());
    const absl::Status finite = parts_.model->CheckDenseGradients(work->outcome()->bad_gradient);
    if (!finite.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", work->step().value(), ": ", finite.message(), kRateHint));
    }
  }
  if (!parts_.source->pushes_dense()) return absl::OkStatus();
  RETURN_IF_ERROR(parts_.model->ReadDense());
  return parts_.source->PushDense(work, parts_.model->arenas());
}

// Looks at the step that was queued before, if there is one, and pushes it.
absl::Status Trainer::FinishBehind(size_t queued_beyond) {
  if (behind_.work == nullptr) return absl::OkStatus();
  const Behind behind = std::exchange(behind_, Behind());
  RETURN_IF_ERROR(Push(behind.work, behind.learning_rate, behind.writes_back, queued_beyond));
  return PushDense(behind.work);
}

absl::Status Trainer::Report(const StepWork& work) {
  const StageRange stage("report", &stages_.report);
  report_.progress = work.batch->progress;
  report_.window_loss = report_.window_samples == 0 ? 0 : window_loss_sum_ / report_.window_samples;
  std::vector<float> logits;
  RETURN_IF_ERROR(parts_.model->CopyLogits(&logits));
  report_.batch_auc = Auc(logits, work.batch->labels);
  on_report_(report_);
  report_.window_samples = 0;
  report_.window_global_samples = 0;
  window_loss_sum_ = 0;
  return absl::OkStatus();
}

}  // namespace thermocline
