// Gemm by cuBLASLt. The algorithm for a shape is the first that the library's heuristic names; it
// is chosen when the shape is first seen, and kept. So the bits are the same from run to run on one
// kind of GPU with one version of the library.
//
// The library is loaded when it is first asked for: programs built with CUDA start on machines
// without it, and those that run on the CPU never map its hundreds of megabytes.
#ifndef THERMOCLINE_KERNELS_CUDA_CUBLASLT_GEMM_H_
#define THERMOCLINE_KERNELS_CUDA_CUBLASLT_GEMM_H_

#include <cublasLt.h>

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm.h"

namespace thermocline {
namespace cuda {

// Makes products for the calling thread's current device, and allocates a workspace there.
// Errors: kNotFound (no library), kInternal (the library's words), kResourceExhausted (no memory)
absl::StatusOr<std::unique_ptr<Gemm>> MakeCublasLtGemm();

#define THERMOCLINE_CUBLASLT_FUNCTIONS(FUNCTION) \
  FUNCTION(cublasLtCreate)                       \
  FUNCTION(cublasLtDestroy)                      \
  FUNCTION(cublasLtGetStatusString)              \
  FUNCTION(cublasLtMatmul)                       \
  FUNCTION(cublasLtMatmulAlgoGetHeuristic)       \
  FUNCTION(cublasLtMatmulDescCreate)             \
  FUNCTION(cublasLtMatmulDescDestroy)            \
  FUNCTION(cublasLtMatmulDescSetAttribute)       \
  FUNCTION(cublasLtMatmulPreferenceCreate)       \
  FUNCTION(cublasLtMatmulPreferenceDestroy)      \
  FUNCTION(cublasLtMatmulPreferenceSetAttribute) \
  FUNCTION(cublasLtMatrixLayoutCreate)           \
  FUNCTION(cublasLtMatrixLayoutDestroy)

// The library's functions by their own names. They are valid until the program ends.
struct CublasLtLibrary {
#define THERMOCLINE_DECLARE(name) decltype(&::name) name = nullptr;
  THERMOCLINE_CUBLASLT_FUNCTIONS(THERMOCLINE_DECLARE)
#undef THERMOCLINE_DECLARE
};

// Looks for the library where the loader looks (LD_LIBRARY_PATH, the system's cache), then in the
// toolkit that this program was built with. Errors: kFailedPrecondition (the loader's words)
absl::StatusOr<const CublasLtLibrary*> LoadCublasLt();

}  // namespace cuda
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_CUBLASLT_GEMM_H_
