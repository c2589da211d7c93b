// The operations of layers on the device have the bits of the CPU's.
#include <string>

#include "kernels/cuda/testing/test_device.h"
#include "kernels/testing/layer_cases.h"

namespace thermocline {
namespace {

class LayersTest : public KernelsTest {
 protected:
  // same: an input and an output that are the same memory; {-1, -1}: none
  std::vector<float> Execute(const LayerCase& c, int64_t gap, int64_t offset,
                             std::pair<int, int> same,
                             const std::vector<std::vector<float>>& inputs, Device* device,
                             Uploads* uploads) {
    std::vector<Matrix> matrices;
    const auto put = [&](const LayerOperand& operand, const std::vector<float>& values) {
      const auto rows = static_cast<int32_t>(c.RowsOf(operand));
      const int64_t ld = operand.is_parameter ? operand.cols : operand.cols + gap;
      return FloatMatrix(uploads->Put(values) + offset, rows, operand.cols, ld);
    };
    const auto size = [&](const LayerOperand& operand) {
      return offset + c.RowsOf(operand) * (operand.cols + gap);
    };
    std::vector<Matrix> in, out;
    for (size_t i = 0; i < inputs.size(); ++i) in.push_back(put(c.inputs[i], inputs[i]));
    for (const LayerOperand& operand : c.outputs) {
      out.push_back(put(operand, std::vector<float>(size(operand), 77)));
    }
    if (same.first >= 0) out[same.second] = in[same.first];
    const DeviceSpan<const SamplePlace> place =
        uploads->PutSpan(std::vector<SamplePlace>{kPlaceForTest});
    if (c.offsets.empty()) {
      c.call(device->layers(), place, in, out);
    } else {
      c.call_steps(device->steps(), place,
                   {uploads->PutSpan(c.offsets), uploads->PutSpan(c.SamplesOfSteps())}, in, out);
    }
    std::vector<float> results;
    for (size_t o = 0; o < out.size(); ++o) {
      const std::vector<float> values = uploads->Get(out[o].floats() - offset, size(c.outputs[o]));
      results.insert(results.end(), values.begin(), values.end());
    }
    return results;
  }

  void Test(const std::vector<LayerCase>& cases, int64_t gap, int64_t offset) {
    for (const LayerCase& c : cases) {
      std::vector<std::vector<float>> inputs;
      for (const LayerOperand& operand : c.inputs) {
        const int64_t floats = offset + c.RowsOf(operand) * (operand.cols + gap);
        inputs.push_back(RandomFloats(&rng_, floats, 2));
      }
      std::vector<std::pair<int, int>> in_place = c.in_place;
      in_place.emplace_back(-1, -1);
      for (const std::pair<int, int>& same : in_place) {
        const std::string what = c.name + ", batch " + std::to_string(c.batch) + ", " +
                                 std::to_string(c.inputs[0].cols) + " columns, output " +
                                 std::to_string(same.second) + " in place";
        ExpectSameBits(what, [&](Device* device, Uploads* uploads) {
          return Execute(c, gap, offset, same, inputs, device, uploads);
        });
      }
    }
  }
};

TEST_F(LayersTest, SameBitsAsTheCpu) {
  Test(LayerCases(0, 2, 3), 0, 0);
  Test(LayerCases(1, 1, 1), 0, 0);
  Test(LayerCases(3, 2, 8), 0, 0);
  Test(LayerCases(2, 3, 17), 3, 1);
  Test(LayerCases(5, 11, 39), 3, 0);
  Test(LayerCases(130, 3, 3), 1, 2);
  Test(LayerCases(257, 1, 1), 0, 0);
}

TEST_F(LayersTest, StepsHaveTheSameBitsAsOnTheCpu) {
  Test(StepCases({}, 0, 1, 3), 0, 0);
  Test(StepCases({0, 0}, 3, 2, 2), 0, 0);
  Test(StepCases({1}, 0, 1, 1), 0, 0);
  Test(StepCases({0, 3, 0, 1, 17, 33, 2, 0}, 9, 2, 8), 3, 1);
  Test(StepCases({40, 5}, 0, 3, 5), 0, 0);
  Test(StepCases({7, 20, 1}, 2, 1, 70), 1, 0);  // More columns than lanes hold at once.
  std::vector<int32_t> lengths(130);
  for (int32_t& length : lengths) length = static_cast<int32_t>(rng_() % 6);
  Test(StepCases(lengths, 5, 2, 2), 0, 2);
}

// Sums over samples use the device's scratch, which grows while a graph keeps what it was captured
// with.
TEST_F(LayersTest, ReplayedSumsUseTheirOwnScratch) {
  const absl::StatusOr<std::unique_ptr<Device>> device = MakeDeviceForTest(/*scratch bytes=*/64);
  ASSERT_TRUE(device.ok()) << device.status();
  Device* const gpu = device->get();
  Uploads uploads(gpu);
  const int32_t batch = 150, columns = 5;
  const Matrix x = FloatMatrix(uploads.Put(RandomFloats(&rng_, batch * columns)), batch, columns);
  const Matrix dy = FloatMatrix(uploads.Put(RandomFloats(&rng_, batch * columns)), batch, columns);
  const Matrix dx = FloatMatrix(uploads.Put(std::vector<float>(batch * columns)), batch, columns);
  const Matrix moments = FloatMatrix(uploads.Put(RandomFloats(&rng_, batch * 2)), batch, 2);
  const DeviceSpan<const float> gain = uploads.PutSpan(RandomFloats(&rng_, columns));
  float* const gradients = uploads.Put(std::vector<float>(2 * columns));
  const auto backward = [&] {
    gpu->layers().LayerNormBackward(x, moments, gain, dy, dx, {gradients, columns},
                                    {gradients + columns, columns});
  };
  backward();
  const std::vector<float> expected = uploads.Get(gradients, 2 * columns);
  const std::unique_ptr<CapturedWork> captured = gpu->Capture(backward);
  ASSERT_NE(captured, nullptr);
  gpu->CopyToDevice(gradients, std::vector<float>(2 * columns, 77).data(),
                    sizeof(float) * 2 * columns, Stream::kCompute);
  // A larger batch replaces the scratch.
  const int32_t many = 6400;
  const Matrix large =
      FloatMatrix(uploads.Put(std::vector<float>(many * columns, 1)), many, columns);
  float* const slopes = uploads.Put(std::vector<float>(columns));
  gpu->layers().ActivationBackward(ActivationKind::kPrelu, gain, large, {}, large, large,
                                   {slopes, columns});
  gpu->Replay(captured.get());
  EXPECT_EQ(uploads.Get(gradients, 2 * columns), expected);
  EXPECT_TRUE(gpu->Synchronize().ok());
}

}  // namespace
}  // namespace thermocline
