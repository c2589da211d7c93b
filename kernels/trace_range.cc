#include "kernels/trace_range.h"

#ifdef THERMOCLINE_HAS_NVTX

#include <nvtx3/nvToolsExt.h>

namespace thermocline {

void BeginTraceRange(const char* name) { nvtxRangePushA(name); }
void EndTraceRange() { nvtxRangePop(); }

}  // namespace thermocline

#endif  // THERMOCLINE_HAS_NVTX
