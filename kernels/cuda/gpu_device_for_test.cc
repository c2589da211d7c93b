#include <cstdlib>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/device_for_test.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<Device>> MakeDeviceForTest() {
  return MakeCudaDevice(CudaDeviceOptions());
}

bool DeviceIsRequired() { return std::getenv("THERMOCLINE_REQUIRE_GPU") != nullptr; }

}  // namespace thermocline
