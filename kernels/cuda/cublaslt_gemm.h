// Gemm by cuBLASLt. The algorithm for a shape is the first of the library's heuristic, chosen when
// the shape is first seen and kept: the same bits from run to run on one kind of GPU and one
// version of the library.
#ifndef THERMOCLINE_KERNELS_CUDA_CUBLASLT_GEMM_H_
#define THERMOCLINE_KERNELS_CUDA_CUBLASLT_GEMM_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.h"

namespace thermocline {
namespace cuda {

// On the calling thread's current device, which it allocates a workspace of.
// Errors: kNotFound (no library), kInternal (the library's words), kResourceExhausted (no memory)
absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm();

}  // namespace cuda
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_CUBLASLT_GEMM_H_
