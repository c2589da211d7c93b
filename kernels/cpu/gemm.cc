#include "kernels/cpu/gemm.h"

#include <algorithm>
#include <cstring>

namespace thermocline {

void PackPanels(const float* b, int64_t ld, int64_t k, int64_t n, int64_t first_panel,
                int64_t last_panel, float* packed) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel) {
    const int64_t column = panel * kGemmPanel;
    const int64_t columns = std::min<int64_t>(kGemmPanel, n - column);
    for (int64_t l = 0; l < k; ++l, packed += kGemmPanel) {
      const float* from = b + l * ld + column;
      if (columns == kGemmPanel) {
        std::memcpy(packed, from, kGemmPanel * sizeof(float));
      } else {
        std::memset(packed, 0, kGemmPanel * sizeof(float));
        std::memcpy(packed, from, columns * sizeof(float));
      }
    }
  }
}

void PackPanelsTransposed(const float* b, int64_t ld, int64_t k, int64_t n, int64_t first_panel,
                          int64_t last_panel, float* packed) {
  for (int64_t panel = first_panel; panel < last_panel; ++panel, packed += k * kGemmPanel) {
    const int64_t column = panel * kGemmPanel;
    const int64_t columns = std::min<int64_t>(kGemmPanel, n - column);
    for (int64_t j = 0; j < kGemmPanel; ++j) {
      if (j < columns) {
        const float* from = b + (column + j) * ld;
        for (int64_t l = 0; l < k; ++l) packed[l * kGemmPanel + j] = from[l];
      } else {
        for (int64_t l = 0; l < k; ++l) packed[l * kGemmPanel + j] = 0;
      }
    }
  }
}

bool HasAvx512() { return __builtin_cpu_supports("avx512f") != 0; }

}  // namespace thermocline
