// A session's pulls, and which errors it repeats: of pulls, and of all calls.
#include "worker/session/ps_session.h"

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "worker/session/retry_policy.h"
#include "worker/session/testing/fake_transport.h"
#include "worker/session/transport.h"

namespace thermocline {
namespace {

using wire::Readiness;

TEST_F(PsSessionTest, APullIsCutAndSentAtOnce) {
  const auto result = Pull(5, {10, 3});  // 160 and 48 bytes.
  ASSERT_EQ(transport_.pulls.size(), 3u);
  EXPECT_EQ(transport_.pulls[0].server, 0u);
  EXPECT_EQ(transport_.pulls[0].call.tables[0].keys.size(), 5u);
  EXPECT_EQ(transport_.pulls[1].call.tables[0].keys[0], 15u);
  EXPECT_EQ(transport_.pulls[1].call.tables[0].rows.data(), rows_.data() + 10);
  EXPECT_EQ(transport_.pulls[2].server, 1u);
  const PullCall& call = transport_.pulls[2].call;
  EXPECT_EQ(call.header.job_id, "job");
  EXPECT_EQ(call.header.generation, 3u);
  EXPECT_EQ(call.header.rank, WorkerRank(1));
  EXPECT_EQ(call.header.acked_through, kNoStep);
  EXPECT_EQ(call.step, Step(5));
  EXPECT_EQ(call.after_step, Step(4));
  EXPECT_FALSE(call.with_state);
  transport_.AnswerPull(PullReady(4));
  transport_.AnswerPull(PullReady(2));
  EXPECT_FALSE(result->has_value());
  transport_.AnswerPull(PullReady(3));
  EXPECT_TRUE((*result)->ok());
  EXPECT_EQ(pulled_through_, Step(2));
  EXPECT_EQ(session_.stats().bytes_pulled, 160u + 48u);
}

// Rows of 4 floats instead of 2: the chunks hold fewer keys.
TEST_F(PsSessionTest, APullWithStateIsCutByWholeRows) {
  std::vector<float> rows(4 * 10);
  PullWork work;
  work.kind = wire::PullKind::kRead;
  work.step = Step(5);
  work.with_state = true;
  work.slices = {{{TableId(4), absl::MakeConstSpan(keys_).subspan(0, 10), absl::MakeSpan(rows)}},
                 {}};
  bool done = false;
  session_.Pull(std::move(work), [&](absl::Status status, Step) { done = status.ok(); });
  ASSERT_EQ(transport_.pulls.size(), 3u);  // 240 bytes.
  size_t keys = 0;
  while (!transport_.pulls.empty()) {
    const PullCall& call = transport_.pulls.front().call;
    EXPECT_TRUE(call.with_state);
    EXPECT_EQ(call.tables[0].rows.data(), rows.data() + 4 * keys);
    EXPECT_EQ(call.tables[0].rows.size(), 4 * call.tables[0].keys.size());
    keys += call.tables[0].keys.size();
    transport_.AnswerPull(PullReady(4));
  }
  EXPECT_EQ(keys, 10u);
  EXPECT_TRUE(done);
}

TEST_F(PsSessionTest, RowsStalerThanTheJobAllowsAreAnError) {
  const auto result = Pull(5, {1, 1});
  transport_.AnswerPull(PullReady(2));
  transport_.AnswerPull(PullReady(1));  // Step 5 may miss 3 and 4, not 2.
  EXPECT_EQ((*result)->code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string((*result)->message()).find("rank 1, server 1, step 5"), std::string::npos)
      << **result;
}

TEST_F(PsSessionTest, AnEvaluationMissesNothing) {
  const auto good = Pull(5, {1, 0}, wire::PullKind::kRead);
  transport_.AnswerPull(PullReady(4));
  EXPECT_TRUE((*good)->ok());
  const auto bad = Pull(5, {1, 0}, wire::PullKind::kRead);
  transport_.AnswerPull(PullReady(3));
  EXPECT_EQ((*bad)->code(), absl::StatusCode::kInternal);
  EXPECT_NE(std::string((*bad)->message()).find("server 0, step 5"), std::string::npos) << **bad;
}

TEST_F(PsSessionTest, APullOfNothingIsAnsweredAtOnce) {
  const auto result = Pull(5, {0, 0});
  EXPECT_TRUE((*result)->ok());
  EXPECT_EQ(pulled_through_, Step(4));
  EXPECT_TRUE(transport_.pulls.empty());
}

TEST_F(PsSessionTest, CallsInFlightAreBounded) {
  PsSessionOptions options = Options();
  options.max_calls_in_flight = 2;
  PsSession session(options, &transport_, &scheduler_);
  PullWork work;
  work.step = Step(0);
  for (int k = 0; k < 2; ++k) {
    work.slices.push_back({{TableId(4), keys_, absl::MakeSpan(rows_)}});  // 192 bytes.
    work.slices.back().push_back(work.slices.back()[0]);                  // 5 chunks.
  }
  bool done = false;
  session.Pull(std::move(work), [&](absl::Status status, Step) { done = status.ok(); });
  int calls = 0;
  while (!transport_.pulls.empty()) {
    EXPECT_LE(transport_.pulls.size(), 4u);
    transport_.AnswerPull(PullReady(-1));
    ++calls;
  }
  EXPECT_EQ(calls, 10);
  EXPECT_TRUE(done);
}

TEST_F(PsSessionTest, ErrorsThatMayPassAreRepeated) {
  const auto result = Pull(0, {1, 0});
  for (const absl::Status& error :
       {absl::UnavailableError("down"), absl::DeadlineExceededError("late"),
        absl::ResourceExhaustedError("full")}) {
    transport_.AnswerPull(error);
    EXPECT_TRUE(transport_.pulls.empty());  // Not before the backoff.
    scheduler_.Advance(Options().max_backoff_us);
    ASSERT_EQ(transport_.pulls.size(), 1u);
  }
  transport_.AnswerPull(PullReady(-1));
  EXPECT_TRUE((*result)->ok());
  EXPECT_EQ(session_.stats().retries, 3u);
}

TEST_F(PsSessionTest, NotReadyIsRepeatedForever) {
  const auto result = Pull(0, {1, 0});
  for (int i = 0; i < 1000; ++i) {  // Far beyond the time after which a server counts as lost.
    scheduler_.Advance(5'000'000);
    transport_.AnswerPull(
        wire::PullAnswer{i % 2 == 0 ? Readiness::kNotReady : Readiness::kRecovering, kNoStep});
    if (i % 2 == 0) transport_.AnswerPull(PullReady(-1));  // The other server is probed.
    scheduler_.Advance(50 * Options().not_ready_delay_us);
    ASSERT_EQ(transport_.pulls.size(), 1u);
  }
  EXPECT_EQ(session_.stats().retries, 0u);
  EXPECT_EQ(session_.stats().not_ready, 1000u);
  transport_.AnswerPull(PullReady(-1));
  EXPECT_TRUE((*result)->ok());
}

// The other server may have lost the push that this one waits for.
TEST_F(PsSessionTest, WhoWaitsTellsTheOtherServersWhatTheyAcknowledged) {
  const auto push = Push(0, {{1, 1}});
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  ASSERT_TRUE((*push)->ok());
  const auto result = Pull(1, {1, 0});
  const auto also = Pull(2, {1, 0});
  transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
  ASSERT_EQ(transport_.pulls.size(), 1u) << "its answer to the push is new";
  transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
  scheduler_.Advance(1'000'000);
  for (int round = 0; round < 3; ++round) {
    ASSERT_EQ(transport_.pulls.size(), 2u);
    transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
    transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
    ASSERT_EQ(transport_.pulls.size(), 1u) << "probed once";
    const auto& asked = transport_.pulls.front();
    EXPECT_EQ(asked.server, 1u);
    EXPECT_TRUE(asked.call.tables.empty());
    EXPECT_EQ(asked.call.step, Step(0));
    EXPECT_EQ(asked.call.header.acked_through, Step(0));
    if (round % 2 == 0) {
      transport_.AnswerPull(PullReady(-1));
    } else {
      // An error of a probe does not fail these pulls.
      transport_.AnswerPull(absl::UnavailableError("down"));
    }
    EXPECT_FALSE(result->has_value());
    scheduler_.Advance(1'000'000);
  }
  transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
  transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
  transport_.AnswerPull(absl::DataLossError("rank 1 was acknowledged step 0"));
  ASSERT_TRUE(result->has_value());
  EXPECT_EQ((*result)->code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(also->has_value());
}

// A worker probes servers while it waits for other workers, and not for a server.
TEST_F(PsSessionTest, AllServersThatAreSilentAreProbed) {
  const auto push = Push(0, {{1, 1}});
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  session_.ProbeAll();
  EXPECT_TRUE(transport_.pulls.empty()) << "their answers are new";
  scheduler_.Advance(1'000'000);
  session_.ProbeAll();
  session_.ProbeAll();
  ASSERT_EQ(transport_.pulls.size(), 2u) << "each is probed once at a time";
  for (uint32_t server = 0; server < 2; ++server) {
    EXPECT_EQ(transport_.pulls[server].server, server);
    EXPECT_TRUE(transport_.pulls[server].call.tables.empty());
    EXPECT_EQ(transport_.pulls[server].call.header.acked_through, Step(0));
  }
  transport_.AnswerPull(absl::UnavailableError("down"));
  EXPECT_TRUE(session_.status().ok());
  transport_.AnswerPull(absl::DataLossError("rank 1 was acknowledged step 0"));
  EXPECT_EQ(session_.status().code(), absl::StatusCode::kDataLoss);
  session_.ProbeAll();
  EXPECT_TRUE(transport_.pulls.empty());
}

TEST_F(PsSessionTest, AServerSaysWhenAllWorkersPushesAreApplied) {
  std::optional<absl::Status> applied;
  session_.AwaitApplied(Step(4), [&](absl::Status status) { applied = std::move(status); });
  ASSERT_EQ(transport_.pulls.size(), 1u);
  EXPECT_EQ(transport_.pulls[0].call.kind, wire::PullKind::kRead);
  EXPECT_EQ(transport_.pulls[0].call.step, Step(5));
  transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, Step(3)});
  EXPECT_FALSE(applied.has_value());
  transport_.AnswerPull(PullReady(-1));  // The other server is probed.
  scheduler_.Advance(50 * Options().not_ready_delay_us);
  ASSERT_EQ(transport_.pulls.size(), 1u);
  EXPECT_FALSE(applied.has_value());
  transport_.AnswerPull(PullReady(4));
  ASSERT_TRUE(applied.has_value());
  EXPECT_TRUE(applied->ok()) << *applied;
}

TEST_F(PsSessionTest, AFailureIsReportedOnce) {
  std::vector<absl::Status> failures;
  PsSessionOptions options = Options();
  options.on_failure = [&](const absl::Status& error) { failures.push_back(error); };
  PsSession session(options, &transport_, &scheduler_);
  EXPECT_TRUE(failures.empty());
  session.Fail(absl::InvalidArgumentError("first"));
  session.Fail(absl::CancelledError("second"));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0], absl::InvalidArgumentError("first"));
}

TEST_F(PsSessionTest, WhatTheOthersAreCompleteThroughDoesNotMatter) {
  const auto result = Pull(1, {1, 0});
  transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
  scheduler_.Advance(50 * Options().not_ready_delay_us);
  ASSERT_EQ(transport_.pulls.size(), 2u);
  transport_.AnswerPull(PullReady(-1));
  transport_.AnswerPull(PullReady(0));
  ASSERT_TRUE(result->has_value());
  EXPECT_TRUE((*result)->ok()) << **result;
  EXPECT_EQ(pulled_through_, Step(0));
}

TEST_F(PsSessionTest, SaysWhatItWaitsFor) {
  constexpr int64_t kSecond = 1'000'000;
  const auto pull = Pull(5, {1, 1});
  Push(0, {{1, 1}, {1, 1}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  EXPECT_TRUE(session_.waits(1).empty());
  transport_.AnswerPull(PullReady(4));  // From server 0.
  scheduler_.Advance(kSecond);
  std::vector<SessionWait> waits = session_.waits(kSecond);
  ASSERT_EQ(waits.size(), 1u);  // The push waits for this worker.
  EXPECT_EQ(waits[0].server, ServerIndex(1));
  EXPECT_FALSE(waits[0].is_push);
  EXPECT_EQ(waits[0].step, Step(5));
  EXPECT_GE(waits[0].waited_us, kSecond);
  EXPECT_TRUE(waits[0].error.ok());
  transport_.AnswerPull(absl::UnavailableError("connection lost"));
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  waits = session_.waits(kSecond);
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_EQ(waits[0].error, absl::UnavailableError("connection lost"));
  waits = session_.waits(0);
  ASSERT_EQ(waits.size(), 3u);
  EXPECT_TRUE(waits[0].is_push);
  EXPECT_EQ(waits[0].server, ServerIndex(0));
  EXPECT_TRUE(waits[2].is_push);
  EXPECT_EQ(waits[2].step, Step(0));
}

TEST_F(PsSessionTest, GivesUpOnASilentServer) {
  const auto result = Pull(7, {0, 1});
  const int64_t start_us = scheduler_.NowMicros();
  while (!result->has_value()) {
    if (transport_.pulls.empty()) {
      scheduler_.RunNext();
    } else {
      scheduler_.Advance(transport_.pulls.front().deadline_us);
      transport_.AnswerPull(absl::DeadlineExceededError("no answer"));
    }
  }
  EXPECT_EQ((*result)->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(std::string((*result)->message()).find("rank 1, server 1, step 7"), std::string::npos)
      << **result;
  EXPECT_GE(scheduler_.NowMicros() - start_us, Options().give_up_us);
  EXPECT_LE(scheduler_.NowMicros() - start_us, Options().give_up_us + 1'000'000);
  EXPECT_EQ(session_.status(), **result);
}

// Far beyond the time after which a silent server counts as lost; the launcher sees a stall.
TEST_F(PsSessionTest, WaitsForAServerThatHasNoRoom) {
  const auto result = Pull(0, {1, 0});
  const int64_t start_us = scheduler_.NowMicros();
  while (scheduler_.NowMicros() - start_us < 20 * Options().give_up_us) {
    if (transport_.pulls.empty()) {
      scheduler_.RunNext();
    } else {
      transport_.AnswerPull(absl::ResourceExhaustedError("full"));
    }
    ASSERT_FALSE(result->has_value()) << **result;
  }
  while (transport_.pulls.empty()) scheduler_.RunNext();
  transport_.AnswerPull(PullReady(-1));
  EXPECT_TRUE((*result)->ok());
}

// A server that refuses a call is alive: the time of silence begins after the refusal.
TEST_F(PsSessionTest, ARefusalIsAnAnswer) {
  const auto result = Pull(0, {1, 0});
  for (int i = 0; i < 3; ++i) {
    scheduler_.Advance(Options().give_up_us);
    ASSERT_EQ(transport_.pulls.size(), 1u);
    transport_.AnswerPull(absl::ResourceExhaustedError("full"));
    scheduler_.Advance(Options().max_backoff_us);
    ASSERT_EQ(transport_.pulls.size(), 1u);
    EXPECT_EQ(transport_.pulls.front().deadline_us, Options().rpc_deadline_us);
    transport_.AnswerPull(absl::UnavailableError("the connection broke"));
    ASSERT_FALSE(result->has_value()) << **result;
    scheduler_.Advance(Options().max_backoff_us);
  }
}

// The work for an answer does not grow with the number of servers and chunks.
TEST_F(PsSessionTest, EachCallIsLookedAtOnceForEachTimeItIsSent) {
  constexpr uint32_t kServers = 32;
  constexpr size_t kChunks = 40;
  PsSessionOptions options = Options();
  options.num_servers = kServers;
  options.max_calls_in_flight = 2;
  options.max_chunk_bytes = kMaxHeaderBytes + kMaxSliceHeaderBytes + 20;  // One key a chunk.
  PsSession session(options, &transport_, &scheduler_);
  std::vector<Key> keys(kChunks);
  std::vector<uint32_t> counts(kChunks, 1);
  std::vector<float> rows(2 * kChunks, 0.5f);
  PullWork pull;
  pull.step = Step(0);
  pull.slices.assign(kServers, {{TableId(4), keys, absl::MakeSpan(rows)}});
  PushWork push;
  push.step = Step(0);
  push.waves = {std::vector<std::vector<wire::PushSlice>>(
      kServers, {{TableId(4), wire::PushKind::kGradient, keys, counts, rows}})};
  int done = 0;
  uint64_t sent = 0;
  session.Pull(pull, [&](const absl::Status& status, Step) { done += status.ok() ? 1 : 0; });
  for (; !transport_.pulls.empty(); ++sent) transport_.AnswerPull(PullReady(-1));
  EXPECT_EQ(sent, kServers * kChunks);
  EXPECT_EQ(session.stats().calls_examined, sent);
  session.StartPush(push, [&](const absl::Status& status) { done += status.ok() ? 1 : 0; });
  ASSERT_TRUE(session.ReleaseWave(Step(0), 0).ok());
  std::vector<size_t> answered(kServers);
  for (; !transport_.pushes.empty(); ++sent) {
    const uint32_t server = transport_.pushes.front().server;
    transport_.AnswerPush(Accepted(++answered[server] == kChunks ? 0 : -1));
  }
  EXPECT_EQ(sent, 2 * kServers * kChunks);
  EXPECT_EQ(session.stats().calls_examined, sent);
  EXPECT_EQ(done, 2);
}

TEST_F(PsSessionTest, AMessageOverTheLimitFailsAtOnce) {
  const auto result = Pull(0, {1, 0});
  transport_.AnswerPull(absl::OutOfRangeError("too large"));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kOutOfRange);
}

TEST_F(PsSessionTest, AnErrorThatStaysFailsEverythingOnceBuffersAreBack) {
  const auto bad = Pull(3, {1, 0});
  const auto other = Pull(3, {0, 1});
  const auto push = Push(0, {{1, 1}}, /*release=*/false);
  transport_.AnswerPull(absl::DataLossError("lost"));
  EXPECT_EQ((*bad)->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(transport_.closed, 1);                          // Calls under way are to end soon.
  EXPECT_EQ((*push)->code(), absl::StatusCode::kDataLoss);  // Nothing of it was sent.
  EXPECT_FALSE(other->has_value());                         // Server 1 may still write its rows.
  transport_.AnswerPull(absl::UnavailableError(""));
  EXPECT_EQ((*other)->code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string((*other)->message()).find("server 0, step 3"), std::string::npos);
  // Every later call fails.
  EXPECT_EQ(session_.ReleaseWave(Step(0), 0).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*Pull(4, {1, 1}))->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*Push(1, {{1, 1}}, false))->code(), absl::StatusCode::kDataLoss);
  scheduler_.Advance(100'000'000);
  EXPECT_TRUE(transport_.pulls.empty());
  EXPECT_TRUE(transport_.pushes.empty());
  EXPECT_EQ(transport_.closed, 1);
}

TEST_F(PsSessionTest, DrainWaitsUntilEveryCallbackHasRun) {
  EXPECT_TRUE(session_.Drain().ok());
  PullWork work;
  work.step = Step(0);
  work.slices = {
      {{TableId(4), absl::MakeConstSpan(keys_).subspan(0, 1), absl::MakeSpan(rows_).subspan(0, 2)}},
      {}};
  std::atomic<bool> has_run = false, is_drained = false;
  session_.Pull(std::move(work), [&](const absl::Status&, Step) {
    EXPECT_FALSE(is_drained);
    has_run = true;
  });
  const auto push = Push(0, {{1, 1}});
  std::thread drain([&] {
    EXPECT_EQ(session_.Drain().code(), absl::StatusCode::kCancelled);
    is_drained = true;
    EXPECT_TRUE(has_run);
    EXPECT_TRUE(push->has_value());
  });
  EXPECT_FALSE(is_drained);
  session_.Fail(absl::CancelledError("the run is over"));
  transport_.AnswerPush(absl::CancelledError(""));
  transport_.AnswerPush(absl::CancelledError(""));
  EXPECT_FALSE(is_drained);
  transport_.AnswerPull(absl::CancelledError(""));
  drain.join();
}

// An error from which a checkpoint may recover is marked, any other is not.
TEST_F(PsSessionTest, TheLossOfAServerIsMarked) {
  const auto error_of = [&](absl::StatusOr<wire::PullAnswer> answer) {
    PsSession session(Options(), &transport_, &scheduler_);
    PullWork work;
    work.step = Step(0);
    work.slices = {{{TableId(4), absl::MakeConstSpan(keys_).subspan(0, 1),
                     absl::MakeSpan(rows_).subspan(0, 2)}},
                   {}};
    absl::Status error;
    session.Pull(std::move(work), [&](absl::Status status, Step) { error = std::move(status); });
    while (error.ok()) {
      if (transport_.pulls.empty()) {
        scheduler_.RunNext();
      } else {
        transport_.AnswerPull(answer);
      }
    }
    return error;
  };
  for (const absl::Status& loss :
       {absl::DataLossError("fewer steps"), absl::FailedPreconditionError("another generation"),
        absl::UnavailableError("gone"), absl::DeadlineExceededError("silent")}) {
    const absl::Status error = error_of(loss);
    EXPECT_EQ(error.code(), loss.code());
    EXPECT_TRUE(IsServerLoss(error)) << error;
  }
  for (const absl::Status& other :
       {absl::InvalidArgumentError("bad key"), absl::NotFoundError("no table"),
        absl::InternalError("malformed"), absl::OutOfRangeError("too large"),
        absl::AbortedError("this server can't recover")}) {
    const absl::Status error = error_of(other);
    EXPECT_EQ(error.code(), other.code());
    EXPECT_FALSE(IsServerLoss(error)) << error;
  }
  EXPECT_FALSE(IsServerLoss(error_of(PullReady(-2))));  // Staler than it claims.
}

}  // namespace
}  // namespace thermocline
