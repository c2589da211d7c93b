#include "tests/exchange/shared_rows.h"

#include <iostream>

#include "tests/testing/test_seed.h"

namespace thermocline::shared_rows {
namespace {

TEST(SharedRowsTest, TheModelIsThatOfAJobWithoutACache) {
  const uint64_t seed = TestSeed();
  int generations = 0;
  constexpr int kRuns = RandomRuns(400);
  for (int i = 0; i < kRuns; ++i) {
    const Case made = MakeCase(Mix64(seed + i));
    Job job(made);
    ASSERT_EQ(job.Run(), "") << "case " << i << ", " << made.num_ranks << " ranks";
    generations += job.generations();
  }
  EXPECT_GT(generations, kRuns + kRuns / 10);  // Some workers died in the middle.
}

TEST(SharedRowsTest, FindsPlantedFaults) {
  const uint64_t seed = TestSeed();
  for (const Planted planted :
       {Planted::kArrivalOrder, Planted::kOwnLast, Planted::kEvictedEarly, Planted::kStaleRow,
        Planted::kOldGeneration, Planted::kSharedCredit, Planted::kLeavesByReceipts,
        Planted::kWaitsBeforeItSent, Planted::kPushesLate}) {
    std::string found;
    for (int i = 0; i < 400 && found.empty(); ++i) {
      Case made = MakeCase(Mix64(seed + i));
      made.planted = planted;
      if (planted == Planted::kOldGeneration) made.deaths = 3;
      made.breaks = std::max(made.breaks, 10);
      found = Job(made).Run();
    }
    EXPECT_NE(found, "") << static_cast<int>(planted);
    if (planted == Planted::kWaitsBeforeItSent || planted == Planted::kPushesLate) {
      EXPECT_NE(found.find("the order of waits"), std::string::npos) << found;
    }
    std::cout << "fault " << static_cast<int>(planted) << ": " << found << "\n";
  }
}

}  // namespace
}  // namespace thermocline::shared_rows
