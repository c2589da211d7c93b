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

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

// How many random runs a test makes: `runs`, but a sixth of them under the address and the thread
// sanitizer, since a run takes several times as long there, and few runs find what sanitizers look
// for.
template <typename Count>
constexpr Count RandomRuns(Count runs) {
  return kIsSanitized ? (runs + 5) / 6 : runs;
}

// Which cases a test takes that has one for every combination of several settings: all of them, but
// every fifth under these sanitizers. Five has no factor in common with the number of values of a
// setting, 2, 3, 4 or 6, so that every value is among them.
class CaseChoice {
 public:
  bool TakesNext() { return !kIsSanitized || next_++ % 5 == 0; }

 private:
  int next_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TESTING_TEST_SEED_H_
