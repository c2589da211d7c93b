#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/layer_arithmetic.h"
#include "kernels/testing/layer_cases.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

constexpr float kUntouched = 12345;

// How the operands of a case lie in memory.
struct Layout {
  int64_t gap = 0;                      // Floats between the rows of matrices.
  int64_t offset = 0;                   // Floats before the first row.
  std::pair<int, int> same = {-1, -1};  // This input and this output are the same memory.
};

// Runs a case on the CPU. Returns the outputs without gaps.
std::vector<std::vector<float>> Execute(const LayerCase& c, const Layout& layout, int threads,
                                        const std::vector<std::vector<float>>& inputs) {
  const std::unique_ptr<Device> device = MakeCpuDevice({threads});
  std::vector<std::vector<float>> memory;
  memory.reserve(c.inputs.size() + c.outputs.size());
  const auto place = [&](const LayerOperand& operand, const float* values) {
    const int64_t ld = operand.is_parameter ? operand.cols : operand.cols + layout.gap;
    const auto rows = static_cast<int32_t>(c.RowsOf(operand));
    memory.emplace_back(layout.offset + rows * ld, kUntouched);
    float* const first = memory.back().data() + layout.offset;
    for (int64_t r = 0; values != nullptr && r < rows; ++r) {
      std::copy_n(values + r * operand.cols, operand.cols, first + r * ld);
    }
    return FloatMatrix(first, rows, operand.cols, ld);
  };
  std::vector<Matrix> in, out;
  for (size_t i = 0; i < inputs.size(); ++i) in.push_back(place(c.inputs[i], inputs[i].data()));
  for (const LayerOperand& operand : c.outputs) out.push_back(place(operand, nullptr));
  if (layout.same.first >= 0) out[layout.same.second] = in[layout.same.first];
  if (c.offsets.empty()) {
    c.call(device->layers(), {&kPlaceForTest, 1}, in, out);
  } else {
    const std::vector<int32_t> samples = c.SamplesOfSteps();
    c.call_steps(device->steps(), {&kPlaceForTest, 1},
                 {{c.offsets.data(), static_cast<int64_t>(c.offsets.size())},
                  {samples.data(), static_cast<int64_t>(samples.size())}},
                 in, out);
  }
  std::vector<std::vector<float>> results;
  for (const Matrix& m : out) {
    results.emplace_back();
    for (int64_t r = 0; r < m.rows; ++r) {
      results.back().insert(results.back().end(), m.row(r), m.row(r) + m.cols);
      for (int64_t i = m.cols; i < m.ld; ++i) EXPECT_EQ(m.row(r)[i], kUntouched) << c.name;
    }
  }
  return results;
}

std::vector<std::vector<float>> RandomInputs(const LayerCase& c, std::mt19937_64* rng) {
  std::vector<std::vector<float>> inputs;
  for (const LayerOperand& operand : c.inputs) {
    inputs.push_back(RandomFloats(rng, c.RowsOf(operand) * operand.cols, 2));
  }
  return inputs;
}

bool SameBits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  const auto same = [](float x, float y) { return FloatBits(x) == FloatBits(y); };
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::equal(a[i].begin(), a[i].end(), b[i].begin(), b[i].end(), same)) return false;
  }
  return true;
}

struct Shape {
  int32_t batch, vectors, width;
};

std::string Name(const LayerCase& c) {
  std::string name = c.name + ", batch " + std::to_string(c.batch);
  for (const LayerOperand& input : c.inputs) name += ", " + std::to_string(input.cols) + " columns";
  return name;
}

std::vector<int32_t> RandomLengths(std::mt19937_64* rng, int32_t samples, int32_t most) {
  std::vector<int32_t> lengths(samples);
  for (int32_t& length : lengths) length = static_cast<int32_t>((*rng)() % (most + 1));
  return lengths;
}

void ExpectAgreesWithDouble(const LayerCase& c, std::mt19937_64* rng) {
  const std::vector<std::vector<float>> inputs = RandomInputs(c, rng);
  LayerValues values;
  for (const std::vector<float>& input : inputs) values.emplace_back(input.begin(), input.end());
  const LayerValues expected = ExpectedOutputs(c, values);
  const std::vector<std::vector<float>> got = Execute(c, {}, 2, inputs);
  for (size_t o = 0; o < expected.size(); ++o) {
    for (size_t i = 0; i < expected[o].size(); ++i) {
      ASSERT_NEAR(got[o][i], expected[o][i], 3e-5 * (1 + std::fabs(expected[o][i])))
          << Name(c) << ", output " << o << ", number " << i;
    }
  }
}

void ExpectSameBitsAnyhow(const LayerCase& c, std::mt19937_64* rng) {
  const std::vector<std::vector<float>> inputs = RandomInputs(c, rng);
  const std::vector<std::vector<float>> expected = Execute(c, {}, 1, inputs);
  for (int threads : {2, 3, 5}) {
    EXPECT_TRUE(SameBits(Execute(c, {}, threads, inputs), expected)) << Name(c);
  }
  EXPECT_TRUE(SameBits(Execute(c, {3, 0}, 2, inputs), expected)) << Name(c);
  EXPECT_TRUE(SameBits(Execute(c, {5, 3}, 2, inputs), expected)) << Name(c);
  for (const std::pair<int, int>& same : c.in_place) {
    for (int64_t gap : {0, 5}) {
      EXPECT_TRUE(SameBits(Execute(c, {gap, gap, same}, 2, inputs), expected))
          << Name(c) << ", output " << same.second << " in input " << same.first;
    }
  }
}

TEST(CpuLayersTest, AgreeWithDoubleAndFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  for (const Shape& s : {Shape{1, 1, 1}, Shape{3, 1, 16}, Shape{2, 3, 17}, Shape{5, 4, 3},
                         Shape{257, 2, 4}, Shape{2, 3, 40}, Shape{1, 1, 429}}) {
    for (const LayerCase& c : LayerCases(s.batch, s.vectors, s.width)) {
      ExpectAgreesWithDouble(c, &rng);
    }
  }
}

TEST(CpuLayersTest, SameBitsForAnyThreadsAndPlacesInMemory) {
  std::mt19937_64 rng(TestSeed());
  for (const Shape& s :
       {Shape{0, 2, 3}, Shape{257, 3, 16}, Shape{65, 1, 1}, Shape{70, 11, 39}, Shape{7, 2, 17}}) {
    for (const LayerCase& c : LayerCases(s.batch, s.vectors, s.width)) {
      ExpectSameBitsAnyhow(c, &rng);
    }
  }
}

// Samples without steps, with one, with as many as lanes and more, and rows beyond the last step.
TEST(CpuStepsTest, AgreeWithDoubleAndFiniteDifferences) {
  std::mt19937_64 rng(TestSeed());
  for (const std::pair<int32_t, int32_t>& heads : {std::pair(1, 1), {2, 8}, {3, 5}, {1, 17}}) {
    for (const LayerCase& c : StepCases({0, 3, 0, 1, 17, 33, 0}, 5, heads.first, heads.second)) {
      ExpectAgreesWithDouble(c, &rng);
    }
  }
  for (const LayerCase& c : StepCases({4}, 0, 2, 16)) ExpectAgreesWithDouble(c, &rng);
  for (const LayerCase& c : StepCases({1}, 0, 1, 3)) ExpectAgreesWithDouble(c, &rng);
}

TEST(CpuStepsTest, SameBitsForAnyThreadsAndPlacesInMemory) {
  std::mt19937_64 rng(TestSeed());
  for (const std::pair<int32_t, int32_t>& heads : {std::pair(1, 1), {4, 8}, {2, 21}, {1, 40}}) {
    const std::vector<int32_t> lengths = RandomLengths(&rng, 150, 40);
    for (const LayerCase& c : StepCases(lengths, 7, heads.first, heads.second)) {
      ExpectSameBitsAnyhow(c, &rng);
    }
  }
  for (const LayerCase& c : StepCases({}, 0, 2, 3)) ExpectSameBitsAnyhow(c, &rng);
  for (const LayerCase& c : StepCases({0, 0}, 3, 2, 3)) ExpectSameBitsAnyhow(c, &rng);
}

// Inputs, outputs and gradients as torch.nn.functional and its autograd computed them
// (PyTorch 1.13).
class PyTorchTest : public testing::Test {
 protected:
  using Numbers = std::vector<float>;

  Matrix Rows(Numbers* numbers, int32_t columns) {
    return FloatMatrix(numbers->data(), 2, columns);
  }
  static DeviceSpan<const float> Span(const Numbers& numbers) {
    return {numbers.data(), static_cast<int64_t>(numbers.size())};
  }
  static DeviceSpan<float> Mutable(Numbers* numbers) {
    return {numbers->data(), static_cast<int64_t>(numbers->size())};
  }
  static void ExpectNear(const Numbers& got, const Numbers& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-6) << i;
  }

  const std::unique_ptr<Device> device_ = MakeCpuDevice({1});
  LayerOperations& layers_ = device_->layers();
  Numbers x_ = {0.5f, -1.25f, 2, 0.75f, -0.5f, 1.5f, -2, 0.25f, 1, -0.75f, 3, 0.125f};
  Numbers dy_ = {1, -0.5f, 0.25f, 2, -1, 0.75f, 0.5f, 1.5f, -2, 1, 0.25f, -0.75f};
  Numbers y_ = Numbers(12), dx_ = Numbers(12);
};

TEST_F(PyTorchTest, LayerNorm) {
  const Numbers gain = {1.5f, 0.5f, -1, 2, 0.75f, 1.25f},
                bias = {0.1f, -0.2f, 0.3f, 0, -0.4f, 0.5f};
  Numbers moments(4), gain_gradient(6), bias_gradient(6);
  layers_.LayerNormForward(Rows(&x_, 6), Span(gain), Span(bias), 1e-5f, Rows(&y_, 6),
                           Rows(&moments, 2));
  layers_.LayerNormBackward(Rows(&x_, 6), Rows(&moments, 2), Span(gain), Rows(&dy_, 6),
                            Rows(&dx_, 6), Mutable(&gain_gradient), Mutable(&bias_gradient));
  ExpectNear(y_, {0.100000f, -0.989225f, -1.052957f, 0.450986f, -1.076479f, 1.627465f, -2.114110f,
                  -0.206771f, -0.173968f, -1.327111f, 0.930497f, 0.381508f});
  ExpectNear(dx_, {0.573128f, -0.416753f, -1.509811f, 2.743975f, -1.119983f, -0.270557f, -0.198971f,
                   -0.028661f, 0.840627f, 0.708163f, -0.186136f, -1.135021f});
  ExpectNear(gain_gradient, {-0.738037f, 0.768912f, -0.609697f, -0.212570f, 1.345471f, 0.747574f});
  ExpectNear(bias_gradient, {1.5f, 1, -1.75f, 3, -0.75f, 0});
}

TEST_F(PyTorchTest, Activations) {
  const Numbers slopes = {0.25f, -0.5f, 0.1f, 0, 1, 0.3f};
  Numbers slope_gradients(6);
  layers_.ActivationForward(ActivationKind::kPrelu, Span(slopes), Rows(&x_, 6), Rows(&y_, 6));
  layers_.ActivationBackward(ActivationKind::kPrelu, Span(slopes), Rows(&x_, 6), {}, Rows(&dy_, 6),
                             Rows(&dx_, 6), Mutable(&slope_gradients));
  ExpectNear(y_, {0.5f, 0.625f, 2, 0.75f, -0.5f, 1.5f, -0.5f, 0.25f, 1, 0, 3, 0.125f});
  ExpectNear(dx_, {1, 0.25f, 0.25f, 2, -1, 0.75f, 0.125f, 1.5f, -2, 0, 0.25f, -0.75f});
  ExpectNear(slope_gradients, {-1, 0.625f, 0, -0.75f, 0.5f, 0});
  layers_.ActivationForward(ActivationKind::kSigmoid, {}, Rows(&x_, 6), Rows(&y_, 6));
  layers_.ActivationBackward(ActivationKind::kSigmoid, {}, {}, Rows(&y_, 6), Rows(&dy_, 6),
                             Rows(&dx_, 6), {});
  ExpectNear(y_, {0.622459f, 0.222700f, 0.880797f, 0.679179f, 0.377541f, 0.817574f, 0.119203f,
                  0.562177f, 0.731059f, 0.320821f, 0.952574f, 0.531209f});
  ExpectNear(dx_, {0.235004f, -0.086552f, 0.026248f, 0.435790f, -0.235004f, 0.111860f, 0.052497f,
                   0.369201f, -0.393224f, 0.217895f, 0.011294f, -0.186769f});
  layers_.ActivationForward(ActivationKind::kTanh, {}, Rows(&x_, 6), Rows(&y_, 6));
  layers_.ActivationBackward(ActivationKind::kTanh, {}, {}, Rows(&y_, 6), Rows(&dy_, 6),
                             Rows(&dx_, 6), {});
  ExpectNear(y_, {0.462117f, -0.848284f, 0.964028f, 0.635149f, -0.462117f, 0.905148f, -0.964028f,
                  0.244919f, 0.761594f, -0.635149f, 0.995055f, 0.124353f});
  ExpectNear(dx_, {0.786448f, -0.140207f, 0.017663f, 1.193172f, -0.786448f, 0.135530f, 0.035325f,
                   1.410022f, -0.839949f, 0.596586f, 0.002466f, -0.738402f});
}

TEST_F(PyTorchTest, ProductLogit) {
  Numbers b = {-0.25f, 3, 1, -2, 0.5f, 20, -30, 0.75f, 40, -0.75f, -15, 0};
  layers_.ProductLogitForward(Rows(&x_, 6), Rows(&b, 6), Rows(&y_, 6));
  ExpectNear(y_, {-0.981838f, -1.312084f, 0.592394f, -2.429373f, -1.180270f, 1.5f, -32.126928f,
                  -0.481838f, 1, -2.165125f, -15.048587f, -1.017038f});
  layers_.ProductLogitBackward(Rows(&x_, 6), Rows(&b, 6), Rows(&dy_, 6), Rows(&dx_, 6));
  ExpectNear(dx_, {0.518976f, -0.493297f, 0.083690f, 0.698166f, -0.813676f, 0.75f, 0.440399f,
                   1.062366f, -2, 0.757105f, 0.011856f, -0.478752f});
  layers_.ProductLogitBackward(Rows(&b, 6), Rows(&x_, 6), Rows(&dy_, 6), Rows(&dx_, 6));
  ExpectNear(dx_, {0.772780f, -0.030098f, 0.188818f, 1.916777f, -0.493520f, 0, 0.5f, 0.778464f, 0,
                   0.757105f, 0.25f, -0.510624f});
}

TEST_F(PyTorchTest, NormalizeAndFm) {
  Numbers lengths(4), sums(4), output(2), output_gradient = {1.5f, -0.5f};
  layers_.NormalizeForward(Rows(&x_, 6), 3, 1e-12f, Rows(&y_, 6), Rows(&lengths, 2));
  layers_.NormalizeBackward(Rows(&y_, 6), 3, 1e-12f, Rows(&lengths, 2), Rows(&dy_, 6),
                            Rows(&dx_, 6));
  ExpectNear(y_, {0.207390f, -0.518476f, 0.829561f, 0.428571f, -0.285714f, 0.857143f, -0.888889f,
                  0.111111f, 0.444444f, -0.242338f, 0.969351f, 0.040390f});
  ExpectNear(dx_, {0.356801f, -0.062440f, -0.128225f, 0.705539f, -0.279883f, -0.446064f, -0.238683f,
                   0.724280f, -0.658436f, 0.320745f, 0.090267f, -0.241942f});
  // 0.5 * (x.sum(1) ** 2 - (x ** 2).sum(1)).sum(1) of three vectors of two columns.
  layers_.FmForward(Rows(&x_, 6), 2, Rows(&sums, 2), Rows(&output, 1));
  layers_.FmBackward(Rows(&x_, 6), 2, Rows(&sums, 2), Rows(&output_gradient, 1), Rows(&dx_, 6));
  ExpectNear(output, {-1.9375f, -5.25f});
  ExpectNear(dx_,
             {2.25f, 3.375f, 0, 0.375f, 3.75f, -0.75f, -2, 0.3125f, -0.5f, -0.1875f, 0.5f, 0.25f});
}

// A worker may have no samples in the last global batch: its gradients are zero, not stale.
TEST(CpuLayersTest, ABatchWithoutRowsHasZeroGradients) {
  std::mt19937_64 rng(TestSeed());
  std::vector<LayerCase> cases = LayerCases(0, 3, 5);
  for (const LayerCase& c : StepCases({0, 0, 0}, 4, 2, 3)) cases.push_back(c);
  for (const LayerCase& c : cases) {
    const std::vector<std::vector<float>> outputs = Execute(c, {}, 2, RandomInputs(c, &rng));
    for (const std::vector<float>& output : outputs) {
      for (float value : output) EXPECT_EQ(value, 0) << c.name;
    }
  }
}

// Units in the last place of a float near `value`.
double UlpOf(double value) {
  int exponent;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST(LayerArithmeticTest, ExpSigmoidAndTanhAreAccurate) {
  for (uint32_t bits = 0; bits < FloatBits(86); bits += 12347) {
    const double exp = std::exp(-static_cast<double>(FloatOfBits(bits)));
    ASSERT_NEAR(ExpOfNonPositive(-FloatOfBits(bits)), exp, 3 * UlpOf(exp)) << FloatOfBits(bits);
    for (float x : {FloatOfBits(bits), -FloatOfBits(bits)}) {
      const double sigmoid = 1 / (1 + std::exp(-static_cast<double>(x))),
                   tanh = std::tanh(double{x});
      ASSERT_NEAR(Sigmoid(x), sigmoid, 3 * UlpOf(sigmoid)) << x;
      ASSERT_NEAR(Tanh(x), tanh, 3 * UlpOf(tanh)) << x;
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ExpOfNonPositive(0), 1);
  EXPECT_EQ(ExpOfNonPositive(-infinity), ExpOfNonPositive(-87));
  EXPECT_TRUE(std::isnan(ExpOfNonPositive(std::nanf(""))));
  EXPECT_EQ(Sigmoid(0), 0.5f);
  EXPECT_EQ(Sigmoid(infinity), 1);
  EXPECT_GT(Sigmoid(-infinity), 0);  // As for -87: tiny, not a NaN.
  EXPECT_LT(Sigmoid(-infinity), 1e-37f);
  EXPECT_EQ(Tanh(infinity), 1);
  EXPECT_EQ(Tanh(-infinity), -1);
  EXPECT_EQ(FloatBits(Tanh(0.0f)), FloatBits(0.0f));
  EXPECT_EQ(FloatBits(Tanh(-0.0f)), FloatBits(-0.0f));
  EXPECT_TRUE(std::isnan(Sigmoid(std::nanf(""))));
  EXPECT_TRUE(std::isnan(Tanh(std::nanf(""))));
}

// The golden bits were computed by another implementation (Python, every operation in double and
// rounded to float, which is exact for a single operation). Every compiler has to give them.
TEST(LayerArithmeticTest, HasItsGoldenBits) {
  uint64_t exps = 0, sigmoids = 0, tanhs = 0, dropouts = 0;
  std::vector<float> x, y;
  for (int i = 0; i <= 2000; ++i) x.push_back(static_cast<float>(i - 1000) * 0.0173f);
  y.resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = Sigmoid(x[i]);
  for (float value : y) sigmoids = Mix64(sigmoids ^ FloatBits(value));
  EXPECT_EQ(FloatBits(y[900]), 0x3e1a33a2u);
  EXPECT_EQ(sigmoids, 0xe7106b3d309a9787u);
  for (size_t i = 0; i < x.size(); ++i) y[i] = Tanh(x[i]);
  for (float value : y) tanhs = Mix64(tanhs ^ FloatBits(value));
  EXPECT_EQ(FloatBits(y[970]), 0xbef42fe1u);
  EXPECT_EQ(tanhs, 0x40a330b88ac6c395u);
  for (size_t i = 0; i < x.size(); ++i) y[i] = ExpOfNonPositive(static_cast<float>(i) * -0.0473f);
  for (float value : y) exps = Mix64(exps ^ FloatBits(value));
  EXPECT_EQ(FloatBits(y[100]), 0x3c109ce7u);
  EXPECT_EQ(exps, 0x6ef0fec263f001fu);
  for (int64_t sample = 0; sample < 40; ++sample) {
    const uint64_t key = DropoutRowKey(0x123456789abcdef0, 12345678901, sample);
    for (int32_t c = 0; c < 50; ++c) dropouts = Mix64(dropouts ^ DropoutBitsOfColumn(key, c));
  }
  EXPECT_EQ(dropouts, 0x2426cf07ed61aa70u);
}

// Which units of 300 samples of 400 columns dropout keeps, at a share of 0.3.
std::vector<bool> KeptUnits(uint64_t key, int64_t step, int64_t first_sample,
                            int32_t first_column) {
  std::vector<bool> kept;
  for (int64_t b = 0; b < 300; ++b) {
    const uint64_t row_key = DropoutRowKey(key, step, first_sample + b);
    for (int32_t c = 0; c < 400; ++c) {
      kept.push_back(DropoutBitsOfColumn(row_key, first_column + c) >= 19661);
    }
  }
  return kept;
}

TEST(LayerArithmeticTest, DropoutKeepsItsShareAndUnitsAreIndependent) {
  const uint64_t seed = TestSeed();
  const std::vector<bool> kept = KeptUnits(seed, 5, 1000, 0);
  const double n = static_cast<double>(kept.size()), p = 1 - 19661.0 / 65536;
  const double share = static_cast<double>(std::count(kept.begin(), kept.end(), true)) / n;
  EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / n));
  // Neighbours by layer, step, sample and column agree as often as independent units do.
  const double agree = p * p + (1 - p) * (1 - p);
  const std::vector<bool> others[] = {
      KeptUnits(seed + 1, 5, 1000, 0), KeptUnits(seed, 6, 1000, 0), KeptUnits(seed, 5, 1001, 0),
      KeptUnits(seed, 5, 1000, 1),     KeptUnits(seed, 5, 1000, 8), KeptUnits(seed, 5, 1000, 16)};
  for (const std::vector<bool>& other : others) {
    double same = 0;
    for (size_t i = 0; i < kept.size(); ++i) same += kept[i] == other[i] ? 1 : 0;
    EXPECT_NEAR(same / n, agree, 5 * std::sqrt(agree * (1 - agree) / n));
  }
}

}  // namespace
}  // namespace thermocline
