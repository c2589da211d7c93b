// The contest of pull_benchmark.cc: it starts the contestants, runs them in turn, and prints the
// ratios.
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
  std::vector<uint32_t> keys;      // Keys of a request.
  std::vector<uint32_t> channels;  // Channels to the server.
  uint32_t in_flight = 0;          // 0: as many as channels.
  uint32_t dim = 16;
  uint32_t rows = 0;
  uint32_t repetitions = 0;
  double seconds = 0;  // How long one measurement takes.
  bool redis = false;
  std::string server;  // The path of thermocline-server; empty: it is beside this program.
  double skew = 0;     // The exponent of the keys' power law; 0: uniform.
  uint64_t seed = 0;
};

// Runs the contest. Errors: a contestant can't be started; a row is wrong.
absl::Status RunContest(const ContestOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_BENCHMARKS_PULL_CONTEST_H_
