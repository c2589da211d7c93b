// Runs ranks through steps. The content of a block is a function of step, phase and the two ranks,
// and the receiver compares it.
#ifndef THERMOCLINE_WORKER_EXCHANGE_TESTING_EXCHANGE_STEPS_H_
#define THERMOCLINE_WORKER_EXCHANGE_TESTING_EXCHANGE_STEPS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "worker/exchange/exchange.h"

namespace thermocline {

// Returns a block's content, up to 300 bytes.
inline std::string ContentOf(BlockId id, uint32_t from, uint32_t to) {
  const uint64_t seed =
      Mix64(id.step.value() * 8 + static_cast<int>(id.phase)) ^ Mix64(from * 100 + to);
  std::string text;
  for (uint64_t i = 0; i < seed % 301; ++i) text.push_back(static_cast<char>(Mix64(seed + i)));
  return text;
}

inline absl::Status PostContent(BlockId id, Exchange* exchange) {
  std::vector<Block> blocks;
  for (uint32_t to = 0; to < exchange->num_ranks(); ++to) {
    const std::string text = ContentOf(id, exchange->rank().value(), to);
    blocks.push_back(MakeBlock(absl::MakeConstSpan(text)));
  }
  return exchange->Post(id, std::move(blocks));
}

// Posts the blocks of this step that a rank has to post before it waits for block `id`.
inline void PostThrough(BlockId id, Exchange* exchange) {
  for (size_t p = 0; p <= static_cast<size_t>(id.phase); ++p) {
    ASSERT_TRUE(PostContent({id.step, static_cast<Phase>(p)}, exchange).ok());
  }
}

// Receives the blocks, compares their contents, and releases them.
inline void UseContent(BlockId id, Exchange* exchange) {
  const absl::StatusOr<ReceivedBlocks> blocks = exchange->Receive(id);
  ASSERT_TRUE(blocks.ok()) << blocks.status();
  EXPECT_TRUE(exchange->BeginWait(id));
  for (uint32_t from = 0; from < exchange->num_ranks(); ++from) {
    const absl::Span<const uint8_t> bytes = blocks->from(WorkerRank(from));
    ASSERT_EQ(std::string(bytes.begin(), bytes.end()),
              ContentOf(id, from, exchange->rank().value()))
        << Describe(id) << " from rank " << from;
  }
}

// Counts the steps that a rank has planned. Thread-safe.
class PlannedSteps {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++steps_;
  }
  void AwaitMoreThan(int64_t steps) {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [this, steps]()
                               ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return steps_ > steps; };
    mutex_.Await(absl::Condition(&are_there));
  }

 private:
  absl::Mutex mutex_;
  int64_t steps_ ABSL_GUARDED_BY(mutex_) = 0;
};

// PlanSteps and TrainSteps are a rank's two threads, as a worker has them.
inline void PlanSteps(int64_t num_steps, Exchange* exchange, PlannedSteps* planned) {
  const int ahead = exchange->options().window_steps;
  for (int64_t step = 0; step < num_steps + ahead; ++step) {
    if (step <= num_steps) {
      const absl::Status posted = step < num_steps
                                      ? PostContent({Step(step), Phase::kKeys}, exchange)
                                      : exchange->PostEnd(Step(step), absl::OkStatus());
      ASSERT_TRUE(posted.ok()) << posted;
      const absl::StatusOr<bool> has_step = exchange->HasStep(Step(step));
      ASSERT_TRUE(has_step.ok()) << has_step.status();
      ASSERT_EQ(*has_step, step < num_steps);
      if (*has_step) UseContent({Step(step), Phase::kKeys}, exchange);
    }
    if (step < ahead) continue;
    ASSERT_TRUE(PostContent({Step(step - ahead), Phase::kPlans}, exchange).ok());
    UseContent({Step(step - ahead), Phase::kPlans}, exchange);
    planned->Add();
  }
}
inline void TrainSteps(int64_t num_steps, Exchange* exchange, PlannedSteps* planned) {
  for (int64_t step = 0; step < num_steps; ++step) {
    const absl::Status owes_nothing = exchange->CheckOwesNothing();
    ASSERT_TRUE(owes_nothing.ok()) << owes_nothing;
    planned->AwaitMoreThan(step);
    for (const Phase phase :
         {Phase::kRows, Phase::kGradients, Phase::kDenseGradients, Phase::kDenseWeights}) {
      ASSERT_TRUE(PostContent({Step(step), phase}, exchange).ok());
      UseContent({Step(step), phase}, exchange);
    }
    exchange->NotePushed(Step(step));
  }
}

inline void RunSteps(int64_t num_steps, const std::vector<std::unique_ptr<Exchange>>& exchanges) {
  std::vector<PlannedSteps> planned(exchanges.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < exchanges.size(); ++rank) {
    Exchange* const exchange = exchanges[rank].get();
    threads.emplace_back([&, exchange, rank] { PlanSteps(num_steps, exchange, &planned[rank]); });
    threads.emplace_back([&, exchange, rank] { TrainSteps(num_steps, exchange, &planned[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_TESTING_EXCHANGE_STEPS_H_
