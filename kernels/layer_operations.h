// What the layers of a model compute beside matrix products (mlp.h) and the operations on
// embeddings (device.h), on one device. Implementations: CpuLayerOperations (cpu/cpu_layers.h),
// which is the specification, and StreamLayerOperations (cuda/), on an NVIDIA GPU.
//
// As operations of a device: they run in the order they are called, may return before they are
// finished, allocate nothing (but scratch, which grows to the largest batch seen), and give the
// same bits on both devices and for any number of threads. There is no libm and no approximate
// reciprocal (layer_arithmetic.h). Sums over the columns of a sample go in 16 lanes and a tree
// (device.h); sums over a sample's vectors one after the other; sums over samples, which are
// gradients of parameters, in chunks of kSampleChunk samples, each in order, partials in order. A
// batch without samples has zeros for such sums.
//
// Matrices are [batch, columns] float32 with any leading dimension, and may be columns of wider
// ones: nothing beyond their columns is read or written. An output may be an input of its own shape
// (the same memory), but for `moments` and `lengths`; it overlaps no other.
#ifndef THERMOCLINE_KERNELS_LAYER_OPERATIONS_H_
#define THERMOCLINE_KERNELS_LAYER_OPERATIONS_H_

#include <cstdint>

#include "kernels/matrix.h"

namespace thermocline {

enum class ActivationKind { kRelu, kSigmoid, kTanh, kPrelu };

// Which units a training step keeps. A unit is kept where the hash of (key, steps_before + step,
// the sample's place in the global batch, column), of 16 bits, is at least `threshold`. (At the
// steps of a sequence, DropoutRowOfStep has the number in the place of the sample's.)
struct DropoutMask {
  uint64_t key = 0;        // A hash of the seed and the layer.
  uint32_t threshold = 0;  // 65536 times the share of units that are dropped; below 65536.
  float scale = 1;         // What kept units are multiplied with.
  int64_t steps_before = 0;
};

// Where a worker's batch stands in the training, in device memory, since captured work has fixed
// arguments.
struct SamplePlace {
  int64_t step = 0;
  int64_t first_sample = 0;  // The place of the batch's first sample in the global batch.
};

class LayerOperations {
 public:
  virtual ~LayerOperations() = default;

  virtual void Copy(Matrix from, Matrix to) = 0;
  virtual void Add(Matrix a, Matrix b, Matrix sum) = 0;
  // output = scale * a * b + c, rounded after each of the three operations, scale * a first.
  // c.data null: nothing is added.
  virtual void MultiplyAdd(float scale, Matrix a, Matrix b, Matrix c, Matrix output) = 0;
  // output[b, c] = scale[b] * x[b, c]
  virtual void ScaleRows(Matrix scale,  // [batch, 1]
                         Matrix x, Matrix output) = 0;
  // output[b] = the dot product of a's and b's row b.
  virtual void RowDot(Matrix a, Matrix b, Matrix output) = 0;  // [batch, 1]
  // Element by element the logit of sigmoid(a) * sigmoid(b) (bce_arithmetic.h).
  virtual void ProductLogitForward(Matrix a, Matrix b, Matrix output) = 0;
  // The gradient of a; that of b is computed likewise, with a and b exchanged.
  virtual void ProductLogitBackward(Matrix a, Matrix b, Matrix output_gradient,
                                    Matrix a_gradient) = 0;

  // slopes: [columns] for kPrelu, else empty.
  virtual void ActivationForward(ActivationKind kind, DeviceSpan<const float> slopes, Matrix x,
                                 Matrix y) = 0;
  // x: needed by kPrelu alone; y: by the others. slope_gradients: [columns], overwritten; kPrelu
  // alone.
  virtual void ActivationBackward(ActivationKind kind, DeviceSpan<const float> slopes, Matrix x,
                                  Matrix y, Matrix y_gradient, Matrix x_gradient,
                                  DeviceSpan<float> slope_gradients) = 0;

  // y = (x - mean) / sqrt(variance + epsilon) * gain + bias in each row (Ba, Kiros, Hinton 2016).
  virtual void LayerNormForward(Matrix x, DeviceSpan<const float> gain,  // [columns]
                                DeviceSpan<const float> bias,            // [columns]
                                float epsilon, Matrix y,
                                Matrix moments) = 0;  // [batch, 2]: mean, 1 / sqrt(var + epsilon)
  // Overwrites the gradients of gain and bias.
  virtual void LayerNormBackward(Matrix x, Matrix moments, DeviceSpan<const float> gain,
                                 Matrix y_gradient, Matrix x_gradient,
                                 DeviceSpan<float> gain_gradient,
                                 DeviceSpan<float> bias_gradient) = 0;

  // y = x * mask.scale for kept units, 0 for others. It is its own backward pass, on gradients.
  virtual void Dropout(const DropoutMask& mask, DeviceSpan<const SamplePlace> place,  // [1]
                       Matrix x, Matrix y) = 0;

  // Softmax over the columns of each row: exp(x - the row's greatest x) times 1 / sum. An exponent
  // below -87 counts as -87.
  virtual void SoftmaxForward(Matrix x, Matrix y) = 0;
  // x_gradient = y (y_gradient - dot(y, y_gradient)) in each row.
  virtual void SoftmaxBackward(Matrix y, Matrix y_gradient, Matrix x_gradient) = 0;

  // Divides each vector of `width` columns by the greater of its Euclidean length and epsilon: it
  // multiplies with 1 / divisor, rounded. lengths: [batch, vectors], the divisors.
  virtual void NormalizeForward(Matrix x, int32_t width, float epsilon, Matrix y,
                                Matrix lengths) = 0;
  virtual void NormalizeBackward(Matrix y, int32_t width, float epsilon, Matrix lengths,
                                 Matrix y_gradient, Matrix x_gradient) = 0;

  // sum[b, c] = scale * sum over v of x[b, v * width + c], where width is sum.cols.
  // REQUIRES: x.cols is a multiple of sum.cols.
  virtual void SumVectors(Matrix x, float scale, Matrix sum) = 0;
  // x[b, v * width + c] = scale * vector[b, c], where width is vector.cols.
  virtual void RepeatVector(Matrix vector, float scale, Matrix x) = 0;

  // A weighted sum of vectors: y[b, c] = sum over v of shares[b, v] * x[b, v * width + c], where
  // width is y.cols.
  virtual void MixForward(Matrix shares,  // [batch, vectors]
                          Matrix x,       // [batch, vectors * width]
                          Matrix y) = 0;  // [batch, width]
  // A gradient whose data is null is not computed.
  virtual void MixBackward(Matrix shares, Matrix x, Matrix y_gradient, Matrix shares_gradient,
                           Matrix x_gradient) = 0;

  // The second-order term of a factorization machine over the vectors of `width` columns:
  // output[b] = 1/2 sum over c of (sums[b, c]^2 - sum over v of x[b, v, c]^2).
  virtual void FmForward(Matrix x, int32_t width,
                         Matrix sums,         // [batch, width]: of the vectors
                         Matrix output) = 0;  // [batch, 1]
  // x_gradient[b, v, c] = output_gradient[b] (sums[b, c] - x[b, v, c])
  virtual void FmBackward(Matrix x, int32_t width, Matrix sums, Matrix output_gradient,
                          Matrix x_gradient) = 0;

  // y[b, n * dim + c] = x[b, n] * vectors[n * dim + c], where dim is y.cols / x.cols.
  virtual void EmbedForward(Matrix x, DeviceSpan<const float> vectors, Matrix y) = 0;
  // x_gradient.data null: it is not computed. Overwrites vector_gradients.
  virtual void EmbedBackward(Matrix x, DeviceSpan<const float> vectors, Matrix y_gradient,
                             Matrix x_gradient, DeviceSpan<float> vector_gradients) = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_KERNELS_LAYER_OPERATIONS_H_
