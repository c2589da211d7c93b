// Runs of one to three ranks, each with a device and a thread of its own, over hot and cold steps,
// against a map updated step by step: every row that a step reads, and every row on the servers
// after a step that leaves nothing unwritten, has the map's bits. Hot steps send no row and no
// gradient.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
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
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/testing/test_seed.h"
#include "worker/exchange/testing/local_exchange.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_source.h"
#include "worker/rows/testing/hot_rank.h"
#include "worker/rows/testing/hot_trace.h"
#include "worker/rows/testing/merging_servers.h"
#include "worker/rows/testing/row_source_trace.h"

namespace thermocline {
namespace {

using MakeDevice = std::unique_ptr<Device> (*)();

struct HotTotals {
  int64_t loads = 0, hot_steps = 0, written_back = 0, fetched_ahead = 0;
};

class HotRuns : public testing::Test {
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
      ranks.push_back(std::make_unique<HotRank>(trace, model, **rows, rank, make_device(), &servers,
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
        const RowTraffic traffic = servers->TrafficOf(at);
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
      EXPECT_EQ(counts.rows_held, loads > 0 ? hot_rows : 0);
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

class HotStepsTest : public HotRuns, public testing::WithParamInterface<uint32_t> {};

TEST_P(HotStepsTest, RowsHaveTheBitsOfAPlainTrainerOnTheCpu) {
  const HotTotals totals = RunTraces(MakeCpu, RandomRuns(100), GetParam());
  EXPECT_GT(totals.loads, 0);
  EXPECT_GT(totals.hot_steps, 0);
  EXPECT_GT(totals.written_back, 0);
  EXPECT_EQ(totals.fetched_ahead, 0);
}

// Its memory isn't the host's, and its streams lag. With one worker, steps are fetched ahead.
TEST_P(HotStepsTest, RowsHaveTheBitsOfAPlainTrainerOnADevice) {
  const HotTotals totals = RunTraces(MakeEmulated, RandomRuns(24), GetParam());
  EXPECT_GT(totals.loads, 0);
  EXPECT_GT(totals.hot_steps, 0);
  EXPECT_GT(totals.written_back, 0);
  EXPECT_EQ(totals.fetched_ahead > 0, GetParam() == 1);
}

INSTANTIATE_TEST_SUITE_P(Ranks, HotStepsTest, testing::Values(1u, 2u, 3u));

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
    RowSourceOptions options;
    options.num_workers = 2;
    options.tables = tables_.sparse;
    options.held = HeldSet::kHot;
    options.fixed_rows = rows_.get();
    options.layout = rows_->layout();
    hot_planner_ = MakeRowPlanner(options, /*exchange=*/nullptr, &threads_);
    source_ =
        std::make_unique<RowSource>(options, exchanges_[0].get(), session_.get(), device_.get());
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
    context_.batch = std::make_unique<Batch>();
    context_.batch->step = Step(0);
    context_.batch->size = 1;
    FeatureLookups& lookups = context_.batch->features.emplace_back();
    lookups.keys.assign(keys.begin(), keys.end());
    lookups.offsets = {0, static_cast<int32_t>(keys.size())};
    BatchPlanner({TableId(3)}, {0}, ClusterMap(1)).Plan(*context_.batch, &context_.plan);
    StepTasks tasks;
    RETURN_IF_ERROR((is_hot ? hot_planner_ : cold_planner_)->Plan(&context_, &tasks));
    context_.Begin(std::make_unique<StepTransfers>(device_.get()));
    context_.learning_rate = 0.5f;
    source_->AddPulls(&context_);
    context_.pulls.Start(session_.get(), Step(-1), nullptr);
    source_->Receive(&context_, &tasks);
    RETURN_IF_ERROR(RunAll(&tasks, exchanges_[0].get()));
    const Matrix gradients = context_.tables[0].gradients;
    std::fill_n(gradients.floats(), size_t{1} * gradients.rows * kDim, gradient);
    source_->Update(&context_);
    source_->Push(&context_, &tasks);
    RETURN_IF_ERROR(RunAll(&tasks, exchanges_[0].get()));
    session_->StartPush(std::move(context_.push.work), [](const absl::Status&) {});
    return session_->ReleaseWave(Step(0), 0);
  }
  absl::Status Finish() {
    StepTasks tasks;
    source_->FinishPush(&context_, &tasks);
    return RunAll(&tasks, exchanges_[0].get());
  }
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
  std::unique_ptr<RowPlanner> hot_planner_;
  const std::unique_ptr<RowPlanner> cold_planner_ = MakePullPlanner();
  std::unique_ptr<RowSource> source_;
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
