#include <cstdlib>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/testing/test_device.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<Device>> MakeDeviceForTest(
    std::optional<size_t> initial_scratch_bytes) {
  CudaDeviceOptions options;
  options.initial_scratch_bytes = initial_scratch_bytes;
  return MakeCudaDevice(options);
}

bool DeviceIsRequired() { return std::getenv("THERMOCLINE_REQUIRE_GPU") != nullptr; }

}  // namespace thermocline
