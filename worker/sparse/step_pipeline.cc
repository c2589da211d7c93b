#include "worker/sparse/step_pipeline.h"

#include <utility>

#include "common/check.h"
#include "common/status_macros.h"

namespace thermocline {

StepPipeline::StepPipeline(std::unique_ptr<BatchReader> reader, BatchPlanner planner,
                           std::vector<int> table_dims, int depth)
    : reader_(std::move(reader)), table_dims_(std::move(table_dims)), planner_(std::move(planner)) {
  CHECK_GE(depth, 1);
  for (int i = 0; i < depth; ++i) {
    ring_.push_back(std::make_unique<StepWork>());
    ring_.back()->rows.resize(table_dims_.size());
    ring_.back()->gradients.resize(table_dims_.size());
    idle_.push_back(ring_.back().get());
  }
  thread_ = std::thread([this] { Run(); });
}

StepPipeline::~StepPipeline() {
  reader_->Cancel();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
  absl::MutexLock lock(&mutex_);
  CHECK_EQ(idle_.size() + ready_.size(), ring_.size());
}

absl::StatusOr<std::shared_ptr<StepWork>> StepPipeline::Next() {
  absl::MutexLock lock(&mutex_);
  const auto has_news = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return ended_ || !ready_.empty();
  };
  mutex_.Await(absl::Condition(&has_news));
  if (ready_.empty()) {
    if (!status_.ok()) return status_;
    return nullptr;
  }
  StepWork* work = ready_.front();
  ready_.pop_front();
  return std::shared_ptr<StepWork>(work, [this](StepWork* idle) { Recycle(idle); });
}

void StepPipeline::Recycle(StepWork* work) {
  reader_->Recycle(std::move(work->batch));
  absl::MutexLock lock(&mutex_);
  idle_.push_back(work);
}

void StepPipeline::Run() {
  while (true) {
    StepWork* work = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !idle_.empty();
      };
      mutex_.Await(absl::Condition(&may_go_on));
      if (stopping_) return;
      work = idle_.back();
      idle_.pop_back();
    }
    const absl::StatusOr<bool> filled = Fill(work);
    absl::MutexLock lock(&mutex_);
    if (filled.ok() && *filled) {
      ready_.push_back(work);
      continue;
    }
    idle_.push_back(work);
    status_ = filled.status();
    ended_ = true;
    return;
  }
}

// False: there are no more batches.
absl::StatusOr<bool> StepPipeline::Fill(StepWork* work) {
  {
    StageTimer::Scope time(&read_time_);
    ASSIGN_OR_RETURN(work->batch, reader_->Next());
  }
  if (work->batch == nullptr) return false;
  StageTimer::Scope time(&plan_time_);
  planner_.Plan(*work->batch, &work->plan);
  for (size_t table = 0; table < table_dims_.size(); ++table) {
    const size_t floats =
        static_cast<size_t>(work->plan.tables[table].num_unique()) * table_dims_[table];
    work->rows[table].resize(floats);
    work->gradients[table].resize(floats);
  }
  return true;
}

}  // namespace thermocline
