// The CUDA device without a GPU, for tests: its own code and kernels, compiled for the host
// (runtime.h). What it is strict about stands there: device memory that only the device touches,
// work and copies that happen late, streams ordered by events only.
#ifndef THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_DEVICE_H_
#define THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/device.h"

namespace thermocline {

struct EmulatedDeviceOptions {
  size_t memory_bytes = size_t{4} << 30;
  uint64_t seed = 1;  // of how late things happen
};

std::unique_ptr<Device> MakeEmulatedCudaDevice(const EmulatedDeviceOptions& options = {});

// Graphs replayed by all devices of this process so far.
int64_t NumEmulatedGraphLaunches();

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_DEVICE_H_
