// Seeded randomness with the same numbers on every platform (the standard's distributions differ).
#ifndef THERMOCLINE_TESTS_SIMULATION_SIM_RANDOM_H_
#define THERMOCLINE_TESTS_SIMULATION_SIM_RANDOM_H_

#include <cstdint>

#include "common/base/hash.h"

namespace thermocline {

class SimRandom {
 public:
  explicit SimRandom(uint64_t seed) : state_(Mix64(seed)) {}

  uint64_t Next() { return Mix64(state_ += 0x9E3779B97F4A7C15ull); }
  // In [0, n). REQUIRES: n > 0
  uint64_t Below(uint64_t n) { return Next() % n; }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool Chance(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  uint64_t state_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SIM_RANDOM_H_
