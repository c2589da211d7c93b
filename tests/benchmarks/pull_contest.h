// The contest of pull_benchmark.cc: starts the contestants, runs them in turn, prints the ratios.
#ifndef THERMOCLINE_TESTS_BENCHMARKS_PULL_CONTEST_H_
#define THERMOCLINE_TESTS_BENCHMARKS_PULL_CONTEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace thermocline {

inline constexpr int kMaxBenchmarkMessageBytes = 64 << 20;

struct ContestOptions {
  bool push = false;
  std::vector<uint32_t> keys;      // a request
  std::vector<uint32_t> channels;  // to the server
  uint32_t in_flight = 0;          // 0: as many as channels
  uint32_t dim = 16;
  uint32_t rows = 0;
  uint32_t repetitions = 0;
  double seconds = 0;  // of one measurement
  bool redis = false;
  std::string server;  // path of thermocline-server; empty: look beside this program
  double skew = 0;     // exponent of the keys' power law; 0: uniform
  uint64_t seed = 0;
};

// Errors: those of starting the contestants, and of a wrong row.
absl::Status RunContest(const ContestOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_PULL_CONTEST_H_
