// Divides the budget of a worker's cache among the tables, for the worker's allocation and for the
// plan of a job.
#ifndef THERMOCLINE_COMMON_JOB_CACHE_LAYOUT_H_
#define THERMOCLINE_COMMON_JOB_CACHE_LAYOUT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/resolved_job.h"

namespace thermocline {

// The slab of one table group: the tables of the same dim, optimizer and placement.
struct CacheGroupLayout {
  std::vector<int32_t> tables;  // Indices into JobTables::sparse.
  int dim = 0;
  int row_floats = 0;  // Per held row: weights, and optimizer state where this worker updates rows.
  int64_t stride = 0;  // Floats from one row of the slab to the next.
  int32_t batch_rows = 0;    // A batch has at most so many distinct keys.
  int32_t staging_rows = 0;  // Rows of the slab for the rows of one batch.
  int32_t capacity = 0;      // The slab holds at most so many rows.
  // False: no row is held, since the servers decide which keys have a row, or the placement is
  // REMOTE.
  bool holds_rows = true;
  // Placement DEVICE: every row is held from its first use on and never evicted, so no row needs
  // staging.
  bool keeps_rows = false;

  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
};

struct CacheLayout {
  uint64_t budget_bytes = 0;
  std::vector<CacheGroupLayout> groups;
  int64_t capacity_rows() const;
  int64_t kept_capacity_rows() const;  // In groups with keeps_rows.
  uint64_t capacity_bytes() const;
};

// With more rows, the numbers of rows and of their entries would overflow.
inline constexpr int64_t kMaxCacheCapacity = int64_t{1} << 29;

// The table groups of a job in the order of their first tables, without rows.
std::vector<CacheGroupLayout> GroupTables(const JobTables& tables);

// The error of a worker without room for the rows of placement DEVICE (kInvalidArgument).
//   table, name: the table of a key that found no room
//   rows: how many rows its group would need so far
absl::Status NoRoomToKeep(const CacheLayout& layout, int32_t table, const std::string& name,
                          int64_t rows);

enum class CacheUse {
  kOwned,   // The only worker holds rows with their optimizer state.
  kShared,  // Each row has an owner among several workers, which holds it in the same way.
};

// Divides a budget. batch_samples: this worker's share of a batch. A batch has at most one distinct
// key a sample and column; a column whose bags hold more counts as one key, and its slab may grow
// beyond the budget. With kShared, a worker's staging is outside of the slabs: for the rows of its
// batch, and as an owner for the rows that it sends in a step and their gradients, for each as
// much again, since keys spread evenly. What is left goes to the groups that hold rows, by the
// bytes that a batch reads of them. Errors: kInvalidArgument (the budget has no room for the rows
// of one batch and one more in each group; says how much is needed, and for what).
absl::StatusOr<CacheLayout> LayOutCache(const JobTables& tables, int64_t batch_samples,
                                        CacheUse use, uint64_t budget_bytes);

// The part of a single worker's budget for rows that are held from the first step to the last
// (Cache::STATIC): all but the rows of one batch. Errors: as LayOutCache.
absl::StatusOr<uint64_t> StaticRowBytes(const JobTables& tables, int64_t batch_samples,
                                        uint64_t budget_bytes);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_CACHE_LAYOUT_H_
