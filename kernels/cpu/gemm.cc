#include "kernels/cpu/gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "common/base/process.h"
#include "kernels/cpu/cpu_operations.h"

namespace thermocline {

namespace {

// Rows are fetched so far ahead: their stride is beyond the hardware's prefetchers.
constexpr int64_t kRowsAhead = 16;

// to [8, 8] = from^T.
void Transpose8(const float* from, int64_t from_ld, float* to, int64_t to_ld) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_ld);
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
    _mm256_storeu_ps(to + i * to_ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_ld, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
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

void PackPanelTransposed(const float* b, int64_t ld, int64_t k, int64_t n, int64_t panel,
                         float* packed) {
  const int64_t column = panel * kGemmPanel;
  const int64_t columns = std::min<int64_t>(kGemmPanel, n - column);
  if (columns < kGemmPanel) std::memset(packed, 0, k * kGemmPanel * sizeof(float));
  for (int64_t begin = 0; begin < k; begin += kFloatsPerLine) {
    const int64_t end = std::min(begin + kFloatsPerLine, k);
    int64_t j = 0;
    for (; j + 8 <= columns; j += 8) {
      const float* from = b + (column + j) * ld;
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
      const float* from = b + (column + j) * ld;
      for (int64_t l = begin; l < end; ++l) packed[l * kGemmPanel + j] = from[l];
    }
  }
}

bool HasAvx512() { return CpuHasAvx512(); }

}  // namespace thermocline
