#include "server/core/push_state.h"

#include <numeric>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "server/core/testing/core_fixtures.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakeChunk;

constexpr uint64_t kRoom = 1 << 20;

void ExpectAnswer(const absl::StatusOr<wire::PushAnswer>& answer, wire::Readiness readiness,
                  int64_t accepted_through) {
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->readiness, readiness);
  EXPECT_EQ(answer->accepted_through.value(), accepted_through);
}

TEST(PushStateTest, AStepIsCompleteWithTheLastWorkersPush) {
  PushState state(2, kRoom);
  ExpectAnswer(state.TakeChunk(MakeChunk(1, 0)), wire::Readiness::kReady, 0);
  EXPECT_FALSE(state.NextIsComplete());
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 0)), wire::Readiness::kReady, 0);
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
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 1)), wire::Readiness::kNotReady, -1);
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 0, 0, 2)), wire::Readiness::kReady, -1);
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 0, 0, 2)), wire::Readiness::kReady, -1);
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 0, 1, 2)), wire::Readiness::kReady, 0);
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 0, 1, 2)), wire::Readiness::kReady, 0);
  EXPECT_EQ(state.counters().accepted, 1u);
  EXPECT_EQ(state.counters().duplicates, 2u);
  EXPECT_EQ(state.counters().not_ready, 1u);
  EXPECT_EQ(state.TakeNext().pushes.size(), 1u);
}

TEST(PushStateTest, PushesBeyondTheNextStepWait) {
  PushState state(2, kRoom);
  for (int64_t step = 0; step < 3; ++step) ASSERT_TRUE(state.TakeChunk(MakeChunk(0, step)).ok());
  for (int64_t step = 0; step < 3; ++step) {
    EXPECT_FALSE(state.NextIsComplete());
    ASSERT_TRUE(state.TakeChunk(MakeChunk(1, step)).ok());
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
  ASSERT_TRUE(state.TakeChunk(MakeChunk(0, 0)).ok());
  ASSERT_TRUE(state.TakeChunk(MakeChunk(0, 1)).ok());
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
  wire::PushChunk chunk = MakeChunk(0, 4);
  chunk.header.acked_through = Step(3);
  EXPECT_EQ(state.TakeChunk(std::move(chunk)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(state.CheckAcknowledged({"job", 5, WorkerRank(1), Step(0)}).code(),
            absl::StatusCode::kDataLoss);
}

TEST(PushStateTest, WorkersAgreeOnTheLearningRateOfAStep) {
  PushState state(3, kRoom);
  ASSERT_TRUE(state.TakeChunk(MakeChunk(0, 0)).ok());        // Accepted.
  ASSERT_TRUE(state.TakeChunk(MakeChunk(1, 0, 0, 2)).ok());  // Being put together.
  wire::PushChunk chunk = MakeChunk(2, 0);
  chunk.learning_rate = 0.5f;
  const absl::Status other = state.TakeChunk(std::move(chunk)).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("rank 2, step 0: learning rate 0.5"), absl::string_view::npos);
  EXPECT_TRUE(state.TakeChunk(MakeChunk(2, 0)).ok());
}

TEST(PushStateTest, TheLearningRateOfAStepIsKeptUntilTheStepIsComplete) {
  PushState state(2, kRoom);
  ASSERT_TRUE(state.TakeChunk(MakeChunk(0, 0)).ok());
  ASSERT_TRUE(state.TakeChunk(MakeChunk(0, 1)).ok());
  ASSERT_TRUE(state.TakeChunk(MakeChunk(1, 0)).ok());
  state.MarkApplied(state.TakeNext());
  wire::PushChunk chunk = MakeChunk(1, 1);
  chunk.learning_rate = 0.5f;
  EXPECT_EQ(state.TakeChunk(std::move(chunk)).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(state.TakeChunk(MakeChunk(1, 1)).ok());
}

TEST(PushStateTest, NothingIsKeptOfAChunkThatBringsAKeyTwice) {
  PushState state(1, kRoom);
  wire::PushChunk first = MakeChunk(0, 0, 0, 2);
  AddRange(&first, 0, {1, 2}, {1, 1, 1, 1});
  ExpectAnswer(state.TakeChunk(std::move(first)), wire::Readiness::kReady, -1);
  const uint64_t bytes = state.pending_bytes();
  wire::PushChunk twice = MakeChunk(0, 0, 1, 2);
  AddRange(&twice, 0, {3, 2}, {1, 1, 1, 1});
  const absl::Status status = state.TakeChunk(std::move(twice)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("key 2 of table 0 twice"), absl::string_view::npos) << status;
  EXPECT_EQ(state.pending_bytes(), bytes);
  wire::PushChunk right = MakeChunk(0, 0, 1, 2);
  AddRange(&right, 0, {3}, {1, 1});
  ExpectAnswer(state.TakeChunk(std::move(right)), wire::Readiness::kReady, 0);
  EXPECT_EQ(state.TakeNext().pushes.at(0).chunks.size(), 2u);
  // In a push of one chunk.
  wire::PushChunk alone = MakeChunk(0, 1);
  AddRange(&alone, 1, {7, 7}, {1, 1});
  EXPECT_EQ(state.TakeChunk(std::move(alone)).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectAnswer(state.TakeChunk(MakeChunk(0, 1)), wire::Readiness::kReady, 1);
}

TEST(PushStateTest, PendingBytesAreThoseOfTheChunksThatCame) {
  PushState state(1, kRoom);
  const wire::PushChunk chunk = MakeChunk(0, 0, 0, kMaxChunks);  // Claims many, brings one.
  ASSERT_TRUE(state.TakeChunk(wire::PushChunk(chunk)).ok());
  EXPECT_EQ(state.pending_bytes(), BytesOf(chunk));
}

// With 100 gradients of table 0.
wire::PushChunk BigChunk(uint32_t rank, int64_t step, uint32_t chunk = 0, uint32_t num_chunks = 1) {
  wire::PushChunk big = MakeChunk(rank, step, chunk, num_chunks);
  std::vector<Key> keys(100);
  std::iota(keys.begin(), keys.end(), 100 * chunk);
  AddRange(&big, 0, keys, std::vector<float>(200, 1.0f));
  return big;
}

TEST(PushStateTest, RefusesPushesBeyondTheRoomButNotTheOneThatFreesIt) {
  const uint64_t bytes = BytesOf(BigChunk(0, 0));
  PushState state(2, 2 * bytes);
  ASSERT_TRUE(state.TakeChunk(BigChunk(0, 0)).ok());
  ASSERT_TRUE(state.TakeChunk(BigChunk(0, 1)).ok());
  EXPECT_EQ(state.TakeChunk(BigChunk(0, 2)).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(state.counters().refused, 1u);
  ExpectAnswer(state.TakeChunk(BigChunk(1, 0)), wire::Readiness::kReady, 0);
  state.MarkApplied(state.TakeNext());
  ExpectAnswer(state.TakeChunk(BigChunk(0, 2)), wire::Readiness::kReady, 2);
}

TEST(PushStateTest, AStepThatNeverHasRoomIsNoneToWaitFor) {
  const uint64_t bytes = BytesOf(BigChunk(0, 0));
  // One push in chunks, or those of several workers.
  for (const uint32_t workers : {1u, 2u}) {
    PushState state(workers, 2 * bytes - 1);
    ASSERT_TRUE(state.TakeChunk(BigChunk(0, 0, 0, 3 - workers)).ok());
    const absl::Status status =
        state.TakeChunk(workers == 1 ? BigChunk(0, 0, 1, 2) : BigChunk(1, 0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
    for (const std::string& chunk :
         {std::string("step 0"), std::to_string(2 * bytes), std::to_string(2 * bytes - 1),
          std::string("cluster.max_pending_size")}) {
      EXPECT_NE(status.message().find(chunk), absl::string_view::npos)
          << status << " lacks " << chunk;
    }
    EXPECT_EQ(state.pending_bytes(), bytes);
  }
}

TEST(PushStateTest, AChunkThatComesAgainTakesNoRoom) {
  const uint64_t bytes = BytesOf(BigChunk(0, 0));
  PushState state(2, 2 * bytes);
  ASSERT_TRUE(state.TakeChunk(BigChunk(0, 0)).ok());
  ASSERT_TRUE(state.TakeChunk(BigChunk(1, 0, 0, 2)).ok());
  ExpectAnswer(state.TakeChunk(BigChunk(1, 0, 0, 2)), wire::Readiness::kReady, -1);
  EXPECT_EQ(state.TakeChunk(BigChunk(1, 0, 1, 2)).status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(state.pending_bytes(), 2 * bytes);
}

// What was taken to be applied still takes room, and gives it back.
TEST(PushStateTest, AStepThatFitsWaitsForTheOneBeingApplied) {
  const uint64_t bytes = BytesOf(BigChunk(0, 0));
  PushState state(1, bytes);
  ASSERT_TRUE(state.TakeChunk(BigChunk(0, 0)).ok());
  const PushState::CompleteStep first = state.TakeNext();
  ASSERT_TRUE(state.TakeChunk(BigChunk(0, 1)).ok());
  const PushState::CompleteStep second = state.TakeNext();
  EXPECT_EQ(state.TakeChunk(BigChunk(0, 2)).status().code(), absl::StatusCode::kResourceExhausted);
  state.MarkApplied(first);
  EXPECT_TRUE(state.TakeChunk(BigChunk(0, 2)).ok());
  state.MarkApplied(second);
}

}  // namespace
}  // namespace thermocline
