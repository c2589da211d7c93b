#include "server/core/push_ledger.h"

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using Verdict = PushLedger::Verdict;

TEST(PushLedgerTest, StartsBeforeTheFirstStep) {
  const PushLedger ledger(2);
  EXPECT_EQ(ledger.accepted_through(WorkerRank(1)), kNoStep);
  EXPECT_EQ(ledger.Judge(WorkerRank(1), Step(0)), Verdict::kNext);
  EXPECT_EQ(ledger.Judge(WorkerRank(1), Step(1)), Verdict::kEarly);
}

TEST(PushLedgerTest, WorkersDontMatterToEachOther) {
  PushLedger ledger(2);
  for (int64_t step = 0; step <= 3; ++step) ledger.Accept(WorkerRank(0), Step(step));
  EXPECT_EQ(ledger.Judge(WorkerRank(0), Step(3)), Verdict::kDuplicate);
  EXPECT_EQ(ledger.Judge(WorkerRank(1), Step(3)), Verdict::kEarly);
}

TEST(PushLedgerTest, AnUnknownAcknowledgementIsDataLoss) {
  PushLedger ledger(1);
  EXPECT_TRUE(ledger.CheckAcknowledged(WorkerRank(0), kNoStep).ok());
  EXPECT_EQ(ledger.CheckAcknowledged(WorkerRank(0), Step(0)).code(), absl::StatusCode::kDataLoss);
  for (int64_t step = 0; step <= 2; ++step) ledger.Accept(WorkerRank(0), Step(step));
  EXPECT_TRUE(ledger.CheckAcknowledged(WorkerRank(0), Step(1)).ok());
  EXPECT_TRUE(ledger.CheckAcknowledged(WorkerRank(0), Step(2)).ok());
  EXPECT_EQ(ledger.CheckAcknowledged(WorkerRank(0), Step(3)).code(), absl::StatusCode::kDataLoss);
}

// Against a model that remembers every step on its own.
TEST(PushLedgerTest, AgreesWithASetOfSteps) {
  std::mt19937_64 random(TestSeed());
  const uint32_t num_workers = 3;
  PushLedger ledger(num_workers);
  std::vector<std::set<int64_t>> steps(num_workers);
  for (int i = 0; i < 3000; ++i) {
    const uint32_t rank = random() % num_workers;
    const std::set<int64_t>& known = steps[rank];
    const int64_t end = static_cast<int64_t>(known.size());
    const int64_t step = std::max<int64_t>(0, end + static_cast<int64_t>(random() % 5) - 2);
    const Verdict verdict = ledger.Judge(WorkerRank(rank), Step(step));
    if (known.count(step) > 0) {
      ASSERT_EQ(verdict, Verdict::kDuplicate);
    } else if (step > 0 && known.count(step - 1) == 0) {
      ASSERT_EQ(verdict, Verdict::kEarly);
    } else {
      ASSERT_EQ(verdict, Verdict::kNext);
      ledger.Accept(WorkerRank(rank), Step(step));
      steps[rank].insert(step);
    }
    ASSERT_EQ(ledger.accepted_through(WorkerRank(rank)).value(),
              static_cast<int64_t>(steps[rank].size()) - 1);
  }
}

}  // namespace
}  // namespace thermocline
