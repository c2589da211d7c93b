// A stack of fully connected layers on one device (device.h).
#ifndef THERMOCLINE_KERNELS_MLP_H_
#define THERMOCLINE_KERNELS_MLP_H_

#include <cstdint>
#include <vector>

#include "kernels/matrix.h"

namespace thermocline {

// The precision of an MLP's matrix products. Their sums are float32, and so are parameters, inputs,
// outputs and gradients; in kBfloat16 the CPU keeps what lies between two layers in bf16
// (cpu/bf16_mlp.h). It computes in kFloat32 and kBfloat16, a GPU in each that it has products for
// (Device::fallbacks).
enum class MlpPrecision { kFloat32, kTf32, kBfloat16 };

inline constexpr int64_t kNoBias = -1;

struct MlpConfig {
  std::vector<int32_t> widths;  // [input, layer 0, layer 1, ...], all positive
  bool relu_after_last = false;
  bool input_gradient = false;  // Whether BackwardData writes the gradient of the input.
  int32_t max_batch = 0;        // Rows of the largest batch;
  int32_t max_trained = 0;      // and of the largest that goes backward, too.
  MlpPrecision precision = MlpPrecision::kFloat32;
  // Where the parameters of layer i stand in the flat parameter and gradient arenas, in floats.
  std::vector<int64_t> weight_offsets;  // [layers] of [in, out] row-major, no padding
  std::vector<int64_t> bias_offsets;    // [layers] of [out]; kNoBias: the layer has none
};

// One layer of an MlpConfig.
struct MlpLayer {
  int32_t in = 0, out = 0;
  bool relu = false;
  bool input_gradient = false;  // Whether BackwardData computes the gradient of its input.
  int64_t weight_offset = 0, bias_offset = 0;

  bool has_bias() const { return bias_offset != kNoBias; }
};

// The layers, first to last. REQUIRES: positive widths, at least two; offsets for each layer.
std::vector<MlpLayer> LayersOf(const MlpConfig& config);

// A stack of fully connected layers, y = relu(x W + b), with its activations of one batch. Matrices
// may be columns of wider ones: nothing beyond their columns is read or written.
// The calls of one batch come in the order Forward, BackwardData, BackwardParameters; arguments
// named alike are the same in all of them. Forward alone is inference.
class Mlp {
 public:
  virtual ~Mlp() = default;

  virtual void Forward(DeviceSpan<const float> parameters,  // the arena
                       Matrix input,                        // [batch, widths[0]] float32
                       Matrix output) = 0;                  // [batch, widths.back()] float32

  // Overwrites `output_gradient` (it becomes the gradient before the last ReLU).
  virtual void BackwardData(DeviceSpan<const float> parameters,
                            Matrix output,               // as Forward wrote it
                            Matrix output_gradient,      // [batch, widths.back()]
                            Matrix input_gradient) = 0;  // [batch, widths[0]], if configured

  // Overwrites the gradients of this MLP's parameters; touches no other part of the arena.
  virtual void BackwardParameters(Matrix input,
                                  Matrix output_gradient,  // as BackwardData left it
                                  DeviceSpan<float> gradients) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_MLP_H_
