// Compiled with -mavx512f; called only where the CPU has it (HasAvx512).
#include <immintrin.h>

#include "kernels/cpu/gemm.h"

namespace thermocline {
namespace {

#include "kernels/cpu/vectors_avx512.inc"

struct Simd : Vectors {
  using Call = GemmCall;
  using Element = float;
  using Factor = Vec;
  // A tile's rows of A stay in L1 while the panels of B go by.
  static constexpr int64_t kMaxDepth = 512;
  static constexpr bool kTakesRowMajor = true;
  static Factor Load(const float* p) { return _mm512_loadu_ps(p); }
  static Factor Broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static Vec MultiplyAdd(Factor a, Factor b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
  template <typename... Tile>
  static bool StorePairs(const Tile&...) {
    return false;
  }
};

#include "kernels/cpu/gemm_tiles.inc"

}  // namespace

void GemmAvx512(const GemmCall& call) { GemmOf(call); }

}  // namespace thermocline
