#include "worker/trainer.h"

#include <cmath>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/auc.h"
#include "common/job/learning_rate.h"
#include "common/status_macros.h"

namespace thermocline {

Trainer::Trainer(const Job& job, const Parts& parts, OnReport on_report)
    : job_(job), parts_(parts), on_report_(std::move(on_report)) {}

absl::Status Trainer::Run() {
  absl::Status status = TrainSteps();
  if (!status.ok()) parts_.source->Cancel(status);
  status.Update(parts_.source->Drain());
  fetched_.clear();
  next_ = nullptr;
  return status;
}

absl::Status Trainer::TrainSteps() {
  RETURN_IF_ERROR(PlanNext());
  const BatchReader::Skipped skipped = parts_.pipeline->skipped();
  report_.steps = skipped.steps;
  report_.samples = skipped.samples;
  report_.global_samples = skipped.global_samples;
  RETURN_IF_ERROR(FetchAhead());
  if (fetched_.empty()) return EndAtOnce();
  while (!fetched_.empty()) {
    const std::shared_ptr<StepWork> work = std::move(fetched_.front());
    fetched_.pop_front();
    RETURN_IF_ERROR(TrainStep(work));
  }
  return absl::OkStatus();
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

// Begins fetches until as many steps as the source allows are on their way.
absl::Status Trainer::FetchAhead() {
  while (next_ != nullptr && fetched_.size() <= static_cast<size_t>(parts_.source->fetch_ahead())) {
    parts_.source->Fetch(next_);
    fetched_.push_back(std::move(next_));
    RETURN_IF_ERROR(PlanNext());
  }
  return absl::OkStatus();
}

absl::Status Trainer::PlanNext() {
  StageTimer::Scope time(&stages_.wait_data);
  ASSIGN_OR_RETURN(next_, parts_.pipeline->Next());
  return absl::OkStatus();
}

absl::Status Trainer::TrainStep(const std::shared_ptr<StepWork>& work) {
  {
    StageTimer::Scope time(&stages_.wait_rows);
    RETURN_IF_ERROR(parts_.source->Await(*work, parts_.model->arenas()));
  }
  staleness_.Record(work->step(), work->complete_through);
  RETURN_IF_ERROR(Compute(work.get()));

  const float learning_rate = LearningRateAt(job_.train().learning_rate(), work->step());
  const bool last = fetched_.empty() && next_ == nullptr;
  {
    StageTimer::Scope time(&stages_.push_embeddings);
    RETURN_IF_ERROR(
        parts_.source->PushEmbeddings(work, learning_rate, WritesBack(work->step(), last)));
  }
  // The servers answer it once they have applied the push: while the rest is computed here.
  RETURN_IF_ERROR(FetchAhead());

  RETURN_IF_ERROR(UpdateDense(work, learning_rate));
  if (last || report_.steps % job_.train().metrics_every_steps() == 0) Report(*work);
  return absl::OkStatus();
}

// Everything up to the gradients of the embeddings. Nothing is pushed from a loss that is not
// finite.
absl::Status Trainer::Compute(StepWork* work) {
  {
    StageTimer::Scope time(&stages_.forward);
    parts_.model->Forward(work);
  }
  StageTimer::Scope time(&stages_.backward_embeddings);
  parts_.model->BackwardToEmbeddings(work);
  ASSIGN_OR_RETURN(const double loss, parts_.model->LossSum());
  if (!std::isfinite(loss)) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", work->step().value(), ": the loss is ", loss,
                     "; nothing of this step was pushed (is the learning rate too high?)"));
  }
  ++report_.steps;
  report_.samples += work->batch->size;
  report_.global_samples += work->batch->global_samples;
  report_.window_samples += work->batch->size;
  report_.window_global_samples += work->batch->global_samples;
  new_samples_ += work->batch->size;
  window_loss_sum_ += loss;
  return absl::OkStatus();
}

absl::Status Trainer::UpdateDense(const std::shared_ptr<StepWork>& work, float learning_rate) {
  {
    StageTimer::Scope time(&stages_.backward_dense);
    parts_.model->BackwardDense();
    RETURN_IF_ERROR(parts_.model->Synchronize());
  }
  if (parts_.source->owns_dense()) {
    StageTimer::Scope time(&stages_.apply_dense);
    absl::Status finite = parts_.model->CheckDenseGradients();
    if (!finite.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("step ", work->step().value(), ": ", finite.message()));
    }
    parts_.model->ApplyDense(learning_rate, work->step());
    RETURN_IF_ERROR(parts_.model->Synchronize());
  }
  StageTimer::Scope time(&stages_.push_dense);
  return parts_.source->PushDense(work, parts_.model->arenas());
}

void Trainer::Report(const StepWork& work) {
  StageTimer::Scope time(&stages_.report);
  report_.progress = work.batch->progress;
  report_.window_loss = report_.window_samples == 0 ? 0 : window_loss_sum_ / report_.window_samples;
  std::vector<float> logits;
  if (parts_.model->CopyLogits(&logits).ok()) {
    report_.batch_auc = Auc(logits, work.batch->labels);
  }
  on_report_(report_);
  report_.window_samples = 0;
  report_.window_global_samples = 0;
  window_loss_sum_ = 0;
}

}  // namespace thermocline
