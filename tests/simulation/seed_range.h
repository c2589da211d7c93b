// The seeds that a test of the simulation runs.
#ifndef THERMOCLINE_TESTS_SIMULATION_SEED_RANGE_H_
#define THERMOCLINE_TESTS_SIMULATION_SEED_RANGE_H_

#include <cstdint>
#include <cstdlib>

#include "tests/testing/test_seed.h"

namespace thermocline {

// [first, end). By default 1 to `count` (a sixth under a sanitizer); THERMOCLINE_TEST_SEED=n is
// seed n alone, THERMOCLINE_SIMULATION_SEEDS=n so many, both so many from that seed on.
struct SeedRange {
  explicit SeedRange(uint64_t count) {
    const char* const chosen = std::getenv("THERMOCLINE_TEST_SEED");
    const char* const number = std::getenv("THERMOCLINE_SIMULATION_SEEDS");
    first = chosen == nullptr ? 1 : std::strtoull(chosen, nullptr, 10);
    uint64_t seeds = chosen == nullptr ? RandomRuns(count) : 1;
    if (number != nullptr) seeds = std::strtoull(number, nullptr, 10);
    end = first + seeds;
    reaches_all = first == 1 && seeds >= count;
  }

  uint64_t first = 1;
  uint64_t end = 1;
  bool reaches_all = false;  // Seeds 1 to `count` are among them, which reach every kind of fault.
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SEED_RANGE_H_
