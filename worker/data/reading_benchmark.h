// What the benchmarks of reading share: their flags, and the job whose data they read.
#ifndef THERMOCLINE_WORKER_DATA_READING_BENCHMARK_H_
#define THERMOCLINE_WORKER_DATA_READING_BENCHMARK_H_

#include <cstdint>
#include <functional>
#include <string>

#include "proto/job.pb.h"

namespace thermocline {

struct ReadingBenchmark {
  std::string made_job;     // The job of data that are made here.
  std::string made_suffix;  // Of the file that they are in: ".tsv"
  int64_t made_rows = 0;    // With --tiny 100.
  std::function<void(const std::string& path, int64_t rows)> make;
  std::function<void(const Job& job)> open;  // Before the registered benchmarks run.
};

// The program: runs the registered benchmarks over the data of --job=FILE, or of `made_job`, at
// --data=PATH, or those that are made. --tiny: few rows, so that a test runs all of it. Other flags
// are Google Benchmark's. Returns the exit code.
int RunReadingBenchmark(const ReadingBenchmark& reading, int argc, char** argv);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DATA_READING_BENCHMARK_H_
