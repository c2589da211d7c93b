// Rows of embedding slabs, updated in place and copied, on the CPU. Contracts: kernels/device.h.
#ifndef THERMOCLINE_KERNELS_CPU_ROWS_H_
#define THERMOCLINE_KERNELS_CPU_ROWS_H_

#include "absl/types/span.h"
#include "common/base/thread_pool.h"
#include "kernels/operands.h"

namespace thermocline {

void CpuSparseUpdate(absl::Span<const RowUpdateGroup> groups, ThreadPool* pool);
void CpuGatherRows(absl::Span<const RowCopy> copies, ThreadPool* pool);
void CpuScatterRows(absl::Span<const RowCopy> copies, ThreadPool* pool);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_ROWS_H_
