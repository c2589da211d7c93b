#include "worker/exchange/exchange.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/base/scheduler.h"
#include "gtest/gtest.h"
#include "worker/exchange/testing/exchange_steps.h"
#include "worker/exchange/testing/local_exchange.h"

namespace thermocline {
namespace {

constexpr uint32_t kRanks = 3;
constexpr int64_t kSteps = 20;

ExchangeOptions SmallChunks() {
  ExchangeOptions options;
  options.max_chunk_bytes = 64;
  options.window_steps = 2;
  return options;
}

TEST(ExchangeTest, EveryRankReceivesWhatAllPost) {
  ThreadScheduler scheduler;
  auto exchanges = MakeLocalExchanges(kRanks, SmallChunks(), &scheduler);
  RunSteps(kSteps, exchanges);

  ExchangeStats stats;
  exchanges[1]->FillStats(&stats);
  ASSERT_EQ(stats.phases_size(), 6);
  EXPECT_EQ(stats.phases(2).name(), "rows");
  uint64_t sent = 0, received = 0;
  for (int64_t step = 0; step < kSteps; ++step) {
    for (const uint32_t peer : {0, 2}) {
      sent += ContentOf({Step(step), Phase::kRows}, 1, peer).size();
      received += ContentOf({Step(step), Phase::kRows}, peer, 1).size();
    }
  }
  EXPECT_EQ(stats.phases(2).bytes_sent(), sent);
  EXPECT_EQ(stats.phases(2).bytes_received(), received);
  EXPECT_EQ(stats.streams_opened(), 2u);
  EXPECT_EQ(stats.bytes_held(), 0u);
  ASSERT_EQ(stats.wait_for_rank_s_size(), 3);

  // All leave: the last ones when all steps are applied.
  std::vector<std::thread> threads;
  for (const auto& exchange : exchanges) {
    threads.emplace_back([&exchange] {
      EXPECT_TRUE(exchange->Leave([](const Exchange::Done& done) { done(absl::OkStatus()); }).ok());
      EXPECT_EQ(exchange->Receive({Step(kSteps), Phase::kRows}).status().code(),
                absl::StatusCode::kCancelled);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ExchangeTest, ADenseJobHasTwoPhases) {
  ThreadScheduler scheduler;
  ExchangeOptions options = SmallChunks();
  options.phases = kDensePhases;
  auto exchanges = MakeLocalExchanges(2, options, &scheduler);
  std::thread other([&] {
    for (const Phase phase : {Phase::kDenseGradients, Phase::kDenseWeights}) {
      EXPECT_TRUE(PostContent({Step(0), phase}, exchanges[1].get()).ok());
      UseContent({Step(0), phase}, exchanges[1].get());
    }
  });
  for (const Phase phase : {Phase::kDenseGradients, Phase::kDenseWeights}) {
    EXPECT_TRUE(PostContent({Step(0), phase}, exchanges[0].get()).ok());
    UseContent({Step(0), phase}, exchanges[0].get());
  }
  other.join();
  ExchangeStats stats;
  exchanges[0]->FillStats(&stats);
  ASSERT_EQ(stats.phases_size(), 2);
  EXPECT_EQ(stats.phases(0).name(), "dense gradients");
}

TEST(ExchangeTest, ARankThatCantReadItsDataIsNamed) {
  ThreadScheduler scheduler;
  auto exchanges = MakeLocalExchanges(2, SmallChunks(), &scheduler);
  ASSERT_TRUE(exchanges[1]->PostEnd(Step(0), absl::DataLossError("line 7")).ok());
  ASSERT_TRUE(PostContent({Step(0), Phase::kKeys}, exchanges[0].get()).ok());
  EXPECT_EQ(exchanges[0]->HasStep(Step(0)).status(),
            absl::FailedPreconditionError(
                "rank 1 can't read its data from step 0 on: DATA_LOSS: line 7"));
  EXPECT_TRUE(exchanges[0]->status().ok());
}

TEST(ExchangeTest, StopAndFailureEndWaits) {
  ThreadScheduler scheduler;
  absl::Notification said;
  absl::Status failure;
  auto exchanges =
      MakeLocalExchanges(2, SmallChunks(), &scheduler, [&](WorkerRank rank) -> ExchangeHooks {
        if (rank == WorkerRank(0)) return {};
        ExchangeHooks hooks;
        hooks.on_failure = [&](const absl::Status& why) {
          failure = why;
          said.Notify();  // Twice would be an error.
        };
        return hooks;
      });
  PostThrough({Step(0), Phase::kKeys}, exchanges[0].get());
  PostThrough({Step(1), Phase::kKeys}, exchanges[0].get());
  PostThrough({Step(0), Phase::kRows}, exchanges[1].get());
  std::thread stopped([&] {
    EXPECT_EQ(exchanges[0]->HasStep(Step(1)).status().code(), absl::StatusCode::kCancelled);
  });
  std::thread failed([&] {
    EXPECT_EQ(exchanges[1]->Receive({Step(0), Phase::kRows}).status(), absl::AbortedError("why"));
  });
  exchanges[0]->Stop();
  exchanges[1]->Fail(absl::AbortedError("why"));
  exchanges[1]->Fail(absl::InternalError("later"));
  stopped.join();
  failed.join();
  said.WaitForNotification();
  EXPECT_EQ(failure, absl::AbortedError("why"));
  EXPECT_EQ(exchanges[1]->status(), absl::AbortedError("why"));
  EXPECT_EQ(PostContent({Step(0), Phase::kRows}, exchanges[1].get()), absl::AbortedError("why"));
  EXPECT_EQ(exchanges[0]->status().code(), absl::StatusCode::kCancelled);
}

// Time stands still but where the test lets it go on.
class ManualScheduler final : public Scheduler {
 public:
  int64_t NowMicros() const override {
    absl::MutexLock lock(&mutex_);
    return now_us_;
  }
  void RunAfter(int64_t delay_us, std::function<void()> task) override {
    absl::MutexLock lock(&mutex_);
    tasks_.emplace(now_us_ + delay_us, std::move(task));
  }
  // Waits until a task is due at that time, and runs it, with those before.
  void RunThrough(int64_t at_us) {
    while (true) {
      std::function<void()> task;
      int64_t due_us;
      {
        absl::MutexLock lock(&mutex_);
        const auto has_such = [this, at_us]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
          return tasks_.count(at_us) > 0;
        };
        mutex_.Await(absl::Condition(&has_such));
        due_us = now_us_ = tasks_.begin()->first;
        task = std::move(tasks_.begin()->second);
        tasks_.erase(tasks_.begin());
      }
      task();
      if (due_us == at_us) return;
    }
  }

 private:
  mutable absl::Mutex mutex_;
  int64_t now_us_ ABSL_GUARDED_BY(mutex_) = 0;
  std::multimap<int64_t, std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
};

// Nothing is ever answered.
class SilentTransport final : public ExchangeTransport {
 public:
  void Start(ExchangeEvents* events) override { events_ = events; }
  void Open(WorkerRank, uint64_t) override {}
  void Send(WorkerRank, uint64_t, const BlockChunk&, std::shared_ptr<const BlockBytes>) override {}
  void SendReceipt(WorkerRank, uint64_t, const Receipt&) override {}
  void Close() override {}
  ExchangeEvents* events() const { return events_; }

 private:
  ExchangeEvents* events_ = nullptr;
};

TEST(ExchangeTest, AWaitNeedsNoThread) {
  ManualScheduler scheduler;
  ExchangeOptions options;
  options.num_ranks = 2;
  int probes = 0;
  ExchangeHooks hooks;
  hooks.on_waiting = [&] { ++probes; };
  auto transport = std::make_unique<SilentTransport>();
  SilentTransport* const silent = transport.get();
  Exchange exchange(options, hooks, std::move(transport), &scheduler);
  const BlockId id = {Step(0), Phase::kKeys};
  ASSERT_TRUE(PostContent(id, &exchange).ok());
  EXPECT_FALSE(exchange.BeginWait(id));
  EXPECT_FALSE(exchange.BeginWait(id));
  EXPECT_EQ(exchange.waits().size(), 1u);
  scheduler.RunThrough(1'000'000);
  EXPECT_EQ(probes, 1);
  const std::string content = ContentOf(id, 1, 0);
  BlockChunk chunk;
  chunk.id = id;
  chunk.checksum = Crc32c(content.data(), content.size());
  chunk.block_bytes = content.size();
  chunk.data = {reinterpret_cast<const uint8_t*>(content.data()), content.size()};
  silent->events()->OnOpened(WorkerRank(1), 1);
  silent->events()->OnChunk(WorkerRank(1), 1, chunk);
  EXPECT_TRUE(exchange.waits().empty());
  EXPECT_TRUE(exchange.BeginWait(id));
  scheduler.RunThrough(2'000'000);
  EXPECT_EQ(probes, 1);
  UseContent(id, &exchange);
  exchange.Fail(absl::InternalError("a bug"));
  EXPECT_FALSE(exchange.BeginWait({Step(0), Phase::kPlans}));
}

TEST(ExchangeTest, AWaitIsSeenOutside) {
  ManualScheduler scheduler;
  ExchangeOptions options;
  options.num_ranks = 2;
  options.window_steps = 3;
  options.start_step = Step(5);
  options.complain_after_us = 2'500'000;
  options.max_backoff_us = options.min_backoff_us = 100'000'000;
  int probes = 0;
  std::vector<std::string> lines;
  ExchangeHooks hooks;
  hooks.on_waiting = [&] { ++probes; };
  hooks.on_notice = [&](const std::string& line) { lines.push_back(line); };
  auto transport = std::make_unique<SilentTransport>();
  SilentTransport* const silent = transport.get();
  Exchange exchange(options, hooks, std::move(transport), &scheduler);
  silent->events()->OnClosed(WorkerRank(1), 1, absl::UnavailableError("it broke"));
  EXPECT_TRUE(exchange.waits().empty());
  PostThrough({Step(5), Phase::kRows}, &exchange);
  ASSERT_TRUE(PostContent({Step(6), Phase::kKeys}, &exchange).ok());
  std::thread planner([&] { EXPECT_FALSE(exchange.HasStep(Step(6)).ok()); });
  std::thread trainer([&] { EXPECT_FALSE(exchange.Receive({Step(5), Phase::kRows}).ok()); });
  for (const int64_t at_us : {1'000'000, 2'000'000, 2'500'000}) scheduler.RunThrough(at_us);
  EXPECT_EQ(probes, 2);
  std::vector<ExchangeWait> waits;
  // Either thread may be late to begin.
  while ((waits = exchange.waits()).size() < 2) std::this_thread::yield();
  // The keys of step 6 are for the plan of step 3.
  EXPECT_EQ(waits[0].missing, (BlockId{Step(6), Phase::kKeys}));
  EXPECT_EQ(waits[1].missing, (BlockId{Step(5), Phase::kRows}));
  EXPECT_EQ(waits[1].about, WorkerRank(1));
  WorkerWait wait;
  FillWait(waits[0], &wait);
  EXPECT_EQ(wait.kind(), WorkerWait::KEYS);
  EXPECT_EQ(wait.worker(), 1u);
  EXPECT_EQ(wait.step(), 6);
  EXPECT_EQ(wait.needed_step(), 3);
  EXPECT_EQ(wait.last_error(), "it broke");
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines[0].find("has waited 2.5 s for the "), 0u) << lines[0];
  EXPECT_NE(lines[0].find(" from rank 1; nothing came from it for 2.5 s; the last stream to it "
                          "ended: UNAVAILABLE: it broke"),
            std::string::npos)
      << lines[0];
  exchange.Stop();
  planner.join();
  trainer.join();
}

TEST(ExchangeTest, NoHookOutlivesIt) {
  ManualScheduler scheduler;
  ExchangeOptions options;
  options.num_ranks = 2;
  absl::Notification entered, ends;
  bool has_ended = false;
  ExchangeHooks hooks;
  hooks.on_waiting = [&] {
    entered.Notify();
    ends.WaitForNotification();
    has_ended = true;
  };
  auto exchange =
      std::make_unique<Exchange>(options, hooks, std::make_unique<SilentTransport>(), &scheduler);
  PostThrough({Step(0), Phase::kRows}, exchange.get());
  std::thread waits([&] { EXPECT_FALSE(exchange->Receive({Step(0), Phase::kRows}).ok()); });
  std::thread timer([&] { scheduler.RunThrough(1'000'000); });
  entered.WaitForNotification();
  exchange->Stop();
  waits.join();
  std::thread releases([&] { ends.Notify(); });
  exchange.reset();
  EXPECT_TRUE(has_ended);
  timer.join();
  releases.join();
}

// A worker with a wait that may never end says so at once, and to its session.
TEST(ExchangeTest, AWaitOutOfOrderIsAFailure) {
  ManualScheduler scheduler;
  ExchangeOptions options;
  options.rank = WorkerRank(1);
  options.num_ranks = 2;
  absl::Status said;
  ExchangeHooks hooks;
  hooks.on_failure = [&](const absl::Status& why) { said = why; };
  Exchange exchange(options, hooks, std::make_unique<SilentTransport>(), &scheduler);
  PostThrough({Step(0), Phase::kRows}, &exchange);
  const absl::Status owes = absl::InternalError(
      "the order of waits: rank 1 waits for the dense gradients of step 0 and owes the gradients "
      "of step 0");
  EXPECT_EQ(exchange.Receive({Step(0), Phase::kDenseGradients}).status(), owes);
  EXPECT_EQ(said, owes);
  EXPECT_EQ(exchange.status(), owes);
}

TEST(ExchangeTest, ARankThatOwesWaitsForNothingElse) {
  ManualScheduler scheduler;
  ExchangeOptions options;
  options.num_ranks = 2;
  Exchange exchange(options, {}, std::make_unique<SilentTransport>(), &scheduler);
  PostThrough({Step(0), Phase::kDenseWeights}, &exchange);
  exchange.NotePushed(Step(0));
  EXPECT_TRUE(exchange.CheckOwesNothing().ok());
  PostThrough({Step(1), Phase::kRows}, &exchange);
  EXPECT_EQ(exchange.CheckOwesNothing(),
            absl::InternalError("the order of waits: rank 0 waits for the next batch or its rows "
                                "and owes the gradients of step 1"));
}

// An exchange of two ranks that owes the other one a block, which nobody acknowledges.
std::unique_ptr<Exchange> MakeExchangeThatOwes(Scheduler* scheduler) {
  ExchangeOptions options;
  options.num_ranks = 2;
  options.phases = kDensePhases;
  auto exchange = std::make_unique<Exchange>(options, ExchangeHooks{},
                                             std::make_unique<SilentTransport>(), scheduler);
  EXPECT_TRUE(PostContent({Step(0), Phase::kDenseWeights}, exchange.get()).ok());
  return exchange;
}

// The acknowledgements of a rank that has left may be lost.
TEST(ExchangeTest, LeavesWhenAllIsAppliedOrWhenItFails) {
  for (const absl::Status& applied : {absl::OkStatus(), absl::UnavailableError("no server")}) {
    ManualScheduler scheduler;
    const auto exchange = MakeExchangeThatOwes(&scheduler);
    std::thread answer;
    EXPECT_EQ(exchange->Leave([&](const Exchange::Done& done) {
      answer = std::thread([done, &applied] { done(applied); });
    }),
              applied);
    answer.join();
  }
}

// A rank whose data can't be read ends with an error when it has trained the steps before.
TEST(ExchangeTest, WhatIsFlushedReachesOthersBeforeAFailure) {
  ThreadScheduler scheduler;
  ExchangeOptions options;
  options.phases = kDensePhases;
  const auto exchanges = MakeLocalExchanges(2, options, &scheduler);
  const BlockId id = {Step(0), Phase::kDenseGradients};
  for (const auto& exchange : exchanges) ASSERT_TRUE(PostContent(id, exchange.get()).ok());
  exchanges[0]->Flush(absl::Minutes(1));
  exchanges[0]->Fail(absl::InvalidArgumentError("a bad line"));
  ExchangeStats stats;
  exchanges[0]->FillStats(&stats);
  EXPECT_EQ(stats.bytes_owed(), 0u);
  UseContent(id, exchanges[1].get());
}

TEST(ExchangeTest, AFlushWaitsNoLongerThanItIsTold) {
  ManualScheduler scheduler;
  const auto exchange = MakeExchangeThatOwes(&scheduler);
  exchange->Flush(absl::Milliseconds(10));
  ExchangeStats stats;
  exchange->FillStats(&stats);
  EXPECT_GT(stats.bytes_owed(), 0u);
  exchange->Fail(absl::UnavailableError("gone"));
  exchange->Flush(absl::InfiniteDuration());
}

}  // namespace
}  // namespace thermocline
