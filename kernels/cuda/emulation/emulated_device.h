// The CUDA device without a GPU, for tests: its own code and kernels, compiled for the host
// (runtime.h). It is strict (see there): only the device touches device memory, work and copies
// happen late, only events order streams.
#ifndef THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_DEVICE_H_
#define THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace thermocline {

struct EmulatedDeviceOptions {
  size_t memory_bytes = size_t{4} << 30;
  uint64_t seed = 1;  // Decides how late things happen.
  bool refuses_captures = false;
  std::optional<size_t> initial_scratch_bytes;  // See CudaDeviceOptions.
};

std::unique_ptr<Device> MakeEmulatedCudaDevice(const EmulatedDeviceOptions& options = {});

// A machine as the CUDA runtime finds it. The two functions return what CountCudaDevices and
// UsableCudaDevices (cuda_device.h) would return there: the same code, on the emulated runtime.
struct EmulatedDriverOptions {
  int driver_version = 13000;             // as CUDA counts them; 0: there is no driver
  int runtime_version = 13000;            // of the toolkit that the program was built with
  std::vector<int> compute_capabilities;  // of each GPU; 90 stands for 9.0
};
absl::StatusOr<int> CountEmulatedGpus(const EmulatedDriverOptions& options);
absl::StatusOr<std::vector<int>> UsableEmulatedGpus(const EmulatedDriverOptions& options);

// Counts over all devices of this process so far: graphs replayed, blocks of pinned memory
// allocated, waits that kept their thread busy.
int64_t NumEmulatedGraphLaunches();
int64_t NumEmulatedHostAllocations();
int64_t NumEmulatedSpinningWaits();

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_DEVICE_H_
