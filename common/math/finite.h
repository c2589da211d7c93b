// Finding NaN and infinity in a buffer at the speed of memory.
#ifndef THERMOCLINE_COMMON_MATH_FINITE_H_
#define THERMOCLINE_COMMON_MATH_FINITE_H_

#include <cstddef>

#include "absl/types/span.h"

namespace thermocline {

// Index of the first value that is NaN or infinite; values.size() where all are finite.
size_t FindNonFinite(absl::Span<const float> values);

// The same for rows with their optimizer state: index of the first weight that is NaN or infinite,
// or state that is NaN. State may be infinite: the sum of squares of finite gradients overflows, on
// whatever side it is kept, and the row goes on with updates of 0.
//   rows: [n, row_floats], of which the first `dim` are weights
size_t FindBadInRows(absl::Span<const float> rows, size_t dim, size_t row_floats);

// How the message of a loss or a gradient that is not finite ends.
inline constexpr char kRateHint[] =
    " (is train.learning_rate too high? a lower base or some warmup_steps may help)";

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_FINITE_H_
