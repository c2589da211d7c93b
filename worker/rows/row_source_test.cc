// Random traces through a planner, a source and a session, against servers whose answers come late,
// out of order, and sometimes not at all: every row that a step reads, and every row that is on the
// servers after a cut, is that of a map updated step by step. One thread; time is virtual.
#include "worker/rows/row_source.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/test_seed.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/dense/dense_tensors.h"
#include "worker/dense/step_order.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/testing/fake_servers.h"
#include "worker/rows/testing/row_source_trace.h"

namespace thermocline {
namespace {

// Events of the scheduler for one fetch or the end of a trace: far more than any needs.
constexpr int kMostEvents = 200'000;

// Like a pipeline's ring: a context is reused when its last holder releases it. Outlives the
// traces.
class Contexts {
 public:
  explicit Contexts(Device* device) : device_(device) {}

  std::shared_ptr<StepContext> Take() {
    if (idle_.empty()) {
      all_.push_back(std::make_unique<StepContext>());
      all_.back()->batch = std::make_unique<Batch>();
      idle_.push_back(all_.back().get());
    }
    StepContext* context = idle_.back();
    idle_.pop_back();
    return std::shared_ptr<StepContext>(context,
                                        [this](StepContext* idle) { idle_.push_back(idle); });
  }
  // Begins a context as a pipeline does. (Here it keeps its transfers.)
  void Begin(StepContext* context) const {
    context->Begin(context->transfers == nullptr ? std::make_unique<StepTransfers>(device_)
                                                 : std::move(context->transfers));
  }
  Device* device() const { return device_; }

 private:
  Device* const device_;
  std::vector<std::unique_ptr<StepContext>> all_;
  std::vector<StepContext*> idle_;
};

struct Totals {
  int64_t hits = 0, bypassed = 0, rejected_no_room = 0, evicted = 0, written_ahead = 0, cuts = 0;
  int64_t held_without_gradient = 0, pulled_without_gradient = 0;
  uint64_t not_ready = 0, retries = 0;
};

class TraceRunner {
 public:
  TraceRunner(const RowTrace& trace, uint64_t seed, Contexts* contexts)
      : trace_(trace),
        random_(Mix64(seed)),
        contexts_(contexts),
        cluster_(trace.options.num_servers),
        dense_blocks_({DenseTable{trace.layouts.at(kDenseTable), 1, 300}}, cluster_),
        dense_weights_(dense_blocks_.arena_floats()),
        dense_state_(dense_blocks_.num_blocks() * dense_blocks_.state_floats()),
        dense_gradients_(dense_blocks_.arena_floats()),
        batch_planner_(TableIds(), trace.feature_tables, cluster_),
        row_planner_(MakeRowPlanner(trace.options, /*exchange=*/nullptr, &threads_)),
        servers_(trace, &scheduler_, Mix64(~seed),
                 [this](auto server, auto step, auto& all) { CheckApplied(server, step, all); }),
        session_(SessionOptions(), &servers_, &scheduler_),
        dense_(&dense_blocks_, Arenas(), trace.options.num_workers, /*slices=*/nullptr,
               contexts->device(), &session_),
        source_(trace.options, /*exchange=*/nullptr, &session_, contexts->device()),
        order_(&source_, &dense_, &session_, /*exchange=*/nullptr) {
    CHECK_EQ(dense_blocks_.num_blocks(), kDenseBlocks);
  }

  void Run(Totals* totals) {
    Train();
    int events = 0;
    while (!testing::Test::HasFailure() && scheduler_.RunNext()) {
      if (++events == kMostEvents) ADD_FAILURE() << "the trace has no end";
    }
    if (testing::Test::HasFailure()) {
      session_.Fail(absl::CancelledError("the trace failed"));
      while (scheduler_.RunNext()) {
      }
    } else {
      EXPECT_TRUE(session_.Drain().ok());
      EXPECT_EQ(session_.acked_through(), trace_.last_step());
      EXPECT_EQ(checked_, trace_.num_steps * trace_.options.num_servers);
    }
    const CacheCounts counts = trace_.holds_rows() ? source_.slabs()->counts() : CacheCounts();
    totals->hits += counts.hits;
    totals->bypassed += counts.bypassed;
    totals->rejected_no_room += counts.rejected_no_room;
    totals->evicted += counts.evicted;
    totals->written_ahead += counts.written_ahead;
    totals->held_without_gradient += held_without_gradient_;
    totals->pulled_without_gradient += pulled_without_gradient_;
    totals->not_ready += session_.stats().not_ready;
    totals->retries += session_.stats().retries;
    for (const auto& [step, model] : models_) totals->cuts += model.is_cut ? 1 : 0;
  }

  // Makes a gradient of a held row NaN, at the first step from `step` on that has one. Returns
  // whether there was one.
  bool RunToABadGradient(int step) {
    bad_step_ = trace_.options.start_step + step;
    Train();
    session_.Fail(absl::CancelledError("the gradient was found"));
    while (scheduler_.RunNext()) {
    }
    return ended_;
  }

 private:
  using Gradients = std::map<TableKey, Written>;

  std::vector<TableId> TableIds() const {
    std::vector<TableId> ids;
    for (const TableLayout& table : trace_.options.tables) ids.push_back(table.id);
    return ids;
  }
  PsSessionOptions SessionOptions() const {
    PsSessionOptions options;
    options.job_id = "job";
    options.num_servers = trace_.options.num_servers;
    options.staleness_steps = trace_.options.staleness_steps;
    for (const auto& [id, layout] : trace_.layouts) options.tables.push_back(layout);
    options.start_step = trace_.options.start_step;
    options.max_chunk_bytes = trace_.max_chunk_bytes;
    options.max_calls_in_flight = trace_.max_calls_in_flight;
    return options;
  }
  DenseArenas Arenas() {
    const auto span = [](Floats& floats) -> DeviceSpan<float> {
      return {floats.data(), static_cast<int64_t>(floats.size())};
    };
    return {span(dense_weights_), span(dense_state_), span(dense_gradients_)};
  }
  TableKey KeyOf(const StepContext& context, size_t t, int32_t u) const {
    return {trace_.options.tables[t].id.value(), context.plan.tables[t].keys[u]};
  }

  // Does what a trainer does (worker/train/trainer.cc).
  void Train() {
    next_ = PlanNext();
    FetchAhead(0);
    while (!fetched_.empty() && !testing::Test::HasFailure() && !ended_) {
      const std::shared_ptr<StepContext> context = std::move(fetched_.front());
      fetched_.pop_front();
      TrainStep(context);
    }
    next_ = pipelined_ = nullptr;
    fetched_.clear();
    window_.clear();
  }

  void TrainStep(const std::shared_ptr<StepContext>& context) {
    if (pipelined_ != nullptr && context->row_plan.awaits_push_of >= pipelined_->step()) {
      FinishPipelined(1);
    }
    if (ended_) return;
    RunUntilFetched(*context);
    if (testing::Test::HasFailure()) return;
    order_.Receive(context.get(), &tasks_);
    const absl::Status received = RunAll(&tasks_, /*exchange=*/nullptr);
    ASSERT_TRUE(received.ok()) << received;
    if (bad_message_.empty()) CheckRows(*context);  // After a NaN the rows are wrong.
    Compute(context.get());
    SpoilAGradient(*context);
    context->learning_rate = LearningRateOf(context->step());
    source_.Update(context.get());
    const bool last = fetched_.empty() && next_ == nullptr;
    context->writes_back = last || random_.OneIn(trace_.one_cut_in);
    if (trace_.holds_rows()) models_[context->step()] = {model_, context->writes_back};
    FinishPipelined(1);
    pipelined_ = context;
    if (!trace_.pipelines_steps || context->writes_back) FinishPipelined(0);
    for (int events = random_.Draw(0, 12); events > 0; --events) scheduler_.RunNext();
  }

  void FinishPipelined(size_t queued_beyond) {
    if (pipelined_ == nullptr || ended_) return;
    const std::shared_ptr<StepContext> context = std::move(pipelined_);
    order_.Push(context, &tasks_);
    const absl::Status pushed = RunAll(&tasks_, /*exchange=*/nullptr);
    if (!bad_message_.empty() && context->step() == bad_step_) {
      EXPECT_EQ(pushed.code(), absl::StatusCode::kInvalidArgument) << pushed;
      EXPECT_TRUE(absl::StartsWith(pushed.message(), bad_message_)) << pushed;
      EXPECT_TRUE(absl::StrContains(pushed.message(), "learning_rate")) << pushed;
      ended_ = true;
    }
    if (ended_) return;
    EXPECT_TRUE(pushed.ok()) << pushed;
    FetchAhead(queued_beyond);
    // The gradients of the dense parameters are finite.
    context->outcome()->bad_gradient = static_cast<int64_t>(dense_gradients_.size());
    order_.FinishPush(context.get(), &tasks_);
    const absl::Status finished = RunAll(&tasks_, /*exchange=*/nullptr);
    EXPECT_TRUE(finished.ok()) << finished;
  }

  void FetchAhead(size_t queued_beyond) {
    while (next_ != nullptr &&
           fetched_.size() + queued_beyond <= static_cast<size_t>(source_.fetch_ahead())) {
      order_.Fetch(next_);
      fetched_.push_back(std::move(next_));
      next_ = PlanNext();
    }
  }

  // Like a pipeline: plans a step when the batches of its window are there.
  std::shared_ptr<StepContext> PlanNext() {
    while (steps_made_ < trace_.num_steps &&
           window_.size() <= static_cast<size_t>(trace_.options.window_steps)) {
      const std::shared_ptr<StepContext> context = contexts_->Take();
      FillBatch(context->batch.get());
      batch_planner_.Plan(*context->batch, &context->plan);
      bool goes_on = false;
      EXPECT_TRUE(row_planner_->Admit(true, context.get(), &tasks_, &goes_on).ok());
      EXPECT_TRUE(goes_on && tasks_.empty());
      window_.push_back(context);
    }
    if (window_.empty()) return nullptr;
    std::shared_ptr<StepContext> context = std::move(window_.front());
    window_.pop_front();
    EXPECT_TRUE(row_planner_->Plan(context.get(), &tasks_).ok());
    EXPECT_TRUE(tasks_.empty());
    contexts_->Begin(context.get());
    return context;
  }

  void FillBatch(Batch* batch) {
    batch->step = trace_.options.start_step + steps_made_++;
    batch->size = random_.Draw(0, trace_.most_samples);
    batch->features.resize(trace_.feature_tables.size());
    for (FeatureLookups& feature : batch->features) {
      feature.keys.clear();
      feature.offsets.assign(1, 0);
      for (int sample = 0; sample < batch->size; ++sample) {
        for (int lookups = random_.Draw(0, 2); lookups > 0; --lookups) {
          feature.keys.push_back(std::min(random_.Draw(0, trace_.key_space - 1),
                                          random_.Draw(0, trace_.key_space - 1)));
        }
        feature.offsets.push_back(static_cast<int32_t>(feature.keys.size()));
      }
    }
  }

  void RunUntilFetched(const StepContext& context) {
    for (int events = 0; !context.pulls.IsOver(); ++events) {
      if (events == kMostEvents || !scheduler_.RunNext()) {
        ADD_FAILURE() << "the fetch of step " << context.step() << " has no end";
        return;
      }
      if (testing::Test::HasFailure()) return;
    }
  }

  void CheckRows(const StepContext& context) {
    const Step bound = context.step() - 1 - trace_.options.staleness_steps;
    EXPECT_GE(context.complete_through, trace_.holds_rows() ? context.step() - 1 : bound);
    for (size_t t = 0; t < context.tables.size(); ++t) {
      const Matrix& rows = context.tables[t].rows;
      for (int32_t u = 0; u < context.plan.tables[t].num_unique(); ++u) {
        const TableKey key = KeyOf(context, t, u);
        const int32_t row = trace_.holds_rows() ? context.row_plan.cache.tables[t].rows[u] : u;
        ASSERT_LT(row, rows.rows);
        CheckRow(context.step(), key, absl::MakeConstSpan(rows.row(row), rows.cols));
      }
    }
    for (int block = 0; block < kDenseBlocks && !trace_.holds_rows(); ++block) {
      CheckRow(context.step(), {kDenseTable, static_cast<Key>(block)},
               absl::MakeConstSpan(dense_weights_)
                   .subspan(block * kDenseBlockFloats, kDenseBlockFloats));
    }
  }

  void CheckRow(Step step, const TableKey& key, absl::Span<const float> weights) {
    ASSERT_EQ(weights.size(), static_cast<size_t>(trace_.layouts.at(key.first).dim));
    if (trace_.holds_rows()) {
      const Floats& expected = trace_.RowOf(key, &model_).values;
      ASSERT_TRUE(std::equal(weights.begin(), weights.end(), expected.begin()))
          << "step " << step << ", table " << key.first << ", key " << key.second
          << ": begins with " << weights[0] << " instead of " << expected[0];
    } else {
      const Step through = step - 1 - trace_.options.staleness_steps;
      ASSERT_TRUE(servers_.WasReadable(key, through, weights))
          << "step " << step << ", table " << key.first << ", key " << key.second
          << ": is not complete through step " << through;
    }
  }

  // Draws which rows have a gradient, as a model that doesn't use all rows of a batch, or none.
  void DrawMask(size_t t, StepContext* context) {
    std::vector<uint8_t>& has_gradient = context->tables[t].has_gradient;
    EXPECT_TRUE(has_gradient.empty());
    if (random_.OneIn(2)) return;
    const int one_in = random_.OneIn(4) ? 1 : random_.Draw(2, 6);
    const auto& pulled = context->row_plan.tables[t].pulled_positions;
    for (int32_t u = 0; u < context->plan.tables[t].num_unique(); ++u) {
      has_gradient.push_back(random_.OneIn(one_in) ? 0 : 1);
      if (has_gradient.back() != 0) continue;
      const bool is_held = trace_.holds_rows() && std::count(pulled.begin(), pulled.end(), u) == 0;
      ++(is_held ? held_without_gradient_ : pulled_without_gradient_);
    }
  }
  static bool HasGradient(const TableOperands& table, int32_t u) {
    return table.has_gradient.empty() || table.has_gradient[u] != 0;
  }

  // Draws random gradients and updates the expected model.
  void Compute(StepContext* context) {
    const Step step = context->step();
    Gradients gradients;
    for (size_t t = 0; t < context->tables.size(); ++t) {
      DrawMask(t, context);
      const Matrix& matrix = context->tables[t].gradients;
      for (int32_t u = 0; u < context->plan.tables[t].num_unique(); ++u) {
        Written& gradient = gradients[KeyOf(*context, t, u)];
        gradient.count = context->plan.tables[t].counts[u];
        if (!HasGradient(context->tables[t], u)) {
          gradient.kind = wire::PushKind::kCount;
          std::fill_n(matrix.row(u), matrix.cols, std::nanf(""));  // It must not be looked at.
          continue;
        }
        gradient.values.resize(matrix.cols);
        random_.Fill(absl::MakeSpan(gradient.values));
        std::copy(gradient.values.begin(), gradient.values.end(), matrix.row(u));
      }
    }
    if (trace_.holds_rows()) {
      for (const auto& [key, gradient] : gradients) {
        ServerRow& row = trace_.RowOf(key, &model_);
        row.lookups += gradient.count;
        if (gradient.kind == wire::PushKind::kCount) continue;
        trace_.Descend(key, LearningRateOf(step), step, gradient.values.data(), &row.values);
      }
      ComputeDenseRows();
      return;
    }
    for (int block = 0; block < kDenseBlocks; ++block) {
      const absl::Span<float> values =
          absl::MakeSpan(dense_gradients_).subspan(block * kDenseBlockFloats, kDenseBlockFloats);
      random_.Fill(values);
      gradients[{kDenseTable, static_cast<Key>(block)}].values.assign(values.begin(), values.end());
    }
    expected_.emplace(step, std::move(gradients));
  }

  void SpoilAGradient(const StepContext& context) {
    if (!bad_step_.has_value() || !bad_message_.empty() || context.step() < *bad_step_) return;
    for (size_t t = 0; t < context.tables.size(); ++t) {
      const Matrix& matrix = context.tables[t].gradients;
      for (int32_t u = 0; u < context.plan.tables[t].num_unique(); ++u) {
        const auto& pushed = context.row_plan.tables[t].pulled_positions;
        if (std::count(pushed.begin(), pushed.end(), u) > 0) continue;
        if (!HasGradient(context.tables[t], u)) continue;
        matrix.row(u)[matrix.cols - 1] = std::nanf("");
        bad_step_ = context.step();
        bad_message_ = absl::StrCat("step ", context.step().value(), ": the gradient of table '",
                                    trace_.options.tables[t].name, "', key ",
                                    context.plan.tables[t].keys[u], " is not finite");
        return;
      }
    }
  }

  void ComputeDenseRows() {
    random_.Fill(absl::MakeSpan(dense_weights_));
    random_.Fill(absl::MakeSpan(dense_state_));
    const int state_floats = dense_blocks_.state_floats();
    for (int block = 0; block < kDenseBlocks; ++block) {
      const auto weights = dense_weights_.begin() + block * kDenseBlockFloats;
      const auto state = dense_state_.begin() + block * state_floats;
      Floats& row = model_[{kDenseTable, static_cast<Key>(block)}].values;
      row.assign(weights, weights + kDenseBlockFloats);
      row.insert(row.end(), state, state + state_floats);
    }
  }

  void CheckApplied(uint32_t server, Step step, const std::vector<Written>& written) {
    if (testing::Test::HasFailure()) return;
    EXPECT_TRUE(bad_message_.empty() || step < *bad_step_) << "step " << step;
    ++checked_;
    trace_.holds_rows() ? CheckModel(server, step) : CheckPush(server, step, written);
  }

  // After a cut the servers have the whole model; after any other step, all but the rows that may
  // be unwritten.
  void CheckModel(uint32_t server, Step step) {
    const ModelOfStep& model = models_.at(step);
    uint64_t& unwritten_bytes = unwritten_bytes_[step];  // on all servers
    const auto check = [&](const TableKey& key, const ServerRow& actual) {
      if (trace_.ServerOf(key) != server || (key.first == kDenseTable && !model.is_cut)) return;
      const auto found = model.rows.find(key);
      const ServerRow expected = found != model.rows.end() ? found->second : trace_.NewRow(key);
      if (actual.lookups == expected.lookups && actual.values == expected.values) return;
      unwritten_bytes += sizeof(float) * ((expected.values.size() + 3) / 4 * 4);
      ASSERT_FALSE(model.is_cut) << "cut at step " << step << ", table " << key.first << ", key "
                                 << key.second << ": " << actual.lookups << " lookups instead of "
                                 << expected.lookups << ", begins with " << actual.values[0]
                                 << " instead of " << expected.values[0];
    };
    const Rows& rows = servers_.RowsOf(server);
    for (const auto& [key, row] : rows) check(key, row);
    for (const auto& [key, row] : model.rows) {
      if (rows.count(key) == 0) check(key, trace_.NewRow(key));
    }
    EXPECT_LE(unwritten_bytes, trace_.options.max_unwritten_bytes * trace_.options.num_servers);
  }

  // The gradients of the step, each once.
  void CheckPush(uint32_t server, Step step, const std::vector<Written>& written) {
    size_t keys = 0;
    const Gradients& gradients = expected_.at(step);
    for (const auto& [key, gradient] : gradients) keys += trace_.ServerOf(key) == server ? 1 : 0;
    EXPECT_EQ(written.size(), keys);
    for (const Written& one : written) {
      const auto found = gradients.find(one.key);
      ASSERT_TRUE(found != gradients.end());
      EXPECT_EQ(one.kind, found->second.kind);
      EXPECT_EQ(one.count, found->second.count);
      EXPECT_TRUE(one.values == found->second.values) << "key " << one.key.second;
    }
  }

  const RowTrace& trace_;
  Random random_;
  Contexts* const contexts_;
  const ClusterMap cluster_;
  const DenseBlocks dense_blocks_;
  Floats dense_weights_, dense_state_, dense_gradients_;
  BatchPlanner batch_planner_;
  ThreadPool threads_{1};
  const std::unique_ptr<RowPlanner> row_planner_;

  // One worker: the rows, and as they were after each step.
  struct ModelOfStep {
    Rows rows;
    bool is_cut;
  };
  Rows model_;
  std::map<Step, ModelOfStep> models_;
  std::map<Step, uint64_t> unwritten_bytes_;
  // Several: what each step pushes.
  std::map<Step, Gradients> expected_;
  size_t checked_ = 0;  // pushes, each on one server
  int64_t held_without_gradient_ = 0, pulled_without_gradient_ = 0;

  int steps_made_ = 0;
  std::deque<std::shared_ptr<StepContext>> window_, fetched_;
  std::shared_ptr<StepContext> next_, pipelined_;
  std::optional<Step> bad_step_;
  std::string bad_message_;  // set with the bad gradient
  bool ended_ = false;       // since it was found

  VirtualScheduler scheduler_;
  FakeServers servers_;
  PsSession session_;
  DenseTensors dense_;
  RowSource source_;
  StepOrder order_;
  StepTasks tasks_;
};

class RowSourceTest : public testing::Test {
 protected:
  // A trace that failed is the first one of its own seed.
  Totals RunTraces(uint32_t num_workers, int traces) {
    const uint64_t seed = TestSeed();
    Totals totals;
    for (int i = 0; i < traces && !HasFailure(); ++i) {
      SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed + i));
      Random random(seed + i);
      const RowTrace trace = DrawTrace(num_workers, &random);
      TraceRunner(trace, seed + i, &contexts_).Run(&totals);
    }
    return totals;
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  Contexts contexts_{device_.get()};
};

TEST_F(RowSourceTest, OneWorkerReadsItsRowsAndACutLeavesThemOnTheServers) {
  const Totals totals = RunTraces(1, RandomRuns(3000));
  // Every path was taken.
  EXPECT_GT(totals.hits, 0);
  EXPECT_GT(totals.bypassed, 0);
  EXPECT_GT(totals.rejected_no_room, 0);
  EXPECT_GT(totals.evicted, 0);
  EXPECT_GT(totals.written_ahead, 0);
  EXPECT_GT(totals.held_without_gradient, 0);
  EXPECT_GT(totals.pulled_without_gradient, 0);
  EXPECT_GT(totals.not_ready, 0u);
  EXPECT_GT(totals.retries, 0u);
  EXPECT_GT(totals.cuts, RandomRuns(3000));
}

// No server sees the gradients of held rows, so the worker checks them before the step is pushed.
TEST_F(RowSourceTest, ABadGradientOfARowHeldEndsTheRunAndNamesIt) {
  const uint64_t seed = TestSeed();
  int found = 0;
  for (int i = 0; i < 200 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed + i));
    Random random(seed + i);
    const RowTrace trace = DrawTrace(/*num_workers=*/1, &random);
    const int step = random.Draw(0, trace.num_steps - 1);
    found += TraceRunner(trace, seed + i, &contexts_).RunToABadGradient(step) ? 1 : 0;
  }
  EXPECT_GT(found, 100);
}

TEST_F(RowSourceTest, OneOfSeveralWorkersKeepsTheBoundOfStaleness) {
  const Totals totals = RunTraces(2, RandomRuns(1000));
  EXPECT_GT(totals.pulled_without_gradient, 0);
  EXPECT_GT(totals.not_ready, 0u);
  EXPECT_GT(totals.retries, 0u);
}

}  // namespace
}  // namespace thermocline
