// A worker's cache in device memory: how its budget is divided, and the slab of rows of each table
// group.
#ifndef THERMOCLINE_WORKER_CACHE_DEVICE_SLAB_H_
#define THERMOCLINE_WORKER_CACHE_DEVICE_SLAB_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/job/resolved_job.h"
#include "kernels/device.h"
#include "worker/cache/held_rows.h"

namespace thermocline {

// The slab of one table group: the tables of the same dim, optimizer and placement.
struct CacheGroupLayout {
  std::vector<int32_t> tables;  // indices into JobTables::sparse
  int dim = 0;
  int row_floats = 0;  // of a row held: weights, and optimizer state where this worker updates them
  int64_t stride = 0;  // floats from one row of the slab to the next
  int32_t batch_rows = 0;    // the most distinct keys of one batch
  int32_t staging_rows = 0;  // of the slab: for the rows of one batch, if they go there
  int32_t capacity = 0;      // rows held
  // False: none is held. The servers decide which keys of its tables have a row, or their
  // placement is REMOTE.
  bool holds_rows = true;
  // Placement DEVICE: every row is held from its first use on, and none is a victim. So none needs
  // staging.
  bool keeps_rows = false;

  int64_t row_bytes() const { return stride * static_cast<int64_t>(sizeof(float)); }
};

struct CacheLayout {
  uint64_t budget_bytes = 0;
  std::vector<CacheGroupLayout> groups;
  int64_t capacity_rows() const;
  int64_t kept_capacity_rows() const;  // Of those: of groups that keep them.
  uint64_t capacity_bytes() const;
};

// Above it, the numbers of rows and of their entries would not fit.
inline constexpr int64_t kMaxCacheCapacity = int64_t{1} << 29;

// The table groups of a job in the order of their first tables, without rows.
std::vector<CacheGroupLayout> GroupTables(const JobTables& tables, bool with_state);

// The error of a worker whose rows of placement DEVICE need more than it has for them
// (kInvalidArgument).
//   table: one whose key found no room; name: its
//   rows: of its group, held so far and those that found no room
absl::Status NoRoomToKeep(const CacheLayout& layout, int32_t table, const std::string& name,
                          int64_t rows);

enum class CacheUse {
  kOwned,   // by the only worker: rows are held with their optimizer state
  kShared,  // of each row one of several workers is the owner, and holds it in the same way
  kCopies,  // by one of several workers: without state
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

// What a budget leaves, of a worker alone, for rows that are held from the first step to the last
// (Cache::STATIC): all but the rows of one batch. Errors: as LayOutCache.
absl::StatusOr<uint64_t> StaticRowBytes(const JobTables& tables, int64_t batch_samples,
                                        uint64_t budget_bytes);

// The rows of one table group on the device: those of the cache, then staging for the rows of one
// step that bypass it. On the host it keeps the key of each row, and which rows are newer than the
// servers'.
//
// Not thread-safe; its memory is used in the order of the device's operations.
class DeviceSlab {
 public:
  // `device` outlives it.
  DeviceSlab(const CacheGroupLayout& layout, Device* device);

  const CacheGroupLayout& layout() const { return layout_; }
  // All rows, `cols` of their floats.
  Matrix Rows(int cols) const {
    return FloatMatrix(memory_->floats(), num_rows_, cols, layout_.stride);
  }
  // The rows of the cache.
  Matrix CachedRows() const {
    return FloatMatrix(memory_->floats(), layout_.capacity, layout_.row_floats, layout_.stride);
  }
  // Makes room for `rows` rows in staging. If there is too little, waits for the device and moves
  // the slab by way of the host, so that the device never holds two of them. Errors: the device's
  // (kResourceExhausted: the rows held are lost).
  absl::Status ReserveStaging(int32_t rows);
  // The new size of staging where `staging` rows are less than `needed`: twice as many, or
  // `needed`. All row counts fit into an int32.
  static int32_t GrownStaging(int32_t staging, int32_t needed);

  // The contents of the cache's rows.
  HeldRows& held() { return held_; }
  bool IsCached(int32_t row) const { return row < layout_.capacity; }

 private:
  const CacheGroupLayout layout_;
  Device* const device_;
  int32_t num_rows_;
  std::unique_ptr<DeviceBuffer> memory_;  // [num_rows, stride] float32
  HeldRows held_;                         // [capacity]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_CACHE_DEVICE_SLAB_H_
