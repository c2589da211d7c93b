// Compiled with -mavx512f; called only where the CPU has it (HasAvx512).
#include <immintrin.h>

#include "kernels/cpu/gemm.h"

namespace thermocline {
namespace {

struct Simd {
  using Vec = __m512;
  using Mask = __mmask16;
  static constexpr int kWidth = 16;
  static constexpr int kMaxVectors = 4;
  // 24 accumulators of the 32 registers: few loads and broadcasts for each multiply-add.
  static constexpr int RowsOfTile(int vectors) { return vectors == 4 ? 6 : vectors == 3 ? 8 : 12; }
  static Vec Zero() { return _mm512_setzero_ps(); }
  static Vec Load(const float* p) { return _mm512_loadu_ps(p); }
  static Vec Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  static Mask MaskOf(int64_t n) {
    return n >= kWidth ? static_cast<Mask>(0xFFFF) : static_cast<Mask>((1u << (n < 0 ? 0 : n)) - 1);
  }
  static Vec MaskLoad(const float* p, Mask mask) { return _mm512_maskz_loadu_ps(mask, p); }
  static void MaskStore(float* p, Mask mask, Vec v) { _mm512_mask_storeu_ps(p, mask, v); }
  static Vec Relu(Vec v) { return _mm512_max_ps(v, _mm512_setzero_ps()); }
  static Vec KeepIfPositive(Vec v, Vec sign) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(sign, _mm512_setzero_ps(), _CMP_GT_OQ), v);
  }
};

#include "kernels/cpu/gemm_tiles.inc"

}  // namespace

void GemmAvx512(const GemmCall& call) { GemmOf(call); }

}  // namespace thermocline
