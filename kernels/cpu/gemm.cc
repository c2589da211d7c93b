#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

namespace thermocline {

void PackPanel(const float* b, int64_t ld, int64_t k, int64_t n, int64_t panel, float* packed) {
  const int64_t column = panel * kGemmPanel;
  const int64_t columns = std::min<int64_t>(kGemmPanel, n - column);
  for (int64_t l = 0; l < k; ++l, packed += kGemmPanel) {
    const float* from = b + l * ld + column;
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
  constexpr int64_t kBlock = 16;  // Of k: a cache line of each row of b.
  for (int64_t begin = 0; begin < k; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, k);
    for (int64_t j = 0; j < columns; ++j) {
      const float* from = b + (column + j) * ld;
      for (int64_t l = begin; l < end; ++l) packed[l * kGemmPanel + j] = from[l];
    }
  }
}

bool HasAvx512() { return __builtin_cpu_supports("avx512f") != 0; }

}  // namespace thermocline
