// The main function of the benchmarks of reading: their flags, and the job whose data they read.
#ifndef THERMOCLINE_WORKER_DATA_READING_BENCHMARK_H_
#define THERMOCLINE_WORKER_DATA_READING_BENCHMARK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "proto/job.pb.h"

namespace thermocline {

struct ReadingBenchmark {
  std::string made_job;     // The job that reads the data that `make` makes.
  std::string made_suffix;  // The suffix of their file: ".tsv"
  int64_t made_rows = 0;    // How many rows `make` makes; with --tiny 100.
  std::function<void(const std::string& path, int64_t rows)> make;
  std::function<void(const Job& job)> open;  // Runs before the registered benchmarks.
};

// Runs the registered benchmarks over the data of --job=FILE at --data=PATH; without these flags
// over data that it makes. --tiny makes few rows, so that a test runs all of it. Other flags are
// Google Benchmark's. Returns the exit code.
int RunReadingBenchmark(const ReadingBenchmark& reading, int argc, char** argv);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_READING_BENCHMARK_H_
