// THERMOCLINE_TEST_SEED=n runs seed n alone; THERMOCLINE_SIMULATION_SEEDS=n runs so many (default
// 50).
#include "tests/simulation/simulation.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <iostream>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

TEST(SimulationTest, NoPushIsLostOrDoubled) {
  const uint64_t first = FromEnvironment("THERMOCLINE_TEST_SEED", 1);
  const bool one = std::getenv("THERMOCLINE_TEST_SEED") != nullptr;
  const uint64_t seeds = one ? 1 : FromEnvironment("THERMOCLINE_SIMULATION_SEEDS", 50);
  SimulationResult sum;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const SimulationResult result = RunSimulation(seed);
    for (const std::string& failure : result.failures) {
      ADD_FAILURE() << failure << "\nreplay with THERMOCLINE_TEST_SEED=" << seed << ": "
                    << result.setup;
    }
    if (one)
      std::cout << result.setup << "\ntrace " << std::hex << result.trace << std::dec << "\n";
    sum.events += result.events;
    sum.messages_lost += result.messages_lost;
    sum.duplicates += result.duplicates;
    sum.pulls_held += result.pulls_held;
    sum.parts_of_many += result.parts_of_many;
    sum.parts_refused += result.parts_refused;
    sum.max_staleness = std::max(sum.max_staleness, result.max_staleness);
  }
  std::cout << seeds << " seeds from " << first << ": " << sum.events << " events, "
            << sum.messages_lost << " messages lost, " << sum.duplicates
            << " duplicates recognized, " << sum.parts_of_many << " parts of several, "
            << sum.parts_refused << " refused, " << sum.pulls_held
            << " pulls held, staleness up to " << sum.max_staleness << "\n";
  if (one) return;
  // The seeds reach what the simulation is for.
  EXPECT_GT(sum.messages_lost, 100u);
  EXPECT_GT(sum.duplicates, 100u);
  EXPECT_GT(sum.pulls_held, 100u);
  EXPECT_GT(sum.parts_of_many, 100u);
  EXPECT_GT(sum.parts_refused, 10u);
  EXPECT_GT(sum.max_staleness, 0u);
}

struct Planted {
  const char* name;
  PlantedFault fault;
};

// The simulation is worth something if it finds what is wrong.
class PlantedFaultTest : public testing::TestWithParam<Planted> {};

TEST_P(PlantedFaultTest, IsFound) {
  constexpr uint64_t kSeeds = 200;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SimulationResult result = RunSimulation(seed, GetParam().fault);
    if (result.failures.empty()) continue;
    std::cout << "found with seed " << seed << ": " << result.failures[0] << "\n";
    return;
  }
  FAIL() << "not found by any of " << kSeeds << " seeds";
}

INSTANTIATE_TEST_SUITE_P(Faults, PlantedFaultTest,
                         testing::Values(Planted{"ForgottenLedger", PlantedFault::kForgottenLedger},
                                         Planted{"AppliedTwice", PlantedFault::kAppliedTwice},
                                         Planted{"ArrivalOrder", PlantedFault::kArrivalOrder},
                                         Planted{"OtherEpoch", PlantedFault::kOtherEpoch},
                                         Planted{"EarlyPush", PlantedFault::kEarlyPush},
                                         Planted{"StaleRows", PlantedFault::kStaleRows}),
                         [](const auto& info) { return info.param.name; });

TEST(SimulationTest, SameSeedSameTrace) {
  for (const uint64_t seed : {3u, 4u, 5u}) {
    const SimulationResult once = RunSimulation(seed);
    const SimulationResult again = RunSimulation(seed);
    EXPECT_EQ(once.trace, again.trace) << "seed " << seed;
    EXPECT_EQ(once.events, again.events) << "seed " << seed;
  }
  EXPECT_NE(RunSimulation(3).trace, RunSimulation(4).trace);
}

}  // namespace
}  // namespace thermocline
