// A session's pushes: their order, their chunks and waves, and what servers may know of them.
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/session/ps_session.h"
#include "worker/session/testing/fake_transport.h"
#include "worker/session/transport.h"

namespace thermocline {
namespace {

using PsSessionPushTest = PsSessionTest;

TEST_F(PsSessionPushTest, EveryServerGetsAPush) {
  const auto result = Push(0, {{9, 0}});  // 180 bytes, and nothing.
  ASSERT_EQ(transport_.pushes.size(), 3u);
  EXPECT_EQ(transport_.pushes[0].call.num_chunks, 2u);
  EXPECT_EQ(transport_.pushes[0].call.chunk, 0u);
  EXPECT_EQ(transport_.pushes[0].call.learning_rate, 0.5f);
  EXPECT_EQ(transport_.pushes[1].call.chunk, 1u);
  EXPECT_EQ(transport_.pushes[2].server, 1u);
  EXPECT_EQ(transport_.pushes[2].call.num_chunks, 1u);
  EXPECT_TRUE(transport_.pushes[2].call.tables.empty());
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ(session_.acked_through(), kNoStep);
  EXPECT_FALSE(result->has_value());
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
  EXPECT_EQ(session_.acked_through(), Step(0));
  EXPECT_EQ(session_.stats().bytes_pushed, 180u);
}

TEST_F(PsSessionPushTest, PushesGoToAServerInOrder) {
  const auto first = Push(0, {{1, 1}});
  const auto second = Push(1, {{1, 1}});
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[1].server, 1u);
  transport_.AnswerPush(Accepted(0));  // Server 0; server 1 has not answered.
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[1].server, 0u);
  EXPECT_EQ(transport_.pushes[1].call.step, Step(1));
  EXPECT_EQ(transport_.pushes[1].call.header.acked_through, Step(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*first)->ok());
  transport_.AnswerPush(Accepted(1));
  transport_.AnswerPush(Accepted(1));
  EXPECT_TRUE((*second)->ok());
}

TEST_F(PsSessionPushTest, ARefusalThatLastsIsSaidOnceAndWhenItIsOver) {
  std::vector<std::string> lines;
  PsSessionOptions options = Options();
  options.on_notice = [&](const std::string& line) { lines.push_back(line); };
  PsSession session(options, &transport_, &scheduler_);
  std::optional<absl::Status> result;
  PushWork work;
  work.step = Step(0);
  work.waves = {{{}, {}}};
  session.StartPush(std::move(work), [&](absl::Status status) { result = std::move(status); });
  ASSERT_TRUE(session.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(absl::ResourceExhaustedError("the disk is full"));  // From server 0.
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE(lines.empty());  // It may be busy for a moment.
  const int64_t start_us = scheduler_.NowMicros();
  while (scheduler_.NowMicros() - start_us < 5'000'000) {
    if (transport_.pushes.empty()) {
      scheduler_.RunNext();
    } else {
      transport_.AnswerPush(absl::ResourceExhaustedError("the disk is full"));
    }
  }
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "server 0 refuses a push, which is repeated until it has room: the disk is full");
  while (transport_.pushes.empty()) scheduler_.RunNext();
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE(result.has_value() && result->ok());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "server 0 takes a push again");
}

TEST_F(PsSessionPushTest, WavesGoOutWhenReleased) {
  const auto result = Push(0, {{1, 1}, {1, 0}}, /*release=*/false);
  EXPECT_TRUE(transport_.pushes.empty());
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  // Server 1 gets a part of the last wave, too: else it would accept before that wave is checked.
  EXPECT_EQ(transport_.pushes[1].call.num_chunks, 2u);
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(-1));
  EXPECT_TRUE(transport_.pushes.empty());
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[1].call.chunk, 1u);
  EXPECT_TRUE(transport_.pushes[1].call.tables.empty());
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionPushTest, WavesMayBeReleasedInAnyOrder) {
  const auto result = Push(0, {{0, 0}, {1, 0}, {1, 1}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 2).ok());
  EXPECT_TRUE(transport_.pushes.empty());  // Server 1 would have all its chunks.
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 1u);
  transport_.AnswerPush(Accepted(-1));
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionPushTest, AGradientThatIsNotFiniteIsNeverSent) {
  rows_[5] = std::numeric_limits<float>::quiet_NaN();
  const auto result = Push(0, {{2, 1}}, /*release=*/false);
  const absl::Status status = session_.ReleaseWave(Step(0), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("step 0: gradient of table 'C4', key 12 holds nan"),
            std::string::npos)
      << status;
  EXPECT_EQ(**result, status);
  EXPECT_TRUE(transport_.pushes.empty());
}

// State may be infinite, as on a server, where the sum of squares may overflow, too.
TEST_F(PsSessionPushTest, OfARowTheWeightsAreFiniteAndTheStateMayOverflow) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const size_t bad : {3, 1}) {
    rows_.assign(24, 0.5f);
    rows_[bad] = infinity;
    PushWork work;
    work.step = Step(bad == 3 ? 0 : 1);
    work.waves = {
        {{{TableId(4), wire::PushKind::kAssign, absl::MakeConstSpan(keys_).subspan(0, 1),
           absl::MakeConstSpan(counts_).subspan(0, 1), absl::MakeConstSpan(rows_).subspan(0, 4)}},
         {}}};
    session_.StartPush(work, [](const absl::Status&) {});
    const absl::Status status = session_.ReleaseWave(work.step, 0);
    if (bad == 3) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_NE(std::string(status.message()).find("row of table 'C4', key 10 holds inf"),
                std::string::npos)
          << status;
    }
  }
}

TEST_F(PsSessionPushTest, KeysWithoutAGradientTravelWithTheirCountsAlone) {
  PushWork work;
  work.step = Step(0);
  const auto keys = absl::MakeConstSpan(keys_);
  const auto counts = absl::MakeConstSpan(counts_);
  work.waves = {{{{TableId(4), wire::PushKind::kGradient, keys.subspan(0, 2), counts.subspan(0, 2),
                   absl::MakeConstSpan(rows_).subspan(0, 4)},
                  {TableId(4), wire::PushKind::kCount, keys.subspan(2), counts.subspan(2), {}}},
                 {}}};
  session_.StartPush(work, [](const absl::Status&) {});
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  std::vector<Key> counted;
  while (session_.acked_through() < Step(0)) {
    ASSERT_FALSE(transport_.pushes.empty());
    const auto& push = transport_.pushes[0];
    for (const wire::PushSlice& slice : push.call.tables) {
      EXPECT_EQ(slice.counts.size(), slice.keys.size());
      const bool has_gradient = slice.kind == wire::PushKind::kGradient;
      EXPECT_EQ(slice.values.size(), has_gradient ? 2 * slice.keys.size() : 0);
      if (!has_gradient) counted.insert(counted.end(), slice.keys.begin(), slice.keys.end());
    }
    const bool is_last = push.call.chunk + 1 == push.call.num_chunks;
    transport_.AnswerPush(Accepted(is_last ? 0 : -1));
  }
  EXPECT_EQ(counted, std::vector<Key>(keys_.begin() + 2, keys_.end()));
  EXPECT_EQ(session_.stats().bytes_pushed, 2u * 20 + 10u * 12);
}

TEST_F(PsSessionPushTest, ALaterWaveThatIsNotFiniteKeepsThePushIncompleteEverywhere) {
  rows_[4] = std::numeric_limits<float>::infinity();
  const auto result = Push(0, {{1, 1}, {1, 0}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  EXPECT_EQ(session_.ReleaseWave(Step(0), 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(result->has_value());
  for (int i = 0; i < 2; ++i) {
    ASSERT_LT(transport_.pushes.front().call.chunk + 1, transport_.pushes.front().call.num_chunks);
    transport_.AnswerPush(Accepted(-1));
  }
  EXPECT_EQ((*result)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(transport_.pushes.empty());
}

TEST_F(PsSessionPushTest, OnlyTheLostChunkIsRepeated) {
  const auto result = Push(0, {{9, 0}});
  transport_.AnswerPush(absl::UnavailableError(""));
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(0));
  scheduler_.Advance(Options().max_backoff_us);
  ASSERT_EQ(transport_.pushes.size(), 1u);
  EXPECT_EQ(transport_.pushes[0].call.chunk, 0u);
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionPushTest, AServerThatForgotChunksGetsAllAgain) {
  const auto result = Push(0, {{9, 0}});
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE(transport_.pushes.empty());
  scheduler_.Advance(Options().max_backoff_us);
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionPushTest, AnAcknowledgedPushEndsWhenItsBuffersAreBack) {
  const auto result = Push(0, {{9, 0}});
  transport_.pushes.push_back(std::move(transport_.pushes.front()));  // Chunk 0 is answered last.
  transport_.pushes.pop_front();
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ(session_.acked_through(), Step(0));
  EXPECT_FALSE(result->has_value());
  transport_.AnswerPush(absl::UnavailableError("late"));
  EXPECT_TRUE((*result)->ok());
  EXPECT_TRUE(session_.status().ok());
}

TEST_F(PsSessionPushTest, AServerThatKnowsMoreThanThisWorkerPushedIsAnError) {
  const auto result = Push(0, {{1, 1}});
  transport_.AnswerPush(Accepted(4));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string((*result)->message()).find("server 0 accepted step 4 from rank 1"),
            std::string::npos)
      << **result;
}

// The server accepted the push although this worker hasn't sent all of it.
TEST_F(PsSessionPushTest, APushOfSomebodyElseIsAnError) {
  const auto result = Push(0, {{1, 1}, {1, 1}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string((*result)->message()).find("sent it 1 of 2 chunks"), std::string::npos)
      << **result;
  EXPECT_EQ(session_.ReleaseWave(Step(0), 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(transport_.pushes.empty());
}

// The next push is begun, but goes to the server after this one alone.
TEST_F(PsSessionPushTest, AServerThatKnowsAPushNotSentYetIsAnError) {
  const auto result = Push(0, {{1, 1}});
  const auto next = Push(1, {{1, 1}});
  transport_.AnswerPush(Accepted(1));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*next)->code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PsSessionPushTest, APushMayBeAcceptedWhoseAnswersWereLost) {
  const auto result = Push(0, {{9, 0}});
  transport_.AnswerPush(absl::UnavailableError(""));
  transport_.AnswerPush(absl::UnavailableError(""));
  transport_.AnswerPush(Accepted(0));
  scheduler_.Advance(Options().max_backoff_us);
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(0));  // The first repeated chunk: both had arrived before.
  EXPECT_EQ(session_.acked_through(), Step(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionPushTest, ALentWaveComesBackOnceEveryServerHasItsChunks) {
  const auto result = LendingPush(0, {{1, 1}, {8, 0}, {1, 1}});
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  transport_.AnswerPush(Accepted(-1));
  EXPECT_TRUE(returned_.empty());
  transport_.AnswerPush(absl::UnavailableError(""));  // It is repeated, and so still needed.
  EXPECT_TRUE(returned_.empty());
  scheduler_.Advance(Options().max_backoff_us);
  transport_.AnswerPush(Accepted(-1));
  EXPECT_EQ(returned_, (std::vector<size_t>{0}));
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);  // 8 keys in two chunks
  transport_.AnswerPush(Accepted(-1));
  EXPECT_EQ(returned_.size(), 1u);
  transport_.AnswerPush(Accepted(-1));
  EXPECT_EQ(returned_, (std::vector<size_t>{0, 1}));
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 2).ok());
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
  EXPECT_TRUE(wanted_.empty());
}

TEST_F(PsSessionPushTest, ALentWaveIsWantedAgainByAServerThatForgotIt) {
  const auto result = LendingPush(0, {{1, 1}, {1, 0}, {1, 1}});
  for (const size_t wave : {0, 1, 2}) {
    ASSERT_TRUE(session_.ReleaseWave(Step(0), wave).ok());
    while (transport_.pushes.size() > 1) transport_.AnswerPush(Accepted(-1));
    if (wave < 2) transport_.AnswerPush(Accepted(-1));
  }
  EXPECT_EQ(returned_, (std::vector<size_t>{0, 1}));
  EXPECT_EQ(wanted_, (std::vector<size_t>{0, 1}));  // by server 0, which had all its chunks
  transport_.AnswerPush(Accepted(0));               // server 1 is done
  scheduler_.Advance(Options().max_backoff_us);
  // What is at hand goes out at once, and what was lent when it is released again.
  ASSERT_EQ(transport_.pushes.size(), 1u);
  EXPECT_EQ(transport_.pushes[0].call.chunk, 2u);
  transport_.AnswerPush(Accepted(-1));
  ASSERT_TRUE(session_.ReleaseWaveAgain(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 1u);
  EXPECT_EQ(transport_.pushes[0].call.chunk, 1u);
  transport_.AnswerPush(Accepted(-1));
  EXPECT_EQ(returned_, (std::vector<size_t>{0, 1, 1}));
  ASSERT_TRUE(session_.ReleaseWaveAgain(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 1u);  // server 1 has it
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
  EXPECT_TRUE(session_.ReleaseWaveAgain(Step(0), 0).ok()) << "the push is over";
}

// A call that is late borrows the values, whatever the server says elsewhere.
TEST_F(PsSessionPushTest, ALentWaveComesBackWhenItsBuffersAre) {
  const auto result = LendingPush(0, {{9, 0}, {0, 0}});
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 4u);  // of server 0: two chunks, and one of the last wave
  transport_.pushes.push_back(std::move(transport_.pushes.front()));  // Chunk 0 is answered last.
  transport_.pushes.pop_front();
  for (int i = 0; i < 3; ++i) transport_.AnswerPush(Accepted(0));
  EXPECT_EQ(session_.acked_through(), Step(0));
  EXPECT_TRUE(returned_.empty());
  transport_.AnswerPush(absl::UnavailableError("late"));
  EXPECT_EQ(returned_, (std::vector<size_t>{0}));
  EXPECT_TRUE((*result)->ok());
}

wire::PullAnswer Counted(int64_t through, std::vector<uint32_t> groups,
                         std::vector<uint64_t> rows) {
  return {
      wire::Readiness::kReady, Step(through), {{TableId(4), std::move(groups), std::move(rows)}}};
}

// A session of rank 0 whose table has a limit, which counts before its first push, that of step 4.
class PsSessionCountTest : public PsSessionTest {
 protected:
  static PsSessionOptions Limited() {
    PsSessionOptions options = Options();
    options.rank = WorkerRank(0);
    options.tables[0].max_rows = 10;
    options.start_step = Step(4);
    return options;
  }
  void StartAndRelease(int64_t step) {
    limited_.StartPush(WorkOf(step, {{1, 1}, {0, 0}}),
                       [this](absl::Status status) { result_ = std::move(status); });
    ASSERT_TRUE(limited_.ReleaseWave(Step(step), 1).ok());
    ASSERT_TRUE(limited_.ReleaseWave(Step(step), 0).ok());
  }
  void TearDown() override {
    limited_.Fail(absl::CancelledError("the test is over"));
    PsSessionTest::TearDown();
  }

  PsSession limited_{Limited(), &transport_, &scheduler_};
  std::optional<absl::Status> result_;
};

TEST_F(PsSessionCountTest, TheLastChunksWaitForTheCountsOfAllServers) {
  StartAndRelease(4);
  ASSERT_EQ(transport_.pulls.size(), 2u);
  for (const FakeTransport::PullSeen& pull : transport_.pulls) {
    EXPECT_TRUE(pull.call.count_rows);
    EXPECT_EQ(pull.call.step, Step(4));
    EXPECT_EQ(pull.call.staleness_steps, 0u);  // The job's is 2.
    EXPECT_TRUE(pull.call.tables.empty());
  }
  EXPECT_EQ(transport_.pulls[1].server, 1u);
  ASSERT_EQ(transport_.pushes.size(), 2u);  // The first wave.
  transport_.AnswerPush(Accepted(3));
  transport_.AnswerPush(Accepted(3));
  transport_.AnswerPull(wire::PullAnswer{wire::Readiness::kNotReady, Step(2), {}});
  transport_.AnswerPull(Counted(3, {2, 4}, {5, 3}));
  EXPECT_TRUE(transport_.pushes.empty());
  while (transport_.pulls.empty()) scheduler_.RunNext();  // Server 0 is asked again.
  transport_.AnswerPull(Counted(3, {1, 2, 3}, {9, 2, 4}));
  // From the newest on: 3, then 7, then 14 rows.
  ASSERT_EQ(transport_.pushes.size(), 2u);
  for (const FakeTransport::PushSeen& push : transport_.pushes) {
    EXPECT_EQ(push.call.chunk + 1, push.call.num_chunks);
    EXPECT_EQ(push.call.row_limits, (std::vector<wire::RowLimit>{{TableId(4), 3}}));
  }
  transport_.AnswerPush(Accepted(4));
  transport_.AnswerPush(Accepted(4));
  EXPECT_TRUE(result_.has_value() && result_->ok());
  StartAndRelease(5);  // Nothing is counted before it.
  EXPECT_TRUE(transport_.pulls.empty());
}

TEST_F(PsSessionCountTest, AServerThatDoesNotCountIsAnError) {
  StartAndRelease(4);
  transport_.AnswerPull(PullReady(3));
  EXPECT_EQ(limited_.status().code(), absl::StatusCode::kInternal) << limited_.status();
}

TEST_F(PsSessionCountTest, CountsOfAnEarlierStepAreAnError) {
  StartAndRelease(4);
  transport_.AnswerPull(Counted(2, {1}, {1}));
  EXPECT_EQ(limited_.status().code(), absl::StatusCode::kInternal) << limited_.status();
}

TEST_F(PsSessionPushTest, CallbacksMayBeginTheNextStep) {
  PullWork work;
  work.step = Step(0);
  work.slices = {
      {{TableId(4), absl::MakeConstSpan(keys_).subspan(0, 1), absl::MakeSpan(rows_).subspan(0, 2)}},
      {}};
  std::shared_ptr<std::optional<absl::Status>> push;
  session_.Pull(work, [&](absl::Status, Step) { push = Push(0, {{1, 1}}); });
  transport_.AnswerPull(PullReady(-1));
  EXPECT_EQ(transport_.pushes.size(), 2u);
}

// A worker that resumes: the servers' ledgers begin before its first step.
TEST_F(PsSessionPushTest, ALaterStartIsWhatTheServersBeganWith) {
  PsSessionOptions options = Options();
  options.start_step = Step(40);
  PsSession session(options, &transport_, &scheduler_);
  EXPECT_EQ(session.acked_through(), Step(39));
  PushWork work;
  work.step = Step(40);
  work.waves = {{{}, {}}};
  bool done = false;
  session.StartPush(std::move(work), [&](absl::Status status) { done = status.ok(); });
  ASSERT_TRUE(session.ReleaseWave(Step(40), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[0].call.header.acked_through, Step(39));
  transport_.AnswerPush(Accepted(40));
  transport_.AnswerPush(Accepted(40));
  EXPECT_TRUE(done);
  EXPECT_EQ(session.acked_through(), Step(40));
}

}  // namespace
}  // namespace thermocline
