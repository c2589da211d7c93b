// Runs of one to three ranks, each with a device and a thread of its own, over hot and cold steps,
// against a map updated step by step: every row that a step reads, and every row on the servers
// after a step that leaves nothing unwritten, has the map's bits. Hot steps send no row and no
// gradient.
#include "worker/source/hot_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/base/scheduler.h"
#include "common/base/status_macros.h"
#include "common/base/thread_pool.h"
#include "common/math/gradient_merge.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/testing/test_seed.h"
#include "worker/exchange/local_exchange.h"
#include "worker/source/cached_source_trace.h"
#include "worker/source/hot_rows.h"
#include "worker/source/merging_servers_for_test.h"

namespace thermocline {
namespace {

using Lookups = std::vector<std::vector<std::vector<Key>>>;  // [features][samples][lookups]

struct PlannedStep {
  bool is_hot = false;
  bool writes_back = false;
  std::vector<Lookups> batches;  // [ranks]
};

// What a run is drawn from.
struct HotTrace {
  uint32_t num_ranks = 1, num_servers = 1;
  Step start_step{0};
  JobTables tables;
  HotSet hot_set;
  std::vector<std::vector<PlannedStep>> stretches;
  HotSourceOptions options;
  size_t max_chunk_bytes = 0;
  int64_t most_delay_us = 0;

  int64_t num_steps() const {
    int64_t steps = 0;
    for (const auto& stretch : stretches) steps += static_cast<int64_t>(stretch.size());
    return steps;
  }
  const TableLayout& layout(size_t t) const { return tables.sparse[t]; }
};

constexpr int kHotKeySpace = 30;

void DrawHotTables(Random* random, HotTrace* trace) {
  std::vector<TableLayout> layouts(2);
  for (TableLayout& layout : layouts) {
    layout.dim = std::vector<int>{1, 2, 3, 4, 8, 16}[random->Draw(0, 5)];
    layout.optimizer.kind = static_cast<OptimizerKind>(random->Draw(0, 3));
    layout.optimizer.initial_accumulator = 0.5f;
    layout.init_scale = 0.5f;
  }
  for (int t = 0; t < random->Draw(1, 3); ++t) {
    TableLayout& table = trace->tables.sparse.emplace_back(layouts[random->Draw(0, 1)]);
    table.id = TableId(static_cast<uint32_t>(10 * random->Draw(0, 7) + t));
    table.name = absl::StrCat("C", t);
    for (int features = random->Draw(1, 2); features > 0; --features) {
      FeatureSpec& feature = trace->tables.features.emplace_back();
      feature.table_index = t;
    }
    std::vector<Key>& hot = trace->hot_set.tables.emplace_back();
    const int one_in = random->Draw(1, 4);
    for (Key key = 0; key < kHotKeySpace && one_in < 4; ++key) {
      if (random->OneIn(one_in)) hot.push_back(key);
    }
  }
}

Lookups DrawBatch(const HotTrace& trace, bool is_hot, Random* random) {
  Lookups batch;
  const int samples = random->OneIn(4) ? 0 : random->Draw(0, 6);
  for (const FeatureSpec& feature : trace.tables.features) {
    std::vector<std::vector<Key>>& bags = batch.emplace_back(samples);
    const std::vector<Key>& hot = trace.hot_set.tables[feature.table_index];
    for (std::vector<Key>& bag : bags) {
      for (int lookups = random->Draw(0, 2); lookups > 0 && !(is_hot && hot.empty()); --lookups) {
        bag.push_back(is_hot ? hot[random->Draw(0, static_cast<int>(hot.size()) - 1)]
                             : random->Draw(0, kHotKeySpace - 1));
      }
    }
  }
  return batch;
}

HotTrace DrawHotTrace(uint32_t num_ranks, Random* random) {
  HotTrace trace;
  trace.num_ranks = num_ranks;
  trace.num_servers = random->Draw(1, 3);
  trace.start_step = Step(random->OneIn(2) ? 0 : random->Draw(1, 50));
  DrawHotTables(random, &trace);
  for (int i = random->Draw(1, 6); i > 0; --i) {
    std::vector<PlannedStep>& stretch = trace.stretches.emplace_back(random->Draw(1, 6));
    const bool is_hot = random->OneIn(2);
    const int one_checkpoint_in = random->Draw(1, 5);
    for (PlannedStep& step : stretch) {
      step.is_hot = is_hot;
      step.writes_back = &step == &stretch.back() || random->OneIn(one_checkpoint_in);
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        step.batches.push_back(DrawBatch(trace, is_hot, random));
      }
    }
  }
  HotSourceOptions& options = trace.options;
  options.num_servers = trace.num_servers;
  options.num_workers = num_ranks;
  options.tables = trace.tables.sparse;
  options.start_step = trace.start_step;
  options.load_piece_bytes = random->OneIn(3) ? 1 << 20 : random->Draw(1, 300);
  options.write_back_piece_bytes = random->OneIn(3) ? 1 << 20 : random->Draw(1, 300);
  trace.max_chunk_bytes = random->OneIn(2)
                              ? 512 << 10
                              : kMaxHeaderBytes + 2 * kMaxSliceHeaderBytes + random->Draw(50, 400);
  trace.most_delay_us = random->OneIn(2) ? 0 : random->Draw(1, 300);
  return trace;
}

// Of many sizes, so that sums in another order have other bits.
float GradientOf(uint32_t rank, Step step, const TableKey& key, int i) {
  const uint64_t bits =
      Mix64(Mix64(key.second * 64 + i) + key.first * 8 + rank + step.value() * 99);
  const auto mantissa = static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23));
  return std::ldexp(mantissa, -24 - static_cast<int>(bits % 12));
}

// The rows after each step, as one map that all ranks' gradients come to.
class HotModel {
 public:
  explicit HotModel(const HotTrace& trace) : trace_(trace) {
    Step step = trace.start_step - 1;
    Rows rows;
    states_[step] = rows;
    for (const auto& stretch : trace.stretches) {
      for (const PlannedStep& planned : stretch) {
        step = step + 1;
        Apply(step, planned, &rows);
        states_[step] = rows;
      }
    }
  }

  ServerRow RowOf(Step through, size_t t, Key key) const {
    const Rows& rows = states_.at(through);
    const auto found = rows.find({trace_.layout(t).id.value(), key});
    return found != rows.end() ? found->second : NewRow(t, key);
  }

 private:
  ServerRow NewRow(size_t t, Key key) const {
    ServerRow row;
    row.values.resize(trace_.layout(t).row_floats());
    InitialRow(trace_.layout(t), kInitSeed, key, absl::MakeSpan(row.values));
    return row;
  }

  void Apply(Step step, const PlannedStep& planned, Rows* rows) const {
    for (size_t t = 0; t < trace_.tables.sparse.size(); ++t) {
      const TableLayout& layout = trace_.layout(t);
      std::map<Key, ServerRow> sums;
      for (uint32_t rank = 0; rank < trace_.num_ranks; ++rank) {
        std::map<Key, uint32_t> counts;
        for (size_t f = 0; f < trace_.tables.features.size(); ++f) {
          if (trace_.tables.features[f].table_index != static_cast<int>(t)) continue;
          for (const auto& bag : planned.batches[rank][f]) {
            for (const Key key : bag) ++counts[key];
          }
        }
        for (const auto& [key, count] : counts) {
          Floats gradient(layout.dim);
          for (int i = 0; i < layout.dim; ++i) {
            gradient[i] = GradientOf(rank, step, {layout.id.value(), key}, i);
          }
          ServerRow& sum = sums[key];
          const bool is_first = sum.values.empty();
          sum.values.resize(layout.dim);
          MergeGradient(is_first, gradient.data(), layout.dim, sum.values.data());
          sum.lookups += count;
        }
      }
      for (const auto& [key, sum] : sums) {
        ServerRow& row = rows->try_emplace({layout.id.value(), key}, NewRow(t, key)).first->second;
        SelectRowUpdate(layout.optimizer.kind)(
            ScalarsForStep(layout.optimizer, LearningRateOf(step), step), sum.values.data(),
            row.values.data(), row.values.data() + layout.dim, layout.dim);
        row.lookups += sum.lookups;
      }
    }
  }

  const HotTrace& trace_;
  std::map<Step, Rows> states_;
};

using MakeDevice = std::unique_ptr<Device> (*)();

// One worker: does what a trainer does (worker/train/trainer.cc), with gradients of the test's own.
class HotRank {
 public:
  HotRank(const HotTrace& trace, const HotModel& model, const HotRows& rows, uint32_t rank,
          MakeDevice make_device, MergingServers* servers, Exchange* exchange, Scheduler* scheduler)
      : trace_(trace),
        model_(model),
        rows_(rows),
        rank_(rank),
        device_(make_device()),
        transport_(servers->TransportOf(rank)),
        session_(SessionOptions(), transport_.get(), scheduler),
        exchange_(exchange),
        planner_(TableIds(), FeatureTables(), ClusterMap(trace.num_servers)),
        source_(SourceOptions(), exchange, &session_, device_.get()) {}

  absl::Status Run() {
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
  // Ends its waits.
  void Fail(const absl::Status& why) {
    session_.Fail(why);
    if (exchange_ != nullptr) exchange_->Fail(why);
  }

  // Keys that it looked up in cold steps, once a step; and the loads of hot rows.
  int64_t cold_keys() const { return cold_keys_; }
  int64_t hot_keys() const { return hot_keys_; }
  CacheCounts counts() const { return source_.cache()->counts(); }
  int fetch_ahead() const { return source_.fetch_ahead(); }

 private:
  std::vector<TableId> TableIds() const {
    std::vector<TableId> ids;
    for (const TableLayout& table : trace_.tables.sparse) ids.push_back(table.id);
    return ids;
  }
  std::vector<int32_t> FeatureTables() const {
    std::vector<int32_t> tables;
    for (const FeatureSpec& feature : trace_.tables.features) tables.push_back(feature.table_index);
    return tables;
  }
  PsSessionOptions SessionOptions() const {
    PsSessionOptions options;
    options.job_id = "job";
    options.rank = WorkerRank(rank_);
    options.num_servers = trace_.num_servers;
    options.tables = trace_.tables.sparse;
    options.start_step = trace_.start_step;
    options.max_chunk_bytes = trace_.max_chunk_bytes;
    return options;
  }
  HotSourceOptions SourceOptions() const {
    HotSourceOptions options = trace_.options;
    options.hot_rows = &rows_;
    return options;
  }

  // A context of the pool is used again when its last holder releases it.
  std::shared_ptr<StepContext> TakeContext(bool is_hot) {
    absl::MutexLock lock(&mutex_);
    std::vector<StepContext*>& idle = idle_[is_hot ? 1 : 0];
    if (idle.empty()) {
      contexts_.push_back(std::make_unique<StepContext>());
      contexts_.back()->has_cache_plan = is_hot;
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

  absl::Status TrainStretch(const std::vector<PlannedStep>& stretch, Step first) {
    const std::unique_ptr<CacheStage> stage =
        stretch.front().is_hot ? MakeHotStage(&rows_, &threads_) : nullptr;
    stretch_ = &stretch;
    next_ = 0;
    for (size_t i = 0; i < stretch.size(); ++i) {
      RETURN_IF_ERROR(FetchAhead(first, stage.get(), pipelined_ == nullptr ? 0 : 1));
      const std::shared_ptr<StepContext> context = std::move(fetched_.front());
      fetched_.pop_front();
      RETURN_IF_ERROR(TrainStep(context, stretch[i], first, stage.get()));
    }
    return absl::OkStatus();
  }

  absl::Status FetchAhead(Step first, CacheStage* stage, size_t queued_beyond) {
    while (next_ < stretch_->size() &&
           fetched_.size() + queued_beyond <= static_cast<size_t>(source_.fetch_ahead())) {
      const std::shared_ptr<StepContext> context = TakeContext(stage != nullptr);
      FillBatch((*stretch_)[next_].batches[rank_], context->batch.get());
      context->batch->step = first + static_cast<int64_t>(next_++);
      planner_.Plan(*context->batch, &context->plan);
      for (const TablePlan& table : context->plan.tables) {
        (stage == nullptr ? cold_keys_ : hot_keys_) += table.num_unique();
      }
      if (stage != nullptr) RETURN_IF_ERROR(stage->Plan(context.get()));
      context->Begin(context->transfers != nullptr
                         ? std::move(context->transfers)
                         : std::make_unique<StepTransfers>(device_.get()));
      source_.Fetch(context, {});
      fetched_.push_back(context);
    }
    return absl::OkStatus();
  }

  void FillBatch(const Lookups& lookups, Batch* batch) const {
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

  absl::Status TrainStep(const std::shared_ptr<StepContext>& context, const PlannedStep& planned,
                         Step first, CacheStage* stage) {
    context->learning_rate = LearningRateOf(context->step());
    if (pipelined_ != nullptr && source_.AwaitsPushOf(*context) >= pipelined_->step()) {
      RETURN_IF_ERROR(FinishPipelined(first, stage, 1));
    }
    RETURN_IF_ERROR(source_.Await(context.get()));
    EXPECT_EQ(context->complete_through, context->step() - 1);
    RETURN_IF_ERROR(CheckRows(*context));
    SetGradients(*context);
    source_.Update(context.get());
    context->writes_back = planned.writes_back;
    device_->Record(Stream::kCompute, context->transfers->finished.get());
    RETURN_IF_ERROR(FinishPipelined(first, stage, 1));
    pipelined_ = context;
    const bool pipelines = source_.fetch_ahead() > 0;
    return pipelines && !planned.writes_back ? absl::OkStatus() : FinishPipelined(first, stage, 0);
  }

  absl::Status FinishPipelined(Step first, CacheStage* stage, size_t queued_beyond) {
    if (pipelined_ == nullptr) return absl::OkStatus();
    const std::shared_ptr<StepContext> context = std::exchange(pipelined_, nullptr);
    RETURN_IF_ERROR(context->transfers->finished->Wait());
    // The wave of dense parameters has no keys here.
    std::vector<std::vector<wire::PushSlice>> dense;
    if (context->writes_back) dense.resize(trace_.num_servers);
    RETURN_IF_ERROR(source_.Push(context, std::move(dense)));
    RETURN_IF_ERROR(FetchAhead(first, stage, queued_beyond));
    if (context->writes_back) {
      RETURN_IF_ERROR(session_.ReleaseWave(context->step(), PsSession::kLastWave));
    }
    RETURN_IF_ERROR(source_.FinishPush(context.get()));
    if (exchange_ != nullptr) exchange_->NotePushed(context->step());
    return exchange_ == nullptr ? absl::OkStatus() : exchange_->CheckOwesNothing();
  }

  // As the lookups of the features see them.
  absl::Status CheckRows(const StepContext& context) {
    for (size_t f = 0; f < context.plan.features.size(); ++f) {
      const FeaturePlan& feature = context.plan.features[f];
      const Matrix rows = context.tables[feature.table].rows;
      if (feature.row_indices.empty()) continue;
      Floats values((rows.rows - 1) * rows.ld + rows.cols);
      device_->CopyToHost(values.data(), rows.data, sizeof(float) * values.size(),
                          Stream::kCompute);
      RETURN_IF_ERROR(device_->Synchronize());
      for (size_t i = 0; i < feature.row_indices.size(); ++i) {
        const Key key = context.batch->features[f].keys[i];
        const ServerRow expected = model_.RowOf(context.step() - 1, feature.table, key);
        const float* const row = values.data() + feature.row_indices[i] * rows.ld;
        if (std::equal(row, row + rows.cols, expected.values.begin())) continue;
        return absl::InternalError(absl::StrCat(
            "step ", context.step().value(), ", table ", feature.table, ", key ", key,
            ": the row read begins with ", row[0], " instead of ", expected.values[0]));
      }
    }
    return absl::OkStatus();
  }

  void SetGradients(const StepContext& context) {
    for (size_t t = 0; t < context.tables.size(); ++t) {
      const Matrix& gradients = context.tables[t].gradients;
      const TablePlan& plan = context.plan.tables[t];
      Floats values;
      for (const Key key : plan.keys) {
        for (int i = 0; i < gradients.cols; ++i) {
          values.push_back(GradientOf(rank_, context.step(), {plan.id.value(), key}, i));
        }
      }
      device_->CopyToDevice(gradients.data, values.data(), sizeof(float) * values.size(),
                            Stream::kCompute);
    }
  }

  const HotTrace& trace_;
  const HotModel& model_;
  const HotRows& rows_;
  const uint32_t rank_;
  const std::unique_ptr<Device> device_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<StepContext>> contexts_;  // They have events of the device.
  std::vector<StepContext*> idle_[2];                   // [cold, hot]
  const std::unique_ptr<Transport> transport_;
  PsSession session_;
  Exchange* const exchange_;
  BatchPlanner planner_;
  ThreadPool threads_{1};
  HotSource source_;
  const std::vector<PlannedStep>* stretch_ = nullptr;
  size_t next_ = 0;
  std::deque<std::shared_ptr<StepContext>> fetched_;
  std::shared_ptr<StepContext> pipelined_;
  int64_t cold_keys_ = 0, hot_keys_ = 0;
};

// Keys that any rank looks up.
std::set<TableKey> KeysOf(const HotTrace& trace, const PlannedStep& step) {
  std::set<TableKey> keys;
  for (const Lookups& batch : step.batches) {
    for (size_t f = 0; f < batch.size(); ++f) {
      const uint32_t id = trace.layout(trace.tables.features[f].table_index).id.value();
      for (const auto& bag : batch[f]) {
        for (const Key key : bag) keys.emplace(id, key);
      }
    }
  }
  return keys;
}

struct HotTotals {
  int64_t loads = 0, hot_steps = 0, written_back = 0, fetched_ahead = 0;
};

class HotSourceRuns : public testing::Test {
 protected:
  void RunTrace(const HotTrace& trace, uint64_t seed, MakeDevice make_device, HotTotals* totals) {
    const HotModel model(trace);
    const auto rows = HotRows::Make(trace.tables, trace.hot_set, 1 << 20, "fae.budget");
    ASSERT_TRUE(rows.ok()) << rows.status();
    MergingServers::Options options;
    for (const TableLayout& table : trace.tables.sparse) options.layouts[table.id.value()] = table;
    options.num_servers = trace.num_servers;
    options.num_workers = trace.num_ranks;
    options.start_step = trace.start_step;
    options.most_delay_us = trace.most_delay_us;
    ThreadScheduler scheduler;
    MergingServers servers(options, &scheduler, Mix64(seed));
    ExchangeOptions of_exchange;
    of_exchange.start_step = trace.start_step;
    of_exchange.phases = {Phase::kGradients};
    std::vector<std::unique_ptr<Exchange>> exchanges;
    if (trace.num_ranks > 1) {
      exchanges = MakeLocalExchanges(trace.num_ranks, of_exchange, &scheduler);
    }
    std::vector<std::unique_ptr<HotRank>> ranks;
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < trace.num_ranks; ++rank) {
      ranks.push_back(std::make_unique<HotRank>(trace, model, **rows, rank, make_device, &servers,
                                                exchanges.empty() ? nullptr : exchanges[rank].get(),
                                                &scheduler));
    }
    for (uint32_t rank = 0; rank < trace.num_ranks; ++rank) {
      threads.emplace_back([&ranks, rank] {
        const absl::Status status = ranks[rank]->Run();
        EXPECT_TRUE(status.ok()) << "rank " << rank << ": " << status;
        // The others would wait for it.
        for (const auto& other : ranks) {
          if (!status.ok()) other->Fail(status);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (HasFailure()) return;
    CheckServers(trace, model, &servers);
    CheckTraffic(trace, ranks, &servers, totals);
    totals->fetched_ahead += ranks[0]->fetch_ahead();
  }

  // Hot steps leave the servers' rows alone until one writes back.
  void CheckServers(const HotTrace& trace, const HotModel& model, MergingServers* servers) {
    Step at = trace.start_step, whole = trace.start_step - 1;
    for (const auto& stretch : trace.stretches) {
      for (const PlannedStep& step : stretch) {
        if (!step.is_hot || step.writes_back) whole = at;
        for (size_t t = 0; t < trace.tables.sparse.size(); ++t) {
          for (Key key = 0; key < kHotKeySpace; ++key) {
            const ServerRow expected = model.RowOf(whole, t, key);
            const ServerRow row = servers->RowAfter(at, {trace.layout(t).id.value(), key});
            ASSERT_EQ(row.values, expected.values)
                << "step " << at << ", table " << t << ", key " << key;
            ASSERT_EQ(row.lookups, expected.lookups)
                << "step " << at << ", table " << t << ", key " << key;
          }
        }
        at = at + 1;
      }
    }
  }

  void CheckTraffic(const HotTrace& trace, const std::vector<std::unique_ptr<HotRank>>& ranks,
                    MergingServers* servers, HotTotals* totals) {
    std::set<TableKey> unwritten;
    int64_t loads = 0, cold_keys = 0;
    bool is_loaded = false;
    Step at = trace.start_step;
    for (const auto& stretch : trace.stretches) {
      loads += stretch[0].is_hot && !is_loaded ? 1 : 0;
      is_loaded = stretch[0].is_hot;
      for (const PlannedStep& step : stretch) {
        const StepTraffic traffic = servers->TrafficOf(at);
        if (step.is_hot) {
          unwritten.merge(KeysOf(trace, step));
          ASSERT_EQ(traffic.gradients, 0) << "hot step " << at;
          ++totals->hot_steps;
        }
        ASSERT_EQ(traffic.assigned, step.writes_back ? static_cast<int64_t>(unwritten.size()) : 0)
            << "step " << at;
        totals->written_back += traffic.assigned;
        if (step.writes_back) unwritten.clear();
        at = at + 1;
      }
    }
    const int64_t hot_rows = trace.hot_set.num_rows();
    for (const auto& rank : ranks) {
      cold_keys += rank->cold_keys();
      const CacheCounts counts = rank->counts();
      EXPECT_EQ(counts.hits, rank->hot_keys());
      EXPECT_EQ(counts.bypassed, rank->cold_keys());
      EXPECT_EQ(counts.loaded, loads * hot_rows);
      EXPECT_EQ(counts.rows_held, is_loaded ? hot_rows : 0);
    }
    EXPECT_EQ(servers->rows_pulled(),
              cold_keys + loads * hot_rows * static_cast<int64_t>(trace.num_ranks));
    totals->loads += loads;
  }

  HotTotals RunTraces(MakeDevice make_device, int traces, uint32_t num_ranks) {
    const uint64_t seed = TestSeed();
    HotTotals totals;
    for (int i = 0; i < traces && !HasFailure(); ++i) {
      SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed + i));
      Random random(seed + i);
      const HotTrace trace = DrawHotTrace(num_ranks, &random);
      RunTrace(trace, seed + i, make_device, &totals);
    }
    return totals;
  }
};

std::unique_ptr<Device> MakeCpu() { return MakeCpuDevice({}); }
std::unique_ptr<Device> MakeEmulated() { return MakeEmulatedCudaDevice(); }

class HotSourceTest : public HotSourceRuns, public testing::WithParamInterface<uint32_t> {};

TEST_P(HotSourceTest, RowsHaveTheBitsOfAPlainTrainerOnTheCpu) {
  const HotTotals totals = RunTraces(MakeCpu, RandomRuns(100), GetParam());
  EXPECT_GT(totals.loads, 0);
  EXPECT_GT(totals.hot_steps, 0);
  EXPECT_GT(totals.written_back, 0);
  EXPECT_EQ(totals.fetched_ahead, 0);
}

// Its memory isn't the host's, and its streams lag. With one worker, steps are fetched ahead.
TEST_P(HotSourceTest, RowsHaveTheBitsOfAPlainTrainerOnADevice) {
  const HotTotals totals = RunTraces(MakeEmulated, RandomRuns(24), GetParam());
  EXPECT_GT(totals.loads, 0);
  EXPECT_GT(totals.hot_steps, 0);
  EXPECT_GT(totals.written_back, 0);
  EXPECT_EQ(totals.fetched_ahead > 0, GetParam() == 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, HotSourceTest, testing::Values(1u, 2u, 3u));

// One rank of two, the other of which is played by hand.
class HotExchangeTest : public testing::Test {
 protected:
  static constexpr int kDim = 2;

  HotExchangeTest() {
    TableLayout& table = tables_.sparse.emplace_back();
    table.id = TableId(3);
    table.name = "users";
    table.dim = kDim;
    table.optimizer.kind = OptimizerKind::kSgd;
    hot_set_.tables = {{5, 7, 9}};
    rows_ = *HotRows::Make(tables_, hot_set_, 1 << 20, "fae.budget");
    MergingServers::Options of_servers;
    of_servers.layouts = {{3, table}};
    of_servers.num_workers = 2;
    servers_ = std::make_unique<MergingServers>(of_servers, &scheduler_, 1);
    transport_ = servers_->TransportOf(0);
    PsSessionOptions of_session;
    of_session.job_id = "job";
    of_session.tables = tables_.sparse;
    session_ = std::make_unique<PsSession>(of_session, transport_.get(), &scheduler_);
    ExchangeOptions of_exchange;
    of_exchange.phases = {Phase::kGradients};
    exchanges_ = MakeLocalExchanges(2, of_exchange, &scheduler_);
    HotSourceOptions options;
    options.num_workers = 2;
    options.tables = tables_.sparse;
    options.hot_rows = rows_.get();
    source_ =
        std::make_unique<HotSource>(options, exchanges_[0].get(), session_.get(), device_.get());
  }
  ~HotExchangeTest() override {
    session_->Fail(absl::CancelledError("the test is over"));
    EXPECT_FALSE(session_->Drain().ok());
  }

  // As the other rank.
  void Post(const std::vector<uint32_t>& words) {
    const Block block = MakeBlock(absl::MakeConstSpan(words));
    ASSERT_TRUE(exchanges_[1]->Post({Step(0), Phase::kGradients}, {block, block}).ok());
  }
  static uint32_t Bits(float value) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }

  // Step 0 up to its push: one sample that reads `keys`, of which each gets the gradient.
  absl::Status Push(bool is_hot, const std::vector<Key>& keys, float gradient) {
    context_.has_cache_plan = is_hot;
    context_.batch = std::make_unique<Batch>();
    context_.batch->step = Step(0);
    context_.batch->size = 1;
    FeatureLookups& lookups = context_.batch->features.emplace_back();
    lookups.keys.assign(keys.begin(), keys.end());
    lookups.offsets = {0, static_cast<int32_t>(keys.size())};
    BatchPlanner({TableId(3)}, {0}, ClusterMap(1)).Plan(*context_.batch, &context_.plan);
    if (is_hot) RETURN_IF_ERROR(MakeHotStage(rows_.get(), &threads_)->Plan(&context_));
    context_.Begin(std::make_unique<StepTransfers>(device_.get()));
    context_.learning_rate = 0.5f;
    source_->Fetch(context(), {});
    RETURN_IF_ERROR(source_->Await(&context_));
    const Matrix gradients = context_.tables[0].gradients;
    std::fill_n(gradients.floats(), size_t{1} * gradients.rows * kDim, gradient);
    source_->Update(&context_);
    return source_->Push(context(), {});
  }
  absl::Status Finish() { return source_->FinishPush(&context_); }
  std::shared_ptr<StepContext> context() { return {std::shared_ptr<StepContext>(), &context_}; }
  void ExpectRefused(const absl::Status& status, const std::string& why) {
    const absl::Status refused = absl::InternalError("rank 1, the gradients of step 0: " + why);
    EXPECT_EQ(status, refused);
    EXPECT_EQ(exchanges_[0]->status(), refused);
  }

  JobTables tables_;
  HotSet hot_set_;
  std::unique_ptr<HotRows> rows_;
  ThreadScheduler scheduler_;
  ThreadPool threads_{1};
  const std::unique_ptr<Device> device_ = MakeCpuDevice({});
  std::unique_ptr<MergingServers> servers_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<PsSession> session_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  StepContext context_;
  std::unique_ptr<HotSource> source_;
};

TEST_F(HotExchangeTest, GradientsTravelWithTheNumbersOfHotRowsAndTheirLookups) {
  Post({1, 2, 4, Bits(1), Bits(2)});  // Key 9, read 4 times.
  ASSERT_TRUE(Push(/*is_hot=*/true, {9, 5, 9}, 3).ok());
  const auto sent = exchanges_[1]->Receive({Step(0), Phase::kGradients});
  ASSERT_TRUE(sent.ok()) << sent.status();
  const std::vector<uint32_t> expected = {2, 2, 0, 2, 1, Bits(3), Bits(3), Bits(3), Bits(3)};
  const absl::Span<const uint8_t> bytes = sent->from(WorkerRank(0));
  ASSERT_EQ(bytes.size(), sizeof(uint32_t) * expected.size());
  EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
  const Matrix rows = context_.tables[0].rows;
  const Floats before(rows.floats(), rows.floats() + 3 * rows.ld);
  ASSERT_TRUE(Finish().ok());
  ASSERT_TRUE(device_->Synchronize().ok());
  for (int i = 0; i < kDim; ++i) {
    EXPECT_EQ(rows.row(0)[i], before[i] - 0.5f * 3);
    EXPECT_EQ(rows.row(1)[i], before[rows.ld + i]);
    EXPECT_EQ(rows.row(2)[i], before[2 * rows.ld + i] - 0.5f * (3 + 1 + i));
  }
}

TEST_F(HotExchangeTest, GradientsMustBeFinite) {
  const absl::Status own = Push(/*is_hot=*/true, {7}, std::nanf(""));
  EXPECT_EQ(own.code(), absl::StatusCode::kInvalidArgument) << own;
  EXPECT_TRUE(
      absl::StartsWith(own.message(), "step 0: the gradient of table 'users', key 7 is not finite"))
      << own;
}

TEST_F(HotExchangeTest, SumsMustBeFinite) {
  const float most = std::numeric_limits<float>::max();
  Post({1, 1, 1, Bits(0), Bits(most)});
  ASSERT_TRUE(Push(/*is_hot=*/true, {5, 7}, most).ok());
  const absl::Status sum = Finish();
  EXPECT_EQ(sum.code(), absl::StatusCode::kInvalidArgument) << sum;
  EXPECT_TRUE(absl::StartsWith(
      sum.message(),
      "step 0: the sum of all workers' gradients of table 'users', key 7 is not finite"))
      << sum;
}

TEST_F(HotExchangeTest, BlocksOfTheWrongSizeFailTheExchange) {
  Post({1, 1, 1, Bits(0)});
  ASSERT_TRUE(Push(/*is_hot=*/true, {5}, 1).ok());
  ExpectRefused(Finish(), "16 bytes instead of 20");
}

TEST_F(HotExchangeTest, RanksWhoseStepIsColdFailTheExchange) {
  Post({});
  ASSERT_TRUE(Push(/*is_hot=*/true, {5}, 1).ok());
  ExpectRefused(Finish(), "0 bytes, where the step is hot and 4 begin the block");
}

TEST_F(HotExchangeTest, RanksWhoseStepIsHotFailTheExchange) {
  Post({0});
  ASSERT_TRUE(Push(/*is_hot=*/false, {5}, 1).ok());
  ExpectRefused(Finish(), "4 bytes instead of 0");
}

TEST_F(HotExchangeTest, RowsThatThereAreNotFailTheExchange) {
  Post({1, 3, 1, Bits(0), Bits(0)});
  ASSERT_TRUE(Push(/*is_hot=*/true, {5}, 1).ok());
  ExpectRefused(Finish(), "hot row 3 of table 'users', which has 3");
}

// The push of the last step is whole only when this rank has all that others sent it.
TEST_F(HotExchangeTest, AHotStepThatWritesBackReceivesBeforeItPushes) {
  Post({1, 1, 1, Bits(0)});
  context_.writes_back = true;
  ExpectRefused(Push(/*is_hot=*/true, {5}, 1), "16 bytes instead of 20");
}
TEST_F(HotExchangeTest, AColdStepThatWritesBackReceivesBeforeItPushes) {
  Post({0});
  context_.writes_back = true;
  ExpectRefused(Push(/*is_hot=*/false, {5}, 1), "4 bytes instead of 0");
}

}  // namespace
}  // namespace thermocline
