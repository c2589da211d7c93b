// What layers compute beside matrix products (kernels/layer_operations.h), in the forms of
// row_kernels.h. The arithmetic is that of kernels/layer_arithmetic.h and kernels/bce_arithmetic.h.
#include "kernels/bce_arithmetic.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/row_kernels.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {
namespace {

struct CopyElement {
  Matrix from, to;
  __device__ void operator()(int64_t r, int32_t c) const { RowOf(to, r)[c] = RowOf(from, r)[c]; }
};

struct AddElement {
  Matrix a, b, sum;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(sum, r)[c] = RowOf(a, r)[c] + RowOf(b, r)[c];
  }
};

struct MultiplyAddElement {
  float scale;
  Matrix a, b, c, output;
  __device__ void operator()(int64_t r, int32_t i) const {
    const float product = scale * RowOf(a, r)[i] * RowOf(b, r)[i];
    RowOf(output, r)[i] = c.data == nullptr ? product : product + RowOf(c, r)[i];
  }
};

struct ScaleRowsElement {
  Matrix scale, x, output;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(output, r)[c] = *RowOf(scale, r) * RowOf(x, r)[c];
  }
};

struct ProductLogitElement {
  Matrix a, b, output;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(output, r)[c] = ProductLogit(RowOf(a, r)[c], RowOf(b, r)[c]);
  }
};

struct ProductLogitGradientElement {
  Matrix a, b, output_gradient, a_gradient;
  __device__ void operator()(int64_t r, int32_t c) const {
    const float slope = ProductLogitSlope(RowOf(a, r)[c], RowOf(b, r)[c]);
    RowOf(a_gradient, r)[c] = slope * RowOf(output_gradient, r)[c];
  }
};

struct RowDotItem {
  Matrix a, b, output;
  __device__ void operator()(int64_t r, int lane, bool has_item) const {
    const float* const x = RowOf(a, has_item ? r : 0);
    const float* const y = RowOf(b, has_item ? r : 0);
    const float sum =
        SumOfLanes(has_item ? a.cols : 0, lane, [=](int32_t c) { return x[c] * y[c]; });
    if (has_item && lane == 0) *RowOf(output, r) = sum;
  }
};

template <ActivationKind kKind>
struct ActivationElement {
  const float* slopes;
  Matrix x, y;
  __device__ void operator()(int64_t r, int32_t c) const {
    const float v = RowOf(x, r)[c];
    float* const to = RowOf(y, r) + c;
    if (kKind == ActivationKind::kRelu) *to = Relu(v);
    if (kKind == ActivationKind::kSigmoid) *to = Sigmoid(v);
    if (kKind == ActivationKind::kTanh) *to = Tanh(v);
    if (kKind == ActivationKind::kPrelu) *to = Prelu(v, slopes[c]);
  }
};

template <ActivationKind kKind>
struct ActivationGradientElement {
  const float* slopes;
  Matrix value;  // x for kPrelu, else y
  Matrix y_gradient, x_gradient;
  __device__ void operator()(int64_t r, int32_t c) const {
    const float v = RowOf(value, r)[c], g = RowOf(y_gradient, r)[c];
    float* const to = RowOf(x_gradient, r) + c;
    if (kKind == ActivationKind::kRelu) *to = ReluGradient(v, g);
    if (kKind == ActivationKind::kSigmoid) *to = SigmoidGradient(v, g);
    if (kKind == ActivationKind::kTanh) *to = TanhGradient(v, g);
    if (kKind == ActivationKind::kPrelu) *to = PreluGradient(v, slopes[c], g);
  }
};

struct PreluSlopeTerm {
  Matrix x, y_gradient;
  __device__ void operator()(int64_t r, int32_t c, float* sums) const {
    sums[0] += PreluSlopeGradient(RowOf(x, r)[c], RowOf(y_gradient, r)[c]);
  }
};

struct LayerNormItem {
  Matrix x;
  const float* gain;
  const float* bias;
  float epsilon;
  Matrix y, moments;
  __device__ void operator()(int64_t r, int lane, bool has_item) const {
    const int32_t n = has_item ? x.cols : 0;
    const float* const from = RowOf(x, has_item ? r : 0);
    const float mean = MeanOf(SumOfLanes(n, lane, [=](int32_t c) { return from[c]; }), x.cols);
    const float squares = SumOfLanes(n, lane, [=](int32_t c) {
      const float distance = from[c] - mean;
      return distance * distance;
    });
    if (!has_item) return;
    const float scale = InverseDeviation(squares, x.cols, epsilon);
    float* const to = RowOf(y, r);
    for (int32_t c = lane; c < n; c += kRowLanes) {
      to[c] = LayerNormOf(from[c], mean, scale, gain[c], bias[c]);
    }
    if (lane == 0) {
      RowOf(moments, r)[0] = mean;
      RowOf(moments, r)[1] = scale;
    }
  }
};

struct LayerNormGradientItem {
  Matrix x, moments;
  const float* gain;
  Matrix y_gradient, x_gradient;
  __device__ void operator()(int64_t r, int lane, bool has_item) const {
    const int32_t n = has_item ? x.cols : 0;
    const float* const from = RowOf(x, has_item ? r : 0);
    const float* const dy = RowOf(y_gradient, has_item ? r : 0);
    const float* const g = gain;
    const float mean = RowOf(moments, has_item ? r : 0)[0];
    const float scale = RowOf(moments, has_item ? r : 0)[1];
    const float sum = SumOfLanes(n, lane, [=](int32_t c) { return dy[c] * g[c]; });
    const float dot =
        SumOfLanes(n, lane, [=](int32_t c) { return dy[c] * g[c] * ((from[c] - mean) * scale); });
    if (!has_item) return;
    const float mean_gradient = MeanOf(sum, x.cols), mean_dot = MeanOf(dot, x.cols);
    float* const dx = RowOf(x_gradient, r);
    for (int32_t c = lane; c < n; c += kRowLanes) {
      const float normalized = (from[c] - mean) * scale;
      dx[c] = LayerNormGradient(dy[c] * g[c], normalized, mean_gradient, mean_dot, scale);
    }
  }
};

struct LayerNormParameterTerm {
  Matrix x, moments, y_gradient;
  __device__ void operator()(int64_t r, int32_t c, float* sums) const {
    const float* const m = RowOf(moments, r);
    const float gradient = RowOf(y_gradient, r)[c];
    sums[0] += gradient * ((RowOf(x, r)[c] - m[0]) * m[1]);
    sums[1] += gradient;
  }
};

struct DropoutElement {
  DropoutMask mask;
  const SamplePlace* place;
  Matrix x, y;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(y, r)[c] = DropoutOfUnit(mask, place->step, place->first_sample + r, c, RowOf(x, r)[c]);
  }
};

struct SoftmaxItem {
  Matrix x, y;
  __device__ void operator()(int64_t r, int lane, bool has_item) const {
    SoftmaxOfLanes(has_item ? x.cols : 0, lane, RowOf(x, has_item ? r : 0), 1,
                   RowOf(y, has_item ? r : 0), 1);
  }
};

struct SoftmaxGradientItem {
  Matrix y, y_gradient, x_gradient;
  __device__ void operator()(int64_t r, int lane, bool has_item) const {
    const int64_t row = has_item ? r : 0;
    SoftmaxGradientsOfLanes(has_item ? y.cols : 0, lane, RowOf(y, row), 1, RowOf(y_gradient, row),
                            1, RowOf(x_gradient, row), 1);
  }
};

// An item is a vector of a sample.
struct NormalizeItem {
  Matrix x;
  int32_t width;
  float epsilon;
  Matrix y, lengths;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t r = has_item ? i / lengths.cols : 0;
    const int64_t v = has_item ? i % lengths.cols : 0;
    const float* const from = RowOf(x, r) + v * width;
    const float squares =
        SumOfLanes(has_item ? width : 0, lane, [=](int32_t c) { return from[c] * from[c]; });
    if (!has_item) return;
    const float divisor = LengthOf(squares, epsilon);
    const float inverse = 1 / divisor;
    float* const to = RowOf(y, r) + v * width;
    for (int32_t c = lane; c < width; c += kRowLanes) to[c] = from[c] * inverse;
    if (lane == 0) RowOf(lengths, r)[v] = divisor;
  }
};

struct NormalizeGradientItem {
  Matrix y;
  int32_t width;
  float epsilon;
  Matrix lengths, y_gradient, x_gradient;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t r = has_item ? i / lengths.cols : 0;
    const int64_t v = has_item ? i % lengths.cols : 0;
    const float* const from = RowOf(y, r) + v * width;
    const float* const dy = RowOf(y_gradient, r) + v * width;
    const float sum =
        SumOfLanes(has_item ? width : 0, lane, [=](int32_t c) { return from[c] * dy[c]; });
    if (!has_item) return;
    const float divisor = RowOf(lengths, r)[v];
    const float inverse = 1 / divisor;
    const float dot = NormalizeDot(sum, divisor, epsilon);
    float* const dx = RowOf(x_gradient, r) + v * width;
    for (int32_t c = lane; c < width; c += kRowLanes) dx[c] = (dy[c] - from[c] * dot) * inverse;
  }
};

struct SumVectorsElement {
  Matrix x;
  float scale;
  Matrix sum;
  __device__ void operator()(int64_t r, int32_t c) const {
    const float* const from = RowOf(x, r) + c;
    float total = 0;
    UNROLL(4)
    for (int32_t v = 0; v < x.cols; v += sum.cols) total += from[v];
    RowOf(sum, r)[c] = scale * total;
  }
};

struct RepeatVectorElement {
  Matrix vector;
  float scale;
  Matrix x;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(x, r)[c] = scale * RowOf(vector, r)[c % vector.cols];
  }
};

struct MixElement {
  Matrix shares, x, y;
  __device__ void operator()(int64_t r, int32_t c) const {
    const float* const share = RowOf(shares, r);
    const float* const from = RowOf(x, r) + c;
    float sum = 0;
    UNROLL(4)
    for (int32_t v = 0; v < shares.cols; ++v) sum += share[v] * from[int64_t{v} * y.cols];
    RowOf(y, r)[c] = sum;
  }
};

// An item is a vector of a sample.
struct MixGradientItem {
  Matrix shares, x, y_gradient, shares_gradient, x_gradient;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t r = has_item ? i / shares.cols : 0;
    const int64_t v = has_item ? i % shares.cols : 0;
    const int32_t width = y_gradient.cols;
    const int32_t n = has_item ? width : 0;
    const float* const from = RowOf(x, r) + v * width;
    const float* const dy = RowOf(y_gradient, r);
    // Before lane 0 writes the gradient, which may replace it.
    const float share = OfLane(RowOf(shares, r)[v], 0);
    if (shares_gradient.data != nullptr) {
      const float dot = SumOfLanes(n, lane, [=](int32_t c) { return from[c] * dy[c]; });
      if (has_item && lane == 0) RowOf(shares_gradient, r)[v] = dot;
    }
    if (x_gradient.data == nullptr) return;
    float* const to = RowOf(x_gradient, r) + v * width;
    for (int32_t c = lane; c < n; c += kRowLanes) to[c] = share * dy[c];
  }
};

struct FmItem {
  Matrix x;
  int32_t width;
  Matrix sums, output;
  __device__ void operator()(int64_t r, int lane, bool has_item) const {
    float total = -0.0f;
    for (int32_t c = lane; has_item && c < width; c += kRowLanes) {
      const float* const from = RowOf(x, r) + c;
      float sum = 0, squares = 0;
      for (int32_t v = 0; v < x.cols; v += width) {
        const float value = from[v];
        sum += value;
        squares += value * value;
      }
      RowOf(sums, r)[c] = sum;
      total += sum * sum - squares;
    }
    total = TreeOfLanes(total, lane);
    if (has_item && lane == 0) *RowOf(output, r) = 0.5f * total;
  }
};

struct FmGradientElement {
  Matrix x, sums, output_gradient, x_gradient;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(x_gradient, r)[c] =
        *RowOf(output_gradient, r) * (RowOf(sums, r)[c % sums.cols] - RowOf(x, r)[c]);
  }
};

struct EmbedElement {
  Matrix x;
  const float* vectors;
  int32_t dim;
  Matrix y;
  __device__ void operator()(int64_t r, int32_t c) const {
    RowOf(y, r)[c] = RowOf(x, r)[c / dim] * vectors[c];
  }
};

// An item is a number of a sample.
struct EmbedGradientItem {
  const float* vectors;
  int32_t dim;
  Matrix y_gradient, x_gradient;
  __device__ void operator()(int64_t i, int lane, bool has_item) const {
    const int64_t r = has_item ? i / x_gradient.cols : 0;
    const int64_t n = has_item ? i % x_gradient.cols : 0;
    const float* const vector = vectors + n * dim;
    const float* const dy = RowOf(y_gradient, r) + n * dim;
    const float dot =
        SumOfLanes(has_item ? dim : 0, lane, [=](int32_t c) { return vector[c] * dy[c]; });
    if (has_item && lane == 0) RowOf(x_gradient, r)[n] = dot;
  }
};

struct EmbedVectorTerm {
  Matrix x;
  int32_t dim;
  Matrix y_gradient;
  __device__ void operator()(int64_t r, int32_t c, float* sums) const {
    sums[0] += RowOf(x, r)[c / dim] * RowOf(y_gradient, r)[c];
  }
};

}  // namespace

cudaError_t LaunchCopy(Matrix from, Matrix to, cudaStream_t stream) {
  return LaunchElements(to, CopyElement{from, to}, stream);
}

cudaError_t LaunchAdd(Matrix a, Matrix b, Matrix sum, cudaStream_t stream) {
  return LaunchElements(sum, AddElement{a, b, sum}, stream);
}

cudaError_t LaunchMultiplyAdd(float scale, Matrix a, Matrix b, Matrix c, Matrix output,
                              cudaStream_t stream) {
  return LaunchElements(output, MultiplyAddElement{scale, a, b, c, output}, stream);
}

cudaError_t LaunchScaleRows(Matrix scale, Matrix x, Matrix output, cudaStream_t stream) {
  return LaunchElements(output, ScaleRowsElement{scale, x, output}, stream);
}

cudaError_t LaunchRowDot(Matrix a, Matrix b, Matrix output, cudaStream_t stream) {
  return LaunchLanes(a.rows, RowDotItem{a, b, output}, stream);
}

cudaError_t LaunchProductLogitForward(Matrix a, Matrix b, Matrix output, cudaStream_t stream) {
  return LaunchElements(output, ProductLogitElement{a, b, output}, stream);
}

cudaError_t LaunchProductLogitBackward(Matrix a, Matrix b, Matrix output_gradient,
                                       Matrix a_gradient, cudaStream_t stream) {
  return LaunchElements(a_gradient, ProductLogitGradientElement{a, b, output_gradient, a_gradient},
                        stream);
}

cudaError_t LaunchActivationForward(ActivationKind kind, const float* slopes, Matrix x, Matrix y,
                                    cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::kRelu:
      return LaunchElements(y, ActivationElement<ActivationKind::kRelu>{slopes, x, y}, stream);
    case ActivationKind::kSigmoid:
      return LaunchElements(y, ActivationElement<ActivationKind::kSigmoid>{slopes, x, y}, stream);
    case ActivationKind::kTanh:
      return LaunchElements(y, ActivationElement<ActivationKind::kTanh>{slopes, x, y}, stream);
    case ActivationKind::kPrelu:
      return LaunchElements(y, ActivationElement<ActivationKind::kPrelu>{slopes, x, y}, stream);
  }
  return cudaErrorInvalidValue;
}

template <ActivationKind kKind>
cudaError_t LaunchActivationGradient(const float* slopes, Matrix value, Matrix y_gradient,
                                     Matrix x_gradient, cudaStream_t stream) {
  return LaunchElements(
      x_gradient, ActivationGradientElement<kKind>{slopes, value, y_gradient, x_gradient}, stream);
}

cudaError_t LaunchActivationBackward(ActivationKind kind, const float* slopes, Matrix x, Matrix y,
                                     Matrix y_gradient, Matrix x_gradient, float* slope_gradients,
                                     float* scratch, cudaStream_t stream) {
  switch (kind) {
    case ActivationKind::kRelu:
      return LaunchActivationGradient<ActivationKind::kRelu>(slopes, y, y_gradient, x_gradient,
                                                             stream);
    case ActivationKind::kSigmoid:
      return LaunchActivationGradient<ActivationKind::kSigmoid>(slopes, y, y_gradient, x_gradient,
                                                                stream);
    case ActivationKind::kTanh:
      return LaunchActivationGradient<ActivationKind::kTanh>(slopes, y, y_gradient, x_gradient,
                                                             stream);
    case ActivationKind::kPrelu:
      break;
  }
  const cudaError_t error = LaunchSumsOverSamples<1>(x.rows, x.cols, PreluSlopeTerm{x, y_gradient},
                                                     {slope_gradients}, scratch, stream);
  if (error != cudaSuccess) return error;
  return LaunchActivationGradient<ActivationKind::kPrelu>(slopes, x, y_gradient, x_gradient,
                                                          stream);
}

cudaError_t LaunchLayerNormForward(Matrix x, const float* gain, const float* bias, float epsilon,
                                   Matrix y, Matrix moments, cudaStream_t stream) {
  return LaunchLanes(x.rows, LayerNormItem{x, gain, bias, epsilon, y, moments}, stream);
}

cudaError_t LaunchLayerNormBackward(Matrix x, Matrix moments, const float* gain, Matrix y_gradient,
                                    Matrix x_gradient, float* gain_gradient, float* bias_gradient,
                                    float* scratch, cudaStream_t stream) {
  // The parameters' first: x_gradient may replace x or y_gradient.
  const cudaError_t error =
      LaunchSumsOverSamples<2>(x.rows, x.cols, LayerNormParameterTerm{x, moments, y_gradient},
                               {gain_gradient, bias_gradient}, scratch, stream);
  if (error != cudaSuccess) return error;
  return LaunchLanes(x.rows, LayerNormGradientItem{x, moments, gain, y_gradient, x_gradient},
                     stream);
}

cudaError_t LaunchDropout(const DropoutMask& mask, const SamplePlace* place, Matrix x, Matrix y,
                          cudaStream_t stream) {
  return LaunchElements(y, DropoutElement{mask, place, x, y}, stream);
}

cudaError_t LaunchSoftmaxForward(Matrix x, Matrix y, cudaStream_t stream) {
  return LaunchLanes(x.rows, SoftmaxItem{x, y}, stream);
}

cudaError_t LaunchSoftmaxBackward(Matrix y, Matrix y_gradient, Matrix x_gradient,
                                  cudaStream_t stream) {
  return LaunchLanes(y.rows, SoftmaxGradientItem{y, y_gradient, x_gradient}, stream);
}

cudaError_t LaunchNormalizeForward(Matrix x, int32_t width, float epsilon, Matrix y, Matrix lengths,
                                   cudaStream_t stream) {
  return LaunchLanes(int64_t{lengths.rows} * lengths.cols,
                     NormalizeItem{x, width, epsilon, y, lengths}, stream);
}

cudaError_t LaunchNormalizeBackward(Matrix y, int32_t width, float epsilon, Matrix lengths,
                                    Matrix y_gradient, Matrix x_gradient, cudaStream_t stream) {
  return LaunchLanes(int64_t{lengths.rows} * lengths.cols,
                     NormalizeGradientItem{y, width, epsilon, lengths, y_gradient, x_gradient},
                     stream);
}

cudaError_t LaunchSumVectors(Matrix x, float scale, Matrix sum, cudaStream_t stream) {
  return LaunchElements(sum, SumVectorsElement{x, scale, sum}, stream);
}

cudaError_t LaunchRepeatVector(Matrix vector, float scale, Matrix x, cudaStream_t stream) {
  return LaunchElements(x, RepeatVectorElement{vector, scale, x}, stream);
}

cudaError_t LaunchMixForward(Matrix shares, Matrix x, Matrix y, cudaStream_t stream) {
  return LaunchElements(y, MixElement{shares, x, y}, stream);
}

cudaError_t LaunchMixBackward(Matrix shares, Matrix x, Matrix y_gradient, Matrix shares_gradient,
                              Matrix x_gradient, cudaStream_t stream) {
  return LaunchLanes(int64_t{shares.rows} * shares.cols,
                     MixGradientItem{shares, x, y_gradient, shares_gradient, x_gradient}, stream);
}

cudaError_t LaunchFmForward(Matrix x, int32_t width, Matrix sums, Matrix output,
                            cudaStream_t stream) {
  return LaunchLanes(x.rows, FmItem{x, width, sums, output}, stream);
}

cudaError_t LaunchFmBackward(Matrix x, Matrix sums, Matrix output_gradient, Matrix x_gradient,
                             cudaStream_t stream) {
  return LaunchElements(x_gradient, FmGradientElement{x, sums, output_gradient, x_gradient},
                        stream);
}

cudaError_t LaunchEmbedForward(Matrix x, const float* vectors, Matrix y, cudaStream_t stream) {
  return LaunchElements(y, EmbedElement{x, vectors, y.cols / x.cols, y}, stream);
}

cudaError_t LaunchEmbedBackward(Matrix x, const float* vectors, Matrix y_gradient,
                                Matrix x_gradient, float* vector_gradients, float* scratch,
                                cudaStream_t stream) {
  const int32_t dim = y_gradient.cols / x.cols;
  const cudaError_t error =
      LaunchSumsOverSamples<1>(x.rows, y_gradient.cols, EmbedVectorTerm{x, dim, y_gradient},
                               {vector_gradients}, scratch, stream);
  if (error != cudaSuccess || x_gradient.data == nullptr) return error;
  return LaunchLanes(int64_t{x_gradient.rows} * x_gradient.cols,
                     EmbedGradientItem{vectors, dim, y_gradient, x_gradient}, stream);
}

int64_t SumOverSamplesScratchFloats(int64_t rows, int64_t floats) {
  return CeilDiv(rows, kSampleChunk) * floats;
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
