#include <immintrin.h>

#include "kernels/cpu/gemm.h"

namespace thermocline {
namespace {

struct Simd {
  using Vec = __m256;
  using Mask = __m256i;
  static constexpr int kWidth = 8;
  static constexpr int kMaxVectors = 2;
  static constexpr int RowsOfTile(int vectors) { return 6; }  // 12 accumulators of 16 registers
  static Vec Zero() { return _mm256_setzero_ps(); }
  static Vec Load(const float* p) { return _mm256_loadu_ps(p); }
  static Vec Broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
  static Mask MaskOf(int64_t n) {
    const int lanes = n >= kWidth ? kWidth : n < 0 ? 0 : static_cast<int>(n);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(lanes), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static Vec MaskLoad(const float* p, Mask mask) { return _mm256_maskload_ps(p, mask); }
  static void MaskStore(float* p, Mask mask, Vec v) { _mm256_maskstore_ps(p, mask, v); }
  static Vec Relu(Vec v) { return _mm256_max_ps(v, _mm256_setzero_ps()); }
  static Vec KeepIfPositive(Vec v, Vec sign) {
    return _mm256_and_ps(_mm256_cmp_ps(sign, _mm256_setzero_ps(), _CMP_GT_OQ), v);
  }
};

#include "kernels/cpu/gemm_tiles.inc"

}  // namespace

void GemmAvx2(const GemmCall& call) { GemmOf(call); }

}  // namespace thermocline
