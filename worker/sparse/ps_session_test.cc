#include "worker/sparse/ps_session.h"

#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/virtual_scheduler.h"
#include "gtest/gtest.h"
#include "worker/sparse/part_split.h"
#include "worker/sparse/server_loss.h"

namespace thermocline {
namespace {

using wire::Readiness;

// Keeps calls until the test answers them.
class FakeTransport : public Transport {
 public:
  struct PullSeen {
    uint32_t server;
    PullCall call;
    int64_t deadline_us;
    std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
  };
  struct PushSeen {
    uint32_t server;
    PushCall call;
    std::function<void(absl::StatusOr<wire::PushAnswer>)> done;
  };
  void Pull(ServerIndex server, const PullCall& call, int64_t deadline_us,
            std::function<void(absl::StatusOr<wire::PullAnswer>)> done) override {
    pulls.push_back({server.value(), call, deadline_us, std::move(done)});
  }
  void Push(ServerIndex server, const PushCall& call, int64_t,
            std::function<void(absl::StatusOr<wire::PushAnswer>)> done) override {
    pushes.push_back({server.value(), call, std::move(done)});
  }
  void AnswerPull(absl::StatusOr<wire::PullAnswer> answer) {
    ASSERT_FALSE(pulls.empty());
    const auto done = std::move(pulls.front().done);
    pulls.pop_front();
    done(std::move(answer));
  }
  void AnswerPush(absl::StatusOr<wire::PushAnswer> answer) {
    ASSERT_FALSE(pushes.empty());
    const auto done = std::move(pushes.front().done);
    pushes.pop_front();
    done(std::move(answer));
  }

  void Close() override { ++closed; }

  int closed = 0;
  std::deque<PullSeen> pulls;
  std::deque<PushSeen> pushes;
};

absl::StatusOr<wire::PullAnswer> PullReady(int64_t through) {
  return wire::PullAnswer{Readiness::kReady, Step(through)};
}
absl::StatusOr<wire::PushAnswer> Accepted(int64_t through) {
  return wire::PushAnswer{Readiness::kReady, Step(through)};
}

class PsSessionTest : public ::testing::Test {
 protected:
  static PsSessionOptions Options() {
    PsSessionOptions options;
    options.job_id = "job";
    options.epoch = 3;
    options.rank = WorkerRank(1);
    options.num_servers = 2;
    options.staleness_steps = 2;
    options.max_part_bytes = kMaxHeaderBytes + kMaxSliceHeaderBytes + 100;
    TableLayout table;
    table.id = TableId(4);
    table.name = "C4";
    table.dim = 2;
    table.optimizer.kind = OptimizerKind::kAdagrad;  // Rows of 4 floats.
    options.tables = {table};
    return options;
  }
  // Pulls `per_server[k]` keys from server k.
  std::shared_ptr<std::optional<absl::Status>> Pull(int64_t step, std::vector<size_t> per_server,
                                                    wire::PullKind kind = wire::PullKind::kTrain) {
    PullWork work;
    work.kind = kind;
    work.step = Step(step);
    work.after_step = Step(step - 1);
    for (const size_t n : per_server) {
      work.slices.emplace_back();
      if (n == 0) continue;
      work.slices.back().push_back({TableId(4), absl::MakeConstSpan(keys_).subspan(0, n),
                                    absl::MakeSpan(rows_).subspan(0, 2 * n)});
    }
    auto result = std::make_shared<std::optional<absl::Status>>();
    session_.Pull(std::move(work), [this, result](absl::Status status, Step through) {
      EXPECT_FALSE(result->has_value());
      *result = std::move(status);
      pulled_through_ = through;
    });
    return result;
  }
  // waves[w][k]: keys for server k in wave w.
  std::shared_ptr<std::optional<absl::Status>> Push(int64_t step,
                                                    std::vector<std::vector<size_t>> waves,
                                                    bool release = true) {
    PushWork work;
    work.first_step = work.last_step = Step(step);
    work.learning_rate = 0.5f;
    size_t used = 0;
    for (const std::vector<size_t>& wave : waves) {
      work.waves.emplace_back();
      for (const size_t n : wave) {
        work.waves.back().emplace_back();
        if (n == 0) continue;
        work.waves.back().back().push_back({TableId(4), wire::PushKind::kGradient,
                                            absl::MakeConstSpan(keys_).subspan(used, n),
                                            absl::MakeConstSpan(counts_).subspan(used, n),
                                            absl::MakeConstSpan(rows_).subspan(2 * used, 2 * n)});
        used += n;
      }
    }
    auto result = std::make_shared<std::optional<absl::Status>>();
    session_.StartPush(std::move(work), [result](absl::Status status) {
      EXPECT_FALSE(result->has_value());
      *result = std::move(status);
    });
    for (size_t wave = 0; release && wave < waves.size(); ++wave) {
      EXPECT_TRUE(session_.ReleaseWave(Step(step), wave).ok());
    }
    return result;
  }
  // What is under way must end before the session goes.
  void TearDown() override {
    session_.Fail(absl::CancelledError("the test is over"));
    while (!transport_.pulls.empty()) transport_.AnswerPull(absl::CancelledError(""));
    while (!transport_.pushes.empty()) transport_.AnswerPush(absl::CancelledError(""));
  }

  std::vector<Key> keys_ = {10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21};
  std::vector<uint32_t> counts_ = std::vector<uint32_t>(12, 1);
  std::vector<float> rows_ = std::vector<float>(24, 0.5f);
  Step pulled_through_;
  VirtualScheduler scheduler_;
  FakeTransport transport_;
  PsSession session_{Options(), &transport_, &scheduler_};
};

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
  EXPECT_EQ(call.header.epoch, 3u);
  EXPECT_EQ(call.header.rank, WorkerRank(1));
  EXPECT_EQ(call.header.acked_through, kNoStep);
  EXPECT_EQ(call.step, Step(5));
  EXPECT_EQ(call.after_step, Step(4));
  EXPECT_FALSE(call.with_slots);
  transport_.AnswerPull(PullReady(4));
  transport_.AnswerPull(PullReady(2));
  EXPECT_FALSE(result->has_value());
  transport_.AnswerPull(PullReady(3));
  EXPECT_TRUE((*result)->ok());
  EXPECT_EQ(pulled_through_, Step(2));
  EXPECT_EQ(session_.stats().bytes_pulled, 160u + 48u);
}

// Rows of 4 floats instead of 2: the parts hold fewer keys.
TEST_F(PsSessionTest, APullWithSlotsIsCutByWholeRows) {
  std::vector<float> rows(4 * 10);
  PullWork work;
  work.kind = wire::PullKind::kRead;
  work.step = Step(5);
  work.with_slots = true;
  work.slices = {{{TableId(4), absl::MakeConstSpan(keys_).subspan(0, 10), absl::MakeSpan(rows)}},
                 {}};
  bool done = false;
  session_.Pull(std::move(work), [&](absl::Status status, Step) { done = status.ok(); });
  ASSERT_EQ(transport_.pulls.size(), 3u);  // 240 bytes.
  size_t keys = 0;
  while (!transport_.pulls.empty()) {
    const PullCall& call = transport_.pulls.front().call;
    EXPECT_TRUE(call.with_slots);
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
    work.slices.back().push_back(work.slices.back()[0]);                  // 5 parts.
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
  for (int i = 0; i < 1000; ++i) {  // Far beyond the time after which it gives up.
    scheduler_.Advance(5'000'000);
    transport_.AnswerPull(
        wire::PullAnswer{i % 2 == 0 ? Readiness::kNotReady : Readiness::kRecovering, kNoStep});
    scheduler_.Advance(50 * Options().not_ready_delay_us);
    ASSERT_EQ(transport_.pulls.size(), 1u);
  }
  EXPECT_EQ(session_.stats().retries, 0u);
  EXPECT_EQ(session_.stats().not_ready, 1000u);
  transport_.AnswerPull(PullReady(-1));
  EXPECT_TRUE((*result)->ok());
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

// A server that answers other calls is no sign that it will take this one.
TEST_F(PsSessionTest, GivesUpOnAServerThatRefusesOneCallForLong) {
  const auto refused = Pull(0, {1, 0});
  const auto held = Pull(1, {1, 0});
  const int64_t start_us = scheduler_.NowMicros();
  while (!refused->has_value()) {
    if (transport_.pulls.empty()) {
      scheduler_.RunNext();
    } else if (transport_.pulls.front().call.step == Step(0)) {
      transport_.AnswerPull(absl::ResourceExhaustedError("full"));
    } else {
      transport_.AnswerPull(wire::PullAnswer{Readiness::kNotReady, kNoStep});
    }
    ASSERT_LE(scheduler_.NowMicros() - start_us, 2 * Options().give_up_us);
  }
  EXPECT_EQ((*refused)->code(), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(scheduler_.NowMicros() - start_us, Options().give_up_us);
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
  EXPECT_EQ(transport_.closed, 1);                          // What is under way shall end soon.
  EXPECT_EQ((*push)->code(), absl::StatusCode::kDataLoss);  // Nothing of it was sent.
  EXPECT_FALSE(other->has_value());                         // Server 1 may still write its rows.
  transport_.AnswerPull(absl::UnavailableError(""));
  EXPECT_EQ((*other)->code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(std::string((*other)->message()).find("server 0, step 3"), std::string::npos);
  // Nothing works any more.
  EXPECT_EQ(session_.ReleaseWave(Step(0), 0).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*Pull(4, {1, 1}))->code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ((*Push(1, {{1, 1}}, false))->code(), absl::StatusCode::kDataLoss);
  scheduler_.Advance(100'000'000);
  EXPECT_TRUE(transport_.pulls.empty());
  EXPECT_TRUE(transport_.pushes.empty());
  EXPECT_EQ(transport_.closed, 1);
}

TEST_F(PsSessionTest, EveryServerGetsAPush) {
  const auto result = Push(0, {{9, 0}});  // 180 bytes, and nothing.
  ASSERT_EQ(transport_.pushes.size(), 3u);
  EXPECT_EQ(transport_.pushes[0].call.num_parts, 2u);
  EXPECT_EQ(transport_.pushes[0].call.part, 0u);
  EXPECT_EQ(transport_.pushes[0].call.learning_rate, 0.5f);
  EXPECT_EQ(transport_.pushes[1].call.part, 1u);
  EXPECT_EQ(transport_.pushes[2].server, 1u);
  EXPECT_EQ(transport_.pushes[2].call.num_parts, 1u);
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

TEST_F(PsSessionTest, PushesGoToAServerInOrder) {
  const auto first = Push(0, {{1, 1}});
  const auto second = Push(1, {{1, 1}});
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[1].server, 1u);
  transport_.AnswerPush(Accepted(0));  // Server 0; server 1 has not answered.
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[1].server, 0u);
  EXPECT_EQ(transport_.pushes[1].call.last_step, Step(1));
  EXPECT_EQ(transport_.pushes[1].call.header.acked_through, Step(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*first)->ok());
  transport_.AnswerPush(Accepted(1));
  transport_.AnswerPush(Accepted(1));
  EXPECT_TRUE((*second)->ok());
}

TEST_F(PsSessionTest, WavesGoOutWhenReleased) {
  const auto result = Push(0, {{1, 1}, {1, 0}}, /*release=*/false);
  EXPECT_TRUE(transport_.pushes.empty());
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  // Server 1 gets a part of the last wave, too: else it would accept before that wave is checked.
  EXPECT_EQ(transport_.pushes[1].call.num_parts, 2u);
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(-1));
  EXPECT_TRUE(transport_.pushes.empty());
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  EXPECT_EQ(transport_.pushes[1].call.part, 1u);
  EXPECT_TRUE(transport_.pushes[1].call.tables.empty());
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionTest, WavesMayBeReleasedInAnyOrder) {
  const auto result = Push(0, {{0, 0}, {1, 0}, {1, 1}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 2).ok());
  EXPECT_TRUE(transport_.pushes.empty());  // Server 1 would have all its parts.
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 1).ok());
  ASSERT_EQ(transport_.pushes.size(), 1u);
  transport_.AnswerPush(Accepted(-1));
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionTest, AGradientThatIsNotFiniteIsNeverSent) {
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

TEST_F(PsSessionTest, ALaterWaveThatIsNotFiniteKeepsThePushIncompleteEverywhere) {
  rows_[4] = std::numeric_limits<float>::infinity();
  const auto result = Push(0, {{1, 1}, {1, 0}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  EXPECT_EQ(session_.ReleaseWave(Step(0), 1).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(result->has_value());
  for (int i = 0; i < 2; ++i) {
    ASSERT_LT(transport_.pushes.front().call.part + 1, transport_.pushes.front().call.num_parts);
    transport_.AnswerPush(Accepted(-1));
  }
  EXPECT_EQ((*result)->code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(transport_.pushes.empty());
}

TEST_F(PsSessionTest, OnlyTheLostPartIsRepeated) {
  const auto result = Push(0, {{9, 0}});
  transport_.AnswerPush(absl::UnavailableError(""));
  transport_.AnswerPush(Accepted(-1));
  transport_.AnswerPush(Accepted(0));
  scheduler_.Advance(Options().max_backoff_us);
  ASSERT_EQ(transport_.pushes.size(), 1u);
  EXPECT_EQ(transport_.pushes[0].call.part, 0u);
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionTest, AServerThatForgotPartsGetsAllAgain) {
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

TEST_F(PsSessionTest, AnAcknowledgedPushEndsWhenItsBuffersAreBack) {
  const auto result = Push(0, {{9, 0}});
  transport_.pushes.push_back(std::move(transport_.pushes.front()));  // Part 0 is answered last.
  transport_.pushes.pop_front();
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ(session_.acked_through(), Step(0));
  EXPECT_FALSE(result->has_value());
  transport_.AnswerPush(absl::UnavailableError("late"));
  EXPECT_TRUE((*result)->ok());
  EXPECT_TRUE(session_.status().ok());
}

TEST_F(PsSessionTest, AServerThatKnowsMoreThanThisWorkerPushedIsAnError) {
  const auto result = Push(0, {{1, 1}});
  transport_.AnswerPush(Accepted(4));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string((*result)->message()).find("server 0 accepted step 4 from rank 1"),
            std::string::npos)
      << **result;
}

// The server accepted the push although this worker hasn't sent all of it.
TEST_F(PsSessionTest, APushOfSomebodyElseIsAnError) {
  const auto result = Push(0, {{1, 1}, {1, 1}}, /*release=*/false);
  ASSERT_TRUE(session_.ReleaseWave(Step(0), 0).ok());
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string((*result)->message()).find("sent it 1 of 2 parts"), std::string::npos)
      << **result;
  EXPECT_EQ(session_.ReleaseWave(Step(0), 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(transport_.pushes.empty());
}

// The next push is begun, but goes to the server after this one alone.
TEST_F(PsSessionTest, AServerThatKnowsAPushNotSentYetIsAnError) {
  const auto result = Push(0, {{1, 1}});
  const auto next = Push(1, {{1, 1}});
  transport_.AnswerPush(Accepted(1));
  transport_.AnswerPush(Accepted(0));
  EXPECT_EQ((*result)->code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*next)->code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(PsSessionTest, APushMayBeAcceptedWhoseAnswersWereLost) {
  const auto result = Push(0, {{9, 0}});
  transport_.AnswerPush(absl::UnavailableError(""));
  transport_.AnswerPush(absl::UnavailableError(""));
  transport_.AnswerPush(Accepted(0));
  scheduler_.Advance(Options().max_backoff_us);
  ASSERT_EQ(transport_.pushes.size(), 2u);
  transport_.AnswerPush(Accepted(0));  // The first repeated part: both had arrived before.
  EXPECT_EQ(session_.acked_through(), Step(0));
  transport_.AnswerPush(Accepted(0));
  EXPECT_TRUE((*result)->ok());
}

TEST_F(PsSessionTest, CallbacksMayBeginTheNextStep) {
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
TEST_F(PsSessionTest, ALaterStartIsWhatTheServersBeganWith) {
  PsSessionOptions options = Options();
  options.start_step = Step(40);
  PsSession session(options, &transport_, &scheduler_);
  EXPECT_EQ(session.acked_through(), Step(39));
  PushWork work;
  work.first_step = work.last_step = Step(40);
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

// What a return to a checkpoint may mend is told from what it can't.
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
       {absl::DataLossError("fewer steps"), absl::FailedPreconditionError("another epoch"),
        absl::UnavailableError("gone"), absl::DeadlineExceededError("silent")}) {
    const absl::Status error = error_of(loss);
    EXPECT_EQ(error.code(), loss.code());
    EXPECT_TRUE(IsServerLoss(error)) << error;
  }
  for (const absl::Status& other :
       {absl::InvalidArgumentError("bad key"), absl::NotFoundError("no table"),
        absl::InternalError("malformed"), absl::OutOfRangeError("too large")}) {
    const absl::Status error = error_of(other);
    EXPECT_EQ(error.code(), other.code());
    EXPECT_FALSE(IsServerLoss(error)) << error;
  }
  EXPECT_FALSE(IsServerLoss(error_of(PullReady(-2))));  // Staler than it says.
}

}  // namespace
}  // namespace thermocline
