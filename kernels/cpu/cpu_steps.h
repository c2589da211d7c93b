// StepOperations on the CPU: the specification of every operation in step_operations.h.
#ifndef THERMOCLINE_KERNELS_CPU_CPU_STEPS_H_
#define THERMOCLINE_KERNELS_CPU_CPU_STEPS_H_

#include <cstdint>
#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/row_loops.h"
#include "kernels/step_operations.h"

namespace thermocline {

class CpuStepOperations : public StepOperations {
 public:
  // `pool` outlives this.
  explicit CpuStepOperations(ThreadPool* pool);

  void Repeat(const StepRanges& ranges, Matrix x, Matrix y) override;
  void Pool(const StepRanges& ranges, StepPooling pooling, Matrix x, Matrix y) override;
  void PoolBackward(const StepRanges& ranges, StepPooling pooling, Matrix y_gradient,
                    Matrix x_gradient) override;
  void PoolWeighted(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y) override;
  void PoolWeightedBackward(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y_gradient,
                            Matrix weights_gradient, Matrix x_gradient) override;
  void Compare(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y) override;
  void CompareBackward(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y_gradient,
                       Matrix query_gradients, bool adds, Matrix x_gradient) override;
  void SoftmaxForward(const StepRanges& ranges, bool without_last, Matrix x, Matrix y) override;
  void SoftmaxBackward(const StepRanges& ranges, Matrix y, Matrix y_gradient,
                       Matrix x_gradient) override;
  void ClearLast(const StepRanges& ranges, Matrix x, Matrix y) override;
  void Dropout(const StepRanges& ranges, const DropoutMask& mask,
               DeviceSpan<const SamplePlace> place, Matrix x, Matrix y) override;
  void AttentionForward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k, Matrix v,
                        Matrix y, Matrix statistics) override;
  void AttentionBackward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k, Matrix v,
                         Matrix y, Matrix statistics, Matrix y_gradient, Matrix q_gradient,
                         Matrix k_gradient, Matrix v_gradient) override;
  void AddPositions(const StepRanges& ranges, DeviceSpan<const float> positions, Matrix x,
                    Matrix y) override;
  void PositionGradients(const StepRanges& ranges, Matrix y_gradient,
                         DeviceSpan<float> gradients) override;

 private:
  template <typename Body>
  void ForHeads(const StepRanges& ranges, int32_t heads, Matrix q, Matrix statistics, Body body);

  ThreadPool* const pool_;
  SampleSums sums_;
  // Scratch of each thread.
  std::vector<std::vector<float>> columns_;
  std::vector<AttentionHead> heads_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_STEPS_H_
