// Mlp on the CPU whose products are of bf16 numbers (bf16_gemm.h): layers chained per block of
// samples, so that activations stay in L2.
//
// Each product of a layer, x W, dy W^T and x^T dy, rounds both factors to bf16, and so does the sum
// of dy that is the gradient of the bias; layers of width 1 are no exception. Inputs, outputs,
// parameters, biases and gradients are float32 where others see them. Between two layers there is
// only bf16: a ReLU passes a gradient where its output, rounded, is positive.
#ifndef THERMOCLINE_KERNELS_CPU_BF16_MLP_H_
#define THERMOCLINE_KERNELS_CPU_BF16_MLP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/thread_pool.h"
#include "kernels/cpu/bf16_gemm.h"
#include "kernels/cpu/mlp_grid.h"
#include "kernels/device.h"

namespace thermocline {

// What threads need while an Mlp computes: room for what the next product of a chain takes and what
// it makes, in turn, in pairs of columns. All Mlps of a device share it, as they compute one after
// another.
class Bf16Scratch {
 public:
  struct OfThread {
    PanelMatrix<Bf16Pair> taken, made;  // [kBlockRows, the widest layer]
  };

  explicit Bf16Scratch(int num_threads) : threads_(num_threads) {}

  // Makes room for layers of this width. What was in the scratch is lost.
  void Fit(int32_t width);
  OfThread* Of(int thread) { return &threads_[thread]; }

 private:
  int64_t pairs_ = 0;
  std::vector<OfThread> threads_;
};

class Bf16Mlp : public Mlp {
 public:
  // `pool` outlives this; `scratch` is for its threads.
  Bf16Mlp(const MlpConfig& config, Bf16GemmFunction gemm, ThreadPool* pool,
          std::shared_ptr<Bf16Scratch> scratch);

  void Forward(DeviceSpan<const float> parameters, Matrix input, Matrix output) override;
  void BackwardData(DeviceSpan<const float> parameters, Matrix output, Matrix output_gradient,
                    Matrix input_gradient) override;
  void BackwardParameters(Matrix input, Matrix output_gradient,
                          DeviceSpan<float> gradients) override;

 private:
  using Pairs = PanelMatrix<Bf16Pair>;
  // All matrices are in pairs of rows.
  struct Layer : MlpLayer {
    explicit Layer(const MlpLayer& layer) : MlpLayer(layer) {}
    Pairs weights;                // [in, out], for Forward
    Pairs weights_transposed;     // [out, in], for BackwardData
    Pairs input;                  // [max_batch, in]
    BitMatrix input_is_positive;  // The same, for all layers but the first.
    Pairs output_gradient;        // [max_trained, out] before the ReLU
  };
  using Scratch = Bf16Scratch::OfThread;

  int num_layers() const { return static_cast<int>(layers_.size()); }
  void PackWeights(DeviceSpan<const float> parameters);
  void PackTransposedWeights(DeviceSpan<const float> parameters);
  // Rounds rows [begin, end) of x to the pairs of rows `to` and to scratch->taken.
  void RoundRows(Matrix x, int64_t begin, int64_t end, const Pairs& to, Scratch* scratch) const;
  void ForwardRows(const float* parameters, Matrix input, Matrix output, int64_t begin, int64_t end,
                   Scratch* scratch) const;
  void BackwardRows(Matrix output, Matrix output_gradient, Matrix input_gradient, int64_t begin,
                    int64_t end, Scratch* scratch) const;
  void ComputeGradient(const GradientCell& cell, int64_t batch, float* gradients) const;

  // Constant after construction (but for the buffers' contents).
  const Bf16GemmFunction gemm_;
  ThreadPool* const pool_;
  std::vector<Layer> layers_;
  std::vector<GradientCell> gradient_cells_;
  Pairs ones_;  // [kGradientChunk, 1]
  const std::shared_ptr<Bf16Scratch> scratch_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CPU_BF16_MLP_H_
