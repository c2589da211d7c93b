// Binary cross entropy with logits of one sample, and the logit of two probabilities' product:
// arithmetic alone, no libm, so that the bits are the same with every compiler, on the CPU and on a
// GPU. Errors are below 1e-12.
#ifndef THERMOCLINE_KERNELS_BCE_ARITHMETIC_H_
#define THERMOCLINE_KERNELS_BCE_ARITHMETIC_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "common/base/host_device.h"

namespace thermocline {

inline constexpr double kLog2E = 1.4426950408889634;
inline constexpr double kLn2High =
    0.693147180369123816490;  // 33 bits; times an exponent it is exact
inline constexpr double kLn2Low = 1.90821492927058770002e-10;
inline constexpr double kMaxMagnitude = 700;  // exp(-700) is still a normal number.

THERMOCLINE_HOST_DEVICE inline double ExpOfNegative(double t) {
  const double n = nearbyint(t * kLog2E);
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

// Returns log(1 + e) = 2 atanh(s), s = e / (2 + e) <= 1/3.
//
// REQUIRES: 0 <= e <= 1
THERMOCLINE_HOST_DEVICE inline double Log1pOfUnit(double e) {
  const double s = e / (2 + e);
  const double q = s * s;
  double p = 1.0 / 23;
  for (int odd = 21; odd >= 1; odd -= 2) p = p * q + 1.0 / odd;
  return 2 * s * p;
}

THERMOCLINE_HOST_DEVICE inline double ExpOfMinusAbs(double x) {
  const double magnitude = fabs(x);
  return ExpOfNegative(-(kMaxMagnitude < magnitude ? kMaxMagnitude : magnitude));
}

// The loss of one sample, unweighted; *gradient = (sigmoid(logit) - label) * scale.
THERMOCLINE_HOST_DEVICE inline double BceOfSample(float logit, float label, float scale,
                                                  float* gradient) {
  const double x = logit;
  const double y = label;
  const double e = ExpOfMinusAbs(x);
  const double sigmoid = (x >= 0 ? 1.0 : e) / (1 + e);
  *gradient = static_cast<float>(sigmoid - y) * scale;
  return (x < 0 ? 0.0 : x) - x * y + Log1pOfUnit(e);
}

// The weighted loss of sample i. weights: null where each is 1.
THERMOCLINE_HOST_DEVICE inline double WeightedBce(float logit, const float* labels,
                                                  const float* weights, int64_t i, float scale,
                                                  float* gradient) {
  if (weights == nullptr) return BceOfSample(logit, labels[i], scale, gradient);
  const double loss = BceOfSample(logit, labels[i], weights[i] * scale, gradient);
  return static_cast<double>(weights[i]) * loss;
}

// The odds against a and b both happening, exp(-a) + exp(-b) + exp(-a - b) for their logits, as
// exp(-shift) * (lesser + greater + both): the terms of the lesser and of the greater logit, and of
// both. The greatest term is 1.
struct OddsAgainstBoth {
  double shift, lesser, greater, both;
};

THERMOCLINE_HOST_DEVICE inline OddsAgainstBoth OddsAgainstBothOf(double a, double b) {
  const double least = a < b ? a : b, most = a < b ? b : a;
  const double of_most = ExpOfMinusAbs(most);
  if (most < 0) return {least + most, of_most, ExpOfMinusAbs(least), 1};
  return {least, 1, ExpOfMinusAbs(most - least), of_most};
}

// The logit of sigmoid(a) * sigmoid(b): -log(exp(-a) + exp(-b) + exp(-a - b)).
THERMOCLINE_HOST_DEVICE inline float ProductLogit(float a, float b) {
  const OddsAgainstBoth odds = OddsAgainstBothOf(a, b);
  // One of the three is 1, and so are at most the others: log(1 + u + v) in two parts.
  const double u = odds.greater;
  const double v = odds.both < odds.lesser ? odds.both : odds.lesser;
  return static_cast<float>(odds.shift - (Log1pOfUnit(u) + Log1pOfUnit(v / (1 + u))));
}

// The derivative of ProductLogit(a, b) by a, in [0, 1].
THERMOCLINE_HOST_DEVICE inline float ProductLogitSlope(float a, float b) {
  const OddsAgainstBoth odds = OddsAgainstBothOf(a, b);
  const double own = a < b ? odds.lesser : odds.greater;
  return static_cast<float>((own + odds.both) / (odds.lesser + odds.greater + odds.both));
}

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_BCE_ARITHMETIC_H_
