// Sums over 16 lanes: the canonical order of dot products (device.h).
#ifndef THERMOCLINE_KERNELS_CPU_LANE_SUM_H_
#define THERMOCLINE_KERNELS_CPU_LANE_SUM_H_

#include <cstdint>

namespace thermocline {

inline constexpr int kLanes = 16;

// Adds lane l + half to lane l, for half = 8, 4, 2, 1.
inline float TreeSum(float* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
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
  float Total() { return TreeSum(lanes); }
};

inline float LaneDot(const float* a, const float* b, int64_t n) {
  LaneSum sum;
  sum.AddProducts(a, b, n);
  return sum.Total();
}

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_LANE_SUM_H_
