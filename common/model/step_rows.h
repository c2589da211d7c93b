// How many rows of memory the steps of a batch take.
#ifndef THERMOCLINE_COMMON_MODEL_STEP_ROWS_H_
#define THERMOCLINE_COMMON_MODEL_STEP_ROWS_H_

#include <cstdint>

namespace thermocline {

// Rows for steps come in multiples of kStepRows, and of 1/kStepShare of the power of two below
// them, so that a few sizes of batches come again and again, however long their sequences are.
inline constexpr int32_t kStepRows = 1024;
inline constexpr int32_t kStepShare = 32;

inline int64_t PaddedSteps(int64_t steps) {
  int64_t unit = kStepRows;
  while (2 * kStepShare * unit <= steps) unit *= 2;
  return (steps + unit - 1) / unit * unit;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_STEP_ROWS_H_
