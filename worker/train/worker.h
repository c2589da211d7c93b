// One worker of a job, from its job file to its result: waits for the servers, trains, evaluates.
#ifndef THERMOCLINE_WORKER_TRAIN_WORKER_H_
#define THERMOCLINE_WORKER_TRAIN_WORKER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/scheduler.h"
#include "common/net/rpc.h"
#include "proto/checkpoint.pb.h"
#include "proto/job.pb.h"
#include "worker/data/text/text_index.h"
#include "worker/exchange/exchange.h"
#include "worker/session/transport.h"
#include "worker/train/evaluation.h"
#include "worker/train/launcher_orders.h"
#include "worker/train/progress.h"
#include "worker/train/worker_device.h"

namespace thermocline {

struct ServerCheckOptions {
  std::string job_id;
  uint64_t generation = 0;
  std::vector<std::string> addresses;  // host:port, by server index
  TlsFiles tls;
  // How long a server may go without an answer that shows progress.
  absl::Duration patience = absl::Seconds(30);
};

// Waits until each server serves the job with the tables that this worker expects (Configure with
// check_only). A server that loads a checkpoint or replays its push log is waited for while it
// advances. Errors name the server's address: kFailedPrecondition (it is configured differently,
// and says in what); kUnavailable, kDeadlineExceeded (no progress within `patience`; marked as the
// loss of a server, retry_policy.h).
absl::Status AwaitServers(const Job& job, const ServerCheckOptions& options);

struct WorkerOptions {
  std::string job_id;
  uint64_t generation = 1;
  WorkerRank rank;
  // The first step; the servers hold the model as all steps before it left it.
  Step start_step{0};
  // Where the data go on (common/job/data_place.h): a place at or before start_step, for an order
  // of batches that the job alone doesn't decide. "": as the job says.
  std::string data_place;
  // Trains nothing: rank 0 scores the held-out rows with that model.
  bool eval_only = false;
  NamedCheckpoints* named_checkpoints = nullptr;  // null: none is named. Outlives the run.
  // What follows from evaluations; null: training always goes on, as the worker's own score says.
  // Outlives the run.
  EvaluationDecisions* decisions = nullptr;
  TextIndexOptions data_index;
  std::string trace_directory;  // Where processes write their parts of the job's trace.
  // Tests set less than what RowSourceOptions say.
  std::optional<uint64_t> max_unwritten_bytes, write_back_piece_bytes;
  // This rank's end of the exchange between the workers of a job that has one (ExchangesBlocks);
  // waits until it is known where the others are. Null: the workers exchange nothing, and several
  // workers' dense parameters live on the servers.
  std::function<absl::StatusOr<std::unique_ptr<Exchange>>(const ExchangeOptions&, ExchangeHooks)>
      make_exchange;
  // Makes the device that the worker computes on.
  std::function<absl::StatusOr<WorkerDevice>(const Job&)> make_device = [](const Job& job) {
    return MakeWorkerDevice(job, /*local_rank=*/0);
  };
};

struct WorkerResult {
  int64_t steps = 0;  // The whole job's.
  // This worker's in these steps; those before start_step as if no line had been bad.
  uint64_t samples = 0;
  uint64_t new_samples = 0;    // Samples from start_step on.
  uint64_t bad_lines = 0;      // In all that was read.
  uint64_t padding_ids = 0;    // In what was trained on.
  uint64_t skipped_steps = 0;  // Steps from start_step on of which the script made no gradient.
  std::string first_bad_line;
  uint64_t repeated_headers = 0;  // In what was trained on; no bad lines.
  double train_s = 0;             // From the first fetch to the last acknowledgement.
  double eval_s = 0;
  EvaluationResult evaluation;  // Rank 0's last one; other ranks': 0 samples.
  Step evaluated_step = kNoStep;
  uint64_t held_out_bad_lines = 0;  // The bad lines among held-out rows.
  WorkerStats stats;
};

// `job` is resolved, the servers are configured for it. Errors name what failed: file and line,
// server and step, what the device or the cache's budget lacks; the loss of a server is marked
// (retry_policy.h).
absl::StatusOr<WorkerResult> RunWorker(const Job& job, const WorkerOptions& options,
                                       Transport* transport, Scheduler* scheduler,
                                       WorkerProgress* progress);

// The text that --result_file gets: one JSON object with the fields of WorkerStats, as `thermocline
// stats` has them, and beside them what only a run that has ended knows.
std::string WorkerResultToJson(const WorkerResult& result);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_TRAIN_WORKER_H_
