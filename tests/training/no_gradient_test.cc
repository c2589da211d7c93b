// A worker whose model leaves keys of its batches without a gradient trains the same bits with a
// cache and without one; their lookups count. The rows' parts of the worker are real, and so are
// the servers.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/training/in_process_transport.h"
#include "tests/training/small_job.h"
#include "tests/training/static_job.h"
#include "worker/dense/dense_blocks.h"
#include "worker/dense/dense_tensors.h"
#include "worker/dense/step_order.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_source.h"
#include "worker/train/run_options.h"

namespace thermocline {
namespace {

constexpr int64_t kSteps = 24;
constexpr int64_t kEmptyStep = 7;  // Nothing has a gradient.
constexpr int64_t kFullStep = 11;  // Everything has one, and the model says nothing of it.
constexpr int kSamples = 50;

// What a model makes of keys that it does not use.
enum class Unused { kNoGradient, kZeroGradient };

uint64_t Draw(int64_t step, uint64_t table, Key key) {
  return Mix64(Mix64(Mix64(key) + table) + static_cast<uint64_t>(step));
}

bool IsUsed(int64_t step, uint64_t table, Key key) {
  return step != kEmptyStep && (step == kFullStep || Draw(step, table, key) % 3 != 0);
}

// One worker that trains such a model, with or without a cache.
class NoGradientRun {
 public:
  NoGradientRun(const Job& job, Unused unused, JobServers* servers)
      : unused_(unused),
        tables_(ResolveTables(job)),
        transport_(servers->cores()),
        rows_(RowOptions(job, tables_, &static_rows_)),
        planner_(MakePlanner(tables_, rows_.num_servers, /*places=*/{})),
        row_planner_(MakeRowPlanner(rows_, /*exchange=*/nullptr, &threads_)),
        blocks_(tables_.dense, ClusterMap(rows_.num_servers)),
        weights_(blocks_.arena_floats()),
        state_(blocks_.num_blocks() * blocks_.state_floats()),
        gradients_(blocks_.arena_floats()),
        session_(SessionOptions(job, tables_, Worker()), &transport_, servers->scheduler()),
        dense_(&blocks_, Arenas(), /*num_workers=*/1, /*slices=*/nullptr, device_.get(), &session_),
        source_(rows_, /*exchange=*/nullptr, &session_, device_.get()),
        order_(&source_, &dense_, &session_, /*exchange=*/nullptr) {}

  void Train() {
    for (int64_t step = 0; step < kSteps && !testing::Test::HasFailure(); ++step) {
      const std::shared_ptr<StepContext> context = PlanNext();
      ASSERT_EQ(context->step(), Step(step));
      TrainStep(context);
    }
    const absl::Status drained = session_.Drain();
    EXPECT_TRUE(drained.ok()) << drained;
  }

  int64_t held_without_gradient() const { return held_without_gradient_; }
  int64_t pulled_without_gradient() const { return pulled_without_gradient_; }

 private:
  static WorkerOptions Worker() {
    WorkerOptions worker;
    worker.job_id = kSmallJobId;
    worker.generation = kSmallJobGeneration;
    return worker;
  }
  static RowSourceOptions RowOptions(const Job& job, const JobTables& tables,
                                     StaticRows* static_rows) {
    if (!job.has_cache()) return UncachedOptions(job, tables);
    WorkerOptions worker = Worker();
    worker.max_unwritten_bytes = 1000;  // Some rows are written while they are held.
    absl::StatusOr<RowSourceOptions> rows = CachedOptions(job, tables, worker);
    EXPECT_TRUE(rows.ok()) << rows.status();
    if (job.cache().policy() == Cache::STATIC) {
      absl::StatusOr<StaticRows> opened = OpenStaticRows(job, tables, &*rows);
      EXPECT_TRUE(opened.ok()) << opened.status();
      *static_rows = *std::move(opened);
    }
    return *std::move(rows);
  }
  DenseArenas Arenas() {
    const auto span = [](std::vector<float>& floats) -> DeviceSpan<float> {
      return {floats.data(), static_cast<int64_t>(floats.size())};
    };
    return {span(weights_), span(state_), span(gradients_)};
  }

  std::shared_ptr<StepContext> PlanNext() {
    while (admitted_ < kSteps && window_.size() <= static_cast<size_t>(rows_.window_steps)) {
      auto context = std::make_shared<StepContext>();
      context->batch = MakeBatch(admitted_++);
      planner_.Plan(*context->batch, &context->plan);
      bool goes_on = false;
      EXPECT_TRUE(row_planner_->Admit(true, context.get(), &tasks_, &goes_on).ok());
      window_.push_back(std::move(context));
    }
    std::shared_ptr<StepContext> context = std::move(window_.front());
    window_.pop_front();
    EXPECT_TRUE(row_planner_->Plan(context.get(), &tasks_).ok());
    RunTasks();
    context->Begin(std::make_unique<StepTransfers>(device_.get()));
    return context;
  }

  // Some keys come in many steps, and many in one.
  std::unique_ptr<Batch> MakeBatch(int64_t step) const {
    auto batch = std::make_unique<Batch>();
    batch->step = Step(step);
    batch->size = kSamples;
    batch->features.resize(tables_.features.size());
    for (size_t f = 0; f < batch->features.size(); ++f) {
      FeatureLookups& feature = batch->features[f];
      feature.offsets.assign(1, 0);
      for (int sample = 0; sample < kSamples; ++sample) {
        const uint64_t draw = Draw(step, 100 + f, sample);
        for (uint64_t i = 0; i < draw % 3; ++i) {
          const uint64_t bits = Mix64(draw + i);
          feature.keys.push_back((bits % 40) * (bits / 64 % 40));
        }
        feature.offsets.push_back(static_cast<int32_t>(feature.keys.size()));
      }
    }
    return batch;
  }

  void TrainStep(const std::shared_ptr<StepContext>& context) {
    order_.Fetch(context);
    order_.Receive(context.get(), &tasks_);
    RunTasks();
    if (testing::Test::HasFailure()) return;
    Compute(context.get());
    context->learning_rate = 0.05f;
    source_.Update(context.get());
    context->writes_back = context->step() == Step(9) || context->step() == Step(kSteps - 1);
    order_.Push(context, &tasks_);
    RunTasks();
    // The gradients of the dense parameters are finite.
    context->outcome()->bad_gradient = static_cast<int64_t>(gradients_.size());
    order_.FinishPush(context.get(), &tasks_);
    RunTasks();
  }

  void RunTasks() {
    const absl::Status status = RunAll(&tasks_, /*exchange=*/nullptr);
    ASSERT_TRUE(status.ok()) << status;
  }

  // Gradients depend on the rows, so that what is once different stays so.
  void Compute(StepContext* context) {
    const int64_t step = context->step().value();
    for (size_t t = 0; t < context->tables.size(); ++t) {
      const TablePlan& plan = context->plan.tables[t];
      TableOperands& table = context->tables[t];
      const absl::Span<const int32_t> pulled = context->row_plan.tables[t].pulled_positions;
      for (int32_t u = 0; u < plan.num_unique(); ++u) {
        const bool is_held = rows_.held == HeldSet::kCache || rows_.held == HeldSet::kStatic;
        const float* const row =
            table.rows.row(is_held ? context->row_plan.cache.tables[t].rows[u] : u);
        const bool is_used = IsUsed(step, t, plan.keys[u]);
        for (int i = 0; i < table.gradients.cols; ++i) {
          const auto noise = static_cast<float>(Draw(step, t, plan.keys[u] * 64 + i) % 1000);
          table.gradients.row(u)[i] = is_used ? 0.2f * row[i] + noise / 1000.0f - 0.5f : 0.0f;
        }
        if (is_used || unused_ == Unused::kZeroGradient) continue;
        // It must not be looked at.
        std::fill_n(table.gradients.row(u), table.gradients.cols, std::nanf(""));
        table.has_gradient.resize(plan.num_unique(), 1);
        table.has_gradient[u] = 0;
        const bool is_pulled = !is_held || std::count(pulled.begin(), pulled.end(), u) > 0;
        ++(is_pulled ? pulled_without_gradient_ : held_without_gradient_);
      }
    }
  }

  const Unused unused_;
  const JobTables tables_;
  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  ThreadPool threads_{1};
  InProcessTransport transport_;
  StaticRows static_rows_;
  const RowSourceOptions rows_;
  BatchPlanner planner_;
  const std::unique_ptr<RowPlanner> row_planner_;
  const DenseBlocks blocks_;
  std::vector<float> weights_, state_, gradients_;  // Arenas (dense_blocks.h).
  PsSession session_;
  DenseTensors dense_;
  RowSource source_;
  StepOrder order_;
  StepTasks tasks_;

  int64_t admitted_ = 0;
  std::deque<std::shared_ptr<StepContext>> window_;
  int64_t held_without_gradient_ = 0, pulled_without_gradient_ = 0;
};

struct Trained {
  Outcome servers;
  int64_t held = 0, pulled = 0;  // Keys without a gradient.
};

Trained Train(const Job& job, Unused unused = Unused::kNoGradient) {
  JobServers servers(job);
  NoGradientRun run(job, unused, &servers);
  run.Train();
  Trained trained;
  servers.AddDigest(&trained.servers);
  trained.held = run.held_without_gradient();
  trained.pulled = run.pulled_without_gradient();
  return trained;
}

class NoGradientTest : public testing::TestWithParam<const char*> {};

// With admission and eviction, too: there a key that is looked up without a gradient is as good as
// any other.
TEST_P(NoGradientTest, IsTheSameWithACacheAndNoGradientOfZero) {
  struct Setting {
    std::vector<std::string> overrides;
    bool holds_rows = true;  // The workers may hold the rows of some table.
  };
  const std::vector<Setting> settings = {
      {{}},
      {{"table[0].settings.min_count=3"}},
      {{"table[0].settings.eviction.unused_steps=2"}},
      {{"table[0].settings.eviction.max_rows=50"}},
      {{"default_table.min_count=2", "default_table.eviction.unused_steps=6",
        "default_table.eviction.max_rows=40"},
       false}};
  for (const Setting& setting : settings) {
    std::vector<std::string> overrides = setting.overrides;
    SCOPED_TRACE(overrides.empty() ? "" : overrides[0]);
    overrides.push_back("cluster.servers=2");
    const Job job = MakeSmallJob(GetParam(), overrides);
    const Trained uncached = Train(job);
    EXPECT_GT(uncached.pulled, 0);
    EXPECT_EQ(uncached.held, 0);
    int64_t held = 0;
    for (const auto& [budget, window] :
         std::vector<std::pair<const char*, int>>{{"32KiB", 1}, {"64KiB", 4}, {"1MiB", 12}}) {
      SCOPED_TRACE(absl::StrCat("budget ", budget, ", window ", window));
      const Trained cached = Train(WithCache(job, budget, window, /*prefetch_steps=*/0));
      EXPECT_EQ(Hex(cached.servers.digest), Hex(uncached.servers.digest));
      EXPECT_EQ(cached.servers.rows, uncached.servers.rows);
      EXPECT_EQ(cached.held + cached.pulled, uncached.pulled);
      held += cached.held;
    }
    EXPECT_EQ(held > 0, setting.holds_rows);
    // Only Adam moves a row by a gradient of zero.
    const Trained zeros = Train(job, Unused::kZeroGradient);
    EXPECT_EQ(zeros.servers.rows, uncached.servers.rows);
    EXPECT_EQ(Hex(zeros.servers.digest) == Hex(uncached.servers.digest),
              !absl::StartsWith(GetParam(), "adam"));
  }
}

// Its keys are those that the data have, of which the model's batches have many.
TEST_P(NoGradientTest, IsTheSameWithAStaticCache) {
  const Job job = MakeSmallJob(GetParam(), {"cluster.servers=2"});
  const Trained uncached = Train(job);
  for (const int least_lookups : {6, 1}) {
    const Trained cached = Train(
        WithStaticCache(job, "1MiB", /*window_steps=*/4, /*prefetch_steps=*/0, least_lookups));
    EXPECT_EQ(Hex(cached.servers.digest), Hex(uncached.servers.digest)) << least_lookups;
    EXPECT_EQ(cached.servers.rows, uncached.servers.rows);
    EXPECT_EQ(cached.held + cached.pulled, uncached.pulled);
    EXPECT_GT(cached.held, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, NoGradientTest, testing::ValuesIn(kOptimizers),
                         NameOfOptimizer);

}  // namespace
}  // namespace thermocline
