// The errors that a program gets where there may be no GPU.
#include "kernels/cuda/cuda_device.h"

#include <cstdlib>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(CudaDeviceTest, SaysWhyThereIsNone) {
  const absl::StatusOr<CudaDeviceInfo> info = GetCudaDeviceInfo(CudaDeviceOptions());
  const absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(CudaDeviceOptions());
  const absl::StatusOr<int> count = CountCudaDevices();
  if (info.ok()) {
    EXPECT_GE(*count, 1);
    EXPECT_FALSE(info->name.empty());
    EXPECT_GT(info->total_bytes, info->free_bytes);
    EXPECT_GT(info->free_bytes, 0);
    EXPECT_GE(info->compute_capability, 30);
    return;
  }
  EXPECT_EQ(std::getenv("THERMOCLINE_REQUIRE_GPU"), nullptr) << info.status();
  // Built without CUDA, or no driver, or no GPU.
  EXPECT_TRUE(absl::IsUnimplemented(info.status()) || absl::IsNotFound(info.status()))
      << info.status();
  EXPECT_EQ(device.status(), info.status());
  EXPECT_EQ(count.status(), info.status());
  EXPECT_NE(info.status().message(), "");
}

TEST(CudaDeviceTest, NoSuchGpu) {
  const absl::StatusOr<std::unique_ptr<Device>> device = MakeCudaDevice(CudaDeviceOptions{1000});
  EXPECT_TRUE(absl::IsUnimplemented(device.status()) || absl::IsNotFound(device.status()))
      << device.status();
}

}  // namespace
}  // namespace thermocline
