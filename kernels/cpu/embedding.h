// Pooling of embedding rows and sums of their gradients, on the CPU. Contracts: kernels/device.h.
#ifndef THERMOCLINE_KERNELS_CPU_EMBEDDING_H_
#define THERMOCLINE_KERNELS_CPU_EMBEDDING_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/thread_pool.h"
#include "kernels/device.h"

namespace thermocline {

void CpuPoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                    Matrix z, ThreadPool* pool);
void CpuPoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                     Matrix z_gradient, ThreadPool* pool);
void CpuSegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups, ThreadPool* pool);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_EMBEDDING_H_
