// Steps that have a checkpoint by checkpoint.every_steps. Every process knows them by itself.
#ifndef THERMOCLINE_COMMON_CHECKPOINT_PERIODIC_CHECKPOINT_H_
#define THERMOCLINE_COMMON_CHECKPOINT_PERIODIC_CHECKPOINT_H_

#include <cstdint>

#include "common/base/ids.h"

namespace thermocline {

// `every_steps`: checkpoint.every_steps of the job; 0: none.
inline bool IsPeriodicCheckpoint(Step step, uint64_t every_steps) {
  return every_steps > 0 && step >= Step(0) &&
         (static_cast<uint64_t>(step.value()) + 1) % every_steps == 0;
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_CHECKPOINT_PERIODIC_CHECKPOINT_H_
