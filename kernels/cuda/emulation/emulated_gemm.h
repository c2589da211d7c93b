// Gemm on the emulation: plain loops over factors rounded to the call's precision.
#ifndef THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_GEMM_H_
#define THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_GEMM_H_

#include "kernels/cuda/gemm.h"

namespace thermocline {
namespace emulated_cuda {

class EmulatedGemm : public Gemm {
 public:
  absl::Status Run(const GemmCall& call, cudaStream_t stream) override;
};

}  // namespace emulated_cuda
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_EMULATION_EMULATED_GEMM_H_
