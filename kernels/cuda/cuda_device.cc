#include "kernels/cuda/cuda_device.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "kernels/cuda/cublaslt_gemm.h"
#include "kernels/cuda/gpu_driver.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
using cuda::StatusOf;

absl::StatusOr<int> CountCudaDevices() { return cuda::CountGpus(); }

absl::StatusOr<std::vector<int>> UsableCudaDevices() { return cuda::UsableGpus(); }

absl::StatusOr<CudaDeviceInfo> GetCudaDeviceInfo(const CudaDeviceOptions& options) {
  ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  if (options.ordinal < 0 || options.ordinal >= count) {
    return absl::NotFoundError(
        absl::StrCat("no GPU ", options.ordinal, ": this machine has ", count, ", counted from 0"));
  }
  cudaDeviceProp properties;
  RETURN_IF_ERROR(StatusOf(cudaGetDeviceProperties(&properties, options.ordinal),
                           absl::StrCat("asking GPU ", options.ordinal)));
  RETURN_IF_ERROR(StatusOf(cudaSetDevice(options.ordinal), "choosing the device"));
  size_t free_bytes = 0, total_bytes = 0;
  RETURN_IF_ERROR(StatusOf(cudaMemGetInfo(&free_bytes, &total_bytes), "asking for free memory"));
  CudaDeviceInfo info;
  info.name = properties.name;
  info.compute_capability = properties.major * 10 + properties.minor;
  info.total_bytes = static_cast<int64_t>(total_bytes);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  return info;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options) {
  ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo(options));
  RETURN_IF_ERROR(cuda::CheckComputeCapability(
      absl::StrCat(info.name, " (GPU ", options.ordinal, ")"), info.compute_capability));
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Gemm> gemm, cuda::MakeCublasLtGemm());
  auto device = std::make_unique<cuda::StreamDevice>(
      options.ordinal, std::move(gemm),
      options.initial_scratch_bytes.value_or(cuda::kInitialScratchBytes));
  RETURN_IF_ERROR(device->Synchronize());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace thermocline
