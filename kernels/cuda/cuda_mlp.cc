#include "kernels/cuda/cuda_mlp.h"

#include "common/base/check.h"
#include "kernels/cuda/operations.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

CudaMlp::CudaMlp(const MlpConfig& config, const MlpContext& context)
    : context_(context),
      precision_(config.precision),
      max_batch_(config.max_batch),
      max_trained_(config.max_trained) {
  for (const MlpLayer& layer : LayersOf(config)) layers_.emplace_back(layer);
  for (Layer& layer : layers_) {
    if (layer.has_bias() && max_trained_ > 0) {
      const size_t bytes = sizeof(float) * kMaxMaskedSumChunks * layer.out;
      layer.bias_partials = context.device->Allocate(bytes);
    }
    if (&layer == &layers_.back()) continue;
    const size_t row_bytes = sizeof(float) * PaddedColumns(layer.out);
    layer.output = context.device->Allocate(row_bytes * max_batch_);
    if (max_trained_ > 0) layer.gradient = context.device->Allocate(row_bytes * max_trained_);
  }
}

Matrix CudaMlp::OutputOf(int layer, Matrix output) const {
  if (layer + 1 == num_layers()) return output;
  const Layer& l = layers_[layer];
  return FloatMatrix(l.output->floats(), output.rows, l.out, PaddedColumns(l.out));
}

Matrix CudaMlp::GradientOf(int layer, Matrix output_gradient) const {
  if (layer + 1 == num_layers()) return output_gradient;
  const Layer& l = layers_[layer];
  return FloatMatrix(l.gradient->floats(), output_gradient.rows, l.out, PaddedColumns(l.out));
}

void CudaMlp::Product(GemmCall call) {
  if (!context_.error->ok()) return;
  call.precision = precision_;
  context_.error->Record(context_.gemm->Run(call, context_.stream));
}

void CudaMlp::Forward(DeviceSpan<const float> parameters, Matrix input, Matrix output) {
  CHECK_EQ(input.cols, layers_.front().in);
  CHECK_EQ(output.cols, layers_.back().out);
  CHECK_LE(input.rows, max_batch_);
  if (input.rows == 0) return;
  Matrix x = input;
  for (int i = 0; i < num_layers(); ++i) {
    const Layer& layer = layers_[i];
    const Matrix y = OutputOf(i, output);
    GemmCall call;  // y = x w + b
    call.m = x.rows;
    call.n = layer.out;
    call.k = layer.in;
    call.a = x.floats();
    call.lda = x.ld;
    call.b = parameters.data + layer.weight_offset;
    call.ldb = layer.out;
    call.c = y.floats();
    call.ldc = y.ld;
    if (layer.has_bias()) call.bias = parameters.data + layer.bias_offset;
    call.relu = layer.relu;
    Product(call);
    x = y;
  }
}

void CudaMlp::BackwardData(DeviceSpan<const float> parameters, Matrix output,
                           Matrix output_gradient, Matrix input_gradient) {
  CHECK_LE(output_gradient.rows, max_trained_);
  if (output_gradient.rows == 0) return;
  for (int i = num_layers() - 1; i >= 0; --i) {
    const Layer& layer = layers_[i];
    const Matrix dy = GradientOf(i, output_gradient);
    if (!context_.error->ok()) return;
    if (layer.relu || layer.has_bias()) {
      float* const partials = layer.has_bias() ? layer.bias_partials->floats() : nullptr;
      context_.error->Record(LaunchMaskAndSum(layer.relu ? OutputOf(i, output) : Matrix(), dy,
                                              partials, context_.stream),
                             "gradient of a ReLU");
    }
    if (!layer.input_gradient) return;
    const Matrix dx = i > 0 ? GradientOf(i - 1, output_gradient) : input_gradient;
    GemmCall call;  // dx = dy w^T
    call.m = dy.rows;
    call.n = layer.in;
    call.k = layer.out;
    call.a = dy.floats();
    call.lda = dy.ld;
    call.b = parameters.data + layer.weight_offset;
    call.ldb = layer.out;
    call.b_transposed = true;
    call.c = dx.floats();
    call.ldc = dx.ld;
    Product(call);
  }
}

void CudaMlp::BackwardParameters(Matrix input, Matrix output_gradient,
                                 DeviceSpan<float> gradients) {
  std::vector<ColumnSums> bias_sums;
  for (int i = 0; i < num_layers() && context_.error->ok(); ++i) {
    const Layer& layer = layers_[i];
    const Matrix dy = GradientOf(i, output_gradient);
    const Matrix x = i > 0 ? OutputOf(i - 1, input) : input;
    if (layer.has_bias()) {
      bias_sums.push_back({gradients.data + layer.bias_offset, layer.bias_partials->floats(),
                           MaskedSumChunks(dy.rows), layer.out});
    }
    float* const weight_gradient = gradients.data + layer.weight_offset;
    if (dy.rows == 0) {
      const size_t bytes = sizeof(float) * layer.in * layer.out;
      context_.error->Record(cudaMemsetAsync(weight_gradient, 0, bytes, context_.stream),
                             "weight gradient of an empty batch");
      continue;
    }
    GemmCall call;  // dw = x^T dy
    call.m = layer.in;
    call.n = layer.out;
    call.k = dy.rows;
    call.a = x.floats();
    call.lda = x.ld;
    call.a_transposed = true;
    call.b = dy.floats();
    call.ldb = dy.ld;
    call.c = weight_gradient;
    call.ldc = layer.out;
    Product(call);
  }
  if (!context_.error->ok()) return;
  context_.error->Record(LaunchAddPartials(bias_sums, context_.stream), "bias gradients");
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
