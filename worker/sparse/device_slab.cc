#include "worker/sparse/device_slab.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "common/status_macros.h"
#include "kernels/transfer.h"

namespace thermocline {
namespace {

std::unique_ptr<DeviceBuffer> AllocateRows(Device* device, int64_t rows, int64_t stride) {
  return device->Allocate(sizeof(float) * rows * stride);
}

}  // namespace

DeviceSlab::DeviceSlab(const CacheGroupLayout& layout, Device* device)
    : layout_(layout),
      device_(device),
      num_rows_(layout.capacity + layout.staging_rows),
      memory_(AllocateRows(device, num_rows_, layout.stride)),
      held_(layout.capacity) {}

absl::Status DeviceSlab::ReserveStaging(int32_t rows) {
  if (rows <= num_rows_ - layout_.capacity) return absl::OkStatus();
  // At most the 2^30 lookups of a batch, beside at most 2^29 rows held.
  const int32_t staging = std::max(rows, std::min(2 * (num_rows_ - layout_.capacity), 1 << 30));
  std::unique_ptr<DeviceBuffer> larger =
      AllocateRows(device_, int64_t{layout_.capacity} + staging, layout_.stride);
  std::vector<int32_t> all(layout_.capacity);
  std::iota(all.begin(), all.end(), 0);
  UploadArena upload(device_);
  const DeviceSpan<const int32_t> rows_on_device = upload.Add(absl::MakeConstSpan(all));
  upload.Send(Stream::kCompute);
  const auto stride = static_cast<int32_t>(layout_.stride);
  const RowCopy copy = {Rows(stride), rows_on_device,
                        FloatMatrix(larger->floats(), layout_.capacity, stride)};
  device_->GatherRows({copy});
  RETURN_IF_ERROR(device_->Synchronize());
  memory_ = std::move(larger);
  num_rows_ = layout_.capacity + staging;
  return absl::OkStatus();
}

}  // namespace thermocline
