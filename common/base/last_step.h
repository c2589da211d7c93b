// Where steps end.
#ifndef THERMOCLINE_COMMON_BASE_LAST_STEP_H_
#define THERMOCLINE_COMMON_BASE_LAST_STEP_H_

#include <cstdint>

#include "common/base/ids.h"

namespace thermocline {

// Rows keep the step of their last change, plus 1, in 32 bits.
inline constexpr Step kLastStep{(int64_t{1} << 32) - 2};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_LAST_STEP_H_
