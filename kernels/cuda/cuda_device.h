// Device on an NVIDIA GPU: every operation of kernels/device.h as CUDA kernels and cuBLASLt
// products. Pooling, segment sums, interactions, updates and loss gradients have the bits of
// CpuDevice; matrix products, and what is computed from them, agree with it up to rounding.
//
// Builds without a CUDA toolkit have these functions, too: they return kUnimplemented.
#ifndef THERMOCLINE_KERNELS_CUDA_CUDA_DEVICE_H_
#define THERMOCLINE_KERNELS_CUDA_CUDA_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace thermocline {

struct CudaDeviceOptions {
  int ordinal = 0;  // The number that CUDA gives the GPU.
  // Memory for operations' partial results at first, which tests set; nullopt: enough for most
  // models.
  std::optional<size_t> initial_scratch_bytes;
};

struct CudaDeviceInfo {
  std::string name;            // "NVIDIA H100 80GB HBM3"
  int compute_capability = 0;  // 90 stands for 9.0
  int64_t total_bytes = 0;
  int64_t free_bytes = 0;  // At the time of the call.
};

// Errors of the functions below: kUnimplemented (built without CUDA), kNotFound (no driver, or no
// such GPU), kFailedPrecondition (there is a GPU that can't be used: its driver is older than the
// CUDA runtime of this program, it is too old itself, or there is no cuBLASLt library: the message
// says which), kInternal (another failure, in CUDA's words).

// Returns how many GPUs this process may use ($CUDA_VISIBLE_DEVICES limits them), at least 1.
absl::StatusOr<int> CountCudaDevices();
// Returns the ordinals of the GPUs that MakeCudaDevice doesn't refuse for their age, at least one.
absl::StatusOr<std::vector<int>> UsableCudaDevices();
absl::StatusOr<CudaDeviceInfo> GetCudaDeviceInfo(const CudaDeviceOptions& options);
// Everything that the device makes (events, MLPs, captured work) is destroyed before it; its
// buffers may outlive it.
absl::StatusOr<std::unique_ptr<Device>> MakeCudaDevice(const CudaDeviceOptions& options);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_CUDA_DEVICE_H_
