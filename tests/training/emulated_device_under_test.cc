#include "kernels/cuda/emulation/emulated_device.h"
#include "tests/testing/test_seed.h"
#include "tests/training/device_under_test.h"

namespace thermocline {

std::string NoDeviceUnderTest() { return ""; }

absl::StatusOr<WorkerDevice> MakeDeviceUnderTest() {
  static const uint64_t seed = TestSeed();  // It decides how late things happen.
  EmulatedDeviceOptions options;
  options.seed = seed;
  return WorkerDevice{MakeEmulatedCudaDevice(options), "emulated"};
}

}  // namespace thermocline
