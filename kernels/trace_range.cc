#include "kernels/trace_range.h"

#ifdef THERMOCLINE_HAS_NVTX

#include <nvtx3/nvToolsExt.h>

namespace thermocline {

void BeginTraceRange(const char* name) {
  // NVTX looks for a profiler at its first call, and other threads' calls race with that.
  static const bool is_ready = (nvtxInitialize(nullptr), true);
  if (is_ready) nvtxRangePushA(name);
}
void EndTraceRange() { nvtxRangePop(); }

}  // namespace thermocline

#endif  // THERMOCLINE_HAS_NVTX
