// The initial weights of a row: a pure function of (job seed, table, key), the same on every
// machine.
#ifndef THERMOCLINE_COMMON_MATH_ROW_INIT_H_
#define THERMOCLINE_COMMON_MATH_ROW_INIT_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

// Fills `weights` with values uniform in [-scale, scale), on a grid of 2^24 points.
void InitialWeights(uint64_t seed, TableId table, Key key, float scale, absl::Span<float> weights);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_ROW_INIT_H_
