// Where an epoch begins.
#ifndef THERMOCLINE_DEPLOY_CONTROLLER_EPOCH_START_H_
#define THERMOCLINE_DEPLOY_CONTROLLER_EPOCH_START_H_

#include <cstdint>
#include <string>

#include "common/base/ids.h"

namespace thermocline {

struct EpochStart {
  uint64_t epoch = 1;
  std::string base;          // A checkpoint's name; "": from the beginning.
  Step base_step = kNoStep;  // Its cut: training goes on behind it.
  uint64_t base_samples = 0;

  Step first_step() const { return base_step + 1; }
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_CONTROLLER_EPOCH_START_H_
