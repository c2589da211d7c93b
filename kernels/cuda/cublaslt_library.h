// cuBLASLt, loaded when it is first asked for: programs built with CUDA start on machines without
// it, and those that run on the CPU never map its hundreds of megabytes.
#ifndef THERMOCLINE_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
#define THERMOCLINE_KERNELS_CUDA_CUBLASLT_LIBRARY_H_

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace thermocline {
namespace cuda {

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

// The functions by their own names. Valid until the program ends.
struct CublasLtLibrary {
#define THERMOCLINE_DECLARE(name) decltype(&::name) name = nullptr;
  THERMOCLINE_CUBLASLT_FUNCTIONS(THERMOCLINE_DECLARE)
#undef THERMOCLINE_DECLARE
};

// Looks where the loader looks (LD_LIBRARY_PATH, the system's cache), then in the toolkit that this
// program was built with. Errors: kFailedPrecondition (the loader's words)
absl::StatusOr<const CublasLtLibrary*> LoadCublasLt();

}  // namespace cuda
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_CUBLASLT_LIBRARY_H_
