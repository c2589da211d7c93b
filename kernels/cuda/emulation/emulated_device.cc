#include "kernels/cuda/emulation/emulated_device.h"

#include "kernels/cuda/emulation/emulated_gemm.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {

std::unique_ptr<Device> MakeEmulatedCudaDevice(const EmulatedDeviceOptions& options) {
  const int ordinal = emulated_cuda::MakeEmulatedDevice(options.memory_bytes, options.seed);
  return std::make_unique<emulated_cuda::StreamDevice>(
      ordinal, std::make_unique<emulated_cuda::EmulatedGemm>());
}

int64_t NumEmulatedGraphLaunches() { return emulated_cuda::NumGraphLaunches(); }

}  // namespace thermocline
