// StreamDevice's StepOperations: launches of steps.cu.
#include <limits>

#include "common/base/check.h"
#include "kernels/cuda/operations.h"
#include "kernels/cuda/stream_device.h"

namespace thermocline {
namespace THERMOCLINE_CUDA_NAMESPACE {

class StreamDevice::Steps : public StepOperations {
 public:
  explicit Steps(StreamDevice* device) : device_(*device) {}

  void Repeat(const StepRanges& ranges, Matrix x, Matrix y) override {
    CHECK(IsBySample(ranges, x) && x.cols == y.cols);
    if (Begin()) Check(LaunchRepeat(ranges, x, y, stream()), "Repeat");
  }

  void Pool(const StepRanges& ranges, StepPooling pooling, Matrix x, Matrix y) override {
    CHECK(IsBySample(ranges, y) && x.cols == y.cols);
    if (Begin()) Check(LaunchStepPool(ranges, pooling, x, y, stream()), "Pool");
  }

  void PoolBackward(const StepRanges& ranges, StepPooling pooling, Matrix y_gradient,
                    Matrix x_gradient) override {
    CHECK(IsBySample(ranges, y_gradient) && x_gradient.cols == y_gradient.cols);
    if (!Begin()) return;
    Check(LaunchStepPoolBackward(ranges, pooling, y_gradient, x_gradient, stream()),
          "PoolBackward");
  }

  void PoolWeighted(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y) override {
    CHECK(IsBySample(ranges, y) && x.cols == y.cols && HasShape(weights, x.rows, 1));
    if (Begin()) Check(LaunchPoolWeighted(ranges, weights, x, y, stream()), "PoolWeighted");
  }

  void PoolWeightedBackward(const StepRanges& ranges, Matrix weights, Matrix x, Matrix y_gradient,
                            Matrix weights_gradient, Matrix x_gradient) override {
    CHECK(IsBySample(ranges, y_gradient) && x.cols == y_gradient.cols);
    CHECK(HasShape(weights, x.rows, 1));
    CHECK(weights_gradient.data == nullptr || HaveSameShape(weights, weights_gradient));
    CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
    if (!Begin()) return;
    Check(LaunchPoolWeightedBackward(ranges, weights, x, y_gradient, weights_gradient, x_gradient,
                                     stream()),
          "PoolWeightedBackward");
  }

  void Compare(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y) override {
    CHECK(IsBySample(ranges, queries) && x.cols == queries.cols);
    CHECK(HasShape(y, x.rows, 4 * x.cols));
    if (Begin()) Check(LaunchCompare(ranges, queries, x, y, stream()), "Compare");
  }

  void CompareBackward(const StepRanges& ranges, Matrix queries, Matrix x, Matrix y_gradient,
                       Matrix query_gradients, bool adds, Matrix x_gradient) override {
    CHECK(IsBySample(ranges, queries) && x.cols == queries.cols);
    CHECK(HasShape(y_gradient, x.rows, 4 * x.cols));
    CHECK(query_gradients.data == nullptr || HaveSameShape(queries, query_gradients));
    CHECK(x_gradient.data == nullptr || HaveSameShape(x, x_gradient));
    if (!Begin()) return;
    Check(LaunchCompareBackward(ranges, queries, x, y_gradient, query_gradients, adds, x_gradient,
                                stream()),
          "CompareBackward");
  }

  void SoftmaxForward(const StepRanges& ranges, bool without_last, Matrix x, Matrix y) override {
    CHECK(HaveSameShape(x, y));
    if (!Begin()) return;
    Check(LaunchStepSoftmaxForward(ranges, without_last, x, y, stream()), "SoftmaxForward");
  }

  void SoftmaxBackward(const StepRanges& ranges, Matrix y, Matrix y_gradient,
                       Matrix x_gradient) override {
    CHECK(HaveSameShape(y, y_gradient) && HaveSameShape(y, x_gradient));
    if (!Begin()) return;
    Check(LaunchStepSoftmaxBackward(ranges, y, y_gradient, x_gradient, stream()),
          "SoftmaxBackward");
  }

  void ClearLast(const StepRanges& ranges, Matrix x, Matrix y) override {
    CHECK(HaveSameShape(x, y));
    if (Begin()) Check(LaunchClearLast(ranges, x, y, stream()), "ClearLast");
  }

  void Dropout(const StepRanges& ranges, const DropoutMask& mask,
               DeviceSpan<const SamplePlace> place, Matrix x, Matrix y) override {
    CHECK(HaveSameShape(x, y));
    CHECK_EQ(place.size, 1);
    if (Begin()) Check(LaunchStepDropout(ranges, mask, place.data, x, y, stream()), "Dropout");
  }

  void AttentionForward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k, Matrix v,
                        Matrix y, Matrix statistics) override {
    for (const Matrix& m : {k, v, y}) CHECK(HaveSameShape(q, m));
    CHECK(q.cols % heads == 0 && HasShape(statistics, q.rows, 2 * heads));
    if (!Begin()) return;
    Check(LaunchAttentionForward(ranges, heads, q, k, v, y, statistics, stream()),
          "AttentionForward");
  }

  void AttentionBackward(const StepRanges& ranges, int32_t heads, Matrix q, Matrix k, Matrix v,
                         Matrix y, Matrix statistics, Matrix y_gradient, Matrix q_gradient,
                         Matrix k_gradient, Matrix v_gradient) override {
    for (const Matrix& m : {k, v, y, y_gradient, q_gradient, k_gradient, v_gradient}) {
      CHECK(HaveSameShape(q, m));
    }
    CHECK(q.cols % heads == 0 && HasShape(statistics, q.rows, 2 * heads));
    if (!Begin()) return;
    Check(LaunchAttentionBackward(ranges, heads, q, k, v, y, statistics, y_gradient, q_gradient,
                                  k_gradient, v_gradient, stream()),
          "AttentionBackward");
  }

  void AddPositions(const StepRanges& ranges, DeviceSpan<const float> positions, Matrix x,
                    Matrix y) override {
    CHECK(HaveSameShape(x, y));
    CHECK(positions.size > 0 && positions.size % x.cols == 0);
    if (Begin()) Check(LaunchAddPositions(ranges, positions, x, y, stream()), "AddPositions");
  }

  void PositionGradients(const StepRanges& ranges, Matrix y_gradient,
                         DeviceSpan<float> gradients) override {
    CHECK(gradients.size > 0 && gradients.size % y_gradient.cols == 0);
    CHECK_LE(gradients.size, std::numeric_limits<int32_t>::max());
    if (!Begin()) return;
    const int64_t floats = SumOverSamplesScratchFloats(ranges.offsets.size - 1, gradients.size);
    auto* const scratch = static_cast<float*>(device_.Scratch(sizeof(float) * floats));
    if (scratch == nullptr) return;
    Check(LaunchPositionGradients(ranges, y_gradient, gradients, scratch, stream()),
          "PositionGradients");
  }

 private:
  static bool IsBySample(const StepRanges& ranges, const Matrix& matrix) {
    return matrix.rows + int64_t{1} == ranges.offsets.size;
  }
  bool Begin() { return device_.Begin(); }
  void Check(cudaError_t error, const char* operation) { device_.Check(error, operation); }
  cudaStream_t stream() const { return device_.compute_; }

  StreamDevice& device_;
};

std::unique_ptr<StepOperations> StreamDevice::MakeSteps(StreamDevice* device) {
  return std::make_unique<Steps>(device);
}

}  // namespace THERMOCLINE_CUDA_NAMESPACE
}  // namespace thermocline
