#include "kernels/cpu/gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "common/base/process.h"
#include "kernels/cpu/bf16_gemm.h"
#include "kernels/cpu/cpu_operations.h"

namespace thermocline {

namespace {

// Rows are fetched so far ahead: their stride is beyond the hardware's prefetchers.
constexpr int64_t kRowsAhead = 16;

__m256 LoadBits(const float* from) { return _mm256_loadu_ps(from); }
__m256 LoadBits(const uint32_t* from) {
  return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
void StoreBits(float* to, __m256 v) { _mm256_storeu_ps(to, v); }
void StoreBits(uint32_t* to, __m256 v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_castps_si256(v));
}

// to [8, 8] = from^T.
template <typename T>
void Transpose8(const T* from, int64_t from_ld, T* to, int64_t to_ld) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = LoadBits(from + i * from_ld);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    StoreBits(to + i * to_ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    StoreBits(to + (i + 4) * to_ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

}  // namespace

void PackPanel(const float* b, int64_t ld, int64_t k, int64_t n, int64_t panel, float* packed) {
  const int64_t column = panel * kGemmPanel;
  const int64_t columns = std::min<int64_t>(kGemmPanel, n - column);
  for (int64_t l = 0; l < k; ++l, packed += kGemmPanel) {
    const float* from = b + l * ld + column;
    if (l + kRowsAhead < k) {
      for (int64_t j = 0; j < columns; j += kFloatsPerLine) {
        __builtin_prefetch(from + kRowsAhead * ld + j);
      }
    }
    if (columns == kGemmPanel) {
      std::memcpy(packed, from, kGemmPanel * sizeof(float));
    } else {
      std::memcpy(packed, from, columns * sizeof(float));
      std::memset(packed + columns, 0, (kGemmPanel - columns) * sizeof(float));
    }
  }
}

template <typename T>
void PackPanelTransposed(const T* b, int64_t ld, int64_t k, int64_t n, int64_t panel, T* packed) {
  const int64_t column = panel * kGemmPanel;
  const int64_t columns = std::min<int64_t>(kGemmPanel, n - column);
  if (columns < kGemmPanel) std::memset(packed, 0, k * kGemmPanel * sizeof(T));
  for (int64_t begin = 0; begin < k; begin += kFloatsPerLine) {
    const int64_t end = std::min(begin + kFloatsPerLine, k);
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) {
      const T* from = b + (column + j) * ld;
      for (int i = 0; i < 8 && end < k; ++i) __builtin_prefetch(from + i * ld + end);
      int64_t l = begin;
      for (; l + 8 <= end; l += 8) {
        Transpose8(from + l, ld, packed + l * kGemmPanel + j, kGemmPanel);
      }
      for (; l < end; ++l) {
        for (int i = 0; i < 8; ++i) packed[l * kGemmPanel + j + i] = from[i * ld + l];
      }
    }
    for (; j < columns; ++j) {
      const T* from = b + (column + j) * ld;
      for (int64_t l = begin; l < end; ++l) packed[l * kGemmPanel + j] = from[l];
    }
  }
}

template void PackPanelTransposed(const float* b, int64_t ld, int64_t k, int64_t n, int64_t panel,
                                  float* packed);
template void PackPanelTransposed(const uint32_t* b, int64_t ld, int64_t k, int64_t n,
                                  int64_t panel, uint32_t* packed);

bool HasAvx512() { return CpuHasAvx512(); }
bool HasAvx512Bf16() { return CpuHasAvx512Bf16(); }

Bf16GemmCall RoundingCall(PanelView<const float> x, int64_t m, int64_t n) {
  Bf16GemmCall call;
  call.m = m;
  call.n = n;
  call.start = x;
  return call;
}

}  // namespace thermocline
