// Where a generation of a job begins: from there on its processes train until one is lost that
// can't be replaced. Its number fences all that they say.
#ifndef THERMOCLINE_DEPLOY_JOB_GENERATION_H_
#define THERMOCLINE_DEPLOY_JOB_GENERATION_H_

#include <cstdint>
#include <string>

#include "common/base/ids.h"

namespace thermocline {

struct GenerationStart {
  uint64_t generation = 1;
  std::string base;          // A checkpoint's name; "": from the beginning.
  Step base_step = kNoStep;  // Training goes on behind it.
  uint64_t base_samples = 0;

  Step first_step() const { return base_step + 1; }
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_GENERATION_H_
