// Matrix products of one thread, C = A B, whose factors are rounded to bf16 and whose sums are
// float32, on matrices stored in panels of columns (gemm.h).
//
// Every element of C is one chain in ascending k. A step of it multiplies two numbers of bf16, adds
// the product to the sum so far, and rounds once to float32, to nearest even. Denormal numbers of
// either format count as zeros of their sign, as factors, in a sum, and as its result. This is what
// `vdpbf16ps` computes, and what two fused multiply-adds compute that flush denormals, so the bits
// are the same with AVX-512's bf16 instructions and with AVX2; of NaNs only that they are NaNs.
// A chain of odd length ends with one step more, of zeros: it turns a sum of -0 into +0.
#ifndef THERMOCLINE_KERNELS_CPU_BF16_GEMM_H_
#define THERMOCLINE_KERNELS_CPU_BF16_GEMM_H_

#include <cstdint>

#include "kernels/cpu/gemm.h"

namespace thermocline {

// Two bf16 numbers, the first in the high half; a zero follows the last of an odd number. A matrix
// [r, c] is stored in pairs of rows, [ceil(r / 2), c], or in pairs of columns, [r, ceil(c / 2)];
// both in packed views. A float is rounded to nearest even; a denormal number becomes a zero of its
// sign.
using Bf16Pair = uint32_t;

constexpr int64_t NumPairs(int64_t numbers) { return (numbers + 1) / 2; }

// k, in pairs: A [m, k] is in pairs of columns, or [k, m] in pairs of rows where a_transposed; B
// [k, n] in pairs of rows.
struct Bf16GemmCall : ProductCall<Bf16Pair> {
  // Where `c` is null, C is rounded to bf16 and stored in each of these that is not null. Panels
  // may get zeros beyond column n.
  PanelView<Bf16Pair> row_pairs;     // [ceil(m / 2), n]
  PanelView<Bf16Pair> column_pairs;  // [m, ceil(n / 2)]
};

using Bf16GemmFunction = void (*)(const Bf16GemmCall& call);
void Bf16GemmAvx2(const Bf16GemmCall& call);
void Bf16GemmAvx512(const Bf16GemmCall& call);

// Whether this machine can run Bf16GemmAvx512.
bool HasAvx512Bf16();

// The call that rounds x [m, n] to row_pairs and column_pairs, which are null yet.
Bf16GemmCall RoundingCall(PanelView<const float> x, int64_t m, int64_t n);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_BF16_GEMM_H_
