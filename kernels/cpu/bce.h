// Binary cross entropy with logits, on the CPU. Contract: kernels/device.h.
#ifndef THERMOCLINE_KERNELS_CPU_BCE_H_
#define THERMOCLINE_KERNELS_CPU_BCE_H_

#include <cstdint>

namespace thermocline {

// Returns the sum of the losses; gradient[i * gradient_stride] = (sigmoid - label) * scale.
double CpuBceWithLogits(const float* logits, int64_t logits_stride, const float* labels,
                        int64_t batch, float scale, float* gradient, int64_t gradient_stride);

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_BCE_H_
