#include <immintrin.h>

#include "kernels/cpu/bf16_gemm.h"

namespace thermocline {
namespace {

#include "kernels/cpu/vectors_avx2.inc"

struct Simd : Vectors {
  using Call = Bf16GemmCall;
  using Element = Bf16Pair;
  using Factor = __m256i;
  // 8 accumulators, and both halves of B's pairs and of A's, in 16 registers.
  static constexpr int RowsOfTile(int vectors) { return 4; }
  // All steps, since a tile that is stored as bf16 can't be added to.
  static constexpr int64_t kMaxDepth = INT64_MAX;
  static constexpr bool kTakesRowMajor = false;
  static Factor Load(const Bf16Pair* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Factor Broadcast(const Bf16Pair* p) { return _mm256_set1_epi32(static_cast<int>(*p)); }
  // The numbers in the high and in the low halves of pairs, as floats.
  static Vec High(__m256i pairs) { return _mm256_castsi256_ps(HighBits(pairs)); }
  static Vec Low(__m256i pairs) { return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16)); }
  static __m256i HighBits(__m256i bits) {
    return _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xFFFF0000)));
  }
  static Vec MultiplyAdd(Factor a, Factor b, Vec c) {
    return _mm256_fmadd_ps(Low(a), Low(b), _mm256_fmadd_ps(High(a), High(b), c));
  }

  // Floats rounded to bf16, in the high halves; zeros in the low ones.
  static __m256i Round(Vec v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i is_odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(is_odd, _mm256_set1_epi32(0x7FFF));
    const __m256i rounded = _mm256_add_epi32(bits, half);
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7F800000));
    const __m256i is_tiny = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
    const __m256i zero = _mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0x80000000)));
    const __m256i number = _mm256_blendv_epi8(rounded, quiet, is_nan);
    return HighBits(_mm256_blendv_epi8(number, zero, is_tiny));
  }
  static __m256i Pair(__m256i high, __m256i low) {
    return _mm256_or_si256(high, _mm256_srli_epi32(low, 16));
  }
  static void Store(Bf16Pair* p, __m256i pairs) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), pairs);
  }

  template <int kRows, int kVectors>
  static bool StorePairs(const Call& call, int64_t row, int64_t column,
                         const Mask (&mask)[kVectors], Vec (&acc)[kRows][kVectors]) {
    if (call.c.data != nullptr) return false;
    // Zeros follow an odd number of rows or vectors.
    __m256i rounded[kRows + kRows % 2][2] = {};
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) {
        rounded[r][v] = _mm256_and_si256(mask[v], Round(acc[r][v]));
      }
    }
    if (call.kept.data != nullptr) {
      char* const bits = call.kept.ByteAt(row, column);
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < kVectors; ++v) StorePositive(acc[r][v], bits + 8 * r + v);
      }
    }
    if (call.row_pairs.data != nullptr) {
      Bf16Pair* at = call.row_pairs.At(row / 2, column);
      for (int r = 0; r < kRows; r += 2, at += call.row_pairs.row_stride) {
        for (int v = 0; v < kVectors; ++v) {
          Store(at + v * kWidth, Pair(rounded[r][v], rounded[r + 1][v]));
        }
      }
    }
    if (call.column_pairs.data != nullptr) {
      Bf16Pair* at = call.column_pairs.At(row, column / 2);
      for (int r = 0; r < kRows; ++r, at += call.column_pairs.row_stride) {
        const Vec first = _mm256_castsi256_ps(rounded[r][0]);
        const Vec second = _mm256_castsi256_ps(rounded[r][1]);
        const __m256i even = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88));
        const __m256i odd = _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD));
        Store(at, _mm256_permute4x64_epi64(Pair(even, odd), 0xD8));
      }
    }
    return true;
  }
};

#include "kernels/cpu/gemm_tiles.inc"

constexpr unsigned kFlushAndDenormalsAreZero = 0x8040;

// Not inlined, so that no arithmetic leaves the lines in which the mode holds.
__attribute__((noinline)) void GemmInMode(const Bf16GemmCall& call) { GemmOf(call); }

}  // namespace

void Bf16GemmAvx2(const Bf16GemmCall& call) {
  const unsigned mode = _mm_getcsr();
  _mm_setcsr(mode | kFlushAndDenormalsAreZero);
  GemmInMode(call);
  _mm_setcsr(mode);
}

}  // namespace thermocline
