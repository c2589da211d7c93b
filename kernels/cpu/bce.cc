#include "kernels/bce_arithmetic.h"
#include "kernels/cpu/cpu_operations.h"

namespace thermocline {

double CpuBceWithLogits(const float* logits, int64_t logits_stride, const float* labels,
                        const float* weights, int64_t batch, float scale, float* gradient,
                        int64_t gradient_stride) {
  double sum = 0;
  for (int64_t i = 0; i < batch; ++i) {
    sum += WeightedBce(logits[i * logits_stride], labels, weights, i, scale,
                       &gradient[i * gradient_stride]);
  }
  return sum;
}

}  // namespace thermocline
