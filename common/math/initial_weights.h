// The weights with which rows begin. They are a pure function of (job seed, table, key, position in
// the row), with the same bits on every machine. docs/formats.md has the arithmetic.
#ifndef THERMOCLINE_COMMON_MATH_INITIAL_WEIGHTS_H_
#define THERMOCLINE_COMMON_MATH_INITIAL_WEIGHTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

class Initializer;  // proto/job.proto

// How the weights of a row are drawn. Each distribution has one parameter, `scale`.
enum class InitialDistribution {
  kUniform,          // Uniform in [-scale, scale), on a grid of 2^24 points.
  kNormal,           // Normal around 0, with standard deviation `scale`.
  kTruncatedNormal,  // The same, drawn from within 2 scale of 0.
  kConstant,         // Every weight is `scale`.
};

// Returns "uniform", "normal", "truncated_normal" or "constant".
absl::string_view InitialDistributionName(InitialDistribution distribution);

// The largest scale. Initial weights beyond it are a mistake, not a model.
inline constexpr float kMaxInitScale = 1e6f;

// Reads the message that a user wrote into *distribution and *scale.
//   name: what errors call its value; "": its own field, such as "normal.std"
// Errors: kInvalidArgument (no kind is set, or a value is out of its range: "normal.std is -1; it
// must be in [0, 1e+06]").
absl::Status ReadInitializer(const Initializer& proto, absl::string_view name,
                             InitialDistribution* distribution, float* scale);

// Fills `weights` with the initial weights of one row. Those of a row with a smaller dim are the
// first of them.
void InitialWeights(uint64_t seed, TableId table, Key key, InitialDistribution distribution,
                    float scale, absl::Span<float> weights);

// The quantile function of the standard normal distribution: a number drawn from it is below
// NormalQuantile(p) with probability p. The result has the same bits on every machine, and a
// relative error below 1e-14. REQUIRES: 2^-34 <= p <= 1 - 2^-34
double NormalQuantile(double p);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_INITIAL_WEIGHTS_H_
