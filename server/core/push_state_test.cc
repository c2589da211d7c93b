#include "server/core/push_state.h"

#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakePart;

constexpr uint64_t kRoom = 1 << 20;

void ExpectAnswer(const absl::StatusOr<wire::PushAnswer>& answer, wire::Readiness readiness,
                  int64_t accepted_through) {
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->readiness, readiness);
  EXPECT_EQ(answer->accepted_through.value(), accepted_through);
}

TEST(PushStateTest, AStepIsCompleteWithTheLastWorkersPush) {
  PushState state(2, kRoom);
  ExpectAnswer(state.TakePart(MakePart(1, 0)), wire::Readiness::kReady, 0);
  EXPECT_FALSE(state.NextIsComplete());
  ExpectAnswer(state.TakePart(MakePart(0, 0)), wire::Readiness::kReady, 0);
  ASSERT_TRUE(state.NextIsComplete());
  const PushState::CompleteStep next = state.TakeNext();
  EXPECT_EQ(next.step, Step(0));
  ASSERT_EQ(next.pushes.size(), 2u);
  EXPECT_EQ(next.pushes[0].rank, WorkerRank(0));  // In rank order.
  EXPECT_EQ(next.pushes[1].rank, WorkerRank(1));
  // Taken is not applied.
  EXPECT_EQ(state.complete_through(), kNoStep);
  EXPECT_GT(state.pending_bytes(), 0u);
  state.MarkApplied(next);
  EXPECT_EQ(state.complete_through(), Step(0));
  EXPECT_EQ(state.pending_bytes(), 0u);
  EXPECT_FALSE(state.NextIsComplete());
}

TEST(PushStateTest, AnswersDuplicatesAndEarlyPushes) {
  PushState state(1, kRoom);
  ExpectAnswer(state.TakePart(MakePart(0, 1)), wire::Readiness::kNotReady, -1);
  ExpectAnswer(state.TakePart(MakePart(0, 0, 0, 2)), wire::Readiness::kReady, -1);
  ExpectAnswer(state.TakePart(MakePart(0, 0, 0, 2)), wire::Readiness::kReady, -1);
  ExpectAnswer(state.TakePart(MakePart(0, 0, 1, 2)), wire::Readiness::kReady, 0);
  ExpectAnswer(state.TakePart(MakePart(0, 0, 1, 2)), wire::Readiness::kReady, 0);
  EXPECT_EQ(state.counters().accepted, 1u);
  EXPECT_EQ(state.counters().duplicates, 2u);
  EXPECT_EQ(state.counters().not_ready, 1u);
  EXPECT_EQ(state.TakeNext().pushes.size(), 1u);
}

TEST(PushStateTest, PushesBeyondTheNextStepWait) {
  PushState state(2, kRoom);
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(state.TakePart(MakePart(0, step)).ok());
  for (int64_t step = 0; step < 3; ++step) {
    EXPECT_FALSE(state.NextIsComplete());
    ASSERT_TRUE(state.TakePart(MakePart(1, step)).ok());
    const PushState::CompleteStep next = state.TakeNext();
    EXPECT_EQ(next.step, Step(step));
    ASSERT_EQ(next.pushes.size(), 2u);
    for (const AssembledPush& push : next.pushes) EXPECT_EQ(push.step, Step(step));
    state.MarkApplied(next);
    EXPECT_EQ(state.complete_through(), Step(step));
  }
  EXPECT_FALSE(state.NextIsComplete());
}

TEST(PushStateTest, NoCutIsBeforeAStepThatWasTakenToBeApplied) {
  PushState state(1, kRoom);
  EXPECT_TRUE(state.CanCutAt(Step(0)));
  ASSERT_TRUE(state.TakePart(MakePart(0, 0)).ok());
  ASSERT_TRUE(state.TakePart(MakePart(0, 1)).ok());
  EXPECT_TRUE(state.CanCutAt(kNoStep));
  const PushState::CompleteStep first = state.TakeNext();
  const auto expect_cuts = [&] {
    EXPECT_FALSE(state.CanCutAt(kNoStep));
    EXPECT_TRUE(state.CanCutAt(Step(0)));
    EXPECT_TRUE(state.CanCutAt(Step(1)));
  };
  expect_cuts();
  state.MarkApplied(first);
  expect_cuts();
}

TEST(PushStateTest, AnAcknowledgementItDoesntKnowIsDataLoss) {
  PushState state(2, kRoom);
  wire::PushPart part = MakePart(0, 4);
  part.header.acked_through = Step(3);
  EXPECT_EQ(state.TakePart(std::move(part)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(state.CheckAcknowledged({"job", 5, WorkerRank(1), Step(0)}).code(),
            absl::StatusCode::kDataLoss);
}

TEST(PushStateTest, WorkersAgreeOnTheLearningRateOfAStep) {
  PushState state(3, kRoom);
  ASSERT_TRUE(state.TakePart(MakePart(0, 0)).ok());        // Accepted.
  ASSERT_TRUE(state.TakePart(MakePart(1, 0, 0, 2)).ok());  // Being put together.
  wire::PushPart part = MakePart(2, 0);
  part.learning_rate = 0.5f;
  const absl::Status other = state.TakePart(std::move(part)).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("rank 2, step 0: learning rate 0.5"), absl::string_view::npos);
  EXPECT_TRUE(state.TakePart(MakePart(2, 0)).ok());
}

TEST(PushStateTest, TheLearningRateOfAStepIsKeptUntilTheStepIsComplete) {
  PushState state(2, kRoom);
  ASSERT_TRUE(state.TakePart(MakePart(0, 0)).ok());
  ASSERT_TRUE(state.TakePart(MakePart(0, 1)).ok());
  ASSERT_TRUE(state.TakePart(MakePart(1, 0)).ok());
  state.MarkApplied(state.TakeNext());
  wire::PushPart part = MakePart(1, 1);
  part.learning_rate = 0.5f;
  EXPECT_EQ(state.TakePart(std::move(part)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(state.TakePart(MakePart(1, 1)).ok());
}

TEST(PushStateTest, NothingIsKeptOfAPartThatBringsAKeyTwice) {
  PushState state(1, kRoom);
  wire::PushPart first = MakePart(0, 0, 0, 2);
  AddRange(&first, 0, {1, 2}, {1, 1, 1, 1});
  ExpectAnswer(state.TakePart(std::move(first)), wire::Readiness::kReady, -1);
  const uint64_t bytes = state.pending_bytes();
  wire::PushPart twice = MakePart(0, 0, 1, 2);
  AddRange(&twice, 0, {3, 2}, {1, 1, 1, 1});
  const absl::Status status = state.TakePart(std::move(twice)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("key 2 of table 0 twice"), absl::string_view::npos) << status;
  EXPECT_EQ(state.pending_bytes(), bytes);
  wire::PushPart right = MakePart(0, 0, 1, 2);
  AddRange(&right, 0, {3}, {1, 1});
  ExpectAnswer(state.TakePart(std::move(right)), wire::Readiness::kReady, 0);
  EXPECT_EQ(state.TakeNext().pushes.at(0).parts.size(), 2u);
  // In a push of one part.
  wire::PushPart alone = MakePart(0, 1);
  AddRange(&alone, 1, {7, 7}, {1, 1});
  EXPECT_EQ(state.TakePart(std::move(alone)).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectAnswer(state.TakePart(MakePart(0, 1)), wire::Readiness::kReady, 1);
}

TEST(PushStateTest, PendingBytesAreThoseOfThePartsThatCame) {
  PushState state(1, kRoom);
  const wire::PushPart part = MakePart(0, 0, 0, kMaxParts);  // Claims many, brings one.
  ASSERT_TRUE(state.TakePart(wire::PushPart(part)).ok());
  EXPECT_EQ(state.pending_bytes(), BytesOf(part));
}

// With 100 gradients of table 0.
wire::PushPart BigPart(uint32_t rank, int64_t step, uint32_t part = 0, uint32_t num_parts = 1) {
  wire::PushPart big = MakePart(rank, step, part, num_parts);
  std::vector<Key> keys(100);
  std::iota(keys.begin(), keys.end(), 100 * part);
  AddRange(&big, 0, keys, std::vector<float>(200, 1.0f));
  return big;
}

TEST(PushStateTest, RefusesPushesBeyondTheRoomButNotTheOneThatFreesIt) {
  const uint64_t bytes = BytesOf(BigPart(0, 0));
  PushState state(2, 2 * bytes);
  ASSERT_TRUE(state.TakePart(BigPart(0, 0)).ok());
  ASSERT_TRUE(state.TakePart(BigPart(0, 1)).ok());
  EXPECT_EQ(state.TakePart(BigPart(0, 2)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(state.counters().refused, 1u);
  ExpectAnswer(state.TakePart(BigPart(1, 0)), wire::Readiness::kReady, 0);
  state.MarkApplied(state.TakeNext());
  ExpectAnswer(state.TakePart(BigPart(0, 2)), wire::Readiness::kReady, 2);
}

TEST(PushStateTest, AStepThatNeverHasRoomIsNoneToWaitFor) {
  const uint64_t bytes = BytesOf(BigPart(0, 0));
  // One push in parts, or those of several workers.
  for (const uint32_t workers : {1u, 2u}) {
    PushState state(workers, 2 * bytes - 1);
    ASSERT_TRUE(state.TakePart(BigPart(0, 0, 0, 3 - workers)).ok());
    const absl::Status status =
        state.TakePart(workers == 1 ? BigPart(0, 0, 1, 2) : BigPart(1, 0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    for (const std::string& part :
         {std::string("step 0"), std::to_string(2 * bytes), std::to_string(2 * bytes - 1),
          std::string("cluster.max_pending_size")}) {
      EXPECT_NE(status.message().find(part), absl::string_view::npos)
          << status << " lacks " << part;
    }
    EXPECT_EQ(state.pending_bytes(), bytes);
  }
}

TEST(PushStateTest, APartThatComesAgainTakesNoRoom) {
  const uint64_t bytes = BytesOf(BigPart(0, 0));
  PushState state(2, 2 * bytes);
  ASSERT_TRUE(state.TakePart(BigPart(0, 0)).ok());
  ASSERT_TRUE(state.TakePart(BigPart(1, 0, 0, 2)).ok());
  ExpectAnswer(state.TakePart(BigPart(1, 0, 0, 2)), wire::Readiness::kReady, -1);
  EXPECT_EQ(state.TakePart(BigPart(1, 0, 1, 2)).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(state.pending_bytes(), 2 * bytes);
}

// What was taken to be applied still takes room, and gives it back.
TEST(PushStateTest, AStepThatFitsWaitsForTheOneBeingApplied) {
  const uint64_t bytes = BytesOf(BigPart(0, 0));
  PushState state(1, bytes);
  ASSERT_TRUE(state.TakePart(BigPart(0, 0)).ok());
  const PushState::CompleteStep first = state.TakeNext();
  ASSERT_TRUE(state.TakePart(BigPart(0, 1)).ok());
  const PushState::CompleteStep second = state.TakeNext();
  EXPECT_EQ(state.TakePart(BigPart(0, 2)).status().code(), absl::StatusCode::kResourceExhausted);
  state.MarkApplied(first);
  EXPECT_TRUE(state.TakePart(BigPart(0, 2)).ok());
  state.MarkApplied(second);
}

}  // namespace
}  // namespace thermocline
