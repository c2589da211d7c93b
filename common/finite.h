// Finding NaN and infinity in a buffer at the speed of memory.
#ifndef THERMOCLINE_COMMON_FINITE_H_
#define THERMOCLINE_COMMON_FINITE_H_

#include <cstddef>

#include "absl/types/span.h"

namespace thermocline {

// Index of the first value that is NaN or infinite; values.size() where all are finite.
size_t FindNonFinite(absl::Span<const float> values);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_FINITE_H_
