#include "worker/embedded/core_transport.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/synchronization/notification.h"
#include "common/base/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "server/core/testing/checkpointed_server.h"
#include "server/core/testing/core_fixtures.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing_core::MakeConfig;
using testing_core::MakeHeader;

// A call's answer, which may come on any thread.
template <typename Answer>
class Awaited {
 public:
  std::function<void(absl::StatusOr<Answer>)> Taker() {
    return [this](absl::StatusOr<Answer> answer) {
      answer_ = std::move(answer);
      answered_.Notify();
    };
  }
  bool is_there() const { return answered_.HasBeenNotified(); }
  const absl::StatusOr<Answer>& Get() {
    answered_.WaitForNotification();
    return answer_;
  }

 private:
  absl::StatusOr<Answer> answer_;
  absl::Notification answered_;
};
using AwaitedPull = Awaited<wire::PullAnswer>;
using AwaitedPush = Awaited<wire::PushAnswer>;

constexpr int64_t kDeadlineUs = 60'000'000;

// Table 0 has rows of two floats, all 0 at first, and learns by SGD with a rate of 1.
class CoreTransportTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(core_.Configure(MakeConfig(/*num_workers=*/1)).ok()); }

  PullCall CallFor(int64_t step, absl::Span<float> rows) const {
    PullCall call;
    call.header = MakeHeader(0);
    call.step = Step(step);
    call.after_step = Step(step - 1);
    call.tables = {{TableId(0), keys_, rows}};
    return call;
  }
  PushCall PushFor(int64_t step, absl::Span<const float> gradients) const {
    PushCall call;
    call.header = MakeHeader(0, Step(step - 1));
    call.step = Step(step);
    call.learning_rate = 1;
    call.tables = {{TableId(0), wire::PushKind::kGradient, keys_, counts_, gradients}};
    return call;
  }
  std::unique_ptr<CoreTransport> MakeTransport() {
    return std::make_unique<CoreTransport>(&core_,
                                           CoreTransport::Options{2, &pulls_, &reads_, &pushes_});
  }
  static RpcStats StatsOf(const MethodStats& method) {
    RpcStats stats;
    method.CopyTo(&stats);
    return stats;
  }

  const std::vector<Key> keys_ = {3, 4};
  const std::vector<uint32_t> counts_ = {1, 1};
  ThreadScheduler scheduler_;
  ServerCore core_{ServerLimits(), &scheduler_};
  MethodStats pulls_{"Pull"}, reads_{"Read"}, pushes_{"Push"};
  std::unique_ptr<CoreTransport> transport_ = MakeTransport();
};

TEST_F(CoreTransportTest, APullIsHeldUntilThePushBeforeItIsApplied) {
  std::vector<float> rows(4, 9);
  AwaitedPull pull;
  transport_->Pull(ServerIndex(0), CallFor(1, absl::MakeSpan(rows)), kDeadlineUs, pull.Taker());
  EXPECT_FALSE(pull.is_there());
  const std::vector<float> gradients = {1, 2, 3, 4};
  AwaitedPush push;
  transport_->Push(ServerIndex(0), PushFor(0, gradients), kDeadlineUs, push.Taker());
  ASSERT_TRUE(push.Get().ok()) << push.Get().status();
  EXPECT_EQ(push.Get()->accepted_through, Step(0));
  ASSERT_TRUE(pull.Get().ok()) << pull.Get().status();
  EXPECT_EQ(pull.Get()->readiness, wire::Readiness::kReady);
  EXPECT_EQ(pull.Get()->complete_through, Step(0));
  EXPECT_THAT(rows, ElementsAre(-1, -2, -3, -4));
  transport_.reset();
  EXPECT_EQ(StatsOf(pulls_).count(), 1u);
  EXPECT_EQ(StatsOf(pushes_).count(), 1u);
  EXPECT_EQ(StatsOf(reads_).count(), 0u);
  EXPECT_EQ(StatsOf(pulls_).in_flight(), 0u);
}

// Its answer comes before it is applied, and its caller may then use the memory again.
TEST_F(CoreTransportTest, WhatAPushBroughtMayChangeOnceItIsAnswered) {
  std::vector<float> gradients = {1, 2, 3, 4};
  AwaitedPush push;
  transport_->Push(ServerIndex(0), PushFor(0, gradients), kDeadlineUs,
                   [&, take = push.Taker()](absl::StatusOr<wire::PushAnswer> answer) {
                     gradients.assign(4, 1000);
                     take(std::move(answer));
                   });
  ASSERT_TRUE(push.Get().ok());
  std::vector<float> rows(4);
  AwaitedPull pull;
  transport_->Pull(ServerIndex(0), CallFor(1, absl::MakeSpan(rows)), kDeadlineUs, pull.Taker());
  ASSERT_TRUE(pull.Get().ok());
  EXPECT_THAT(rows, ElementsAre(-1, -2, -3, -4));
}

TEST_F(CoreTransportTest, APushThatComesAgainCountsOnce) {
  const std::vector<float> gradients = {1, 2, 3, 4};
  for (int i = 0; i < 3; ++i) {
    AwaitedPush push;
    PushCall call = PushFor(0, gradients);
    transport_->Push(ServerIndex(0), call, kDeadlineUs, push.Taker());
    ASSERT_TRUE(push.Get().ok());
    EXPECT_EQ(push.Get()->accepted_through, Step(0));
  }
  std::vector<float> rows(4);
  AwaitedPull pull;
  transport_->Pull(ServerIndex(0), CallFor(1, absl::MakeSpan(rows)), kDeadlineUs, pull.Taker());
  ASSERT_TRUE(pull.Get().ok());
  EXPECT_THAT(rows, ElementsAre(-1, -2, -3, -4));
}

TEST_F(CoreTransportTest, ErrorsOfTheCoreNameTheCall) {
  std::vector<float> rows(4, 9);
  PullCall other = CallFor(0, absl::MakeSpan(rows));
  other.header.generation = 4;
  AwaitedPull pull;
  transport_->Pull(ServerIndex(0), other, kDeadlineUs, pull.Taker());
  EXPECT_EQ(pull.Get().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(pull.Get().status().message()),
              HasSubstr("Pull for step 0 (1 tables, 2 keys) at the embedded server"));
  EXPECT_THAT(rows, Each(9));
  AwaitedPush push;
  const std::vector<float> too_few = {1, 2};
  transport_->Push(ServerIndex(0), PushFor(0, too_few), kDeadlineUs, push.Taker());
  EXPECT_EQ(push.Get().status().code(), absl::StatusCode::kInvalidArgument);
  transport_.reset();
  EXPECT_EQ(StatsOf(pulls_).errors(), 1u);
  EXPECT_EQ(StatsOf(pushes_).errors(), 1u);
}

TEST_F(CoreTransportTest, PlacesMustFitTheRows) {
  std::vector<float> rows(3, 9);
  AwaitedPull pull;
  transport_->Pull(ServerIndex(0), CallFor(0, absl::MakeSpan(rows)), kDeadlineUs, pull.Taker());
  EXPECT_EQ(pull.Get().status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(rows, Each(9));
}

TEST_F(CoreTransportTest, AHeldPullIsAnsweredBeforeItsDeadline) {
  std::vector<float> rows(4);
  AwaitedPull pull;
  transport_->Pull(ServerIndex(0), CallFor(1, absl::MakeSpan(rows)), /*deadline_us=*/1000,
                   pull.Taker());
  ASSERT_TRUE(pull.Get().ok());
  EXPECT_EQ(pull.Get()->readiness, wire::Readiness::kNotReady);
}

// Pulls whose `done` waits stand for pulls that wait for a disk: more than the transport has
// threads of a kind.
void ExpectAPushIsTakenMeanwhile(CoreTransport* transport, PullCall pull_call,
                                 const PushCall& push_call) {
  constexpr int kPulls = 5;
  absl::Notification disk_answers;
  std::vector<std::vector<float>> rows(kPulls, std::vector<float>(4));
  std::vector<AwaitedPull> pulls(kPulls);
  for (int i = 0; i < kPulls; ++i) {
    pull_call.tables[0].rows = absl::MakeSpan(rows[i]);
    transport->Pull(ServerIndex(0), pull_call, kDeadlineUs,
                    [&, take = pulls[i].Taker()](absl::StatusOr<wire::PullAnswer> answer) {
                      disk_answers.WaitForNotification();
                      take(std::move(answer));
                    });
  }
  AwaitedPush push;
  transport->Push(ServerIndex(0), push_call, kDeadlineUs, push.Taker());
  EXPECT_TRUE(push.Get().ok()) << push.Get().status();
  disk_answers.Notify();
  for (AwaitedPull& pull : pulls) EXPECT_TRUE(pull.Get().ok()) << pull.Get().status();
}

TEST_F(CoreTransportTest, PullsThatMayWaitForADiskDelayNoPush) {
  const std::vector<float> gradients = {1, 2, 3, 4};
  PullCall call = CallFor(0, {});
  call.kind = wire::PullKind::kRead;
  ExpectAPushIsTakenMeanwhile(transport_.get(), call, PushFor(0, gradients));

  ServerConfig config = MakeConfig(/*num_workers=*/1);
  config.tables[0].memory_budget_bytes = 1;
  SimulatedDisk disk;
  testing_core::CheckpointedServer spilling(&disk, config);
  ASSERT_TRUE(spilling.Configure().ok());
  CoreTransport transport(spilling.core(), {2, &pulls_, &reads_, &pushes_});
  ExpectAPushIsTakenMeanwhile(&transport, CallFor(0, {}), PushFor(0, gradients));
}

TEST_F(CoreTransportTest, CloseEndsHeldPullsAndLaterCalls) {
  std::vector<float> rows(4);
  AwaitedPull held, later;
  transport_->Pull(ServerIndex(0), CallFor(1, absl::MakeSpan(rows)), kDeadlineUs, held.Taker());
  transport_->Close();
  EXPECT_EQ(held.Get().status().code(), absl::StatusCode::kCancelled);
  transport_->Pull(ServerIndex(0), CallFor(0, absl::MakeSpan(rows)), kDeadlineUs, later.Taker());
  EXPECT_EQ(later.Get().status().code(), absl::StatusCode::kCancelled);
  AwaitedPush push;
  const std::vector<float> gradients = {1, 2, 3, 4};
  transport_->Push(ServerIndex(0), PushFor(0, gradients), kDeadlineUs, push.Taker());
  EXPECT_EQ(push.Get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(CoreTransportTest, TheEndOfATransportWaitsForItsCalls) {
  for (int round = 0; round < 50; ++round) {
    std::vector<float> rows(4);
    std::vector<AwaitedPull> pulls(4);
    for (AwaitedPull& pull : pulls) {
      transport_->Pull(ServerIndex(0), CallFor(1, absl::MakeSpan(rows)), kDeadlineUs, pull.Taker());
    }
    transport_.reset();
    for (AwaitedPull& pull : pulls) {
      ASSERT_TRUE(pull.is_there());
      EXPECT_EQ(pull.Get().status().code(), absl::StatusCode::kCancelled);
    }
    transport_ = MakeTransport();
  }
}

}  // namespace
}  // namespace thermocline
