// Mlp on the CUDA device: one product a layer and pass, the bias and the ReLU in its epilogue. A
// layer's bias gradient is summed where its gradient gets the ReLU's mask.
#ifndef THERMOCLINE_KERNELS_CUDA_CUDA_MLP_H_
#define THERMOCLINE_KERNELS_CUDA_CUDA_MLP_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/first_error.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#include "kernels/device.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

// The parts of its device that an MLP uses; they outlive it.
struct MlpContext {
  Device* device = nullptr;
  Gemm* gemm = nullptr;
  FirstError* error = nullptr;
  cudaStream_t stream = nullptr;
};

class CudaMlp : public Mlp {
 public:
  CudaMlp(const MlpConfig& config, const MlpContext& context);

  void Forward(DeviceSpan<const float> parameters, Matrix input, Matrix output) override;
  void BackwardData(DeviceSpan<const float> parameters, Matrix output, Matrix output_gradient,
                    Matrix input_gradient) override;
  void BackwardParameters(Matrix input, Matrix output_gradient,
                          DeviceSpan<float> gradients) override;

 private:
  struct Layer : MlpLayer {
    explicit Layer(const MlpLayer& layer) : MlpLayer(layer) {}
    std::unique_ptr<DeviceBuffer> output;  // [max_batch, out] padded, for hidden layers
    // What the backward pass needs; null where no batch is trained.
    std::unique_ptr<DeviceBuffer> gradient;       // [max_trained, out] before the ReLU, likewise
    std::unique_ptr<DeviceBuffer> bias_partials;  // [kMaxMaskedSumChunks, out]; null without a bias
  };

  int num_layers() const { return static_cast<int>(layers_.size()); }
  // The output and output gradient of a layer, within those of the whole.
  Matrix OutputOf(int layer, Matrix output) const;
  Matrix GradientOf(int layer, Matrix output_gradient) const;
  void Product(GemmCall call);

  // Constant after construction (but for the buffers' contents).
  const MlpContext context_;
  const MlpPrecision precision_;
  const int32_t max_batch_, max_trained_;
  std::vector<Layer> layers_;
};

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_CUDA_CUDA_MLP_H_
