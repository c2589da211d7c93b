// One rank of two, the other of which is played by hand: what goes between them, and what it
// refuses. (That all of it gives the bits of no cache: tests/training/shared_cache_test.cc.)
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <string>
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
#include "worker/exchange/testing/local_exchange.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/row_source.h"

namespace thermocline {
namespace {

constexpr int kDim = 2;
const TableId kTable(3);

Key OwnedBy(uint32_t rank, Key from) {
  while (ClusterMap(2).ServerOfHash(KeyHash(TableSalt(kTable), from)).value() != rank) ++from;
  return from;
}

// A server that answers at once: the weights of a key's row are its number, and pushes are kept.
class OneServer : public Transport {
 public:
  void Pull(ServerIndex, const PullCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    for (const PullSlice& slice : call.tables) {
      for (size_t i = 0; i < slice.rows.size(); ++i) {
        slice.rows[i] = static_cast<float>(slice.keys[i / kDim]);
      }
    }
    done(wire::PullAnswer{wire::Readiness::kReady, call.step - 1, {}});
  }
  void Push(ServerIndex, const PushCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    for (const wire::PushSlice& slice : call.tables) {
      for (size_t i = 0; i < slice.keys.size(); ++i) {
        pushed[slice.keys[i]] = {slice.kind, slice.values[i * kDim]};
      }
    }
    const bool whole = ++chunks_[call.step.value()] == call.num_chunks;
    done(wire::PushAnswer{wire::Readiness::kReady, whole ? call.step : call.step - 1});
  }
  void Close() override {}

  std::map<Key, std::pair<wire::PushKind, float>> pushed;

 private:
  std::map<int64_t, uint32_t> chunks_;
};

std::vector<uint8_t> Bytes(const std::vector<float>& floats) {
  std::vector<uint8_t> bytes(sizeof(float) * floats.size());
  std::memcpy(bytes.data(), floats.data(), bytes.size());
  return bytes;
}

class OwnerRouteTest : public testing::Test {
 protected:
  OwnerRouteTest()
      : device_(MakeCpuDevice({})),
        exchanges_(MakeLocalExchanges(2, RowsAlone(), &scheduler_)),
        session_(SessionOptions(), &server_, &scheduler_),
        planner_({kTable}, {0}, ClusterMap(1)),
        planner_of_rows_(MakeRowPlanner(Options(), exchanges_[0].get(), &threads_)),
        source_(Options(), exchanges_[0].get(), &session_, device_.get()) {}
  ~OwnerRouteTest() override {
    session_.Fail(absl::CancelledError("the test is over"));
    EXPECT_FALSE(session_.Drain().ok());
  }

  static ExchangeOptions RowsAlone() {
    ExchangeOptions options;
    options.phases = {Phase::kKeys, Phase::kPlans, Phase::kRows, Phase::kGradients};
    return options;
  }
  static RowSourceOptions Options() {
    RowSourceOptions options;
    options.num_workers = 2;
    options.held = HeldSet::kSharedCache;
    options.window_steps = 1;
    options.prefetch_steps = 0;
    TableLayout& table = options.tables.emplace_back();
    table.id = kTable;
    table.name = "users";
    table.dim = kDim;
    table.optimizer.kind = OptimizerKind::kSgd;
    CacheGroupLayout& group = options.layout.groups.emplace_back();
    group.tables = {0};
    group.dim = group.row_floats = kDim;
    group.stride = 4;
    group.capacity = 4;
    return options;
  }
  static PsSessionOptions SessionOptions() {
    PsSessionOptions options;
    options.job_id = "job";
    options.tables = Options().tables;
    return options;
  }

  // As the other rank.
  void Post(int64_t step, Phase phase, const std::vector<uint8_t>& bytes) {
    Block block;
    block.bytes = std::make_shared<BlockBytes>(bytes.begin(), bytes.end());
    ASSERT_TRUE(exchanges_[1]->Post({Step(step), phase}, {block, block}).ok());
  }
  void PostKeys(int64_t step, const std::vector<Key>& keys) {
    const std::vector<uint32_t> counts(keys.size(), 1);
    const BlockBytes bytes = EncodeRequests({{keys, counts}});
    Post(step, Phase::kKeys, {bytes.begin(), bytes.end()});
  }
  // bits: of the keys that this rank asked for.
  void PostPlan(int64_t step, const std::vector<uint8_t>& bits) {
    std::vector<uint8_t> bytes(sizeof(int64_t), 0xFF);  // Pushed through -1.
    bytes.insert(bytes.end(), bits.begin(), bits.end());
    Post(step, Phase::kPlans, bytes);
  }

  // One sample's lookups.
  absl::Status Admit(int64_t step, const std::vector<Key>& keys) {
    StepContext& context = steps_[step];
    context.batch = std::make_unique<Batch>();
    context.batch->step = Step(step);
    context.batch->size = 1;
    FeatureLookups& lookups = context.batch->features.emplace_back();
    lookups.keys.assign(keys.begin(), keys.end());
    lookups.offsets = {0, static_cast<int32_t>(keys.size())};
    planner_.Plan(*context.batch, &context.plan);
    StepTasks tasks;
    bool goes_on = false;
    RETURN_IF_ERROR(planner_of_rows_->Admit(true, &context, &tasks, &goes_on));
    return RunAll(&tasks, exchanges_[0].get());
  }
  // Plans a step and brings its rows.
  absl::Status Begin(int64_t step) {
    StepTasks tasks;
    RETURN_IF_ERROR(planner_of_rows_->Plan(&steps_[step], &tasks));
    RETURN_IF_ERROR(RunAll(&tasks, exchanges_[0].get()));
    steps_[step].Begin(std::make_unique<StepTransfers>(device_.get()));
    steps_[step].learning_rate = 0.5f;
    source_.AddPulls(&steps_[step]);
    steps_[step].pulls.Start(&session_, Step(step) - 1, nullptr);
    source_.Receive(&steps_[step], &tasks);
    return RunAll(&tasks, exchanges_[0].get());
  }
  // The first weight of the row that the i-th lookup of the sample reads.
  float Read(int64_t step, size_t i) const {
    const Matrix rows = steps_[step].tables[0].rows;
    return rows.row(steps_[step].plan.features[0].row_indices[i])[0];
  }
  absl::Status Push(int64_t step, float gradient) {
    const Matrix gradients = steps_[step].tables[0].gradients;
    for (int32_t u = 0; u < gradients.rows; ++u) {
      std::fill_n(gradients.row(u), kDim, gradient * static_cast<float>(u + 1));
    }
    source_.Update(&steps_[step]);
    StepTasks tasks;
    source_.Push(&steps_[step], &tasks);
    RETURN_IF_ERROR(RunAll(&tasks, exchanges_[0].get()));
    session_.StartPush(std::move(steps_[step].push.work), [](const absl::Status&) {});
    return session_.ReleaseWave(Step(step), 0);
  }
  absl::Status FinishPush(int64_t step) {
    StepTasks tasks;
    source_.FinishPush(&steps_[step], &tasks);
    return RunAll(&tasks, exchanges_[0].get());
  }

  const Key own_ = OwnedBy(0, 100), once_ = OwnedBy(0, 200), other_ = OwnedBy(1, 300);
  const std::unique_ptr<Device> device_;
  ThreadScheduler scheduler_;
  ThreadPool threads_{1};
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  OneServer server_;
  PsSession session_;
  BatchPlanner planner_;
  StepContext steps_[2];
  const std::unique_ptr<RowPlanner> planner_of_rows_;
  RowSource source_;
};

TEST_F(OwnerRouteTest, HeldRowsTravelAndOthersStayWithTheServers) {
  // own_ is used again, so it is held. once_ is not. The other rank holds other_.
  PostKeys(0, {own_});
  PostKeys(1, {own_});
  ASSERT_TRUE(exchanges_[1]->PostEnd(Step(2), absl::OkStatus()).ok());
  PostPlan(0, {1});
  PostPlan(1, {});
  Post(0, Phase::kRows, Bytes({41, 42}));
  Post(1, Phase::kRows, {});
  Post(0, Phase::kGradients, Bytes({16, 16}));
  Post(1, Phase::kGradients, Bytes({0, 0}));
  ASSERT_TRUE(Admit(0, {own_, once_, other_, own_}).ok());
  ASSERT_TRUE(Admit(1, {own_}).ok());
  ASSERT_TRUE(Begin(0).ok());
  EXPECT_EQ(Read(0, 0), static_cast<float>(own_));
  EXPECT_EQ(Read(0, 1), static_cast<float>(once_));
  EXPECT_EQ(Read(0, 2), 41);
  EXPECT_EQ(Read(0, 3), static_cast<float>(own_));
  ASSERT_TRUE(Push(0, 1).ok());
  ASSERT_TRUE(FinishPush(0).ok());
  const auto gradients = exchanges_[1]->Receive({Step(0), Phase::kGradients});
  ASSERT_TRUE(gradients.ok());
  EXPECT_EQ(gradients->from(WorkerRank(0)), absl::MakeConstSpan(Bytes({3, 3})));  // other_'s.
  const std::map<Key, std::pair<wire::PushKind, float>> pushed = {
      {once_, {wire::PushKind::kGradient, 2.0f}}};
  EXPECT_EQ(server_.pushed, pushed);

  StepTasks tasks;
  bool goes_on = true;
  ASSERT_TRUE(planner_of_rows_->Admit(false, nullptr, &tasks, &goes_on).ok());
  const absl::Status admitted = RunAll(&tasks, exchanges_[0].get());
  ASSERT_TRUE(admitted.ok()) << admitted;
  EXPECT_FALSE(goes_on);
  ASSERT_TRUE(Begin(1).ok());
  const float updated = static_cast<float>(own_) - 0.5f * (1 + 16);
  EXPECT_EQ(Read(1, 0), updated);
  {
    ASSERT_TRUE(exchanges_[1]->Receive({Step(0), Phase::kRows}).ok());
    const auto rows = exchanges_[1]->Receive({Step(1), Phase::kRows});
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(rows->from(WorkerRank(0)), absl::MakeConstSpan(Bytes({updated, updated})));
  }
  // The servers get the row that is newer than theirs.
  steps_[1].writes_back = true;
  ASSERT_TRUE(Push(1, 0).ok());
  ASSERT_TRUE(FinishPush(1).ok());
  EXPECT_EQ(server_.pushed.at(own_), std::pair(wire::PushKind::kAssign, updated));
}

TEST_F(OwnerRouteTest, GradientsAndTheirSumsMustBeFinite) {
  const float most = std::numeric_limits<float>::max();
  PostKeys(0, {own_});
  PostKeys(1, {own_});
  PostPlan(0, {});
  Post(0, Phase::kRows, {});
  Post(0, Phase::kGradients, Bytes({1, most}));
  ASSERT_TRUE(Admit(0, {own_}).ok());
  ASSERT_TRUE(Admit(1, {own_}).ok());
  ASSERT_TRUE(Begin(0).ok());
  const absl::Status own = Push(0, std::nanf(""));
  EXPECT_EQ(own.code(), absl::StatusCode::kInvalidArgument) << own;
  EXPECT_TRUE(absl::StartsWith(own.message(), absl::StrCat("step 0: the gradient of table 'users', "
                                                           "key ",
                                                           own_, " is not finite")))
      << own;
  ASSERT_TRUE(Push(0, most).ok());
  const absl::Status sum = FinishPush(0);
  EXPECT_EQ(sum.code(), absl::StatusCode::kInvalidArgument) << sum;
  EXPECT_TRUE(absl::StartsWith(
      sum.message(),
      absl::StrCat("step 0: the sum of all workers' gradients of table 'users', key ", own_,
                   " is not finite")))
      << sum;
}

TEST_F(OwnerRouteTest, BlocksOfTheWrongSizeFailTheExchange) {
  PostKeys(0, {own_});
  PostKeys(1, {own_});
  PostPlan(0, {1});
  Post(0, Phase::kRows, Bytes({41}));
  ASSERT_TRUE(Admit(0, {own_, other_}).ok());
  ASSERT_TRUE(Admit(1, {own_}).ok());
  const absl::Status refused =
      absl::InternalError("rank 1, the rows of step 0: 4 bytes instead of 8");
  EXPECT_EQ(Begin(0), refused);
  EXPECT_EQ(exchanges_[0]->status(), refused);
}

TEST_F(OwnerRouteTest, PlansOfTheWrongSizeFailTheExchange) {
  PostKeys(0, {own_});
  PostKeys(1, {own_});
  PostPlan(0, {1, 0});
  ASSERT_TRUE(Admit(0, {own_, other_}).ok());
  ASSERT_TRUE(Admit(1, {own_}).ok());
  EXPECT_EQ(Begin(0), absl::InternalError("rank 1, the plans of step 0: 10 bytes instead of 9"));
}

TEST_F(OwnerRouteTest, RequestsThatNoRankMakesFailTheExchange) {
  PostKeys(0, {own_, other_});
  EXPECT_EQ(Admit(0, {own_}),
            absl::InternalError(absl::StrCat("the keys of step 0: rank 1 asks rank 0 for key ",
                                             other_, " of table 3, which rank 1 owns")));
  EXPECT_EQ(exchanges_[0]->status().code(), absl::StatusCode::kInternal);
}

}  // namespace
}  // namespace thermocline
