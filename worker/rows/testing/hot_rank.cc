#include "worker/rows/testing/hot_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gtest/gtest.h"
#include "worker/rows/write_back.h"

namespace thermocline {

HotRank::HotRank(const HotTrace& trace, const HotModel& model, const HotRows& rows, uint32_t rank,
                 std::unique_ptr<Device> device, MergingServers* servers, Exchange* exchange,
                 Scheduler* scheduler)
    : trace_(trace),
      model_(model),
      rows_(rows),
      rank_(rank),
      device_(std::move(device)),
      transport_(servers->TransportOf(rank)),
      session_(SessionOptions(), transport_.get(), scheduler),
      exchange_(exchange),
      planner_(TableIds(), FeatureTables(), ClusterMap(trace.num_servers)),
      source_(SourceOptions(), exchange, &session_, device_.get()) {}

absl::Status HotRank::Run() {
  absl::Status status;
  Step step = trace_.start_step;
  for (const std::vector<PlannedStep>& stretch : trace_.stretches) {
    if (status.ok()) status = TrainStretch(stretch, step);
    step = step + static_cast<int64_t>(stretch.size());
  }
  if (!status.ok()) Fail(status);
  status.Update(session_.Drain());
  return status;
}

void HotRank::Fail(const absl::Status& why) {
  session_.Fail(why);
  if (exchange_ != nullptr) exchange_->Fail(why);
}

std::vector<TableId> HotRank::TableIds() const {
  std::vector<TableId> ids;
  for (const TableLayout& table : trace_.tables.sparse) ids.push_back(table.id);
  return ids;
}

std::vector<int32_t> HotRank::FeatureTables() const {
  std::vector<int32_t> tables;
  for (const FeatureSpec& feature : trace_.tables.features) tables.push_back(feature.table_index);
  return tables;
}

PsSessionOptions HotRank::SessionOptions() const {
  PsSessionOptions options;
  options.job_id = "job";
  options.rank = WorkerRank(rank_);
  options.num_servers = trace_.num_servers;
  options.tables = trace_.tables.sparse;
  options.start_step = trace_.start_step;
  options.max_chunk_bytes = trace_.max_chunk_bytes;
  return options;
}

RowSourceOptions HotRank::SourceOptions() const {
  RowSourceOptions options = trace_.options;
  options.fixed_rows = &rows_;
  options.layout = rows_.layout();
  return options;
}

// A context of the pool is used again when its last holder releases it.
std::shared_ptr<StepContext> HotRank::TakeContext(bool is_hot) {
  absl::MutexLock lock(&mutex_);
  std::vector<StepContext*>& idle = idle_[is_hot ? 1 : 0];
  if (idle.empty()) {
    contexts_.push_back(std::make_unique<StepContext>());
    contexts_.back()->batch = std::make_unique<Batch>();
    idle.push_back(contexts_.back().get());
  }
  StepContext* const taken = idle.back();
  idle.pop_back();
  return {taken, [this, is_hot](StepContext* context) {
            absl::MutexLock lock(&mutex_);
            idle_[is_hot ? 1 : 0].push_back(context);
          }};
}

absl::Status HotRank::TrainStretch(const std::vector<PlannedStep>& stretch, Step first) {
  const std::unique_ptr<RowPlanner> planner =
      stretch.front().is_hot ? MakeRowPlanner(SourceOptions(), nullptr, &threads_)
                             : MakePullPlanner();
  stretch_ = &stretch;
  next_ = 0;
  for (size_t i = 0; i < stretch.size(); ++i) {
    RETURN_IF_ERROR(FetchAhead(first, planner.get(), pipelined_ == nullptr ? 0 : 1));
    const std::shared_ptr<StepContext> context = std::move(fetched_.front());
    fetched_.pop_front();
    RETURN_IF_ERROR(TrainStep(context, stretch[i], first, planner.get()));
  }
  return absl::OkStatus();
}

absl::Status HotRank::FetchAhead(Step first, RowPlanner* planner, size_t queued_beyond) {
  const bool is_hot = stretch_->front().is_hot;
  while (next_ < stretch_->size() &&
         fetched_.size() + queued_beyond <= static_cast<size_t>(source_.fetch_ahead())) {
    const std::shared_ptr<StepContext> context = TakeContext(is_hot);
    FillBatch((*stretch_)[next_].batches[rank_], context->batch.get());
    context->batch->step = first + static_cast<int64_t>(next_++);
    planner_.Plan(*context->batch, &context->plan);
    for (const TablePlan& table : context->plan.tables) {
      (is_hot ? hot_keys_ : cold_keys_) += table.num_unique();
    }
    StepTasks no_tasks;
    RETURN_IF_ERROR(planner->Plan(context.get(), &no_tasks));
    context->Begin(context->transfers != nullptr ? std::move(context->transfers)
                                                 : std::make_unique<StepTransfers>(device_.get()));
    source_.AddPulls(context.get());
    context->pulls.Start(&session_, context->step() - 1, context);
    fetched_.push_back(context);
  }
  return absl::OkStatus();
}

void HotRank::FillBatch(const Lookups& lookups, Batch* batch) const {
  batch->size = lookups.empty() ? 0 : static_cast<int>(lookups[0].size());
  batch->features.resize(lookups.size());
  for (size_t f = 0; f < lookups.size(); ++f) {
    FeatureLookups& feature = batch->features[f];
    feature.keys.clear();
    feature.offsets.assign(1, 0);
    for (const std::vector<Key>& bag : lookups[f]) {
      feature.keys.insert(feature.keys.end(), bag.begin(), bag.end());
      feature.offsets.push_back(static_cast<int32_t>(feature.keys.size()));
    }
  }
}

absl::Status HotRank::TrainStep(const std::shared_ptr<StepContext>& context,
                                const PlannedStep& planned, Step first, RowPlanner* planner) {
  context->learning_rate = LearningRateOf(context->step());
  if (pipelined_ != nullptr && context->row_plan.awaits_push_of >= pipelined_->step()) {
    RETURN_IF_ERROR(FinishPipelined(first, planner, 1));
  }
  StepTasks tasks;
  source_.Receive(context.get(), &tasks);
  RETURN_IF_ERROR(RunAll(&tasks, exchange_));
  EXPECT_EQ(context->complete_through, context->step() - 1);
  RETURN_IF_ERROR(CheckRows(*context));
  SetGradients(*context);
  source_.Update(context.get());
  context->writes_back = planned.writes_back;
  device_->Record(Stream::kCompute, context->transfers->finished.get());
  RETURN_IF_ERROR(FinishPipelined(first, planner, 1));
  pipelined_ = context;
  const bool pipelines = source_.fetch_ahead() > 0;
  return pipelines && !planned.writes_back ? absl::OkStatus() : FinishPipelined(first, planner, 0);
}

absl::Status HotRank::FinishPipelined(Step first, RowPlanner* planner, size_t queued_beyond) {
  if (pipelined_ == nullptr) return absl::OkStatus();
  const std::shared_ptr<StepContext> context = std::exchange(pipelined_, nullptr);
  RETURN_IF_ERROR(context->transfers->finished->Wait());
  StepTasks tasks;
  source_.Push(context.get(), &tasks);
  RETURN_IF_ERROR(RunAll(&tasks, exchange_));
  RETURN_IF_ERROR(StartPush(context));
  RETURN_IF_ERROR(FetchAhead(first, planner, queued_beyond));
  if (context->writes_back) {
    RETURN_IF_ERROR(session_.ReleaseWave(context->step(), PsSession::kLastWave));
  }
  source_.FinishPush(context.get(), &tasks);
  RETURN_IF_ERROR(RunAll(&tasks, exchange_));
  if (exchange_ != nullptr) exchange_->NotePushed(context->step());
  return exchange_ == nullptr ? absl::OkStatus() : exchange_->CheckOwesNothing();
}

absl::Status HotRank::StartPush(const std::shared_ptr<StepContext>& context) {
  PushWork& push = context->push.work;
  // The wave of dense parameters has no keys here.
  if (context->writes_back) push.waves.emplace_back(trace_.num_servers);
  if (!push.lent.empty()) push.lent.resize(push.waves.size());
  session_.StartPush(std::move(push),
                     [context, write_back = context->push.write_back](const absl::Status&) {
                       if (write_back != nullptr) write_back->End();
                     });
  return session_.ReleaseWave(context->step(), 0);
}

// As the lookups of the features see them.
absl::Status HotRank::CheckRows(const StepContext& context) {
  for (size_t f = 0; f < context.plan.features.size(); ++f) {
    const FeaturePlan& feature = context.plan.features[f];
    const Matrix rows = context.tables[feature.table].rows;
    if (feature.row_indices.empty()) continue;
    Floats values((rows.rows - 1) * rows.ld + rows.cols);
    device_->CopyToHost(values.data(), rows.data, sizeof(float) * values.size(), Stream::kCompute);
    RETURN_IF_ERROR(device_->Synchronize());
    for (size_t i = 0; i < feature.row_indices.size(); ++i) {
      const Key key = context.batch->features[f].keys[i];
      const ServerRow expected = model_.RowOf(context.step() - 1, feature.table, key);
      const float* const row = values.data() + feature.row_indices[i] * rows.ld;
      if (std::equal(row, row + rows.cols, expected.values.begin())) continue;
      return absl::InternalError(
          absl::StrCat("step ", context.step().value(), ", table ", feature.table, ", key ", key,
                       ": the row read begins with ", row[0], " instead of ", expected.values[0]));
    }
  }
  return absl::OkStatus();
}

void HotRank::SetGradients(const StepContext& context) {
  for (size_t t = 0; t < context.tables.size(); ++t) {
    const Matrix& gradients = context.tables[t].gradients;
    const TablePlan& plan = context.plan.tables[t];
    Floats values;
    for (const Key key : plan.keys) {
      for (int i = 0; i < gradients.cols; ++i) {
        values.push_back(HotGradientOf(rank_, context.step(), {plan.id.value(), key}, i));
      }
    }
    device_->CopyToDevice(gradients.data, values.data(), sizeof(float) * values.size(),
                          Stream::kCompute);
  }
}

}  // namespace thermocline
