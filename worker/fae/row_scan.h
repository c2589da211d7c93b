// Reads the training rows for calibration and packing.
#ifndef THERMOCLINE_WORKER_FAE_ROW_SCAN_H_
#define THERMOCLINE_WORKER_FAE_ROW_SCAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/thread_pool.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/fae/calibration.h"
#include "worker/fae/lookup_counts.h"
#include "worker/fae/packing.h"

namespace thermocline {

// Rows are read in batches of this size to be counted or packed.
inline constexpr int64_t kScanRows = 256;

// The training rows of a job, its tables, and threads to read them. Not thread-safe.
class RowScan {
 public:
  // `job` and `options` must outlive it. Errors: Dataset::Open's.
  static absl::StatusOr<std::unique_ptr<RowScan>> Open(const Job& job,
                                                       const PackingOptions& options);

  const JobTables& tables() const { return tables_; }
  ThreadPool* pool() { return &pool_; }

  // Counts the lookups of a share of the rows. Sets *rows to how many were read.
  absl::StatusOr<std::vector<CountedTable>> Count(double share, int64_t* rows);

  // Reads a share of the rows. Calls `take` with several batches at a time, in order.
  //   activity: PackingProgress::activity
  using Batches = std::vector<std::unique_ptr<Batch>>;
  absl::Status Read(absl::string_view activity, double share,
                    absl::FunctionRef<absl::Status(const Batches&)> take);

  // The progress at the end of the last complete reading, with malformed lines and padding.
  const BatchReader::Progress& last() const { return last_; }

  // Returns the least budget with which `samples` of the sampled rows would be hot, if the same
  // tables are hot whole.
  absl::StatusOr<int64_t> LeastBudget(double share, int64_t samples,
                                      const std::vector<CountedTable>& counted,
                                      const CalibrationResult& result);

 private:
  RowScan(const Job& job, const PackingOptions& options);

  const Job& job_;
  const PackingOptions& options_;
  const JobTables tables_;
  ThreadPool pool_;
  std::unique_ptr<Dataset> dataset_;
  BatchReader::Progress last_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_ROW_SCAN_H_
