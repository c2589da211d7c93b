// A small job that uses every feature, with its servers and workers in this process: everything but
// gRPC and the launcher is real.
#ifndef THERMOCLINE_TESTS_TRAINING_SMALL_JOB_H_
#define THERMOCLINE_TESTS_TRAINING_SMALL_JOB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/hash.h"
#include "common/base/scheduler.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "server/core/server_core.h"
#include "worker/session/transport.h"
#include "worker/train/worker.h"

namespace thermocline {

inline constexpr char kSmallJobId[] = "digest";
inline constexpr uint64_t kSmallJobGeneration = 7;
// Of one pass over the 1200 rows that are not held out.
inline constexpr int64_t kSmallJobSteps = 12;

// As job files have them, for tests that run with each.
inline constexpr const char* kOptimizers[] = {"sgd {}", "adagrad {}", "row_wise_adagrad {}",
                                              "adam {}"};
inline std::string NameOfOptimizer(const testing::TestParamInfo<const char*>& info) {
  const std::string text = info.param;
  return text.substr(0, text.find(' '));
}

// Three features over two tables, bags of 0 to 3 lookups, ids skewed so that keys repeat;
// `optimizer` is that of all tables.
Job MakeSmallJob(const std::string& optimizer, const std::vector<std::string>& overrides);

// Of so many columns and no others; each categorical one has a table of its own.
Job MakeJobOfColumns(int num_dense, int num_categorical, const std::vector<std::string>& overrides);

// Lists whose values have weights: one alone, and one that shares its table with a list without.
Job MakeWeightedJob(const std::string& optimizer, const std::vector<std::string>& overrides);

// The job with a cache. The budget may be below what a job file may say.
Job WithCache(Job job, const std::string& budget, int window_steps, int prefetch_steps);

ServerConfig ConfigOf(const Job& job, uint32_t index);

struct Outcome {
  Digest digest;
  uint64_t rows = 0;
  std::vector<absl::StatusOr<WorkerResult>> workers;
};

// The servers of a job, which keep their rows from one run of its workers to the next.
class JobServers {
 public:
  explicit JobServers(const Job& job);
  ~JobServers();

  const std::vector<ServerCore*>& cores() const { return pointers_; }
  Scheduler* scheduler() { return &scheduler_; }

  // REQUIRES: nothing is being applied.
  void AddDigest(Outcome* outcome) const;

 private:
  ThreadScheduler scheduler_;
  std::vector<std::unique_ptr<ServerCore>> cores_;
  std::vector<ServerCore*> pointers_;
};

// How several workers in sync mode update the dense parameters: the bits are the same.
enum class DenseBy { kSlices, kServers };

// All workers of the job, from their start to their end; `options` but for job, generation, rank
// and exchange. `transport` null: straight to the servers.
Outcome RunWorkers(const Job& job, JobServers* servers, WorkerOptions options = {},
                   Transport* transport = nullptr, DenseBy dense_by = DenseBy::kSlices);

// How a run of rank 0 alone ends, which may be with an error; `options` as in RunWorkers.
absl::Status StatusOfRun(const Job& job, WorkerOptions options = {});

std::string Hex(const Digest& digest);

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_TRAINING_SMALL_JOB_H_
