// Compiled with -mavx512f, -mavx512bw and -mavx512bf16; called only where the CPU has these
// (HasAvx512Bf16).
#include <immintrin.h>

#include "kernels/cpu/bf16_gemm.h"

namespace thermocline {
namespace {

#include "kernels/cpu/vectors_avx512.inc"

struct Simd : Vectors {
  using Call = Bf16GemmCall;
  using Element = Bf16Pair;
  using Factor = __m512i;
  // All steps, since a tile that is stored as bf16 can't be added to.
  static constexpr int64_t kMaxDepth = INT64_MAX;
  static constexpr bool kTakesRowMajor = false;
  static Factor Load(const Bf16Pair* p) { return _mm512_loadu_si512(p); }
  static Factor Broadcast(const Bf16Pair* p) { return _mm512_set1_epi32(static_cast<int>(*p)); }
  // The instruction adds the product of the high halves first.
  static Vec MultiplyAdd(Factor a, Factor b, Vec c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
  }
  // [first[0], ..., first[15], second[0], ..., second[15]] in bf16
  static __m512i Round(Vec first, Vec second) {
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
  }

  template <int kRows, int kVectors>
  static bool StorePairs(const Call& call, int64_t row, int64_t column,
                         const Mask (&mask)[kVectors], Vec (&acc)[kRows][kVectors]) {
    if (call.c.data != nullptr) return false;
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[r][v] = _mm512_maskz_mov_ps(mask[v], acc[r][v]);
    }
    if (call.kept.data != nullptr) StoreKept(call.kept.ByteAt(row, column), acc);
    if (call.row_pairs.data != nullptr) StoreRowPairs(call.row_pairs, row, column, acc);
    if (call.column_pairs.data != nullptr) StoreColumnPairs(call.column_pairs, row, column, acc);
    return true;
  }

  // The bits of two vectors at once, of what StoreColumnPairs stores. None is a NaN behind a ReLU.
  template <int kRows, int kVectors>
  static void StoreKept(char* bits, const Vec (&acc)[kRows][kVectors]) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v += 2) {
        const __m512i both = Round(acc[r][v], v + 1 < kVectors ? acc[r][v + 1] : Zero());
        const __mmask32 is_positive = _mm512_cmpgt_epi16_mask(both, _mm512_setzero_si512());
        __builtin_memcpy(bits + 8 * r + v * (kWidth / 8), &is_positive, sizeof(is_positive));
      }
    }
  }

  template <int kRows, int kVectors>
  static void StoreRowPairs(const PanelView<Bf16Pair>& to, int64_t row, int64_t column,
                            const Vec (&acc)[kRows][kVectors]) {
    alignas(64) static constexpr uint16_t kInterleaved[32] = {
        16, 0, 17, 1, 18, 2,  19, 3,  20, 4,  21, 5,  22, 6,  23, 7,
        24, 8, 25, 9, 26, 10, 27, 11, 28, 12, 29, 13, 30, 14, 31, 15};
    const __m512i interleaved = _mm512_load_si512(kInterleaved);
    Bf16Pair* at = to.At(row / 2, column);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; r += 2, at += to.row_stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const __m512i both = Round(acc[r][v], r + 1 < kRows ? acc[r + 1][v] : Zero());
        _mm512_storeu_si512(at + v * kWidth, _mm512_permutexvar_epi16(interleaved, both));
      }
    }
  }

  template <int kRows, int kVectors>
  static void StoreColumnPairs(const PanelView<Bf16Pair>& to, int64_t row, int64_t column,
                               const Vec (&acc)[kRows][kVectors]) {
    Bf16Pair* at = to.At(row, column / 2);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r, at += to.row_stride) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; v += 2) {
        const __m512i both = Round(acc[r][v], v + 1 < kVectors ? acc[r][v + 1] : Zero());
        _mm512_storeu_si512(at + v * (kWidth / 2), _mm512_rol_epi32(both, 16));
      }
    }
  }
};

#include "kernels/cpu/gemm_tiles.inc"

}  // namespace

void Bf16GemmAvx512(const Bf16GemmCall& call) { GemmOf(call); }

}  // namespace thermocline
