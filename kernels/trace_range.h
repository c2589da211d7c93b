// Named ranges of a thread's time: spans of `train --trace` (common/base/trace.h), and NVTX ranges
// where the build has a CUDA toolkit: Nsight Systems shows those above what the device does
// meanwhile. They cost next to nothing while neither is recorded.
#ifndef THERMOCLINE_KERNELS_TRACE_RANGE_H_
#define THERMOCLINE_KERNELS_TRACE_RANGE_H_

#include "common/base/ids.h"
#include "common/base/timing.h"
#include "common/base/trace.h"

namespace thermocline {

#ifdef THERMOCLINE_HAS_NVTX
void BeginTraceRange(const char* name);
void EndTraceRange();
#else
inline void BeginTraceRange(const char*) {}
inline void EndTraceRange() {}
#endif

// A range from the construction to the destruction of this object; ranges of a thread nest.
class TraceRange {
 public:
  // name: a string literal. step: kNoStep: it belongs to no step.
  explicit TraceRange(const char* name, Step step = kNoStep) : span_(name, step) {
    BeginTraceRange(name);
  }
  ~TraceRange() { EndTraceRange(); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

  // For a step that is known only at the end.
  void set_step(Step step) { span_.set_step(step); }

 private:
  TraceSpan span_;
};

// A stage of a step: a range that also counts its time.
class StageRange {
 public:
  StageRange(const char* name, StageTimer* timer, Step step = kNoStep)
      : range_(name, step), time_(timer) {}
  void set_step(Step step) { range_.set_step(step); }

 private:
  TraceRange range_;
  const StageTimer::Scope time_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_TRACE_RANGE_H_
