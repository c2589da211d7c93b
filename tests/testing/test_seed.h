// The seed of a randomized test: printed, so that a failure can be repeated, and settable.
#ifndef THERMOCLINE_TESTS_TESTING_TEST_SEED_H_
#define THERMOCLINE_TESTS_TESTING_TEST_SEED_H_

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>

#include "absl/base/config.h"

namespace thermocline {

// Returns THERMOCLINE_TEST_SEED of the environment, or `otherwise`, and prints it.
inline uint64_t TestSeed(uint64_t otherwise = std::random_device()()) {
  const char* text = std::getenv("THERMOCLINE_TEST_SEED");
  const uint64_t seed = text != nullptr ? std::strtoull(text, nullptr, 10) : otherwise;
  std::cout << "THERMOCLINE_TEST_SEED=" << seed << std::endl;
  return seed;
}

// How many random runs a test makes: `runs`, but a third of them under the address and the thread
// sanitizer, since a run takes several times as long there, and few runs find what sanitizers look
// for.
template <typename Count>
constexpr Count RandomRuns(Count runs) {
#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
  return (runs + 2) / 3;
#else
  return runs;
#endif
}

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_TEST_SEED_H_
