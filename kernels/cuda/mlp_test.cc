// MLPs on the device agree with the CPU's up to the rounding of their precision.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/device_for_test.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;

struct Case {
  std::vector<int32_t> widths;
  int32_t batch;
  bool relu_after_last, input_gradient;
};

struct Problem {
  MlpConfig config;
  int64_t arena = 256;
  int64_t input_ld = 0, output_ld = 0;
  std::vector<float> parameters, input, output_gradient;
};

class MlpTest : public KernelsTest {
 protected:
  Problem RandomProblem(const Case& c) {
    Problem p;
    const auto blocks = [](int64_t n) { return (n + 255) / 256 * 256; };
    p.config.widths = c.widths;
    p.config.relu_after_last = c.relu_after_last;
    p.config.input_gradient = c.input_gradient;
    p.config.max_batch = c.batch + 3;
    for (size_t i = 0; i + 1 < c.widths.size(); ++i) {
      p.config.weight_offsets.push_back(p.arena);
      p.arena += blocks(int64_t{c.widths[i]} * c.widths[i + 1]);
      p.config.bias_offsets.push_back(p.arena);
      p.arena += blocks(c.widths[i + 1]);
    }
    p.input_ld = PaddedColumns(c.widths.front());
    p.output_ld = c.widths.back() == 1 ? 1 : PaddedColumns(c.widths.back()) + 8;
    // Activations stay near 1, so that errors compare to 1.
    p.parameters = RandomFloats(&rng_, p.arena, 0.3f);
    p.input = RandomFloats(&rng_, c.batch * p.input_ld);
    p.output_gradient = RandomFloats(&rng_, c.batch * p.output_ld);
    return p;
  }

  // Output, the output gradient as it is left, input gradient, parameter gradients. Gradients of
  // ReLUs depend on signs, so both devices must agree on them: see NearZero.
  std::vector<float> Execute(const Problem& p, int32_t batch, MlpPrecision precision,
                             Device* device) {
    Uploads uploads(device);
    MlpConfig config = p.config;
    config.precision = precision;
    const std::unique_ptr<Mlp> mlp = device->CreateMlp(config);
    const std::vector<float> fill(std::max<int64_t>(p.arena, batch * (p.input_ld + p.output_ld)),
                                  kUntouched);
    const int32_t in = config.widths.front(), out = config.widths.back();
    const Matrix x = FloatMatrix(uploads.Put(p.input), batch, in, p.input_ld);
    const Matrix y = FloatMatrix(uploads.Put(fill), batch, out, p.output_ld);
    const Matrix dy = FloatMatrix(uploads.Put(p.output_gradient), batch, out, p.output_ld);
    const Matrix dx = FloatMatrix(uploads.Put(fill), batch, in, p.input_ld);
    const DeviceSpan<const float> parameters = uploads.PutSpan(p.parameters);
    float* const gradients = uploads.Put(fill);
    mlp->Forward(parameters, x, y);
    mlp->BackwardData(parameters, y, dy, dx);
    mlp->BackwardParameters(x, dy, {gradients, p.arena});
    std::vector<float> all;
    for (const auto& part :
         {uploads.Get(y.floats(), batch * p.output_ld),
          uploads.Get(dy.floats(), batch * p.output_ld),
          uploads.Get(dx.floats(), batch * p.input_ld), uploads.Get(gradients, p.arena)}) {
      all.insert(all.end(), part.begin(), part.end());
    }
    const absl::Status status = device->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return all;
  }

  // Relative to the largest value: |difference| <= tolerance * (1 + max |expected|), for all but a
  // few: where a ReLU's input is within rounding of 0, the devices may disagree on a whole term.
  void TestCase(const Case& c, MlpPrecision precision, float tolerance) {
    const Problem p = RandomProblem(c);
    const std::vector<float> expected = Execute(p, c.batch, MlpPrecision::kFloat32, cpu_.get());
    const std::vector<float> got = Execute(p, c.batch, precision, device_.get());
    std::string name = "batch " + std::to_string(c.batch) + ", widths";
    for (int32_t width : c.widths) name += " " + std::to_string(width);
    ASSERT_EQ(got.size(), expected.size());
    float largest = 0;
    for (float value : expected) {
      if (value != kUntouched) largest = std::max(largest, std::abs(value));
    }
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i] == kUntouched, expected[i] == kUntouched) << name << ", value " << i;
      ASSERT_NEAR(got[i], expected[i], tolerance * (1 + largest)) << name << ", value " << i;
    }
  }
};

const Case kCases[] = {{{1, 1}, 1, false, true},
                       {{5, 3}, 3, true, true},
                       {{13, 20, 7}, 9, true, false},
                       {{9, 70, 33, 1}, 4, false, true},
                       {{65, 12, 1, 6}, 5, true, true},
                       {{13, 512, 256, 64, 16}, 100, true, false},
                       {{367, 512, 256, 1}, 333, false, true},
                       {{4, 300, 2}, 0, true, true}};

TEST_F(MlpTest, AgreesWithTheCpu) {
  for (const Case& c : kCases) TestCase(c, MlpPrecision::kFloat32, 2e-5f);
}

// 10 and 7 bits of mantissa in the products; sums in float32.
TEST_F(MlpTest, LowerPrecisions) {
  for (const Case& c : kCases) {
    TestCase(c, MlpPrecision::kTf32, 2e-2f);
    TestCase(c, MlpPrecision::kBfloat16, 1e-1f);
  }
}

TEST_F(MlpTest, SameBitsFromRunToRun) {
  for (MlpPrecision precision :
       {MlpPrecision::kFloat32, MlpPrecision::kTf32, MlpPrecision::kBfloat16}) {
    const Problem p = RandomProblem(kCases[6]);
    const auto first = Execute(p, kCases[6].batch, precision, device_.get());
    EXPECT_EQ(first, Execute(p, kCases[6].batch, precision, device_.get()));
  }
}

// The bias gradients of many rows go in several chunks.
TEST_F(MlpTest, LargeBatch) {
  TestCase({{8, 4, 1}, 9000, false, true}, MlpPrecision::kFloat32, 2e-5f);
}

}  // namespace
}  // namespace thermocline
