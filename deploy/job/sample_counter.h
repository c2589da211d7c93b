// How many samples the steps up to a cut have read: what a worker reported last, and whole batches
// between that and the cut. A pass may end with a shorter batch, so it is exact only where no pass
// ended in between; nothing but what people are told depends on it.
#ifndef THERMOCLINE_DEPLOY_JOB_SAMPLE_COUNTER_H_
#define THERMOCLINE_DEPLOY_JOB_SAMPLE_COUNTER_H_

#include <algorithm>
#include <cstdint>

#include "common/base/ids.h"

namespace thermocline {

// Not thread-safe.
class SampleCounter {
 public:
  explicit SampleCounter(uint32_t batch_size) : batch_size_(batch_size) {}

  // After `steps` steps, `samples` were read.
  void Report(int64_t steps, uint64_t samples) {
    steps_ = steps;
    samples_ = static_cast<int64_t>(samples);
  }

  uint64_t Through(Step cut) const {
    const int64_t further = cut.value() + 1 - steps_;
    return static_cast<uint64_t>(std::max<int64_t>(0, samples_ + further * batch_size_));
  }

 private:
  const int64_t batch_size_;
  int64_t steps_ = 0;
  int64_t samples_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_DEPLOY_JOB_SAMPLE_COUNTER_H_
