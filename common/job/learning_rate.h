// The learning rate of a step.
#ifndef THERMOCLINE_COMMON_JOB_LEARNING_RATE_H_
#define THERMOCLINE_COMMON_JOB_LEARNING_RATE_H_

#include "common/base/ids.h"
#include "proto/job.pb.h"

namespace thermocline {

// Pure function of the schedule and the step: the same bits on every machine for whole and half
// powers (the default is 2); other powers go through libm's pow.
//   warm-up, steps 0 .. warmup_steps-1:  base * (step + 1) / warmup_steps
//   decay, from decay.start_step on:     max(end, base * (1 - progress)^power),
//                                        progress = min(1, (step - start_step) / steps)
// REQUIRES: a schedule of a job that LoadJob returned; step >= 0.
float LearningRateAt(const LearningRate& schedule, Step step);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_JOB_LEARNING_RATE_H_
