#include "worker/rows/device_slab.h"

#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {
namespace {

constexpr int kRowFloats = 6, kStride = 8;
constexpr int32_t kCapacity = 40'000, kStaging = 100;

CacheGroupLayout Layout() {
  CacheGroupLayout layout;
  layout.tables = {0};
  layout.dim = kRowFloats;
  layout.row_floats = kRowFloats;
  layout.stride = kStride;
  layout.staging_rows = kStaging;
  layout.capacity = kCapacity;
  return layout;
}

std::vector<float> Filled(Device* device, const DeviceSlab& slab) {
  std::vector<float> values(size_t{kCapacity} * kStride);
  std::iota(values.begin(), values.end(), 1.0f);
  device->CopyToDevice(slab.CachedRows().data, values.data(), sizeof(float) * values.size(),
                       Stream::kCompute);
  return values;
}

std::vector<float> Read(Device* device, const DeviceSlab& slab, size_t floats) {
  std::vector<float> values(floats);
  device->CopyToHost(values.data(), slab.Rows(kRowFloats).data, sizeof(float) * floats,
                     Stream::kCompute);
  return values;
}

// The memory is enough for one slab, before and after, but not for both.
TEST(DeviceSlabTest, GrowsWithoutASecondSlab) {
  EmulatedDeviceOptions options;
  options.memory_bytes = (size_t{6} << 20) + sizeof(float) * kStride * (kCapacity + 3000);
  for (const bool own_memory : {true, false}) {
    const std::unique_ptr<Device> device =
        own_memory ? MakeEmulatedCudaDevice(options) : MakeCpuDevice({});
    DeviceSlab slab(Layout(), device.get());
    const std::vector<float> values = Filled(device.get(), slab);
    for (const int32_t rows : {kStaging, kStaging + 1, 2000}) {
      const absl::Status status = slab.ReserveStaging(rows);
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_GE(slab.Rows(kRowFloats).rows, kCapacity + rows);
      EXPECT_EQ(Read(device.get(), slab, values.size()), values) << rows;
    }
    EXPECT_TRUE(device->Synchronize().ok());
  }
}

TEST(DeviceSlabTest, WithoutMemoryForOneItSaysSo) {
  EmulatedDeviceOptions options;
  options.memory_bytes = (size_t{6} << 20) + sizeof(float) * kStride * (kCapacity + 3000);
  const std::unique_ptr<Device> device = MakeEmulatedCudaDevice(options);
  DeviceSlab slab(Layout(), device.get());
  EXPECT_EQ(slab.ReserveStaging(4000).code(), absl::StatusCode::kResourceExhausted);
}

TEST(DeviceSlabTest, NoCountOfRowsGoesBeyondItsType) {
  constexpr int32_t kMost = 1 << 30;
  EXPECT_EQ(DeviceSlab::GrownStaging(100, 101), 200);
  EXPECT_EQ(DeviceSlab::GrownStaging(100, 300), 300);
  EXPECT_EQ(DeviceSlab::GrownStaging(kMost / 2 + 1, kMost / 2 + 2), kMost);
  EXPECT_EQ(DeviceSlab::GrownStaging(kMost - 1, kMost), kMost);
  EXPECT_EQ(DeviceSlab::GrownStaging(kMost, kMost), kMost);
}

}  // namespace
}  // namespace thermocline
