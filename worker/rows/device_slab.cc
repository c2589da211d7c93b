#include "worker/rows/device_slab.h"

#include <algorithm>
#include <utility>

namespace thermocline {
namespace {

// The lookups of a batch, and so the rows that bypass the cache, are at most so many.
constexpr int64_t kMaxStaging = int64_t{1} << 30;

size_t BytesOf(int64_t rows, int64_t stride) { return sizeof(float) * rows * stride; }

}  // namespace

DeviceSlab::DeviceSlab(const CacheGroupLayout& layout, Device* device)
    : layout_(layout),
      device_(device),
      num_rows_(layout.capacity + layout.staging_rows),
      memory_(device->Allocate(BytesOf(num_rows_, layout.stride))),
      held_(layout.capacity) {}

int32_t DeviceSlab::GrownStaging(int32_t staging, int32_t needed) {
  const int64_t doubled = std::min(2 * int64_t{staging}, kMaxStaging);
  return static_cast<int32_t>(std::max<int64_t>(needed, doubled));
}

absl::Status DeviceSlab::ReserveStaging(int32_t rows) {
  const int32_t staging = num_rows_ - layout_.capacity;
  if (rows <= staging) return absl::OkStatus();
  // At most 2^30 rows of staging beside 2^29 held, so that every row has an int32.
  num_rows_ = layout_.capacity + GrownStaging(staging, rows);
  memory_ = device_->Grow(std::move(memory_), BytesOf(layout_.capacity, layout_.stride),
                          BytesOf(num_rows_, layout_.stride));
  return device_->Synchronize();
}

}  // namespace thermocline
