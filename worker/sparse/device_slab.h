// The rows of one table group on a worker's device: those the cache holds, then staging for the
// rows of one step that bypass it. Beside the memory it keeps, on the host, whose row each is and
// what the servers don't know of it yet.
//
// Not thread-safe; its memory is used in the order of the device's operations.
#ifndef THERMOCLINE_WORKER_SPARSE_DEVICE_SLAB_H_
#define THERMOCLINE_WORKER_SPARSE_DEVICE_SLAB_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/ids.h"
#include "kernels/device.h"
#include "worker/sparse/cache_layout.h"

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
  // Makes room for so many rows in staging. Where there isn't, the slab moves, and the device is
  // waited for. Errors: the device's.
  absl::Status ReserveStaging(int32_t rows);

  // Of a row that the cache holds: the key, and
  //   - where this worker updates it: the lookups of the updates since it was loaded or written
  //     back; 0: the servers have the same row;
  //   - where it is a copy: every worker's pushes up to complete_through are in it.
  struct Held {
    int32_t table = -1;
    Key key = 0;
    uint32_t unwritten_lookups = 0;
    Step complete_through = kNoStep;
  };
  Held& held(int32_t row) { return held_[row]; }
  // Counts updates; stops at the most there can be, as the servers' counts do.
  void AddLookups(int32_t row, uint32_t lookups) {
    uint32_t& sum = held_[row].unwritten_lookups;
    sum = sum + lookups < sum ? UINT32_MAX : sum + lookups;
  }
  bool IsCached(int32_t row) const { return row < layout_.capacity; }

 private:
  const CacheGroupLayout layout_;
  Device* const device_;
  int32_t num_rows_;
  std::unique_ptr<DeviceBuffer> memory_;  // [num_rows, stride] float32
  std::vector<Held> held_;                // [capacity]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_DEVICE_SLAB_H_
