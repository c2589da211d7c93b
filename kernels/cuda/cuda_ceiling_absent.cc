// Linked where no CUDA toolkit was found at build time.
#include "kernels/cuda/cuda_ceiling.h"

namespace thermocline {

absl::StatusOr<double> MeasureCudaCopy(const CudaDeviceOptions& options) {
  return MakeCudaDevice(options).status();
}

absl::StatusOr<double> MeasureCudaProducts(const CudaDeviceOptions& options,
                                           absl::Span<const ProductShape>, MlpPrecision) {
  return MakeCudaDevice(options).status();
}

}  // namespace thermocline
