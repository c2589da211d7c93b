// Time since an event, for deadlines and durations: of a clock that nobody sets.
#ifndef THERMOCLINE_COMMON_BASE_STOPWATCH_H_
#define THERMOCLINE_COMMON_BASE_STOPWATCH_H_

#include <chrono>

#include "absl/time/time.h"

namespace thermocline {

// Runs from its construction on. Thread-safe.
class Stopwatch {
 public:
  absl::Duration Elapsed() const {
    return absl::FromChrono(std::chrono::steady_clock::now() - start_);
  }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_STOPWATCH_H_
