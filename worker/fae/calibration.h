// Decides which rows are hot: those that are looked up most, as many as a device's memory has room
// for.
//
// It works as FAE's calibrator does (Adnan et al., "Accelerating Recommendation System Training by
// Leveraging Popular Choices", VLDB 2022, section 4). Lookups are counted in a sample of the data.
// All rows of small tables are hot. One threshold of lookups holds for the rows of all other
// tables; a few random chunks of each table give an estimate of how many rows reach it. The
// constants (35 chunks of 1,024 rows, confidence 99.9%, tables below 1 MiB) are the paper's from
// memory. Beyond the paper, the rows are counted as well, and the count decides. That costs little
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
  int64_t whole_table_bytes = 0;  // All rows of a table that takes less are hot.
  // Whether the user has not chosen whole_table_bytes. Then only as many of these tables are hot
  // whole as fit together; if the user chose it, it is an error that they don't fit.
  bool whole_table_is_default = true;
  uint32_t chunks = 35;
  uint32_t chunk_rows = 1024;
  double confidence = 0.999;
  uint64_t seed = 0;  // Decides the random chunks.

  // Returns the options of a resolved job, with another budget if `budget_bytes` is not 0. For a
  // cache whose policy is STATIC the budget is what StaticRowBytes() (common/job/cache_layout.h)
  // leaves. Errors: StaticRowBytes'.
  static absl::StatusOr<CalibrationOptions> Of(const Job& job, int64_t budget_bytes = 0);
};

struct TableCalibration {
  std::string name;
  int64_t row_bytes = 0;
  int64_t rows = 0;  // Rows that were looked up.
  int64_t hot_rows = 0;
  bool is_whole = false;   // Whether all its rows are hot.
  bool may_be_hot = true;  // false: servers decide which keys have a row (MayHold()).
  uint64_t lookups = 0;
  uint64_t hot_lookups = 0;
  // The estimate of hot_rows from the chunks, and the upper end of its interval.
  double estimated_rows = 0;
  double estimated_most = 0;
};

// Which rows are hot: those with at least `threshold` lookups, and those of whole tables.
struct CalibrationResult {
  int64_t budget_bytes = 0;
  int64_t hot_bytes = 0;
  // The lowest threshold whose rows fit the budget. 1: all rows that were looked up fit.
  uint64_t threshold = 1;
  // The lowest threshold whose rows fit by the upper ends of the estimates.
  uint64_t estimated_threshold = 1;
  std::vector<TableCalibration> tables;  // [JobTables::sparse]
  double estimate_s = 0;                 // How long the estimates took.
  double count_s = 0;                    // How long the counts took, which replace them.

  // Over all tables.
  int64_t rows() const;
  int64_t hot_rows() const;
  double estimated_rows() const;
  double estimated_most() const;
  double lookup_share() const;  // hot_lookups / lookups
};

// Calibrates.
//   counted: [JobTables::sparse]
// Errors: kInvalidArgument (the tables that are hot whole, as the user chose, exceed the budget;
// names them).
absl::StatusOr<CalibrationResult> Calibrate(const JobTables& tables,
                                            const std::vector<CountedTable>& counted,
                                            const CalibrationOptions& options);

// Returns the keys of the hot rows among those that were counted. [tables]
std::vector<std::vector<Key>> HotKeys(const std::vector<CountedTable>& counted,
                                      const CalibrationResult& result);

// An estimate of how many rows of a table have at least so many lookups.
struct RowEstimate {
  double rows = 0;
  double most = 0;  // The upper end of the confidence interval.
};
// Estimates from random chunks of one table. If the chunks would have all rows of the table, it
// counts them.
class RowEstimator {
 public:
  // `counted` must outlive this object.
  //   table: the table's number, so that tables have different chunks
  RowEstimator(const CountedTable& counted, uint64_t table, const CalibrationOptions& options);
  RowEstimate Estimate(uint64_t threshold) const;

 private:
  const std::vector<uint32_t>& counts_;
  const size_t chunk_rows_;
  double t_ = 0;
  std::vector<size_t> begins_;  // The chunks' first rows; {}: all rows are counted.
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_FAE_CALIBRATION_H_
