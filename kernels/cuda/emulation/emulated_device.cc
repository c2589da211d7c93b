#include "kernels/cuda/emulation/emulated_device.h"

#include "kernels/cuda/emulation/emulated_gemm.h"
#include "kernels/cuda/gpu_driver.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
namespace emulated_cuda {
namespace {

EmulatedDriverOptions& Driver() {
  static EmulatedDriverOptions* const driver = new EmulatedDriverOptions;
  return *driver;
}

}  // namespace

cudaError_t cudaGetDeviceCount(int* count) {
  const EmulatedDriverOptions& driver = Driver();
  if (driver.driver_version < driver.runtime_version) return cudaErrorInsufficientDriver;
  *count = static_cast<int>(driver.compute_capabilities.size());
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Driver().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = Driver().runtime_version;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int ordinal) {
  const std::vector<int>& gpus = Driver().compute_capabilities;
  if (ordinal < 0 || ordinal >= static_cast<int>(gpus.size())) return cudaErrorInvalidDevice;
  *value = attribute == cudaDevAttrComputeCapabilityMajor ? gpus[ordinal] / 10 : gpus[ordinal] % 10;
  return cudaSuccess;
}

}  // namespace emulated_cuda

absl::StatusOr<int> CountEmulatedGpus(const EmulatedDriverOptions& options) {
  emulated_cuda::Driver() = options;
  return emulated_cuda::CountGpus();
}

absl::StatusOr<std::vector<int>> UsableEmulatedGpus(const EmulatedDriverOptions& options) {
  emulated_cuda::Driver() = options;
  return emulated_cuda::UsableGpus();
}

std::unique_ptr<Device> MakeEmulatedCudaDevice(const EmulatedDeviceOptions& options) {
  const int ordinal = emulated_cuda::MakeEmulatedDevice(options.memory_bytes, options.seed,
                                                        options.refuses_captures);
  return std::make_unique<emulated_cuda::StreamDevice>(
      ordinal, std::make_unique<emulated_cuda::EmulatedGemm>(),
      options.initial_scratch_bytes.value_or(emulated_cuda::kInitialScratchBytes));
}

int64_t NumEmulatedGraphLaunches() { return emulated_cuda::NumGraphLaunches(); }
int64_t NumEmulatedHostAllocations() { return emulated_cuda::NumHostAllocations(); }
int64_t NumEmulatedSpinningWaits() { return emulated_cuda::NumSpinningWaits(); }

}  // namespace thermocline
