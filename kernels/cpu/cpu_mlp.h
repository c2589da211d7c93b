// Mlp on the CPU: layers chained per block of samples, so that activations stay in L2.
#ifndef THERMOCLINE_KERNELS_CPU_CPU_MLP_H_
#define THERMOCLINE_KERNELS_CPU_CPU_MLP_H_

#include <cstdint>
#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/mlp_grid.h"
#include "kernels/device.h"

namespace thermocline {

class CpuMlp : public Mlp {
 public:
  // `pool` outlives this.
  CpuMlp(const MlpConfig& config, GemmFunction gemm, ThreadPool* pool);

  void Forward(DeviceSpan<const float> parameters, Matrix input, Matrix output) override;
  void BackwardData(DeviceSpan<const float> parameters, Matrix output, Matrix output_gradient,
                    Matrix input_gradient) override;
  void BackwardParameters(Matrix input, Matrix output_gradient,
                          DeviceSpan<float> gradients) override;

 private:
  using Panels = PanelMatrix<float>;
  struct Layer : MlpLayer {
    explicit Layer(const MlpLayer& layer) : MlpLayer(layer) {}
    Panels weights;             // [in, out], for Forward
    Panels weights_transposed;  // [out, in], for BackwardData
    Panels output;              // [max_batch, out], for hidden layers
    BitMatrix is_positive;      // The same: whether the ReLU has passed the output on.
    Panels gradient;            // [max_trained, out] before the ReLU, for hidden layers
  };

  int num_layers() const { return static_cast<int>(layers_.size()); }
  // The input, output and output gradient of a layer, within those of the whole.
  PanelView<const float> InputOf(int layer, Matrix input) const;
  PanelView<float> OutputOf(int layer, Matrix output) const;
  PanelView<const float> GradientOf(int layer, Matrix output_gradient) const;

  void PackWeights(DeviceSpan<const float> parameters, bool transposed);
  void ForwardRows(const float* parameters, Matrix input, Matrix output, int64_t begin,
                   int64_t end) const;
  void BackwardRows(const float* parameters, Matrix output, Matrix output_gradient,
                    Matrix input_gradient, int64_t begin, int64_t end) const;
  void ComputeGradient(const GradientCell& cell, Matrix input, Matrix output_gradient,
                       float* gradients, float* packed_gradient) const;

  // Constant after construction (but for the buffers' contents).
  const GemmFunction gemm_;
  ThreadPool* const pool_;
  std::vector<Layer> layers_;
  std::vector<GradientCell> gradient_cells_;
  // Whether the input is copied to panels, since the weight gradients read columns of it: a wide
  // one is.
  bool packs_input_ = false;
  Panels packed_input_;
  std::vector<Panels> packed_gradients_;  // [threads] scratch of ComputeGradient
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_CPU_MLP_H_
