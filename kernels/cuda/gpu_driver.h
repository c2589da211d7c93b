// Tells which GPUs the CUDA runtime offers, or why it offers none: a machine without a GPU, one
// whose driver is older than the toolkit that this program was built with, GPUs too old for its
// kernels. No context is made on a GPU, which would take time and memory.
#ifndef THERMOCLINE_KERNELS_CUDA_GPU_DRIVER_H_
#define THERMOCLINE_KERNELS_CUDA_GPU_DRIVER_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/launch.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

// The oldest architecture that the kernels are compiled for.
inline constexpr int kMinComputeCapability = 80;

// Returns OK, or kInternal with CUDA's words.
absl::Status StatusOf(cudaError_t error, absl::string_view what);

// Returns the number of GPUs, at least 1.
// Errors: kNotFound (the driver finds no GPU, or its library is not there), kFailedPrecondition
// (the driver is older than the CUDA runtime of this program; names both versions), kInternal.
absl::StatusOr<int> CountGpus();

// Returns kFailedPrecondition where the kernels don't run on such a GPU.
absl::Status CheckComputeCapability(absl::string_view gpu, int compute_capability);

// Returns the ordinals of the GPUs that the kernels run on, at least one.
// Errors: as CountGpus; kFailedPrecondition (all are too old).
absl::StatusOr<std::vector<int>> UsableGpus();

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_GPU_DRIVER_H_
