#include "common/math/initial_weights.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

// 24 random bits to [-scale, scale): the subtraction is exact, the product rounds once.
float ToUniform(uint32_t bits, float unit) {
  return static_cast<float>(static_cast<int32_t>(bits >> 8) - (1 << 23)) * unit;
}

// 32 random bits to (0, 1), exactly.
double ToProbability(uint32_t bits) { return (static_cast<double>(bits) + 0.5) * 0x1p-32; }

// The probabilities that a standard normal number is below -2, and that it is in [-2, 2].
constexpr double kBelowMinusTwo = 0.022750131948179209;
constexpr double kWithinTwo = 0.95449973610364158;

// c[0] + c[1] x + ... + c[7] x^7, by Horner's rule.
double Polynomial(const double (&c)[8], double x) {
  double value = c[7];
  for (int i = 6; i >= 0; --i) value = value * x + c[i];
  return value;
}

// ln x without libm, whose last bits differ: x is 2^e m with m in [sqrt(1/2), sqrt(2)), and ln m is
// 2 artanh((m - 1) / (m + 1)), by its series. REQUIRES: x is positive and no subnormal number.
double NaturalLog(double x) {
  constexpr double kLn2 = 0.693147180559945309417;
  constexpr double kSqrt2 = 1.41421356237309504880;
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  int exponent = static_cast<int>(bits >> 52) - 1023;
  bits = (bits & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  std::memcpy(&m, &bits, sizeof(m));
  if (m >= kSqrt2) {
    m *= 0.5;
    ++exponent;
  }
  const double s = (m - 1) / (m + 1);
  const double z = s * s;
  double series = 1.0 / 21;
  for (int odd = 19; odd >= 1; odd -= 2) series = series * z + 1.0 / odd;
  return exponent * kLn2 + 2 * s * series;
}

// Sets weights[i] = value_of(bits of i) for all i: 32 random bits each.
template <typename ValueOf>
void Fill(uint64_t base, absl::Span<float> weights, ValueOf value_of) {
  size_t i = 0;
  for (; i + 2 <= weights.size(); i += 2) {
    const uint64_t bits = Mix64(base + i);
    weights[i] = value_of(static_cast<uint32_t>(bits));
    weights[i + 1] = value_of(static_cast<uint32_t>(bits >> 32));
  }
  if (i < weights.size()) weights[i] = value_of(static_cast<uint32_t>(Mix64(base + i)));
}

absl::Status CheckScale(absl::string_view name, float value, float low) {
  // Written so that NaN fails too.
  if (value >= low && value <= kMaxInitScale) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, "; it must be in [", low, ", ", kMaxInitScale, "]"));
}

}  // namespace

absl::string_view InitialDistributionName(InitialDistribution distribution) {
  switch (distribution) {
    case InitialDistribution::kUniform:
      return "uniform";
    case InitialDistribution::kNormal:
      return "normal";
    case InitialDistribution::kTruncatedNormal:
      return "truncated_normal";
    case InitialDistribution::kConstant:
      return "constant";
  }
  CHECK(false);
}

absl::Status ReadInitializer(const Initializer& proto, absl::string_view name,
                             InitialDistribution* distribution, float* scale) {
  const auto set = [&](InitialDistribution kind, float value, absl::string_view field,
                       float low) -> absl::Status {
    *distribution = kind;
    *scale = value;
    return CheckScale(name.empty() ? field : name, value, low);
  };
  switch (proto.kind_case()) {
    case Initializer::kUniform:
      return set(InitialDistribution::kUniform, proto.uniform().scale(), "uniform.scale", 0);
    case Initializer::kNormal:
      return set(InitialDistribution::kNormal, proto.normal().std(), "normal.std", 0);
    case Initializer::kTruncatedNormal:
      return set(InitialDistribution::kTruncatedNormal, proto.truncated_normal().std(),
                 "truncated_normal.std", 0);
    case Initializer::kConstant:
      return set(InitialDistribution::kConstant, proto.constant().value(), "constant.value",
                 -kMaxInitScale);
    case Initializer::kByRows:
      if (proto.by_rows().rows() == 0) {
        return absl::InvalidArgumentError("by_rows.rows is 0; it must be at least 1");
      }
      return set(InitialDistribution::kUniform,
                 static_cast<float>(1 / std::sqrt(static_cast<double>(proto.by_rows().rows()))),
                 "by_rows", 0);
    case Initializer::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "no initializer is set (uniform, normal, truncated_normal, constant or by_rows)");
}

// Wichura (Applied Statistics 37, 1988), algorithm AS 241, PPND16. Its third range, for p < 2^-36,
// is not needed.
double NormalQuantile(double p) {
  static constexpr double kA[8] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                   1.9715909503065514427e3, 1.3731693765509461125e4,
                                   4.5921953931549871457e4, 6.7265770927008700853e4,
                                   3.3430575583588128105e4, 2.5090809287301226727e3};
  static constexpr double kB[8] = {1,
                                   4.2313330701600911252e1,
                                   6.8718700749205790830e2,
                                   5.3941960214247511077e3,
                                   2.1213794301586595867e4,
                                   3.9307895800092710610e4,
                                   2.8729085735721942674e4,
                                   5.2264952788528545610e3};
  static constexpr double kC[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                   5.76949722146069140550e0,  3.64784832476320460504e0,
                                   1.27045825245236838258e0,  2.41780725177450611770e-1,
                                   2.27238449892691845833e-2, 7.74545014278341407640e-4};
  static constexpr double kD[8] = {1,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
  const double q = p - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * Polynomial(kA, r) / Polynomial(kB, r);
  }
  const double r = std::sqrt(-NaturalLog(q < 0 ? p : 1 - p)) - 1.6;
  const double x = Polynomial(kC, r) / Polynomial(kD, r);
  return q < 0 ? -x : x;
}

void InitialWeights(uint64_t seed, TableId table, Key key, InitialDistribution distribution,
                    float scale, absl::Span<float> weights) {
  const uint64_t base = Mix64(Mix64(seed ^ TableSalt(table)) ^ Mix64(key));
  const double std = scale;
  switch (distribution) {
    case InitialDistribution::kUniform: {
      const float unit = scale * (1.0f / (1 << 23));
      return Fill(base, weights, [unit](uint32_t bits) { return ToUniform(bits, unit); });
    }
    case InitialDistribution::kNormal:
      return Fill(base, weights, [std](uint32_t bits) {
        return static_cast<float>(std * NormalQuantile(ToProbability(bits)));
      });
    case InitialDistribution::kTruncatedNormal:
      return Fill(base, weights, [std](uint32_t bits) {
        return static_cast<float>(
            std * NormalQuantile(kBelowMinusTwo + ToProbability(bits) * kWithinTwo));
      });
    case InitialDistribution::kConstant:
      return Fill(base, weights, [scale](uint32_t) { return scale; });
  }
}

}  // namespace thermocline
