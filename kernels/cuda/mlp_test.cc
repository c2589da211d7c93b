// MLPs on the device agree with the CPU's up to the rounding of their precision.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/testing/test_device.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;
constexpr MlpPrecision kPrecisions[] = {MlpPrecision::kFloat32, MlpPrecision::kTf32,
                                        MlpPrecision::kBfloat16};

struct Case {
  std::vector<int32_t> widths;
  int32_t batch;
  bool relu_after_last, input_gradient;
  bool bias = true;
};

struct Problem {
  MlpConfig config;
  int64_t arena = 256;
  // The first column of the matrices in their rows.
  int64_t offset = 0;
  int64_t input_ld = 0, output_ld = 0;
  std::vector<float> parameters, input, output_gradient;
};

class MlpTest : public KernelsTest {
 protected:
  // Integers: small enough that every product and sum is exact, in any order and precision.
  // Otherwise activations stay near 1.
  Problem RandomProblem(const Case& c, bool integers) {
    Problem p;
    const auto blocks = [](int64_t n) { return (n + 255) / 256 * 256; };
    p.config.widths = c.widths;
    p.config.relu_after_last = c.relu_after_last;
    p.config.input_gradient = c.input_gradient;
    p.config.max_batch = p.config.max_trained = c.batch + 3;
    for (size_t i = 0; i + 1 < c.widths.size(); ++i) {
      p.config.weight_offsets.push_back(p.arena);
      p.arena += blocks(int64_t{c.widths[i]} * c.widths[i + 1]);
      p.config.bias_offsets.push_back(c.bias ? p.arena : kNoBias);
      p.arena += blocks(c.widths[i + 1]);
    }
    p.offset = c.bias ? 0 : 3;
    p.input_ld = PaddedColumns(c.widths.front()) + p.offset;
    p.output_ld = c.widths.back() == 1 ? 1 + p.offset : PaddedColumns(c.widths.back()) + 8;
    p.parameters = RandomFloats(&rng_, p.arena, 0.1f);
    p.input = RandomFloats(&rng_, c.batch * p.input_ld);
    p.output_gradient = RandomFloats(&rng_, c.batch * p.output_ld);
    if (!integers) return p;
    for (float& x : p.input) x = std::round(x);
    for (float& x : p.output_gradient) x = std::round(x);
    for (float& x : p.parameters) x = 0;
    for (size_t i = 0; i + 1 < c.widths.size(); ++i) {
      // About three inputs, of weight 1 or -1, for every output.
      for (int64_t k = 0; k < 3 * c.widths[i + 1]; ++k) {
        const auto at = static_cast<int64_t>(rng_() % (c.widths[i] * c.widths[i + 1]));
        p.parameters[p.config.weight_offsets[i] + at] = rng_() % 2 == 0 ? 1.0f : -1.0f;
      }
      for (int32_t j = 0; c.bias && j < c.widths[i + 1]; ++j) {
        p.parameters[p.config.bias_offsets[i] + j] = static_cast<float>(rng_() % 3) - 1;
      }
    }
    return p;
  }

  // Output, the output gradient as it is left, input gradient, parameter gradients.
  using Results = std::vector<std::vector<float>>;

  Results Execute(const Problem& p, int32_t batch, MlpPrecision precision, Device* device) {
    MlpConfig config = p.config;
    config.precision = precision;
    return Execute(p, batch, device->CreateMlp(config).get(), device);
  }

  Results Execute(const Problem& p, int32_t batch, Mlp* mlp, Device* device) {
    const MlpConfig& config = p.config;
    Uploads uploads(device);
    const std::vector<float> fill(std::max<int64_t>(p.arena, batch * (p.input_ld + p.output_ld)),
                                  kUntouched);
    const int32_t in = config.widths.front(), out = config.widths.back();
    const auto columns = [&](const std::vector<float>& wide, int32_t n, int64_t ld) {
      return FloatMatrix(uploads.Put(wide) + p.offset, batch, n, ld);
    };
    const Matrix x = columns(p.input, in, p.input_ld);
    const Matrix y = columns(fill, out, p.output_ld);
    const Matrix dy = columns(p.output_gradient, out, p.output_ld);
    const Matrix dx = columns(fill, in, p.input_ld);
    const DeviceSpan<const float> parameters = uploads.PutSpan(p.parameters);
    float* const gradients = uploads.Put(fill);
    mlp->Forward(parameters, x, y);
    mlp->BackwardData(parameters, y, dy, dx);
    mlp->BackwardParameters(x, dy, {gradients, p.arena});
    const Results results = {uploads.Get(y.floats() - p.offset, batch * p.output_ld),
                             uploads.Get(dy.floats() - p.offset, batch * p.output_ld),
                             uploads.Get(dx.floats() - p.offset, batch * p.input_ld),
                             uploads.Get(gradients, p.arena)};
    const absl::Status status = device->Synchronize();
    EXPECT_TRUE(status.ok()) << status;
    return results;
  }

  static std::string Name(const Case& c) {
    std::string name = c.bias ? "" : "without biases, ";
    name += "batch " + std::to_string(c.batch) + ", widths";
    for (int32_t width : c.widths) name += " " + std::to_string(width);
    return name;
  }

  // |got - expected| <= tolerance |expected|, as vectors: where a ReLU's input is within rounding
  // of 0, the devices may disagree on a whole term of a gradient.
  void TestCase(const Case& c, MlpPrecision precision, double tolerance) {
    const Problem p = RandomProblem(c, false);
    const Results expected = Execute(p, c.batch, MlpPrecision::kFloat32, cpu_.get());
    const Results got = Execute(p, c.batch, precision, device_.get());
    for (size_t part = 0; part < got.size(); ++part) {
      double norm = 0, difference = 0;
      for (size_t i = 0; i < got[part].size(); ++i) {
        const double e = expected[part][i], g = got[part][i];
        ASSERT_EQ(g == kUntouched, e == kUntouched) << Name(c) << ", part " << part;
        if (e == kUntouched) continue;
        norm += e * e;
        difference += (g - e) * (g - e);
      }
      EXPECT_LE(std::sqrt(difference), tolerance * std::sqrt(norm)) << Name(c) << ", part " << part;
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
                       {{4, 300, 2}, 0, true, true},
                       {{9, 70, 33, 1}, 40, false, true, false},
                       {{13, 20, 7}, 9, true, true, false}};

TEST_F(MlpTest, IsExactOnSmallIntegers) {
  for (const Case& c : kCases) {
    const Problem p = RandomProblem(c, true);
    const Results expected = Execute(p, c.batch, MlpPrecision::kFloat32, cpu_.get());
    for (MlpPrecision precision : kPrecisions) {
      EXPECT_EQ(Execute(p, c.batch, precision, device_.get()), expected) << Name(c);
    }
  }
}

TEST_F(MlpTest, AgreesWithTheCpu) {
  for (const Case& c : kCases) TestCase(c, MlpPrecision::kFloat32, 2e-4);
}

// 10 and 7 bits of mantissa in the products; sums in float32.
TEST_F(MlpTest, LowerPrecisions) {
  for (const Case& c : kCases) {
    TestCase(c, MlpPrecision::kTf32, 2e-2);
    TestCase(c, MlpPrecision::kBfloat16, 1e-1);
  }
}

TEST_F(MlpTest, SameBitsFromRunToRun) {
  const Problem p = RandomProblem(kCases[6], false);
  for (MlpPrecision precision : kPrecisions) {
    const Results first = Execute(p, kCases[6].batch, precision, device_.get());
    EXPECT_EQ(first, Execute(p, kCases[6].batch, precision, device_.get()));
  }
}

// The steps of sequences are so many in one batch and so many in the next.
TEST_F(MlpTest, NothingOfALargerBatchIsLeft) {
  const int32_t most = 40;
  const Problem p = RandomProblem({{9, 20, 7}, most, true, true}, true);
  const std::unique_ptr<Mlp> mlp = device_->CreateMlp(p.config);
  for (int32_t batch : {most, 0, 1, 33, most}) {
    const Results expected = Execute(p, batch, MlpPrecision::kFloat32, cpu_.get());
    EXPECT_EQ(Execute(p, batch, mlp.get(), device_.get()), expected) << batch;
  }
}

// The bias gradients of many rows go in several chunks.
TEST_F(MlpTest, LargeBatch) {
  TestCase({{8, 4, 1}, 9000, false, true}, MlpPrecision::kFloat32, 2e-4);
}

}  // namespace
}  // namespace thermocline
