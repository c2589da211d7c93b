// Whether a CPU computes products of bf16 as bf16_gemm.h says.
#ifndef THERMOCLINE_KERNELS_CPU_BF16_CHECK_H_
#define THERMOCLINE_KERNELS_CPU_BF16_CHECK_H_

#include "absl/status/status.h"
#include "kernels/cpu/bf16_gemm.h"

namespace thermocline {

// Compares a checksum of what `gemm` computes with the one that is known to be right, on products
// and roundings that are hard to get right: sums and factors around the least normal number, ties,
// infinities, NaNs, and chains that show their order. Takes about two milliseconds.
// Errors: kFailedPrecondition (it differs; names the first number that Bf16GemmAvx2 computes
// otherwise).
absl::Status CheckBf16Gemm(Bf16GemmFunction gemm);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_BF16_CHECK_H_
