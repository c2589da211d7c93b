#include "worker/fae/student_t.h"

#include <cmath>

#include "common/base/check.h"

namespace thermocline {
namespace {

// The continued fraction of the incomplete beta function, by Lentz's method (Press et al.,
// Numerical Recipes, section 6.4).
double BetaFraction(double x, double a, double b) {
  constexpr double kTiny = 1e-300;
  constexpr double kPrecision = 1e-15;
  constexpr int kMaxSteps = 10000;
  const auto away_from_zero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double c = 1;
  double d = 1 / away_from_zero(1 - (a + b) * x / (a + 1));
  double result = d;
  for (int m = 1; m <= kMaxSteps; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / away_from_zero(1 + even * d);
    c = away_from_zero(1 + even / c);
    result *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away_from_zero(1 + odd * d);
    c = away_from_zero(1 + odd / c);
    result *= d * c;
    if (std::abs(d * c - 1) < kPrecision) break;
  }
  return result;
}

// The regularized incomplete beta function I_x(a, b).
double IncompleteBeta(double x, double a, double b) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * BetaFraction(x, a, b) / a;
  return 1 - front * BetaFraction(1 - x, b, a) / b;
}

// The probability of [-t, t] is 1 - this.
double OutsideOf(double t, double degrees) {
  return IncompleteBeta(degrees / (degrees + t * t), degrees / 2, 0.5);
}

}  // namespace

double StudentT(double confidence, double degrees) {
  CHECK(degrees >= 1 && confidence > 0 && confidence < 1);
  double low = 0, high = 1;
  while (1 - OutsideOf(high, degrees) < confidence && high < 1e300) high *= 2;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    (1 - OutsideOf(middle, degrees) < confidence ? low : high) = middle;
  }
  return high;
}

}  // namespace thermocline
