// The most that a GPU can do, measured on random data: benchmarks of kernels are compared with it.
#ifndef THERMOCLINE_KERNELS_CUDA_CUDA_CEILING_H_
#define THERMOCLINE_KERNELS_CUDA_CUDA_CEILING_H_

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/mlp.h"
#include "kernels/step_benchmark.h"

namespace thermocline {

// Returns bytes a second, read and written, of a copy in device memory far larger than its caches.
// Errors of both functions: as MakeCudaDevice.
absl::StatusOr<double> MeasureCudaCopy(const CudaDeviceOptions& options);

// Returns the seconds that these products take one after the other, by cuBLASLt alone: without
// bias, rows unpadded.
absl::StatusOr<double> MeasureCudaProducts(const CudaDeviceOptions& options,
                                           absl::Span<const ProductShape> shapes,
                                           MlpPrecision precision);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_CUDA_CEILING_H_
