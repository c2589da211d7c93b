// A worker's cache in device memory: the slab of rows of each table group.
#ifndef THERMOCLINE_WORKER_ROWS_DEVICE_SLAB_H_
#define THERMOCLINE_WORKER_ROWS_DEVICE_SLAB_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "common/job/cache_layout.h"
#include "kernels/device.h"
#include "worker/rows/held_rows.h"

namespace thermocline {

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

#endif  // THERMOCLINE_WORKER_ROWS_DEVICE_SLAB_H_
