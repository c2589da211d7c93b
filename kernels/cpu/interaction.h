// Pairwise dot products of a sample's vectors, on the CPU. Contracts: kernels/device.h.
#ifndef THERMOCLINE_KERNELS_CPU_INTERACTION_H_
#define THERMOCLINE_KERNELS_CPU_INTERACTION_H_

#include <cstdint>

#include "common/base/thread_pool.h"
#include "kernels/matrix.h"

namespace thermocline {

void CpuInteractionForward(Matrix z, int32_t vectors, Matrix output, ThreadPool* pool);
void CpuInteractionBackward(Matrix z, int32_t vectors, Matrix output_gradient, Matrix z_gradient,
                            ThreadPool* pool);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_INTERACTION_H_
