// StreamDevice's LayerOperations: launches of layers.cu.
#include "common/base/check.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

class StreamDevice::Layers : public LayerOperations {
 public:
  explicit Layers(StreamDevice* device) : device_(*device) {}

  void Copy(Matrix from, Matrix to) override {
    CHECK(HaveSameShape(from, to));
    if (Begin()) Check(LaunchCopy(from, to, stream()), "Copy");
  }

  void Add(Matrix a, Matrix b, Matrix sum) override {
    CHECK(HaveSameShape(a, sum) && HaveSameShape(b, sum));
    if (Begin()) Check(LaunchAdd(a, b, sum, stream()), "Add");
  }

  void MultiplyAdd(float scale, Matrix a, Matrix b, Matrix c, Matrix output) override {
    CHECK(HaveSameShape(a, output) && HaveSameShape(b, output));
    CHECK(c.data == nullptr || HaveSameShape(c, output));
    if (Begin()) Check(LaunchMultiplyAdd(scale, a, b, c, output, stream()), "MultiplyAdd");
  }

  void ScaleRows(Matrix scale, Matrix x, Matrix output) override {
    CHECK(HaveSameShape(x, output) && HasShape(scale, x.rows, 1));
    if (Begin()) Check(LaunchScaleRows(scale, x, output, stream()), "ScaleRows");
  }

  void RowDot(Matrix a, Matrix b, Matrix output) override {
    CHECK(HaveSameShape(a, b) && HasShape(output, a.rows, 1));
    if (Begin()) Check(LaunchRowDot(a, b, output, stream()), "RowDot");
  }

  void ProductLogitForward(Matrix a, Matrix b, Matrix output) override {
    CHECK(HaveSameShape(a, output) && HaveSameShape(b, output));
    if (Begin()) Check(LaunchProductLogitForward(a, b, output, stream()), "ProductLogitForward");
  }

  void ProductLogitBackward(Matrix a, Matrix b, Matrix output_gradient,
                            Matrix a_gradient) override {
    CHECK(HaveSameShape(a, a_gradient) && HaveSameShape(b, a_gradient));
    CHECK(HaveSameShape(output_gradient, a_gradient));
    if (!Begin()) return;
    Check(LaunchProductLogitBackward(a, b, output_gradient, a_gradient, stream()),
          "ProductLogitBackward");
  }

  void ActivationForward(ActivationKind kind, DeviceSpan<const float> slopes, Matrix x,
                         Matrix y) override {
    CHECK(HaveSameShape(x, y));
    CHECK_EQ(slopes.size, kind == ActivationKind::kPrelu ? x.cols : 0);
    if (!Begin()) return;
    Check(LaunchActivationForward(kind, slopes.data, x, y, stream()), "ActivationForward");
  }

  void ActivationBackward(ActivationKind kind, DeviceSpan<const float> slopes, Matrix x, Matrix y,
                          Matrix y_gradient, Matrix x_gradient,
                          DeviceSpan<float> slope_gradients) override {
    const bool is_prelu = kind == ActivationKind::kPrelu;
    CHECK(HaveSameShape(is_prelu ? x : y, x_gradient) && HaveSameShape(y_gradient, x_gradient));
    CHECK_EQ(slopes.size, is_prelu ? x.cols : 0);
    CHECK_EQ(slope_gradients.size, slopes.size);
    float* scratch = nullptr;
    if (!Begin() || (is_prelu && !Scratch(x.rows, x.cols, &scratch))) return;
    Check(LaunchActivationBackward(kind, slopes.data, x, y, y_gradient, x_gradient,
                                   slope_gradients.data, scratch, stream()),
          "ActivationBackward");
  }

  void LayerNormForward(Matrix x, DeviceSpan<const float> gain, DeviceSpan<const float> bias,
                        float epsilon, Matrix y, Matrix moments) override {
    CHECK(HaveSameShape(x, y) && HasShape(moments, x.rows, 2));
    CHECK(gain.size == x.cols && bias.size == x.cols);
    if (!Begin()) return;
    Check(LaunchLayerNormForward(x, gain.data, bias.data, epsilon, y, moments, stream()),
          "LayerNormForward");
  }

  void LayerNormBackward(Matrix x, Matrix moments, DeviceSpan<const float> gain, Matrix y_gradient,
                         Matrix x_gradient, DeviceSpan<float> gain_gradient,
                         DeviceSpan<float> bias_gradient) override {
    CHECK(HaveSameShape(x, y_gradient) && HaveSameShape(x, x_gradient));
    CHECK(gain.size == x.cols && gain_gradient.size == x.cols && bias_gradient.size == x.cols);
    CHECK(HasShape(moments, x.rows, 2));
    float* scratch = nullptr;
    if (!Begin() || !Scratch(x.rows, 2 * int64_t{x.cols}, &scratch)) return;
    Check(LaunchLayerNormBackward(x, moments, gain.data, y_gradient, x_gradient, gain_gradient.data,
                                  bias_gradient.data, scratch, stream()),
          "LayerNormBackward");
  }

  void Dropout(const DropoutMask& mask, DeviceSpan<const SamplePlace> place, Matrix x,
               Matrix y) override {
    CHECK(HaveSameShape(x, y));
    CHECK_EQ(place.size, 1);
    if (Begin()) Check(LaunchDropout(mask, place.data, x, y, stream()), "Dropout");
  }

  void SoftmaxForward(Matrix x, Matrix y) override {
    CHECK(HaveSameShape(x, y));
    if (Begin()) Check(LaunchSoftmaxForward(x, y, stream()), "SoftmaxForward");
  }

  void SoftmaxBackward(Matrix y, Matrix y_gradient, Matrix x_gradient) override {
    CHECK(HaveSameShape(y, y_gradient) && HaveSameShape(y, x_gradient));
    if (Begin()) {
      Check(LaunchSoftmaxBackward(y, y_gradient, x_gradient, stream()), "SoftmaxBackward");
    }
  }

  void NormalizeForward(Matrix x, int32_t width, float epsilon, Matrix y, Matrix lengths) override {
    CHECK(HaveSameShape(x, y) && HasShape(lengths, x.rows, x.cols / width));
    CHECK_EQ(x.cols % width, 0);
    if (!Begin()) return;
    Check(LaunchNormalizeForward(x, width, epsilon, y, lengths, stream()), "NormalizeForward");
  }

  void NormalizeBackward(Matrix y, int32_t width, float epsilon, Matrix lengths, Matrix y_gradient,
                         Matrix x_gradient) override {
    CHECK(HaveSameShape(y, y_gradient) && HaveSameShape(y, x_gradient));
    CHECK(HasShape(lengths, y.rows, y.cols / width));
    CHECK_EQ(y.cols % width, 0);
    if (!Begin()) return;
    Check(LaunchNormalizeBackward(y, width, epsilon, lengths, y_gradient, x_gradient, stream()),
          "NormalizeBackward");
  }

  void SumVectors(Matrix x, float scale, Matrix sum) override {
    CHECK(x.rows == sum.rows && x.cols % sum.cols == 0);
    if (Begin()) Check(LaunchSumVectors(x, scale, sum, stream()), "SumVectors");
  }

  void RepeatVector(Matrix vector, float scale, Matrix x) override {
    CHECK(x.rows == vector.rows && x.cols % vector.cols == 0);
    if (Begin()) Check(LaunchRepeatVector(vector, scale, x, stream()), "RepeatVector");
  }

  void MixForward(Matrix shares, Matrix x, Matrix y) override {
    CHECK(x.rows == y.rows && shares.rows == y.rows);
    CHECK_EQ(int64_t{shares.cols} * y.cols, x.cols);
    if (Begin()) Check(LaunchMixForward(shares, x, y, stream()), "MixForward");
  }

  void MixBackward(Matrix shares, Matrix x, Matrix y_gradient, Matrix shares_gradient,
                   Matrix x_gradient) override {
    CHECK(x.rows == y_gradient.rows && shares.rows == y_gradient.rows);
    CHECK_EQ(int64_t{shares.cols} * y_gradient.cols, x.cols);
    CHECK(shares_gradient.data == nullptr || HaveSameShape(shares, shares_gradient));
    CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
    if (!Begin()) return;
    Check(LaunchMixBackward(shares, x, y_gradient, shares_gradient, x_gradient, stream()),
          "MixBackward");
  }

  void FmForward(Matrix x, int32_t width, Matrix sums, Matrix output) override {
    CHECK(HasShape(sums, x.rows, width) && HasShape(output, x.rows, 1));
    CHECK_EQ(x.cols % width, 0);
    if (Begin()) Check(LaunchFmForward(x, width, sums, output, stream()), "FmForward");
  }

  void FmBackward(Matrix x, int32_t width, Matrix sums, Matrix output_gradient,
                  Matrix x_gradient) override {
    CHECK(HaveSameShape(x, x_gradient));
    CHECK(HasShape(sums, x.rows, width) && HasShape(output_gradient, x.rows, 1));
    CHECK_EQ(x.cols % width, 0);
    if (Begin())
      Check(LaunchFmBackward(x, sums, output_gradient, x_gradient, stream()), "FmBackward");
  }

  void EmbedForward(Matrix x, DeviceSpan<const float> vectors, Matrix y) override {
    CHECK(x.rows == y.rows && y.cols % x.cols == 0);
    CHECK_EQ(vectors.size, y.cols);
    if (Begin()) Check(LaunchEmbedForward(x, vectors.data, y, stream()), "EmbedForward");
  }

  void EmbedBackward(Matrix x, DeviceSpan<const float> vectors, Matrix y_gradient,
                     Matrix x_gradient, DeviceSpan<float> vector_gradients) override {
    CHECK(x.rows == y_gradient.rows && y_gradient.cols % x.cols == 0);
    CHECK(vectors.size == y_gradient.cols && vector_gradients.size == y_gradient.cols);
    CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
    float* scratch = nullptr;
    if (!Begin() || !Scratch(x.rows, y_gradient.cols, &scratch)) return;
    Check(LaunchEmbedBackward(x, vectors.data, y_gradient, x_gradient, vector_gradients.data,
                              scratch, stream()),
          "EmbedBackward");
  }

 private:
  bool Begin() { return device_.Begin(); }
  void Check(cudaError_t error, const char* operation) { device_.Check(error, operation); }
  cudaStream_t stream() const { return device_.compute_; }
  // Sets *scratch to memory for sums over the samples of so many floats. Returns false after an
  // error.
  bool Scratch(int64_t samples, int64_t floats, float** scratch) {
    const int64_t size = SumOverSamplesScratchFloats(samples, floats);
    *scratch = static_cast<float*>(device_.Scratch(sizeof(float) * size));
    return *scratch != nullptr;
  }

  StreamDevice& device_;
};

std::unique_ptr<LayerOperations> StreamDevice::MakeLayers(StreamDevice* device) {
  return std::make_unique<Layers>(device);
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
