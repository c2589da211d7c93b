#include "worker/rows/step_pipeline.h"

#include <algorithm>
#include <memory>
#include <set>
#include <vector>

#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"

namespace thermocline {
namespace {

constexpr int kFeatures = 5;

// Rows 0 .. rows-1, each with one lookup of key row / (2 + f) in feature f. Fails at `error_row`,
// if it gets there.
class FakeSource : public BatchSource {
 public:
  FakeSource(int64_t rows, int64_t error_row) : rows_(rows), error_row_(error_row) {}

  absl::Status Rewind(uint32_t) override {
    next_row_ = 0;
    return absl::OkStatus();
  }
  absl::StatusOr<bool> Read(int64_t batch_size, RawBatch* raw) override {
    if (next_row_ == error_row_) return absl::DataLossError("rows.bin is truncated");
    raw->first_row = next_row_;
    raw->num_rows = std::min(batch_size, rows_ - next_row_);
    next_row_ += raw->num_rows;
    raw->pass_progress = 1;
    return raw->num_rows > 0;
  }
  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    const int64_t skipped = std::min(rows, rows_ - next_row_);
    next_row_ += skipped;
    return skipped;
  }
  absl::Status Parse(const RawBatch& raw, Batch* batch, std::vector<int64_t>*) override {
    batch->size = static_cast<int>(raw.slice_end - raw.slice_begin);
    batch->features.resize(kFeatures);
    for (int f = 0; f < kFeatures; ++f) {
      FeatureLookups& lookups = batch->features[f];
      lookups.keys.clear();
      lookups.offsets.assign(1, 0);
      for (int64_t row = raw.slice_begin; row < raw.slice_end; ++row) {
        lookups.keys.push_back(static_cast<Key>((raw.first_row + row) / (2 + f)));
        lookups.offsets.push_back(static_cast<int32_t>(lookups.keys.size()));
      }
    }
    return absl::OkStatus();
  }
  std::string PlaceOf(const RawBatch&, int64_t) override { return ""; }
  absl::Status DescribeBadRow(const RawBatch&, int64_t) override {
    return absl::InternalError("no row is bad");
  }
  void Cancel() override {}

 private:
  const int64_t rows_;
  const int64_t error_row_;
  int64_t next_row_ = 0;
};

Device* TestDevice() {
  static Device* const device = MakeCpuDevice({}).release();
  return device;
}

ThreadPool* OneThread() {
  static ThreadPool* const threads = new ThreadPool(1);
  return threads;
}

StepPipelineOptions OnOneThread() {
  StepPipelineOptions options;
  options.threads = OneThread();
  return options;
}

std::unique_ptr<BatchReader> MakeReader(int64_t rows, int64_t error_row, uint32_t passes,
                                        Step start_step = Step(0)) {
  BatchReaderOptions options;
  options.passes = passes;
  options.batch_size = 10;
  options.start_step = options.place.first_step = start_step;
  return std::make_unique<BatchReader>(std::make_unique<FakeSource>(rows, error_row), options);
}

std::unique_ptr<StepPipeline> MakePipeline(int64_t rows, int depth, int64_t error_row = -1,
                                           StepPipelineOptions options = OnOneThread(),
                                           uint32_t passes = 1) {
  options.device = TestDevice();
  options.depth = depth;
  return std::make_unique<StepPipeline>(
      MakeReader(rows, error_row, passes),
      BatchPlanner({TableId(0), TableId(1), TableId(2), TableId(3)}, {0, 1, 2, 3, 3},
                   ClusterMap(2)),
      std::move(options));
}

TEST(StepPipelineTest, HandsOutPlannedStepsInOrderAndThenNull) {
  auto pipeline = MakePipeline(/*rows=*/95, /*depth=*/3);
  for (int64_t step = 0; step < 10; ++step) {
    const auto context = pipeline->Next();
    ASSERT_TRUE(context.ok()) << context.status();
    ASSERT_NE(*context, nullptr);
    EXPECT_EQ((*context)->step(), Step(step));
    const int32_t unique = step < 9 ? 5 : 3;
    EXPECT_EQ((*context)->plan.tables[0].num_unique(), unique);
  }
  for (int i = 0; i < 2; ++i) {
    const auto end = pipeline->Next();
    ASSERT_TRUE(end.ok()) << end.status();
    EXPECT_EQ(*end, nullptr);
  }
}

// With a cache as well, whose rows the lookups then name.
TEST(StepPipelineTest, SeveralThreadsPlanTheSame) {
  ThreadPool three_threads(3);
  std::vector<std::unique_ptr<StepPipeline>> pipelines;
  for (ThreadPool* threads : {OneThread(), &three_threads}) {
    RowSourceOptions cache;
    cache.held = HeldSet::kCache;
    cache.num_servers = 2;
    cache.window_steps = 3;
    for (uint32_t t = 0; t < 4; ++t) cache.tables.emplace_back().id = TableId(t);
    cache.layout.groups.resize(2);
    cache.layout.groups[0].tables = {0, 2};
    cache.layout.groups[0].capacity = 4;
    cache.layout.groups[1].tables = {1, 3};
    cache.layout.groups[1].capacity = 100;
    StepPipelineOptions options;
    options.threads = threads;
    options.window_steps = cache.window_steps;
    options.planner = MakeRowPlanner(cache, /*exchange=*/nullptr, threads);
    pipelines.push_back(MakePipeline(/*rows=*/400, /*depth=*/4, -1, std::move(options)));
  }
  for (int step = 0; step < 40; ++step) {
    const std::shared_ptr<StepContext> one = *pipelines[0]->Next(), other = *pipelines[1]->Next();
    ASSERT_NE(one, nullptr);
    ASSERT_NE(other, nullptr);
    for (int f = 0; f < kFeatures; ++f) {
      EXPECT_EQ(one->plan.features[f].row_indices, other->plan.features[f].row_indices);
    }
    for (size_t t = 0; t < one->plan.tables.size(); ++t) {
      EXPECT_EQ(one->plan.tables[t].keys, other->plan.tables[t].keys);
      EXPECT_EQ(one->plan.tables[t].segment_bags, other->plan.tables[t].segment_bags);
      EXPECT_EQ(one->row_plan.cache.tables[t].loaded.keys,
                other->row_plan.cache.tables[t].loaded.keys);
      EXPECT_EQ(one->row_plan.cache.tables[t].bypassed.rows,
                other->row_plan.cache.tables[t].bypassed.rows);
    }
  }
}

TEST(StepPipelineTest, AHeldStepStaysAsItWasWhileOthersGoRound) {
  auto pipeline = MakePipeline(/*rows=*/200, /*depth=*/2);
  const std::shared_ptr<StepContext> held = *pipeline->Next();
  const std::vector<Key> keys(held->plan.tables[0].keys.begin(), held->plan.tables[0].keys.end());
  for (int64_t step = 1; step < 20; ++step) {
    const std::shared_ptr<StepContext> context = *pipeline->Next();
    ASSERT_NE(context, nullptr);
    EXPECT_NE(context, held);
    EXPECT_EQ(context->step(), Step(step));
  }
  EXPECT_EQ(held->step(), Step(0));
  EXPECT_EQ(std::vector<Key>(held->plan.tables[0].keys.begin(), held->plan.tables[0].keys.end()),
            keys);
}

// Dozens of contexts wait in the ring; memory on the device is allocated only for those handed out.
TEST(StepPipelineTest, StepsThatAreNotHeldShareTheirTransfers) {
  auto pipeline = MakePipeline(/*rows=*/200, /*depth=*/8);
  std::set<const StepTransfers*> transfers;
  std::shared_ptr<StepContext> held;
  for (int64_t step = 0; step < 20; ++step) {
    const std::shared_ptr<StepContext> context = *pipeline->Next();
    ASSERT_NE(context->transfers, nullptr);
    if (held != nullptr) {
      EXPECT_NE(context->transfers, held->transfers);
    }
    transfers.insert(context->transfers.get());
    held = context;
  }
  EXPECT_EQ(transfers.size(), 2u);
}

TEST(StepPipelineTest, ContextsAndTransfersOutlastTheirReader) {
  auto pipeline = MakePipeline(/*rows=*/95, /*depth=*/1);
  std::set<const StepContext*> contexts;
  std::set<const StepTransfers*> transfers;
  for (int64_t first_step = 0; first_step < 40; first_step += 10) {
    if (first_step > 0) pipeline->Restart(MakeReader(95, -1, 1, Step(first_step)));
    for (int64_t step = first_step; step < first_step + 10; ++step) {
      const std::shared_ptr<StepContext> context = *pipeline->Next();
      ASSERT_NE(context, nullptr);
      EXPECT_EQ(context->step(), Step(step));
      EXPECT_EQ(context->plan.tables[0].num_unique(), step % 10 < 9 ? 5 : 3);
      EXPECT_EQ(context->behind.kind,
                step % 10 < 9 ? StepBehind::Kind::kStep : StepBehind::Kind::kEnd);
      contexts.insert(context.get());
      transfers.insert(context->transfers.get());
    }
    EXPECT_EQ(*pipeline->Next(), nullptr);
    EXPECT_EQ(pipeline->progress().steps, 10);
  }
  EXPECT_EQ(contexts.size(), 2u);
  EXPECT_EQ(transfers.size(), 1u);
}

TEST(StepPipelineTest, ARestartedPipelineHasTheErrorsOfItsReader) {
  auto pipeline = MakePipeline(/*rows=*/10, /*depth=*/1);
  ASSERT_NE(*pipeline->Next(), nullptr);
  ASSERT_EQ(*pipeline->Next(), nullptr);
  pipeline->Restart(MakeReader(/*rows=*/30, /*error_row=*/10, 1));
  ASSERT_NE(*pipeline->Next(), nullptr);
  EXPECT_EQ(pipeline->Next().status().code(), absl::StatusCode::kDataLoss);
}

TEST(StepPipelineTest, AnErrorComesInItsPlaceAndAgain) {
  auto pipeline = MakePipeline(/*rows=*/100, /*depth=*/3, /*error_row=*/20);
  for (int64_t step = 0; step < 2; ++step) {
    const auto context = pipeline->Next();
    ASSERT_TRUE(context.ok()) << context.status();
    EXPECT_EQ((*context)->step(), Step(step));
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(pipeline->Next().status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(StepPipelineTest, EveryStepKnowsWhatComesBehindIt) {
  for (const int window_steps : {0, 1, 4}) {
    for (const int64_t error_row : {-1, 20}) {
      StepPipelineOptions options = OnOneThread();
      options.window_steps = window_steps;
      auto pipeline = MakePipeline(/*rows=*/30, /*depth=*/2, error_row, std::move(options), 2);
      std::vector<uint32_t> ends_pass;
      std::vector<StepBehind::Kind> kinds;
      for (auto next = pipeline->Next(); next.ok() && *next != nullptr; next = pipeline->Next()) {
        kinds.push_back((*next)->behind.kind);
        ends_pass.push_back((*next)->behind.ends_pass);
      }
      using Kind = StepBehind::Kind;
      if (error_row < 0) {
        EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kStep, Kind::kStep, Kind::kStep, Kind::kStep,
                                            Kind::kStep, Kind::kEnd}));
        EXPECT_EQ(ends_pass, (std::vector<uint32_t>{0, 0, 1, 0, 0, 0}));
      } else {
        EXPECT_EQ(kinds, (std::vector<Kind>{Kind::kStep, Kind::kError}));
        EXPECT_EQ(ends_pass, (std::vector<uint32_t>{0, 0}));
      }
      EXPECT_TRUE(pipeline->NextIsReady());
    }
  }
}

TEST(StepPipelineTest, NextIsReadyWhenAStepIs) {
  auto pipeline = MakePipeline(/*rows=*/1000, /*depth=*/1);
  // With its one context held, the pipeline can't make another step ready.
  std::shared_ptr<StepContext> held = *pipeline->Next();
  EXPECT_FALSE(pipeline->NextIsReady());
  held = nullptr;
  ASSERT_NE(*pipeline->Next(), nullptr);
}

TEST(StepPipelineTest, EndsWhileItsThreadWaitsForAContext) {
  auto pipeline = MakePipeline(/*rows=*/1000, /*depth=*/1);
  std::shared_ptr<StepContext> context = *pipeline->Next();
  ASSERT_NE(context, nullptr);
  context = nullptr;
  pipeline = nullptr;
}

}  // namespace
}  // namespace thermocline
