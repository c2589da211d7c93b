#include "server/core/server_core.h"

#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.pb.h"
#include "server/core/testing/core_fixtures.h"
#include "tests/testing/virtual_scheduler.h"

namespace thermocline {
namespace {

using testing_core::AddRange;
using testing_core::MakeChunk;
using testing_core::MakeConfig;
using testing_core::MakeHeader;
using testing_core::MakePull;
using wire::Readiness;

class ServerCoreTest : public ::testing::Test {
 protected:
  using PullAnswer = std::optional<absl::StatusOr<wire::PullAnswer>>;

  void Configure(uint32_t num_workers, uint32_t staleness_steps = 0) {
    ASSERT_TRUE(core_.Configure(MakeConfig(num_workers, staleness_steps)).ok());
  }
  // The answer may come later.
  std::shared_ptr<PullAnswer> Pull(const wire::PullRequest& request) {
    auto answer = std::make_shared<PullAnswer>();
    core_.Pull(request, [answer](absl::StatusOr<wire::PullAnswer> a) {
      EXPECT_FALSE(answer->has_value());
      answer->emplace(std::move(a));
    });
    return answer;
  }
  absl::StatusOr<wire::PushAnswer> Push(wire::PushChunk chunk) {
    std::optional<absl::StatusOr<wire::PushAnswer>> answer;
    core_.Push(std::move(chunk),
               [&](absl::StatusOr<wire::PushAnswer> a) { answer = std::move(a); });
    return *answer;  // Pushes are answered at once.
  }
  wire::PushChunk Gradient(uint32_t rank, int64_t step, float value) {
    wire::PushChunk chunk = MakeChunk(rank, step);
    AddRange(&chunk, 0, {1}, {value, value});
    return chunk;
  }
  // The answer may come later.
  using DigestAnswer = std::optional<absl::StatusOr<ServerCore::DigestAnswer>>;
  std::shared_ptr<DigestAnswer> StartDigest(const std::string& job_id, uint64_t generation) {
    auto answer = std::make_shared<DigestAnswer>();
    core_.ComputeDigest(job_id, generation, [answer](absl::StatusOr<ServerCore::DigestAnswer> a) {
      EXPECT_FALSE(answer->has_value());
      answer->emplace(std::move(a));
    });
    return answer;
  }
  absl::StatusOr<ServerCore::DigestAnswer> Digest(const std::string& job_id, uint64_t generation) {
    return **StartDigest(job_id, generation);  // Nothing is applied meanwhile.
  }
  float WeightOf(Key key) {
    float weights[2];
    EXPECT_TRUE(
        core_.ReadRows(TableId(0), {key}, /*with_state=*/false, reinterpret_cast<uint8_t*>(weights))
            .ok());
    return weights[0];
  }
  ServerStats Stats() {
    ServerStats stats;
    core_.FillStats(&stats);
    return stats;
  }
  static ServerLimits Limits() {
    ServerLimits limits;
    limits.hold_us = 1000;
    limits.max_held_pulls = 3;
    return limits;
  }

  VirtualScheduler scheduler_;
  ServerCore core_{Limits(), &scheduler_};
};

TEST_F(ServerCoreTest, NothingWorksBeforeConfigure) {
  EXPECT_EQ((*Pull(MakePull(0, 0)))->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Push(MakeChunk(0, 0)).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Digest("job", 5).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(core_.FloatsOf(TableId(0), false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Stats().configured());
  EXPECT_EQ(Stats().complete_through(), -1);
}

TEST_F(ServerCoreTest, ConfigureIsIdempotentAndNamesDifferences) {
  Configure(1);
  Configure(1);
  ServerConfig other = MakeConfig(1);
  other.tables[0].dim = 3;
  const absl::Status status = core_.Configure(other);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::string(status.message()).find("'T0'"), std::string::npos) << status;
  other.tables.clear();
  EXPECT_EQ(core_.Configure(other).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*core_.FloatsOf(TableId(0), false), 2);
  EXPECT_EQ(core_.FloatsOf(TableId(8), true).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(ServerCoreTest, APullIsHeldUntilTheStepBeforeIsApplied) {
  Configure(2);
  EXPECT_EQ((**Pull(MakePull(0, 0)))->complete_through, kNoStep);  // Step 0 waits for nothing.
  const auto held = Pull(MakePull(0, 1));
  EXPECT_FALSE(held->has_value());
  ASSERT_TRUE(Push(Gradient(0, 0, 1)).ok());
  EXPECT_FALSE(held->has_value());
  EXPECT_EQ(WeightOf(1), 0);  // Accepted, not applied.
  EXPECT_THAT(Stats().accepted_through(), testing::ElementsAre(0, -1));
  ASSERT_TRUE(Push(Gradient(1, 0, 2)).ok());
  ASSERT_TRUE(held->has_value());
  EXPECT_EQ((**held)->readiness, Readiness::kReady);
  EXPECT_EQ((**held)->complete_through, Step(0));
  EXPECT_EQ(WeightOf(1), -3);
  EXPECT_EQ(Stats().pulls_held(), 1u);
  EXPECT_EQ(Stats().max_staleness_seen(), 0u);
}

TEST_F(ServerCoreTest, APushIsAnsweredBeforeItIsApplied) {
  Configure(1);
  bool answered = false;
  core_.Push(Gradient(0, 0, 1), [&](absl::StatusOr<wire::PushAnswer> answer) {
    answered = true;
    EXPECT_EQ(answer->accepted_through, Step(0));
    EXPECT_EQ(WeightOf(1), 0);
  });
  EXPECT_TRUE(answered);
  EXPECT_EQ(WeightOf(1), -1);
}

TEST_F(ServerCoreTest, AHeldPullExpiresAsNotReady) {
  Configure(1);
  const auto first = Pull(MakePull(0, 1));
  scheduler_.Advance(600);
  const auto second = Pull(MakePull(0, 2));
  scheduler_.Advance(399);
  EXPECT_FALSE(first->has_value());
  scheduler_.Advance(1);
  ASSERT_TRUE(first->has_value());
  EXPECT_EQ((**first)->readiness, Readiness::kNotReady);
  EXPECT_EQ((**first)->complete_through, kNoStep);
  EXPECT_FALSE(second->has_value());
  EXPECT_EQ(Stats().pulls_waiting(), 1u);
  scheduler_.Advance(600);
  EXPECT_EQ((**second)->readiness, Readiness::kNotReady);
  EXPECT_EQ(Stats().pulls_not_ready(), 2u);
  EXPECT_EQ(Stats().hold_time().count(), 2u);
  EXPECT_EQ(Stats().hold_time().max_us(), 1000);
  // The timer works again after it ran dry.
  const auto third = Pull(MakePull(0, 1));
  scheduler_.Advance(1000);
  EXPECT_TRUE(third->has_value());
}

TEST_F(ServerCoreTest, APullIsAnsweredWellBeforeItsDeadline) {
  Configure(1);
  std::optional<absl::StatusOr<wire::PullAnswer>> answer;
  core_.Pull(
      MakePull(0, 1), [&](absl::StatusOr<wire::PullAnswer> a) { answer = std::move(a); },
      /*time_left_us=*/800);
  const auto patient = Pull(MakePull(0, 1));
  scheduler_.Advance(399);
  EXPECT_FALSE(answer.has_value());
  scheduler_.Advance(1);
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ((*answer)->readiness, Readiness::kNotReady);
  EXPECT_FALSE(patient->has_value());
  scheduler_.Advance(600);
  EXPECT_TRUE(patient->has_value());
}

TEST_F(ServerCoreTest, ADroppedPullIsCancelledAtOnce) {
  Configure(1);
  absl::Status status;
  const PullTicket ticket = core_.Pull(
      MakePull(0, 1), [&](absl::StatusOr<wire::PullAnswer> answer) { status = answer.status(); });
  ASSERT_NE(ticket, kNoTicket);
  core_.DropPull(ticket);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(Stats().pulls_waiting(), 0u);
  core_.DropPull(ticket);
  core_.DropPull(kNoTicket);
  scheduler_.Advance(10'000);  // The timer finds nothing.
}

TEST_F(ServerCoreTest, StalenessLetsAPullGoAheadButNotPastItsOwnPush) {
  Configure(2, /*staleness_steps=*/1);
  wire::PullRequest pull = MakePull(0, 1);
  pull.staleness_steps = 1;
  EXPECT_EQ((**Pull(pull))->complete_through, kNoStep);
  EXPECT_EQ(Stats().max_staleness_seen(), 1u);
  ASSERT_TRUE(Push(Gradient(0, 0, 1)).ok());
  pull.after_step = Step(0);
  const auto own = Pull(pull);
  EXPECT_FALSE(own->has_value());
  pull = MakePull(0, 2);
  pull.staleness_steps = 1;
  const auto two_ahead = Pull(pull);
  EXPECT_FALSE(two_ahead->has_value());
  ASSERT_TRUE(Push(Gradient(1, 0, 1)).ok());
  EXPECT_EQ((**own)->complete_through, Step(0));
  EXPECT_EQ((**two_ahead)->complete_through, Step(0));
  EXPECT_DOUBLE_EQ(Stats().mean_staleness_seen(), 2.0 / 3);
}

TEST_F(ServerCoreTest, AReadWaitsForTheWholeStepBefore) {
  Configure(2, /*staleness_steps=*/1);
  wire::PullRequest read = MakePull(7, 1);
  read.kind = wire::PullKind::kRead;
  read.staleness_steps = 1;
  const auto answer = Pull(read);
  EXPECT_FALSE(answer->has_value());
  ASSERT_TRUE(Push(Gradient(0, 0, 1)).ok());
  ASSERT_TRUE(Push(Gradient(1, 0, 1)).ok());
  EXPECT_EQ((**answer)->complete_through, Step(0));
  EXPECT_EQ(Stats().mean_staleness_seen(), 0);
}

TEST_F(ServerCoreTest, PullsLeaveNoTrace) {
  Configure(1);
  ASSERT_TRUE((*Pull(MakePull(0, 0, 0, {5, 6})))->ok());
  WeightOf(5);
  const auto digest = Digest("job", 5);
  EXPECT_EQ(digest->rows, 0u);
  EXPECT_TRUE(digest->digest == thermocline::Digest());
  EXPECT_EQ(Stats().tables(0).keys_pulled(), 1u);
  ASSERT_TRUE(Push(Gradient(0, 0, 1)).ok());
  EXPECT_EQ(Digest("job", 5)->rows, 1u);
  EXPECT_EQ(Digest("job", 5)->complete_through, Step(0));
  EXPECT_EQ(Digest("job", 6).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Digest("jab", 5).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServerCoreTest, OneDigestAtATimeAndNotBeforeACompleteStep) {
  Configure(1);
  std::shared_ptr<DigestAnswer> first;
  std::shared_ptr<DigestAnswer> second;
  // The push's answer comes when its step is complete and not yet applied.
  core_.Push(Gradient(0, 0, 1), [&](absl::StatusOr<wire::PushAnswer> answer) {
    EXPECT_TRUE(answer.ok());
    first = StartDigest("job", 5);
    EXPECT_FALSE(first->has_value());
    second = StartDigest("job", 5);
  });
  EXPECT_EQ((*second)->status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(first->has_value());
  EXPECT_EQ((**first)->complete_through, Step(0));
  EXPECT_EQ((**first)->rows, 1u);
  EXPECT_TRUE(Digest("job", 5)->digest == (**first)->digest);
}

// Time passes while it is looked at, if it is to.
class SlowClock : public Scheduler {
 public:
  int64_t NowMicros() const override { return now_us += look_us; }
  void RunAfter(int64_t, std::function<void()>) override {}

  mutable int64_t now_us = 0;
  int64_t look_us = 0;
};

// A caller that asks again and again gets a known digest, or waits as long as the last one took.
TEST_F(ServerCoreTest, DigestsTakeNoMoreThanHalfOfTheTime) {
  SlowClock clock;
  ServerCore core(ServerLimits(), &clock, nullptr, {});
  ASSERT_TRUE(core.Configure(MakeConfig(1)).ok());
  const auto digest = [&] {
    absl::StatusOr<ServerCore::DigestAnswer> answer = absl::UnknownError("no answer");
    core.ComputeDigest("job", 5, [&](auto a) { answer = std::move(a); });
    return answer;
  };
  const auto push = [&](int64_t step) {
    core.Push(Gradient(0, step, 1), [](const absl::StatusOr<wire::PushAnswer>& answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
    });
  };
  clock.look_us = 1'000'000;
  ASSERT_TRUE(digest().ok());
  clock.look_us = 0;
  EXPECT_EQ(digest()->complete_through, kNoStep);  // From memory.
  push(0);
  EXPECT_EQ(digest().status().code(), absl::StatusCode::kResourceExhausted);
  clock.now_us += 999'999;
  EXPECT_EQ(digest().status().code(), absl::StatusCode::kResourceExhausted);
  clock.now_us += 1;
  EXPECT_EQ(digest()->complete_through, Step(0));
}

TEST_F(ServerCoreTest, WhatIsCompletedDuringADigestIsAppliedAfterItsAnswer) {
  Configure(1);
  bool answered = false;
  core_.ComputeDigest("job", 5, [&](absl::StatusOr<ServerCore::DigestAnswer> digest) {
    EXPECT_EQ(digest->complete_through, kNoStep);
    EXPECT_TRUE(Push(Gradient(0, 0, 1)).ok());
    EXPECT_EQ(WeightOf(1), 0);
    answered = true;
  });
  EXPECT_TRUE(answered);
  EXPECT_EQ(WeightOf(1), -1);
  EXPECT_EQ(Digest("job", 5)->complete_through, Step(0));
}

TEST_F(ServerCoreTest, ShutdownAnswersADigestThatWaits) {
  Configure(1);
  std::shared_ptr<DigestAnswer> digest;
  core_.Push(Gradient(0, 0, 1), [&](absl::StatusOr<wire::PushAnswer>) {
    digest = StartDigest("job", 5);
    core_.Shutdown();
  });
  EXPECT_EQ((*digest)->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Digest("job", 5).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(ServerCoreTest, AReadNeedsNoAcknowledgement) {
  Configure(1);
  wire::PullRequest read = MakePull(9, 0);
  read.kind = wire::PullKind::kRead;
  EXPECT_TRUE((*Pull(read))->ok());
}

// Readers don't pass for training.
TEST_F(ServerCoreTest, KeysThatAreReadAreCountedApart) {
  Configure(1);
  const Key keys[] = {1, 2, 3};
  uint8_t rows[3 * 2 * sizeof(float)];
  ASSERT_TRUE(core_.ReadRows(TableId(0), keys, false, rows, wire::PullKind::kRead).ok());
  EXPECT_EQ(Stats().tables(0).keys_pulled(), 0u);
  EXPECT_EQ(Stats().tables(0).keys_read(), 3u);
  ASSERT_TRUE(core_.ReadRows(TableId(0), keys, false, rows, wire::PullKind::kTrain).ok());
  EXPECT_EQ(Stats().tables(0).keys_pulled(), 3u);
  EXPECT_EQ(Stats().tables(0).keys_read(), 3u);
}

TEST_F(ServerCoreTest, AnUnknownAcknowledgementIsDataLossForPullAndPush) {
  Configure(1);
  wire::PullRequest pull = MakePull(0, 1);
  pull.header = MakeHeader(0, Step(0));
  EXPECT_EQ((*Pull(pull))->status().code(), absl::StatusCode::kDataLoss);
  pull.kind = wire::PullKind::kRead;
  EXPECT_EQ((*Pull(pull))->status().code(), absl::StatusCode::kDataLoss);
  wire::PushChunk chunk = Gradient(0, 1, 1);
  chunk.header = MakeHeader(0, Step(0));
  EXPECT_EQ(Push(chunk).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(ServerCoreTest, NothingOfARefusedChunkIsKept) {
  Configure(1);
  wire::PushChunk bad = Gradient(0, 0, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Push(bad).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Stats().pending_push_bytes(), 0u);
  EXPECT_EQ(Push(Gradient(0, 0, 1))->accepted_through, Step(0));
  EXPECT_EQ(WeightOf(1), -1);
}

TEST_F(ServerCoreTest, HeldPullsAreBounded) {
  Configure(1);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Pull(MakePull(0, 1))->has_value());
  EXPECT_EQ((*Pull(MakePull(0, 1)))->status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Stats().requests_refused(), 1u);
  // They don't keep out the push that releases them.
  ASSERT_TRUE(Push(Gradient(0, 0, 1)).ok());
  EXPECT_EQ(Stats().pulls_waiting(), 0u);
  EXPECT_TRUE((*Pull(MakePull(0, 1)))->ok());
}

TEST_F(ServerCoreTest, ShutdownAnswersHeldPullsAndRefusesWork) {
  Configure(1);
  const auto held = Pull(MakePull(0, 1));
  core_.Shutdown();
  EXPECT_EQ((*held)->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ((*Pull(MakePull(0, 0)))->status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Push(Gradient(0, 0, 1)).status().code(), absl::StatusCode::kUnavailable);
  scheduler_.Advance(10'000);  // The timer finds nothing.
}

TEST_F(ServerCoreTest, VisitRowsShowsRowsWithCounts) {
  Configure(1);
  ASSERT_TRUE(Push(Gradient(0, 0, 1)).ok());
  int visits = 0;
  const auto visit = [&](Key key, absl::Span<const float> row, uint32_t count, Step changed) {
    ++visits;
    EXPECT_EQ(key, 1u);
    EXPECT_EQ(row[0], -1.0f);
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(changed, Step(0));
  };
  EXPECT_TRUE(core_.VisitRows(TableId(0), visit).ok());
  EXPECT_EQ(visits, 1);
  EXPECT_EQ(core_.VisitRows(TableId(3), visit).code(), absl::StatusCode::kNotFound);
}

absl::StatusOr<ServerCore::DigestAnswer> DigestOf(ServerCore* core) {
  absl::StatusOr<ServerCore::DigestAnswer> digest = absl::UnknownError("no answer");
  absl::Notification answered;
  core->ComputeDigest("job", 5, [&](absl::StatusOr<ServerCore::DigestAnswer> answer) {
    digest = std::move(answer);
    answered.Notify();
  });
  answered.WaitForNotification();
  return digest;
}

// Workers have threads of their own, with real time, and another thread reads digest and stats.
TEST(ServerCoreThreadsTest, WorkersOnThreads) {
  constexpr uint32_t kWorkers = 3;
  constexpr int64_t kSteps = 50;
  constexpr Key kKeys = 20;
  ThreadScheduler scheduler;
  ServerLimits limits;
  limits.apply_threads = 2;
  ServerCore core(limits, &scheduler);
  ASSERT_TRUE(core.Configure(MakeConfig(kWorkers)).ok());
  std::vector<std::thread> workers;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.emplace_back([&core, rank] {
      for (int64_t step = 0; step < kSteps; ++step) {
        absl::Notification ready;
        core.Pull(MakePull(rank, step), [&](absl::StatusOr<wire::PullAnswer> answer) {
          EXPECT_TRUE(answer.ok());
          EXPECT_EQ(answer->complete_through, Step(step - 1));
          ready.Notify();
        });
        ready.WaitForNotification();
        for (Key key = 0; key < kKeys; ++key) {
          float weights[2];
          EXPECT_TRUE(core.ReadRows(TableId(0), {key}, /*with_state=*/false,
                                    reinterpret_cast<uint8_t*>(weights))
                          .ok());
          EXPECT_EQ(weights[1], -static_cast<float>(step * kWorkers));
        }
        for (uint32_t chunk = 0; chunk < 2; ++chunk) {
          wire::PushChunk push = MakeChunk(rank, step, chunk, 2);
          for (Key key = chunk; key < kKeys; key += 2) AddRange(&push, 0, {key}, {1, 1});
          core.Push(std::move(push),
                    [](absl::StatusOr<wire::PushAnswer> answer) { EXPECT_TRUE(answer.ok()); });
        }
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    ServerStats stats;
    core.FillStats(&stats);
    const auto digest = DigestOf(&core);
    ASSERT_TRUE(digest.ok());
    EXPECT_EQ(digest->rows, digest->complete_through < Step(0) ? 0u : kKeys);
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(DigestOf(&core)->complete_through, Step(kSteps - 1));
}

}  // namespace
}  // namespace thermocline
