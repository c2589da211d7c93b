// How a worker's cache budget is divided: a slab of rows for each table group, the tables of the
// same dim and optimizer.
#ifndef THERMOCLINE_WORKER_CACHE_CACHE_LAYOUT_H_
#define THERMOCLINE_WORKER_CACHE_CACHE_LAYOUT_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/job/resolved_job.h"

namespace thermocline {

struct CacheGroupLayout {
  std::vector<int32_t> tables;  // indices into JobTables::sparse
  int dim = 0;
  int row_floats = 0;  // of a row held: weights, and optimizer state where this worker updates them
  int64_t stride = 0;  // floats from one row of the slab to the next
  int32_t staging_rows = 0;  // for the distinct keys of one batch
  int32_t capacity = 0;      // rows held

  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
};

struct CacheLayout {
  uint64_t budget_bytes = 0;
  std::vector<CacheGroupLayout> groups;
  int64_t capacity_rows() const;
  uint64_t capacity_bytes() const;
};

// batch_samples: this worker's share of a batch. `with_state`: rows are held with their optimizer
// state. A batch has at most one distinct key a sample and column; a column whose bags hold more is
// counted once, and its slab grows beyond the budget if it must.
// Errors: kInvalidArgument (the budget can't hold the rows of one batch and one more in each group,
// and says how much is needed for what).
absl::StatusOr<CacheLayout> LayOutCache(const JobTables& tables, int64_t batch_samples,
                                        bool with_state, uint64_t budget_bytes);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_CACHE_CACHE_LAYOUT_H_
