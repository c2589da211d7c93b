// LayerOperations on the CPU: the specification of every operation in layer_operations.h.
#ifndef THERMOCLINE_KERNELS_CPU_CPU_LAYERS_H_
#define THERMOCLINE_KERNELS_CPU_CPU_LAYERS_H_

#include <cstdint>
#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/cpu/row_loops.h"
#include "kernels/layer_operations.h"

namespace thermocline {

class CpuLayerOperations : public LayerOperations {
 public:
  // `pool` outlives this.
  explicit CpuLayerOperations(ThreadPool* pool) : pool_(pool), sums_(pool) {}

  void Copy(Matrix from, Matrix to) override;
  void Add(Matrix a, Matrix b, Matrix sum) override;
  void MultiplyAdd(float scale, Matrix a, Matrix b, Matrix c, Matrix output) override;
  void ScaleRows(Matrix scale, Matrix x, Matrix output) override;
  void RowDot(Matrix a, Matrix b, Matrix output) override;
  void ProductLogitForward(Matrix a, Matrix b, Matrix output) override;
  void ProductLogitBackward(Matrix a, Matrix b, Matrix output_gradient, Matrix a_gradient) override;
  void ActivationForward(ActivationKind kind, DeviceSpan<const float> slopes, Matrix x,
                         Matrix y) override;
  void ActivationBackward(ActivationKind kind, DeviceSpan<const float> slopes, Matrix x, Matrix y,
                          Matrix y_gradient, Matrix x_gradient,
                          DeviceSpan<float> slope_gradients) override;
  void LayerNormForward(Matrix x, DeviceSpan<const float> gain, DeviceSpan<const float> bias,
                        float epsilon, Matrix y, Matrix moments) override;
  void LayerNormBackward(Matrix x, Matrix moments, DeviceSpan<const float> gain, Matrix y_gradient,
                         Matrix x_gradient, DeviceSpan<float> gain_gradient,
                         DeviceSpan<float> bias_gradient) override;
  void Dropout(const DropoutMask& mask, DeviceSpan<const SamplePlace> place, Matrix x,
               Matrix y) override;
  void SoftmaxForward(Matrix x, Matrix y) override;
  void SoftmaxBackward(Matrix y, Matrix y_gradient, Matrix x_gradient) override;
  void NormalizeForward(Matrix x, int32_t width, float epsilon, Matrix y, Matrix lengths) override;
  void NormalizeBackward(Matrix y, int32_t width, float epsilon, Matrix lengths, Matrix y_gradient,
                         Matrix x_gradient) override;
  void SumVectors(Matrix x, float scale, Matrix sum) override;
  void RepeatVector(Matrix vector, float scale, Matrix x) override;
  void MixForward(Matrix shares, Matrix x, Matrix y) override;
  void MixBackward(Matrix shares, Matrix x, Matrix y_gradient, Matrix shares_gradient,
                   Matrix x_gradient) override;
  void FmForward(Matrix x, int32_t width, Matrix sums, Matrix output) override;
  void FmBackward(Matrix x, int32_t width, Matrix sums, Matrix output_gradient,
                  Matrix x_gradient) override;
  void EmbedForward(Matrix x, DeviceSpan<const float> vectors, Matrix y) override;
  void EmbedBackward(Matrix x, DeviceSpan<const float> vectors, Matrix y_gradient,
                     Matrix x_gradient, DeviceSpan<float> vector_gradients) override;

 private:
  ThreadPool* const pool_;
  SampleSums sums_;
  std::vector<float> totals_;  // [2 * columns] of LayerNormBackward; it only grows.
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_LAYERS_H_
