#include "server/core/waiting_pulls.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "server/core/testing/core_fixtures.h"

namespace thermocline {
namespace {

HeldPull Pull(int64_t step, int64_t expires_us) {
  HeldPull pull;
  pull.step = Step(step);
  pull.expires_us = expires_us;
  return pull;
}

std::vector<int64_t> StepsOf(const std::vector<HeldPull>& pulls) {
  std::vector<int64_t> steps;
  for (const HeldPull& pull : pulls) steps.push_back(pull.step.value());
  return steps;
}

TEST(HeldPullsTest, TakesReadyOnesInTheOrderTheyCame) {
  HeldPulls held(10);
  for (const int64_t step : {3, 1, 4, 2}) held.Hold(Pull(step, 100 - step));
  const auto even = held.TakeReady([](const HeldPull& p) { return p.step.value() % 2 == 0; });
  EXPECT_EQ(StepsOf(even), (std::vector<int64_t>{4, 2}));
  EXPECT_EQ(StepsOf(held.TakeAll()), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(held.size(), 0u);
}

TEST(HeldPullsTest, EachExpiresAtItsOwnTime) {
  HeldPulls held(10);
  held.Hold(Pull(1, 160));
  held.Hold(Pull(2, 105));
  held.Hold(Pull(3, 105));
  EXPECT_EQ(held.next_expiry_us(), 105);
  EXPECT_TRUE(held.TakeExpired(104).empty());
  EXPECT_EQ(StepsOf(held.TakeExpired(105)), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(held.next_expiry_us(), 160);
  EXPECT_EQ(StepsOf(held.TakeExpired(1000)), (std::vector<int64_t>{1}));
  EXPECT_TRUE(held.TakeExpired(1000).empty());
}

TEST(HeldPullsTest, ATicketTakesItsPullOnce) {
  HeldPulls held(10);
  const PullTicket first = held.Hold(Pull(1, 100));
  const PullTicket second = held.Hold(Pull(2, 200));
  EXPECT_NE(first, kNoTicket);
  EXPECT_NE(first, second);
  EXPECT_EQ(held.Take(first)->step, Step(1));
  EXPECT_FALSE(held.Take(first).has_value());
  EXPECT_FALSE(held.Take(kNoTicket).has_value());
  EXPECT_EQ(held.next_expiry_us(), 200);  // It left nothing behind.
  EXPECT_NE(held.Hold(Pull(3, 50)), first);
}

TEST(HeldPullsTest, IsBounded) {
  HeldPulls held(2);
  held.Hold(Pull(1, 0));
  EXPECT_FALSE(held.full());
  held.Hold(Pull(2, 0));
  EXPECT_TRUE(held.full());
  held.TakeAll();
  EXPECT_FALSE(held.full());
}

using testing_core::MakeChunk;
using testing_core::MakeHeader;
using testing_core::MakePull;
using wire::Readiness;

constexpr int64_t kHoldUs = 1000;

class WaitingPullsTest : public ::testing::Test {
 protected:
  absl::StatusOr<WaitingPulls::Admitted> Admit(const wire::PullRequest& request, int64_t now_us = 0,
                                               int64_t time_left_us = WaitingPulls::kNoDeadline) {
    WaitingPulls::Done done = [](const absl::StatusOr<wire::PullAnswer>&) {};
    return gate_.Admit(request, pushes_, now_us, time_left_us, &done);
  }
  PullTicket Hold(int64_t step, int64_t now_us = 0,
                  int64_t time_left_us = WaitingPulls::kNoDeadline) {
    const auto admitted = Admit(MakePull(0, step), now_us, time_left_us);
    EXPECT_TRUE(admitted.ok()) << admitted.status();
    EXPECT_FALSE(admitted->answer.has_value());
    return admitted->ticket;
  }
  void ApplyStep(int64_t step) {
    ASSERT_TRUE(pushes_.TakeChunk(MakeChunk(0, step)).ok());
    pushes_.MarkApplied(pushes_.TakeNext());
  }
  ServerStats Stats() {
    ServerStats stats;
    gate_.FillStats(&stats);
    return stats;
  }

  PushState pushes_{/*num_workers=*/1, /*max_pending_bytes=*/1 << 20};
  WaitingPulls gate_{/*capacity=*/3, kHoldUs};
};

TEST_F(WaitingPullsTest, AnswersWhatIsReadyAndHoldsTheRest) {
  const auto first = Admit(MakePull(0, 0));
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->answer->readiness, Readiness::kReady);
  EXPECT_EQ(first->ticket, kNoTicket);
  Hold(1);
  Hold(2);
  ApplyStep(0);
  const auto released = gate_.TakeReady(pushes_, 7);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].answer.readiness, Readiness::kReady);
  EXPECT_EQ(released[0].answer.complete_through, Step(0));
  EXPECT_EQ(Stats().pulls_held(), 2u);
  EXPECT_EQ(Stats().pulls_waiting(), 1u);
  EXPECT_EQ(Stats().hold_time().max_us(), 7);
}

TEST_F(WaitingPullsTest, HoldsNoLongerThanHalfOfWhatTheCallerHasLeft) {
  Hold(1, /*now_us=*/100);
  Hold(1, /*now_us=*/100, /*time_left_us=*/600);
  Hold(1, /*now_us=*/100, /*time_left_us=*/-5);  // Its deadline has passed.
  EXPECT_EQ(gate_.TakeExpired(pushes_, 100).size(), 1u);
  EXPECT_TRUE(gate_.TakeExpired(pushes_, 399).empty());
  EXPECT_EQ(gate_.TakeExpired(pushes_, 400).size(), 1u);
  EXPECT_TRUE(gate_.TakeExpired(pushes_, 1099).empty());
  const auto last = gate_.TakeExpired(pushes_, 1100);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].answer.readiness, Readiness::kNotReady);
  EXPECT_EQ(last[0].answer.complete_through, kNoStep);
  EXPECT_EQ(Stats().pulls_not_ready(), 3u);
}

TEST_F(WaitingPullsTest, ATimerRunsForWhatExpiresFirst) {
  EXPECT_EQ(gate_.ArmTimer(0), std::nullopt);
  Hold(1);
  EXPECT_EQ(gate_.ArmTimer(0), kHoldUs);
  EXPECT_EQ(gate_.ArmTimer(1), std::nullopt);
  Hold(1, /*now_us=*/10, /*time_left_us=*/200);  // Before that timer.
  EXPECT_EQ(gate_.ArmTimer(10), 100);
  Hold(1, /*now_us=*/10);
  EXPECT_EQ(gate_.ArmTimer(10), std::nullopt);
  EXPECT_EQ(gate_.TakeExpired(pushes_, 110).size(), 1u);
  EXPECT_EQ(gate_.ArmTimer(110), std::nullopt);  // The first timer runs still.
  EXPECT_EQ(gate_.TakeExpired(pushes_, kHoldUs).size(), 1u);
  EXPECT_EQ(gate_.ArmTimer(kHoldUs), 10);
  EXPECT_EQ(gate_.TakeExpired(pushes_, kHoldUs + 10).size(), 1u);
  EXPECT_EQ(gate_.ArmTimer(kHoldUs + 10), std::nullopt);
}

TEST_F(WaitingPullsTest, ADroppedPullMakesRoom) {
  const PullTicket ticket = Hold(1);
  Hold(1);
  Hold(1);
  EXPECT_EQ(Admit(MakePull(0, 1)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Stats().requests_refused(), 1u);
  EXPECT_NE(gate_.Drop(ticket), nullptr);
  EXPECT_EQ(gate_.Drop(ticket), nullptr);
  Hold(1);
  EXPECT_EQ(gate_.TakeAll().size(), 3u);
  EXPECT_EQ(gate_.num_held(), 0u);
}

// The server checks the acknowledged step of every pull, also of a reader's.
TEST_F(WaitingPullsTest, AnAcknowledgementThatIsntKnownIsDataLoss) {
  wire::PullRequest pull = MakePull(0, 0);
  pull.header = MakeHeader(0, Step(0));
  for (const wire::PullKind kind : {wire::PullKind::kTrain, wire::PullKind::kRead}) {
    pull.kind = kind;
    EXPECT_EQ(Admit(pull).status().code(), absl::StatusCode::kDataLoss);
  }
  // A reader that is no worker knows of no acknowledgement.
  pull.header = MakeHeader(9);
  EXPECT_TRUE(Admit(pull).ok());
}

TEST_F(WaitingPullsTest, ReadersAndTrainingDontTakeEachOthersPlaces) {
  wire::PullRequest read = MakePull(0, 1);
  read.kind = wire::PullKind::kRead;
  std::vector<PullTicket> reads;
  for (int i = 0; i < 3; ++i) reads.push_back(Admit(read)->ticket);
  EXPECT_EQ(Admit(read).status().code(), absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 3; ++i) {
    const PullTicket ticket = Hold(1);
    EXPECT_EQ(std::count(reads.begin(), reads.end(), ticket), 0);
  }
  EXPECT_EQ(Admit(MakePull(0, 1)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Stats().pulls_held(), 3u);
  EXPECT_EQ(Stats().pulls_waiting(), 3u);
  EXPECT_EQ(Stats().reads_held(), 3u);
  EXPECT_EQ(Stats().reads_waiting(), 3u);
  EXPECT_EQ(Stats().requests_refused(), 2u);
  EXPECT_NE(gate_.Drop(reads[1]), nullptr);
  EXPECT_EQ(Stats().pulls_waiting(), 3u);
  EXPECT_EQ(Stats().reads_waiting(), 2u);
  EXPECT_EQ(gate_.TakeExpired(pushes_, kHoldUs).size(), 5u);
  EXPECT_EQ(Stats().pulls_not_ready(), 3u);
  EXPECT_EQ(Stats().reads_not_ready(), 2u);
}

TEST_F(WaitingPullsTest, ATimerRunsForReadersToo) {
  wire::PullRequest read = MakePull(0, 1);
  read.kind = wire::PullKind::kRead;
  ASSERT_TRUE(Admit(read, /*now_us=*/0, /*time_left_us=*/200).ok());
  Hold(1);
  EXPECT_EQ(gate_.ArmTimer(0), 100);
  ApplyStep(0);
  EXPECT_EQ(gate_.TakeReady(pushes_, 50).size(), 2u);
  EXPECT_EQ(Stats().hold_time().count(), 1u);  // It counts pulls of training alone.
}

}  // namespace
}  // namespace thermocline
