#include "worker/source/step_pipeline.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "kernels/trace_range.h"

namespace thermocline {

namespace {

// Lookups read rows of the slab instead of positions among the table's distinct keys.
void MapLookups(const CachePlan& cache, FeaturePlan* feature) {
  const int32_t* rows = cache.tables[feature->table].rows.data();
  for (int32_t& index : feature->row_indices) index = rows[index];
}

}  // namespace

StepPipeline::StepPipeline(std::unique_ptr<BatchReader> reader, const BatchPlanner& planner,
                           StepPipelineOptions options)
    : device_(options.device),
      reader_(std::move(reader)),
      window_steps_(options.window_steps),
      threads_(options.threads),
      planners_(threads_->num_threads(), planner),
      cache_planner_(std::move(options.cache_planner)) {
  CHECK_GE(options.depth, 1);
  for (int i = 0; i < options.depth + options.window_steps; ++i) {
    ring_.push_back(std::make_unique<StepContext>());
    ring_.back()->has_cache_plan = cache_planner_ != nullptr;
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
  CHECK_EQ(idle_.size() + ready_.size() + window_.size(), ring_.size());
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

void StepPipeline::Recycle(StepContext* context) {
  reader_->Recycle(std::move(context->batch));
  absl::MutexLock lock(&mutex_);
  largest_transfers_.Cover(*context->transfers);
  idle_transfers_.push_back(std::move(context->transfers));
  idle_.push_back(context);
}

void StepPipeline::Run() {
  while (true) {
    StepContext* context = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto may_go_on = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !idle_.empty();
      };
      mutex_.Await(absl::Condition(&may_go_on));
      if (stopping_) return;
      context = idle_.back();
      idle_.pop_back();
    }
    const absl::StatusOr<bool> filled = Fill(context);
    if (filled.ok() && *filled) {
      PassOn(context);
      continue;
    }
    // Steps before an error are still complete.
    PassOnWindow(0);
    absl::MutexLock lock(&mutex_);
    idle_.push_back(context);
    status_ = filled.status();
    ended_ = true;
    return;
  }
}

void StepPipeline::PassOn(StepContext* context) {
  const StageRange stage("plan cache", &cache_time_);
  if (cache_planner_ != nullptr) {
    cache_planner_->Admit(context->step(), context->plan, &context->cache_plan);
  }
  window_.push_back(context);
  PassOnWindow(window_steps_);
}

void StepPipeline::PassOnWindow(size_t steps_that_stay) {
  while (window_.size() > steps_that_stay) {
    StepContext* context = window_.front();
    window_.pop_front();
    if (cache_planner_ != nullptr) {
      cache_planner_->Plan(context->step(), context->plan, &context->cache_plan);
      threads_->ParallelFor(context->plan.features.size(), [&](int64_t feature, int) {
        MapLookups(context->cache_plan, &context->plan.features[feature]);
      });
    }
    absl::MutexLock lock(&mutex_);
    ready_.push_back(context);
  }
}

// False: there are no more batches.
absl::StatusOr<bool> StepPipeline::Fill(StepContext* context) {
  {
    const StageRange stage("read", &read_time_);
    ASSIGN_OR_RETURN(context->batch, reader_->Next());
  }
  if (context->batch == nullptr) return false;
  const StageRange stage("plan", &plan_time_);
  PlanBatch(context);
  return true;
}

void StepPipeline::PlanBatch(StepContext* context) {
  planners_[0].Prepare(*context->batch, &context->plan);
  threads_->ParallelFor(planners_[0].num_tables(), [&](int64_t table, int thread) {
    planners_[thread].PlanTable(*context->batch, static_cast<int32_t>(table), &context->plan);
  });
}

}  // namespace thermocline
