// The CPU device's operations, a function each. kernels/device.h has their contracts.
#ifndef THERMOCLINE_KERNELS_CPU_CPU_OPERATIONS_H_
#define THERMOCLINE_KERNELS_CPU_CPU_OPERATIONS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/thread_pool.h"
#include "kernels/device.h"
#include "kernels/matrix.h"

namespace thermocline {

inline constexpr int64_t kFloatsPerLine = 16;  // In a cache line.

// bce.cc: binary cross entropy with logits.
//
// Returns the sum of the weighted losses, and sets gradient[i * gradient_stride] =
// (sigmoid - label) * (weight * scale). weights: [batch], or null: each is 1.
double CpuBceWithLogits(const float* logits, int64_t logits_stride, const float* labels,
                        const float* weights, int64_t batch, float scale, float* gradient,
                        int64_t gradient_stride);

// embedding.cc: pooling of embedding rows, and sums of their gradients.
void CpuPoolForward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                    Matrix z, ThreadPool* pool);
void CpuPoolBackward(absl::Span<const PoolInput> features, int32_t dim, int32_t first_vector,
                     Matrix z_gradient, ThreadPool* pool);
void CpuSegmentSum(Matrix gradients, absl::Span<const SegmentGroup> groups, ThreadPool* pool);

// interaction.cc: pairwise dot products of a sample's vectors.
void CpuInteractionForward(Matrix z, int32_t vectors, Matrix output, ThreadPool* pool);
void CpuInteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient, Matrix z_gradient,
                            ThreadPool* pool);

// rows.cc: rows of embedding slabs, updated in place and copied.
void CpuSparseUpdate(absl::Span<const RowUpdateGroup> groups, ThreadPool* pool);
void CpuGatherRows(absl::Span<const RowCopy> copies, ThreadPool* pool);
void CpuScatterRows(absl::Span<const RowCopy> copies, ThreadPool* pool);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_OPERATIONS_H_
