// Linked where no CUDA toolkit was found at build time.
#include "absl/status/status.h"
#include "kernels/cuda/cuda_device.h"

namespace thermocline {
namespace {

absl::Status BuiltWithoutCuda() {
  return absl::UnimplementedError(
      "this program was built without CUDA: no toolkit was found in $CUDA_HOME or /usr/local/cuda");
}

}  // namespace

absl::StatusOr<int> CountCudaDevices() { return BuiltWithoutCuda(); }

absl::StatusOr<std::vector<int>> UsableCudaDevices() { return BuiltWithoutCuda(); }

absl::StatusOr<CudaDeviceInfo> GetCudaDeviceInfo(const CudaDeviceOptions&) {
  return BuiltWithoutCuda();
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions&) {
  return BuiltWithoutCuda();
}

}  // namespace thermocline
