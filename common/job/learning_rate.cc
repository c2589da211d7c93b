#include "common/job/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace thermocline {
namespace {

// Whole and half powers by multiplication and sqrt, which are exactly rounded everywhere.
double Power(double base, double exponent) {
  const double doubled = 2 * exponent;
  if (doubled != std::floor(doubled) || doubled > 64) return std::pow(base, exponent);
  double result = 1;
  for (int i = 0; i < static_cast<int>(exponent); ++i) result *= base;
  const bool has_half = exponent != std::floor(exponent);
  return has_half ? result * std::sqrt(base) : result;
}

}  // namespace

float LearningRateAt(const LearningRate& schedule, Step step) {
  const double base = schedule.base();
  const double warmup = static_cast<double>(schedule.warmup_steps());
  const double at = static_cast<double>(step.value());
  if (at < warmup) return static_cast<float>(base * (at + 1) / warmup);
  if (!schedule.has_decay()) return schedule.base();
  const PolynomialDecay& decay = schedule.decay();
  const double start = static_cast<double>(decay.start_step());
  if (at < start) return schedule.base();
  const double progress = std::min(1.0, (at - start) / static_cast<double>(decay.steps()));
  const double rate = base * Power(1 - progress, decay.power());
  return static_cast<float>(std::max<double>(decay.end(), rate));
}

}  // namespace thermocline
