#include "kernels/cuda/device_for_test.h"
#include "kernels/cuda/emulation/emulated_device.h"

namespace thermocline {

absl::StatusOr<std::unique_ptr<Device>> MakeDeviceForTest() { return MakeEmulatedCudaDevice(); }

bool DeviceIsRequired() { return true; }

}  // namespace thermocline
