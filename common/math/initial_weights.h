// The weights with which rows begin: a pure function of (job seed, table, key, position in the
// row), of the same bits on every machine. docs/formats.md has the arithmetic.
#ifndef THERMOCLINE_COMMON_MATH_INITIAL_WEIGHTS_H_
#define THERMOCLINE_COMMON_MATH_INITIAL_WEIGHTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

class Initializer;  // proto/job.proto

// What the scale is of each.
enum class InitialDistribution {
  kUniform,          // In [-scale, scale), on a grid of 2^24 points.
  kNormal,           // Around 0; scale is the standard deviation.
  kTruncatedNormal,  // The same, without what is more than two of them from 0.
  kConstant,         // The scale itself.
};

// "uniform", "normal", "truncated_normal", "constant".
absl::string_view InitialDistributionName(InitialDistribution distribution);

// Initial weights beyond this are a mistake, not a model.
inline constexpr float kMaxInitScale = 1e6f;

// Reads the message a user wrote. `name` is what errors call its value; "": its own field, such as
// "normal.std". Errors: kInvalidArgument (no kind is set, or a value is out of its range:
// "normal.std is -1; it must be in [0, 1e+06]").
absl::Status ReadInitializer(const Initializer& proto, absl::string_view name,
                             InitialDistribution* distribution, float* scale);

// Fills `weights` with those of a row. A shorter row is a prefix.
void InitialWeights(uint64_t seed, TableId table, Key key, InitialDistribution distribution,
                    float scale, absl::Span<float> weights);

// The x of which a standard normal number is below with probability p. The same bits on every
// machine; a relative error below 1e-14. REQUIRES: 2^-34 <= p <= 1 - 2^-34
double NormalQuantile(double p);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_INITIAL_WEIGHTS_H_
