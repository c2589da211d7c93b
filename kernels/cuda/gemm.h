// Matrix products on the device, in a stream's order. Implementations: CublasLtGemm
// (cublaslt_gemm.h); EmulatedGemm (emulation/emulated_device.cc).
#ifndef THERMOCLINE_KERNELS_CUDA_GEMM_H_
#define THERMOCLINE_KERNELS_CUDA_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/launch.h"
#include "kernels/mlp.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

// c = a b, plus the bias, then max(c, 0), where the call has these; all row-major float32 in device
// memory. An operand that is transposed is stored as [k, m] (a) or [n, k] (b). Leading dimensions
// are in elements; pointers need no alignment beyond a float's.
struct GemmCall {
  int64_t m = 0, n = 0, k = 0;  // REQUIRES: all positive
  const float* a = nullptr;     // [m, k]
  int64_t lda = 0;
  bool a_transposed = false;
  const float* b = nullptr;  // [k, n]
  int64_t ldb = 0;
  bool b_transposed = false;
  float* c = nullptr;  // [m, n]; nothing beyond column n is written
  int64_t ldc = 0;
  const float* bias = nullptr;  // [n] or null
  bool relu = false;
  MlpPrecision precision = MlpPrecision::kFloat32;
};

class Gemm {
 public:
  virtual ~Gemm() = default;

  // Queues the product. The first call with a shape may take long. Errors: kInternal (the library's
  // words).
  virtual absl::Status Run(const GemmCall& call, cudaStream_t stream) = 0;
  // Returns how many shapes so far have no algorithm in the precision of their calls, and are
  // computed in kFloat32. Any thread may call it.
  virtual int64_t num_full_precision_shapes() const { return 0; }
};

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_GEMM_H_
