// Named ranges of a thread's time, for profilers of GPUs: Nsight Systems shows them above what the
// device does meanwhile. They are NVTX ranges where the build has a CUDA toolkit, and cost next to
// nothing without a profiler; without a toolkit they do nothing.
#ifndef THERMOCLINE_KERNELS_TRACE_RANGE_H_
#define THERMOCLINE_KERNELS_TRACE_RANGE_H_

#include "common/base/timing.h"

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
  explicit TraceRange(const char* name) { BeginTraceRange(name); }
  ~TraceRange() { EndTraceRange(); }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

// A stage of a step: a range that also counts its time.
class StageRange {
 public:
  StageRange(const char* name, StageTimer* timer) : range_(name), time_(timer) {}

 private:
  const TraceRange range_;
  const StageTimer::Scope time_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_TRACE_RANGE_H_
