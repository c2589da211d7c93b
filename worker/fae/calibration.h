// Which rows are hot: those that are looked up most, as far as a device's memory has room.
//
// As FAE's calibrator does (Adnan et al., "Accelerating Recommendation System Training by
// Leveraging Popular Choices", VLDB 2022, section 4): lookups are counted in a sample of the data;
// small tables are hot whole; one threshold of lookups holds for the rows of all other tables, and
// how many rows a threshold leaves is estimated from a few random chunks of each table. The
// constants (35 chunks of 1,024 rows, confidence 99.9%, tables below 1 MiB) are the paper's from
// memory. Beyond the paper, the rows are counted as well, and the count decides: it costs little
// once the lookups are counted, and shows how good the estimate is.
#ifndef THERMOCLINE_WORKER_FAE_CALIBRATION_H_
#define THERMOCLINE_WORKER_FAE_CALIBRATION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/resolved_job.h"
#include "proto/job.pb.h"
#include "worker/fae/lookup_counts.h"
#include "worker/plan/hot_set.h"

namespace thermocline {

struct CalibrationOptions {
  int64_t budget_bytes = 0;
  int64_t whole_table_bytes = 0;
  // They were not chosen by the user: tables that don't fit together are not hot whole.
  bool whole_table_is_default = true;
  uint32_t chunks = 35;
  uint32_t chunk_rows = 1024;
  double confidence = 0.999;
  uint64_t seed = 0;  // of the random chunks

  // As a resolved job says, with another budget where `budget_bytes` is not 0. The rows of a cache
  // whose policy is STATIC get what StaticRowBytes() (common/job/cache_layout.h) leaves. Errors:
  // as that has.
  static absl::StatusOr<CalibrationOptions> Of(const Job& job, int64_t budget_bytes = 0);
};

struct TableCalibration {
  std::string name;
  int64_t row_bytes = 0;
  int64_t rows = 0;  // that were looked up
  int64_t hot_rows = 0;
  bool is_whole = false;
  bool may_be_hot = true;  // False: servers decide which keys have a row (MayHold()).
  uint64_t lookups = 0;
  uint64_t hot_lookups = 0;
  // Of hot_rows: from the chunks, and the upper end of its interval.
  double estimated_rows = 0;
  double estimated_most = 0;
};

// The rows with at least `threshold` lookups, and those of whole tables, fit the budget, and no
// lower threshold would do. 1: all rows that were looked up fit.
struct CalibrationResult {
  int64_t budget_bytes = 0;
  int64_t hot_bytes = 0;
  uint64_t threshold = 1;
  // The lowest threshold whose rows fit by the upper ends of the estimates.
  uint64_t estimated_threshold = 1;
  std::vector<TableCalibration> tables;  // As JobTables::sparse.
  double estimate_s = 0;                 // Time for the estimates.
  double count_s = 0;                    // And for the counts in their place.

  // Over all tables.
  int64_t rows() const;
  int64_t hot_rows() const;
  double estimated_rows() const;
  double estimated_most() const;
  double lookup_share() const;  // hot_lookups / lookups
};

// `counted`: as JobTables::sparse. Errors: kInvalidArgument (tables that the job says are hot whole
// are more than the budget; names them).
absl::StatusOr<CalibrationResult> Calibrate(const JobTables& tables,
                                            const std::vector<CountedTable>& counted,
                                            const CalibrationOptions& options);

// The hot rows among those that were counted.
std::vector<std::vector<Key>> HotKeys(const std::vector<CountedTable>& counted,
                                      const CalibrationResult& result);

// The rows of one table with at least `threshold` lookups, from random chunks of it.
struct RowEstimate {
  double rows = 0;
  double most = 0;  // Where the interval of the confidence ends.
};
class RowEstimator {
 public:
  // A table of no more rows than the chunks have is counted. `table`: by which the chunks differ.
  RowEstimator(const CountedTable& counted, uint64_t table, const CalibrationOptions& options);
  RowEstimate Estimate(uint64_t threshold) const;

 private:
  const std::vector<uint32_t>& counts_;
  const size_t chunk_rows_;
  double t_ = 0;
  std::vector<size_t> begins_;  // Of the chunks; none: all rows are counted.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_CALIBRATION_H_
