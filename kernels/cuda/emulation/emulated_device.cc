#include "kernels/cuda/emulation/emulated_device.h"

#include "kernels/cuda/emulation/emulated_gemm.h"
#include "kernels/cuda/gpu_driver.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
namespace {

void Set(const EmulatedDriverOptions& options) {
  emulated_cuda::SetEmulatedDriver(options.driver_version, options.runtime_version,
                                   options.compute_capabilities);
}

}  // namespace

absl::StatusOr<int> CountEmulatedGpus(const EmulatedDriverOptions& options) {
  Set(options);
  return emulated_cuda::CountGpus();
}

absl::StatusOr<std::vector<int>> UsableEmulatedGpus(const EmulatedDriverOptions& options) {
  Set(options);
  return emulated_cuda::UsableGpus();
}

std::unique_ptr<Device> MakeEmulatedCudaDevice(const EmulatedDeviceOptions& options) {
  const int ordinal = emulated_cuda::MakeEmulatedDevice(options.memory_bytes, options.seed,
                                                        options.refuses_captures);
  return std::make_unique<emulated_cuda::StreamDevice>(
      ordinal, std::make_unique<emulated_cuda::EmulatedGemm>());
}

int64_t NumEmulatedGraphLaunches() { return emulated_cuda::NumGraphLaunches(); }
int64_t NumEmulatedHostAllocations() { return emulated_cuda::NumHostAllocations(); }
int64_t NumEmulatedSpinningWaits() { return emulated_cuda::NumSpinningWaits(); }

}  // namespace thermocline
