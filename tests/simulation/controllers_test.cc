// Several controllers of one job, which know nothing of each other but HISTORY.
#include <cstdint>
#include <iostream>

#include "gtest/gtest.h"
#include "tests/simulation/seed_range.h"
#include "tests/simulation/sim_controllers.h"

namespace thermocline {
namespace {

TEST(ControllersTest, OneDecidesAtATime) {
  const SeedRange seeds(300);
  ControllersResult sum;
  for (uint64_t seed = seeds.first; seed < seeds.end; ++seed) {
    const ControllersResult result = RunControllers(seed);
    ASSERT_TRUE(result.failures.empty()) << "seed " << seed << ": " << result.failures[0];
    sum.generations += result.generations;
    sum.committed += result.committed;
    sum.retired += result.retired;
    sum.outcomes += result.outcomes;
    sum.crashes += result.crashes;
    sum.overtaken += result.overtaken;
    sum.uncertain += result.uncertain;
    sum.nested += result.nested;
    sum.disk.lost += result.disk.lost;
    sum.disk.late += result.disk.late;
    sum.disk.stale += result.disk.stale;
  }
  std::cout << sum.generations << " generations, " << sum.committed << " commits, " << sum.retired
            << " retired, " << sum.outcomes << " outcomes, " << sum.crashes << " crashes, "
            << sum.overtaken << " overtaken, " << sum.uncertain << " uncertain, " << sum.nested
            << " in the middle of another's, " << sum.disk.lost << " answers lost, "
            << sum.disk.late << " late, " << sum.disk.stale << " old folders\n";
  if (!seeds.reaches_all) return;
  for (const uint64_t count :
       {sum.generations, sum.committed, sum.retired, sum.outcomes, sum.crashes, sum.overtaken,
        sum.uncertain, sum.nested, sum.disk.lost, sum.disk.late, sum.disk.stale}) {
    EXPECT_GT(count, 5u);
  }
}

TEST(ControllersTest, SameSeedSameTrace) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(RunControllers(seed).trace, RunControllers(seed).trace) << seed;
  }
  EXPECT_NE(RunControllers(1).trace, RunControllers(2).trace);
}

struct PlantedController {
  const char* name;
  ControllerFault fault;
};

class PlantedControllerTest : public testing::TestWithParam<PlantedController> {};

TEST_P(PlantedControllerTest, IsFound) {
  constexpr uint64_t kSeeds = 300;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const ControllersResult result = RunControllers(seed, GetParam().fault);
    if (result.failures.empty()) continue;
    std::cout << "found with seed " << seed << ": " << result.failures[0] << "\n";
    return;
  }
  FAIL() << "not found by any of " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(
    Faults, PlantedControllerTest,
    testing::Values(PlantedController{"CommitsInThePast", ControllerFault::kCommitsInThePast},
                    PlantedController{"RetiresAlone", ControllerFault::kRetiresAlone},
                    PlantedController{"TrustsOldFolders", ControllerFault::kTrustsOldFolders}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace thermocline
