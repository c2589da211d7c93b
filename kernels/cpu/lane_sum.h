// Sums over 16 lanes: the canonical order of dot products (device.h).
#ifndef THERMOCLINE_KERNELS_CPU_LANE_SUM_H_
#define THERMOCLINE_KERNELS_CPU_LANE_SUM_H_

#include <immintrin.h>

#include <cstdint>

namespace thermocline {

inline constexpr int kLanes = 16;

// Adds lane l + half to lane l, for half = 8, 4, 2, 1.
inline float TreeSum(const float* lanes) {
  const __m256 eight = _mm256_add_ps(_mm256_loadu_ps(lanes), _mm256_loadu_ps(lanes + 8));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

// A sum of products, lane by lane.
struct LaneSum {
  float lanes[kLanes];

  LaneSum() {
    for (float& lane : lanes) lane = -0.0f;  // -0 + x is x, for every x
  }
  // REQUIRES: n % kLanes == 0 in all calls but the last.
  void AddProducts(const float* a, const float* b, int64_t n) {
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
    }
    for (int lane = 0; i < n; ++i, ++lane) lanes[lane] += a[i] * b[i];
  }
  float Total() const { return TreeSum(lanes); }
};

inline float LaneDot(const float* a, const float* b, int64_t n) {
  LaneSum sum;
  sum.AddProducts(a, b, n);
  return sum.Total();
}

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_LANE_SUM_H_
