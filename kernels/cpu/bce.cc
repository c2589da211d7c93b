#include "kernels/cpu/bce.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace thermocline {
namespace {

constexpr double kLog2E = 1.4426950408889634;
constexpr double kLn2High = 0.693147180369123816490;  // 33 bits; times an exponent it is exact
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kMaxMagnitude = 700;  // exp(-700) is still a normal number.

inline double ExpOfNegative(double t) {
  const double n = std::nearbyint(t * kLog2E);
  const double r = (t - n * kLn2High) - n * kLn2Low;  // |r| <= ln 2 / 2
  // Taylor series up to r^12 / 12!
  double p = 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // 2^n from its bits: n + 1.5 * 2^52 holds n in its low bits.
  const double shifted = n + (6755399441055744.0 + 1023);
  uint64_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits <<= 52;
  double power;
  std::memcpy(&power, &bits, sizeof(power));
  return p * power;
}

// log(1 + e) = 2 atanh(s), s = e / (2 + e) <= 1/3.
inline double Log1p(double e) {
  const double s = e / (2 + e);
  const double q = s * s;
  double p = 1.0 / 23;
  for (int odd = 21; odd >= 1; odd -= 2) p = p * q + 1.0 / odd;
  return 2 * s * p;
}

}  // namespace

double ExpOfMinusAbs(double x) { return ExpOfNegative(-std::min(std::fabs(x), kMaxMagnitude)); }

double Log1pOfUnit(double e) { return Log1p(e); }

double CpuBceWithLogits(const float* logits, int64_t logits_stride, const float* labels,
                        int64_t batch, float scale, float* gradient, int64_t gradient_stride) {
  double sum = 0;
  for (int64_t i = 0; i < batch; ++i) {
    const double x = logits[i * logits_stride];
    const double y = labels[i];
    const double e = ExpOfNegative(-std::min(std::fabs(x), kMaxMagnitude));
    const double sigmoid = (x >= 0 ? 1.0 : e) / (1 + e);
    sum += std::max(x, 0.0) - x * y + Log1p(e);
    gradient[i * gradient_stride] = static_cast<float>(sigmoid - y) * scale;
  }
  return sum;
}

}  // namespace thermocline
