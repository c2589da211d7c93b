#include "kernels/cuda/gpu_driver.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

std::string VersionName(int version) {  // as CUDA counts them: 13000 is 13.0
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// Explains cudaErrorInsufficientDriver: the driver's library is older than the runtime, or the
// runtime finds none to load.
absl::Status InsufficientDriver() {
  int driver = 0, runtime = 0;
  static_cast<void>(cudaDriverGetVersion(&driver));
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  if (driver == 0) {
    return absl::NotFoundError(absl::StrCat(
        "no GPU: the library of the NVIDIA driver (libcuda.so.1) is not there; this program needs "
        "one for CUDA ",
        VersionName(runtime)));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "the NVIDIA driver is too old: it is for CUDA ", VersionName(driver),
      "; this program was built with CUDA ", VersionName(runtime), " (install a newer driver)"));
}

absl::StatusOr<int> ComputeCapabilityOf(int ordinal) {
  int major = 0, minor = 0;
  RETURN_IF_ERROR(StatusOf(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal), "asking a GPU"));
  RETURN_IF_ERROR(StatusOf(
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal), "asking a GPU"));
  return major * 10 + minor;
}

}  // namespace

absl::Status StatusOf(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("CUDA: ", what, ": ", cudaGetErrorString(error)));
}

absl::StatusOr<int> CountGpus() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) return InsufficientDriver();
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::NotFoundError("no GPU: the NVIDIA driver finds none");
  }
  RETURN_IF_ERROR(StatusOf(error, "counting the GPUs"));
  return count;
}

absl::Status CheckComputeCapability(absl::string_view gpu, int compute_capability) {
  if (compute_capability >= kMinComputeCapability) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      gpu, " has compute capability ", compute_capability / 10, ".", compute_capability % 10,
      "; this program needs ", kMinComputeCapability / 10, ".", kMinComputeCapability % 10));
}

absl::StatusOr<std::vector<int>> UsableGpus() {
  ASSIGN_OR_RETURN(const int count, CountGpus());
  std::vector<int> usable;
  int best = 0;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(const int compute_capability, ComputeCapabilityOf(ordinal));
    best = std::max(best, compute_capability);
    if (compute_capability >= kMinComputeCapability) usable.push_back(ordinal);
  }
  if (usable.empty()) {
    return CheckComputeCapability(count == 1 ? "the GPU" : "the newest GPU", best);
  }
  return usable;
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
