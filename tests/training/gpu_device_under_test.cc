#include <cstdlib>

#include "kernels/cuda/cuda_device.h"
#include "tests/training/device_under_test.h"

namespace thermocline {

std::string NoDeviceUnderTest() {
  const absl::Status status = GetCudaDeviceInfo(CudaDeviceOptions()).status();
  const bool required = std::getenv("THERMOCLINE_REQUIRE_GPU") != nullptr;
  return status.ok() || required ? "" : std::string(status.message());
}

absl::StatusOr<WorkerDevice> MakeDeviceUnderTest() {
  auto device = MakeCudaDevice(CudaDeviceOptions());
  if (!device.ok()) return device.status();
  return WorkerDevice{*std::move(device), "CUDA"};
}

}  // namespace thermocline
