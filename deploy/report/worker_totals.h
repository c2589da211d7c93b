// What the workers of a job have done together: one cache over all of them, what they sent each
// other and the servers, and whom they waited for.
#ifndef THERMOCLINE_DEPLOY_REPORT_WORKER_TOTALS_H_
#define THERMOCLINE_DEPLOY_REPORT_WORKER_TOTALS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deploy/report/stats_table.h"
#include "proto/parameter_server.pb.h"

namespace thermocline {

// Sums over workers since they began; or between two times (Since).
struct WorkerTotals {
  uint32_t workers = 0;  // How many workers are in the sums.
  int64_t step = 0;      // The furthest worker's.
  double seconds = 0;    // How long the first worker has run.
  uint64_t bytes_pulled = 0, bytes_pushed = 0;
  std::vector<uint64_t> bytes_to_device, bytes_from_device;  // [ranks]
  bool has_cache = false, has_exchange = false;              // Whether any worker has one.
  uint64_t hits = 0, keys = 0;          // Caches: keys are hits, loaded and bypassed.
  uint64_t bytes_exchanged = 0;         // Sent to other workers.
  std::vector<double> wait_for_rank_s;  // [num_workers] How long all others waited for it.
  std::map<std::string, double> wait_in_phase_s;  // All ranks' waits, by phase.

  WorkerTotals Since(const WorkerTotals& before) const;
  std::optional<double> hit_rate() const;  // In [0, 1].
};
// Adds up the workers that have answered.
WorkerTotals SumOf(const std::vector<WorkerReport>& workers);

// The worker that the others waited for the longest, and its share of their time, in [0, 1].
struct SlowestWorker {
  uint32_t rank = 0;
  double share = 0;
};
// Empty: they exchange nothing, or waited for none.
std::optional<SlowestWorker> SlowestOf(const WorkerTotals& totals);

// "cache hits 61.2%, 1.2 GiB exchanged, 3.0 GiB from servers, 1.0 GiB to them; the others waited
// 12% of the time for worker 2, the slowest".
std::string Describe(const WorkerTotals& totals);

// What is waited for: "gradients of step 41".
std::string WhatOf(const WorkerWait& wait);
// "worker 0 has waited 61s for the gradients of step 41 of worker 2 (broken pipe)".
std::string Describe(uint32_t rank, const WorkerWait& wait);

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_REPORT_WORKER_TOTALS_H_
