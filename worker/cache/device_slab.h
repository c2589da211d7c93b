// The rows of one table group on a worker's device: those the cache holds, then staging for the
// rows of one step that bypass it. Beside the memory it keeps, on the host, whose row each is and
// what the servers don't know of it yet.
//
// Not thread-safe; its memory is used in the order of the device's operations.
#ifndef THERMOCLINE_WORKER_CACHE_DEVICE_SLAB_H_
#define THERMOCLINE_WORKER_CACHE_DEVICE_SLAB_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/device.h"
#include "worker/cache/cache_layout.h"
#include "worker/cache/held_rows.h"

namespace thermocline {

class DeviceSlab {
 public:
  // `device` outlives it.
  DeviceSlab(const CacheGroupLayout& layout, Device* device);

  const CacheGroupLayout& layout() const { return layout_; }
  // All rows, `cols` of their floats.
  Matrix Rows(int cols) const {
    return FloatMatrix(memory_->floats(), num_rows_, cols, layout_.stride);
  }
  // Those of the cache.
  Matrix CachedRows() const {
    return FloatMatrix(memory_->floats(), layout_.capacity, layout_.row_floats, layout_.stride);
  }
  // Makes room for so many rows in staging. Where there isn't, the slab moves, by way of the host,
  // so that the device never holds two of them; and the device is waited for.
  // Errors: the device's (kResourceExhausted: the rows held are lost).
  absl::Status ReserveStaging(int32_t rows);
  // How many it makes room for where `staging` rows are less than `needed`: twice as many, or what
  // is needed. No count of rows goes beyond an int32.
  static int32_t GrownStaging(int32_t staging, int32_t needed);

  // What there is in the rows of the cache.
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
