#include "worker/rows/step_pipeline.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/base/threads.h"
#include "kernels/trace_range.h"

namespace thermocline {

StepPipeline::StepPipeline(std::unique_ptr<BatchReader> reader, const BatchPlanner& planner,
                           StepPipelineOptions options)
    : device_(options.device),
      reader_(std::move(reader)),
      window_steps_(std::max(1, options.window_steps)),
      threads_(options.threads),
      planners_(threads_->num_threads(), planner),
      row_planner_(options.planner != nullptr ? std::move(options.planner) : MakePullPlanner()),
      exchange_(options.exchange),
      times_(options.times != nullptr ? options.times : &own_times_) {
  CHECK_GE(options.depth, 1);
  const size_t contexts = options.depth + window_steps_;
  while (ring_.size() < contexts) {
    ring_.push_back(std::make_unique<StepContext>());
    idle_.push_back(ring_.back().get());
  }
  thread_ = MakeThread([this] { Run(); });
}

StepPipeline::~StepPipeline() {
  reader_->Cancel();
  row_planner_->Cancel();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  CHECK_EQ(idle_.size() + ready_.size() + window_.size(), ring_.size());
}

void StepPipeline::Restart(std::unique_ptr<BatchReader> reader) {
  absl::MutexLock lock(&mutex_);
  CHECK(ended_ && status_.ok());
  CHECK_EQ(idle_.size(), ring_.size());
  reader_ = std::move(reader);
  ended_ = false;
}

absl::StatusOr<std::shared_ptr<StepContext>> StepPipeline::Next() {
  StepContext* context = nullptr;
  std::unique_ptr<StepTransfers> transfers;
  TransferSizes expected;
  {
    absl::MutexLock lock(&mutex_);
    const auto has_news = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return ended_ || !ready_.empty();
    };
    mutex_.Await(absl::Condition(&has_news));
    if (ready_.empty()) {
      if (!status_.ok()) return status_;
      return nullptr;
    }
    context = ready_.front();
    ready_.pop_front();
    expected = largest_transfers_;
    if (!idle_transfers_.empty()) {
      transfers = std::move(idle_transfers_.back());
      idle_transfers_.pop_back();
    }
  }
  if (transfers == nullptr) transfers = std::make_unique<StepTransfers>(device_);
  context->Begin(std::move(transfers), expected);
  return std::shared_ptr<StepContext>(context, [this](StepContext* idle) { Recycle(idle); });
}

bool StepPipeline::NextIsReady() const {
  absl::MutexLock lock(&mutex_);
  return ended_ || !ready_.empty();
}

void StepPipeline::Recycle(StepContext* context) {
  reader_->Recycle(std::move(context->batch));
  absl::MutexLock lock(&mutex_);
  largest_transfers_.Cover(*context->transfers);
  idle_transfers_.push_back(std::move(context->transfers));
  idle_.push_back(context);
}

StepContext* StepPipeline::TakeIdle() {
  absl::MutexLock lock(&mutex_);
  const auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (!ended_ && !idle_.empty());
  };
  mutex_.Await(absl::Condition(&may_go_on));
  if (stopping_) return nullptr;
  StepContext* const context = idle_.back();
  idle_.pop_back();
  return context;
}

void StepPipeline::Run() {
  NameTraceThread(reader_->is_held_out() ? "plan held-out batches" : "plan batches");
  while (StepContext* const context = TakeIdle()) {
    const absl::StatusOr<bool> admitted = Admit(context);
    const bool goes_on = admitted.ok() && *admitted;
    if (goes_on) window_.push_back(context);
    // Steps before an error are still complete.
    absl::Status status = admitted.status();
    status.Update(PassOnWindow(goes_on ? window_steps_ : 0,
                               admitted.ok() ? StepBehind::Kind::kEnd : StepBehind::Kind::kError));
    if (goes_on && status.ok()) continue;
    absl::MutexLock lock(&mutex_);
    if (!goes_on) idle_.push_back(context);
    status_ = status;
    ended_ = true;
  }
}

// False: there are no more steps.
absl::StatusOr<bool> StepPipeline::Admit(StepContext* context) {
  const absl::StatusOr<bool> filled = Fill(context);
  const StageRange stage("plan cache", &times_->cache, TracedStep(*context));
  StepTasks tasks;
  bool goes_on = false;
  RETURN_IF_ERROR(row_planner_->Admit(filled, context, &tasks, &goes_on));
  RETURN_IF_ERROR(RunAll(&tasks, exchange_));
  return goes_on;
}

// behind_all: what comes behind the last step, where none stays.
absl::Status StepPipeline::PassOnWindow(size_t steps_that_stay, StepBehind::Kind behind_all) {
  while (window_.size() > steps_that_stay) {
    StepContext* const context = window_.front();
    {
      const StageRange stage("plan cache", &times_->cache, TracedStep(*context));
      StepTasks tasks;
      RETURN_IF_ERROR(row_planner_->Plan(context, &tasks));
      RETURN_IF_ERROR(RunAll(&tasks, exchange_));
    }
    window_.pop_front();
    context->behind = {behind_all, 0};
    if (!window_.empty()) {
      const Batch& next = *window_.front()->batch;
      context->behind = {StepBehind::Kind::kStep, next.begins_pass ? next.pass : 0};
    }
    absl::MutexLock lock(&mutex_);
    ready_.push_back(context);
  }
  return absl::OkStatus();
}

// False: there are no more batches.
absl::StatusOr<bool> StepPipeline::Fill(StepContext* context) {
  {
    StageRange stage("read", &times_->read);
    ASSIGN_OR_RETURN(context->batch, reader_->Next());
    stage.set_step(TracedStep(*context));
  }
  if (context->batch == nullptr) return false;
  const StageRange stage("plan", &times_->plan, TracedStep(*context));
  PlanBatch(context);
  return true;
}

// Batches that are scored have numbers of their own.
Step StepPipeline::TracedStep(const StepContext& context) const {
  return context.batch == nullptr || reader_->is_held_out() ? kNoStep : context.step();
}

void StepPipeline::PlanBatch(StepContext* context) {
  planners_[0].Prepare(*context->batch, &context->plan);
  threads_->ParallelFor(planners_[0].num_tables(), [&](int64_t table, int thread) {
    planners_[thread].PlanTable(*context->batch, static_cast<int32_t>(table), &context->plan);
  });
}

}  // namespace thermocline
