#include "kernels/cuda/cuda_device.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kernels/cuda/cublaslt_gemm.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
namespace {

// The oldest architecture that the kernels are compiled for.
constexpr int kMinComputeCapability = 80;

std::string VersionName(int version) {  // as CUDA counts them: 13000 is 13.0
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

absl::Status StatusOf(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

// Without a context on the device, which takes time and memory.
absl::StatusOr<int> ComputeCapabilityOf(int ordinal) {
  int major = 0, minor = 0;
  RETURN_IF_ERROR(StatusOf(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "asking a GPU"));
  RETURN_IF_ERROR(StatusOf(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "asking a GPU"));
  return major * 10 + minor;
}

absl::Status TooOld(absl::string_view device, int compute_capability) {
  return absl::NotFoundError(absl::StrCat(
      device, " has compute capability ", compute_capability / 10, ".", compute_capability % 10,
      "; this program needs ", kMinComputeCapability / 10, ".", kMinComputeCapability % 10));
}

}  // namespace

absl::StatusOr<std::vector<int>> UsableCudaDevices() {
  ASSIGN_OR_RETURN(const int count, CountCudaDevices());
  std::vector<int> usable;
  int best = 0;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(const int compute_capability, ComputeCapabilityOf(ordinal));
    best = std::max(best, compute_capability);
    if (compute_capability >= kMinComputeCapability) usable.push_back(ordinal);
  }
  if (usable.empty()) return TooOld(count == 1 ? "the GPU" : "the newest GPU", best);
  return usable;
}

absl::StatusOr<int> CountCudaDevices() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    if (driver == 0) return absl::NotFoundError("no GPU: this machine has no NVIDIA driver");
    return absl::NotFoundError(absl::StrCat("no GPU: the NVIDIA driver is for CUDA ",
                                            VersionName(driver), "; this program needs ",
                                            VersionName(CUDART_VERSION)));
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::NotFoundError("no GPU: the NVIDIA driver finds none");
  }
  RETURN_IF_ERROR(StatusOf(error, "counting the GPUs"));
  return count;
}

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
  info.num_multiprocessors = properties.multiProcessorCount;
  info.total_bytes = static_cast<int64_t>(total_bytes);
  info.free_bytes = static_cast<int64_t>(free_bytes);
  return info;
}

absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options) {
  ASSIGN_OR_RETURN(const CudaDeviceInfo info, GetCudaDeviceInfo(options));
  if (info.compute_capability < kMinComputeCapability) {
    return TooOld(absl::StrCat(info.name, " (GPU ", options.ordinal, ")"), info.compute_capability);
  }
  ASSIGN_OR_RETURN(std::unique_ptr<cuda::Gemm> gemm, cuda::MakeCublasLtGemm());
  auto device = std::make_unique<cuda::StreamDevice>(options.ordinal, std::move(gemm));
  RETURN_IF_ERROR(device->Synchronize());
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace thermocline
