// One worker of a job, from its job file to its result: connects to the servers, trains, evaluates.
#ifndef THERMOCLINE_WORKER_WORKER_H_
#define THERMOCLINE_WORKER_WORKER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/scheduler.h"
#include "proto/job.pb.h"
#include "worker/evaluation.h"
#include "worker/progress.h"
#include "worker/sparse/transport.h"

namespace thermocline {

struct WorkerOptions {
  std::string job_id;
  uint64_t epoch = 1;
  WorkerRank rank;
};

struct WorkerResult {
  int64_t steps = 0;
  uint64_t samples = 0;
  uint64_t bad_lines = 0;
  std::string first_bad_line;
  double train_s = 0;  // first fetch to last acknowledgement
  double eval_s = 0;
  EvaluationResult evaluation;  // rank 0's; else 0 samples
  WorkerStats stats;
};

// `job` is resolved, the servers are configured for it. Errors name what failed: file and line,
// server and step.
absl::StatusOr<WorkerResult> RunWorker(const Job& job, const WorkerOptions& options,
                                       Transport* transport, Scheduler* scheduler,
                                       WorkerProgress* progress);

// What --result_file gets.
std::string WorkerResultToJson(const WorkerResult& result);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_WORKER_H_
