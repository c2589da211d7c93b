// Reproducible random data for the tests of kernels and models.
#ifndef THERMOCLINE_KERNELS_TESTING_RANDOM_VALUES_H_
#define THERMOCLINE_KERNELS_TESTING_RANDOM_VALUES_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

namespace thermocline {

// Returns and prints the seed of a random test; THERMOCLINE_TEST_SEED overrides it.
inline uint64_t TestSeed() {
  const char* text = std::getenv("THERMOCLINE_TEST_SEED");
  const uint64_t seed = text == nullptr ? 20240607 : std::strtoull(text, nullptr, 10);
  std::cout << "THERMOCLINE_TEST_SEED=" << seed << std::endl;
  return seed;
}

// Returns n values, uniform in [-scale, scale).
inline std::vector<float> RandomFloats(std::mt19937_64* rng, int64_t n, float scale = 1) {
  std::uniform_real_distribution<float> uniform(-scale, scale);
  std::vector<float> v(n);
  for (float& x : v) x = uniform(*rng);
  return v;
}

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_TESTING_RANDOM_VALUES_H_
