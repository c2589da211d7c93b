// Matrix products of one thread, C = A B, on packed B.
//
// Every element of C is one chain of fused multiply-adds in ascending k, whatever the instruction
// set, the blocking and the split of rows and columns over threads. So are its bits.
#ifndef THERMOCLINE_KERNELS_CPU_GEMM_H_
#define THERMOCLINE_KERNELS_CPU_GEMM_H_

#include <cstdint>

namespace thermocline {

// Columns of B in one packed panel, and rows of C that suit the widest tile.
inline constexpr int kGemmPanel = 32;
inline constexpr int kGemmRows = 12;

constexpr int64_t PackedPanels(int64_t n) { return (n + kGemmPanel - 1) / kGemmPanel; }
// Floats of B [k, n] packed: [panels][k][kGemmPanel], zeros beyond column n.
constexpr int64_t PackedFloats(int64_t k, int64_t n) { return PackedPanels(n) * k * kGemmPanel; }

// Packs panels [first_panel, last_panel) of B to `packed` (where first_panel begins).
void PackPanels(const float* b, int64_t ld, int64_t k, int64_t n,  // [k, n]
                int64_t first_panel, int64_t last_panel, float* packed);
// The same for B = b^T. `b` is [n, k].
void PackPanelsTransposed(const float* b, int64_t ld, int64_t k, int64_t n, int64_t first_panel,
                          int64_t last_panel, float* packed);

struct GemmCall {
  int64_t m = 0, n = 0, k = 0;
  // A(i, l) = a[i * a_row_stride + l * a_column_stride]; one of the strides is 1.
  const float* a = nullptr;
  int64_t a_row_stride = 0, a_column_stride = 0;
  const float* packed_b = nullptr;  // panels of [k, n]
  float* c = nullptr;               // [m, n]; nothing beyond column n is written
  int64_t ldc = 0;
  // Chains start at: C itself, bias[j], or zero.
  bool accumulate = false;
  const float* bias = nullptr;  // [n] or null
  // Then C is kept where it is positive (relu), or where keep_if_positive(i, j) is; zero elsewhere.
  bool relu = false;
  const float* keep_if_positive = nullptr;  // [m, n] or null
  int64_t keep_ld = 0;
};

using GemmFunction = void (*)(const GemmCall& call);
void GemmAvx2(const GemmCall& call);
void GemmAvx512(const GemmCall& call);

// Whether this machine can run GemmAvx512.
bool HasAvx512();

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_GEMM_H_
