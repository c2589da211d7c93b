// What PyTorch 1.13 computes, and what the vectors of attention have to share with the arithmetic
// of one number. Tests of every operation beside it: layers_test.cc.
#include <cmath>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/layer_arithmetic.h"

namespace thermocline {
namespace {

using Numbers = std::vector<float>;

constexpr int32_t kSteps = 6, kColumns = 4;

// Numbers of so many rows that repeat themselves seldom.
Numbers Series(int32_t rows, int32_t row_factor, int32_t column_factor) {
  Numbers numbers;
  for (int32_t t = 0; t < rows; ++t) {
    for (int32_t c = 0; c < kColumns; ++c) {
      const int32_t remainder = (t * row_factor + c * column_factor) % 13;
      numbers.push_back(static_cast<float>(remainder - 6) / 4);
    }
  }
  return numbers;
}

// Samples of 2, 0 and 4 steps.
class StepsOfPyTorchTest : public testing::Test {
 protected:
  static Matrix Rows(Numbers* numbers, int32_t columns = kColumns) {
    return FloatMatrix(numbers->data(), static_cast<int32_t>(numbers->size()) / columns, columns);
  }
  static DeviceSpan<float> Span(Numbers* numbers) {
    return {numbers->data(), static_cast<int64_t>(numbers->size())};
  }
  static void ExpectNear(const Numbers& got, const Numbers& expected) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 2e-6) << i;
  }

  const std::vector<int32_t> offsets_ = {0, 2, 2, 6}, samples_ = {0, 0, 2, 2, 2, 2};
  const StepRanges ranges_ = {{offsets_.data(), 4}, {samples_.data(), 6}};
  const std::unique_ptr<Device> device_ = MakeCpuDevice({2});
  StepOperations& steps_ = device_->steps();
  LayerOperations& layers_ = device_->layers();
  Numbers x_ = Series(kSteps, 5, 3), dy_ = Series(kSteps, 8, 5);
  Numbers y_ = Numbers(kSteps * kColumns), dx_ = Numbers(kSteps * kColumns);
};

TEST_F(StepsOfPyTorchTest, Attention) {
  Numbers k = Series(kSteps, 7, 2), v = Series(kSteps, 3, 4), statistics(kSteps * 4);
  Numbers dk(kSteps * kColumns), dv(kSteps * kColumns);
  steps_.AttentionForward(ranges_, 2, Rows(&x_), Rows(&k), Rows(&v), Rows(&y_),
                          Rows(&statistics, 4));
  steps_.AttentionBackward(ranges_, 2, Rows(&x_), Rows(&k), Rows(&v), Rows(&y_),
                           Rows(&statistics, 4), Rows(&dy_), Rows(&dx_), Rows(&dk), Rows(&dv));
  ExpectNear(y_, {-1.456363f, -0.456363f, 0.733243f,  0.722525f,  -1.067453f, -0.067453f,
                  1.209857f,  -0.866191f, 0.435686f,  -0.167793f, 0.168995f,  -0.328404f,
                  0.545256f,  0.036287f,  -0.307301f, 0.467179f,  -0.036287f, -0.545256f,
                  0.648961f,  -0.897646f, 0.167794f,  -0.435686f, -0.122877f, 0.082418f});
  ExpectNear(dx_, {-0.088998f, -0.088998f, 0.861744f,  -0.738638f, -0.226556f, -0.226556f,
                   -0.168472f, 0.144404f,  0.010843f,  0.010843f,  0.487326f,  0.315539f,
                   0.075039f,  0.075040f,  -0.297317f, -0.243559f, -0.105132f, -0.105132f,
                   0.393553f,  0.260389f,  0.366953f,  0.366953f,  -0.670299f, -0.432819f});
  ExpectNear(dk, {-0.108649f, 0.026588f,  0.120337f,  -0.489656f, 0.108649f,  -0.026588f,
                  -0.120337f, 0.489656f,  0.736786f,  -0.132267f, -0.332238f, -0.050361f,
                  -0.530725f, 0.000822f,  -0.091106f, -0.087942f, -1.029052f, 0.440822f,
                  -0.165528f, -0.450123f, 0.822991f,  -0.309377f, 0.588872f,  0.588425f});
  ExpectNear(dv, {-1.201091f, -0.870361f, 0.675629f,  -0.635486f, 0.201091f,  -0.879639f,
                  0.074371f,  0.635486f,  0.108363f,  -0.075886f, 0.107589f,  -0.723312f,
                  -0.403548f, 0.476890f,  0.076335f,  -0.344709f, -0.002836f, 0.001949f,
                  0.254511f,  -0.921101f, -0.451979f, 0.597048f,  -0.938435f, -0.010879f});
}

TEST_F(StepsOfPyTorchTest, Softmax) {
  steps_.SoftmaxForward(ranges_, false, Rows(&x_), Rows(&y_));
  steps_.SoftmaxBackward(ranges_, Rows(&y_), Rows(&dy_), Rows(&dx_));
  ExpectNear(
      y_, {0.222700f, 0.222700f, 0.222700f, 0.880797f, 0.777300f, 0.777300f, 0.777300f, 0.119203f,
           0.307085f, 0.054581f, 0.151253f, 0.151253f, 0.041559f, 0.190505f, 0.527925f, 0.527925f,
           0.145057f, 0.664927f, 0.071447f, 0.071447f, 0.506298f, 0.089988f, 0.249374f, 0.249374f});
  ExpectNear(dx_, {-0.346210f, 0.216381f,  0.216381f,  -0.209987f, 0.346210f,  -0.216381f,
                   -0.216381f, 0.209987f,  0.018805f,  -0.011766f, -0.271532f, 0.110567f,
                   0.085664f,  -0.279198f, 0.108111f,  -0.273989f, 0.117676f,  0.355357f,
                   -0.074677f, 0.105814f,  -0.222145f, -0.064393f, 0.238099f,  0.057608f});
  // torch.softmax of all steps but the last.
  steps_.SoftmaxForward(ranges_, true, Rows(&x_), Rows(&y_));
  steps_.SoftmaxBackward(ranges_, Rows(&y_), Rows(&dy_), Rows(&dx_));
  ExpectNear(
      y_, {1,         1,         1,         1,         0,         0,         0,         0,
           0.622006f, 0.059978f, 0.201503f, 0.201503f, 0.084179f, 0.209343f, 0.703314f, 0.703314f,
           0.293815f, 0.730679f, 0.095183f, 0.095183f, 0,         0,         0,         0});
  ExpectNear(dx_, {0,          0,          0,          0,          0,          0,
                   0,          0,          -0.241786f, -0.017173f, -0.297824f, 0.162765f,
                   0.135636f,  -0.321620f, 0.367119f,  -0.311037f, 0.106149f,  0.338794f,
                   -0.069295f, 0.148272f,  0,          0,          0,          0});
  layers_.SoftmaxForward(Rows(&x_), Rows(&y_));
  layers_.SoftmaxBackward(Rows(&y_), Rows(&dy_), Rows(&dx_));
  ExpectNear(
      y_, {0.058526f, 0.123900f, 0.262295f, 0.555279f, 0.125525f, 0.265735f, 0.562562f, 0.046178f,
           0.615863f, 0.050553f, 0.107021f, 0.226563f, 0.058526f, 0.123900f, 0.262295f, 0.555279f,
           0.273325f, 0.578628f, 0.047497f, 0.100551f, 0.615863f, 0.050553f, 0.107021f, 0.226563f});
  ExpectNear(dx_, {-0.063691f, 0.020040f,  0.370295f,  -0.326644f, 0.116776f,  -0.284256f,
                   0.101432f,  0.066048f,  -0.059251f, 0.058328f,  -0.090562f, 0.091485f,
                   0.115386f,  -0.003526f, 0.320404f,  -0.432264f, -0.201697f, 0.296294f,
                   -0.070672f, -0.023925f, -0.273459f, 0.040745f,  0.220032f,  0.012682f});
}

TEST_F(StepsOfPyTorchTest, PoolAndPositions) {
  Numbers pooled(3 * kColumns), pooled_gradient = Series(3, 8, 5);
  steps_.Pool(ranges_, StepPooling::kMean, Rows(&x_), Rows(&pooled));
  steps_.PoolBackward(ranges_, StepPooling::kMean, Rows(&pooled_gradient), Rows(&dx_));
  ExpectNear(pooled,
             {-0.875f, -0.125f, 0.625f, -0.25f, 0, 0, 0, 0, 0.4375f, -0.4375f, -0.5f, 0.25f});
  ExpectNear(dx_, {-0.75f,   -0.125f, 0.5f,    -0.5f,    -0.75f,   -0.125f, 0.5f,    -0.5f,
                   -0.1875f, 0.125f,  -0.375f, -0.0625f, -0.1875f, 0.125f,  -0.375f, -0.0625f,
                   -0.1875f, 0.125f,  -0.375f, -0.0625f, -0.1875f, 0.125f,  -0.375f, -0.0625f});
  // torch.nn.functional.embedding of 1, 0; 2, 2, 1, 0
  Numbers positions = Series(3, 7, 2), gradients(3 * kColumns);
  steps_.AddPositions(ranges_, Span(&positions).AsConst(), Rows(&x_), Rows(&y_));
  steps_.PositionGradients(ranges_, Rows(&dy_), Span(&gradients));
  ExpectNear(
      y_, {-1.25f, 0,  1.25f, -0.75f, -1.75f, -0.5f, 0.75f,  -1.25f, -0.25f, -2.25f, -1,     0.25f,
           -2.25f, -1, 0.25f, 1.5f,   0.5f,   1.75f, -0.25f, -2.25f, 0,      -2,     -0.75f, 0.5f});
  ExpectNear(gradients,
             {-0.75f, -1.5f, 1, 0.25f, -1.5f, 1, 0.25f, -0.5f, 0.5f, -0.25f, -1, -1.75f});
}

TEST_F(StepsOfPyTorchTest, Mix) {
  Numbers shares, dy, y(kSteps * 2), ds(kSteps * 2);
  for (const Numbers& from : {Series(kSteps, 7, 2), dy_}) {
    Numbers& to = shares.empty() ? shares : dy;
    for (int32_t t = 0; t < kSteps; ++t) {
      to.insert(to.end(), {from[t * kColumns], from[t * kColumns + 1]});
    }
  }
  layers_.MixForward(Rows(&shares, 2), Rows(&x_), Rows(&y, 2));
  layers_.MixBackward(Rows(&shares, 2), Rows(&x_), Rows(&dy, 2), Rows(&ds, 2), Rows(&dx_));
  ExpectNear(y, {2.25f, 0.375f, 0.875f, -0.8125f, -0.6875f, 1.875f, 0, 1.125f, 0.5f, -0.625f,
                 0.8125f, -0.125f});
  ExpectNear(ds, {2.4375f, -0.1875f, -0.875f, 2.5f, -1.5f, 0.5625f, -1.0625f, -0.3125f, 1.25f,
                  -0.9375f, -1.875f, 0.3125f});
  ExpectNear(dx_, {2.25f,   0.375f,  1.5f,    0.25f,   0.125f,   -0.375f, 0.375f,   -1.125f,
                   0.9375f, -0.625f, 0.5625f, -0.375f, 0.625f,   -0.375f, 1.25f,    -0.75f,
                   0,       -1.25f,  0,       -0.625f, -0.9375f, 0,       -1.5625f, 0});
}

// Two operations do what several others do, with the same bits.
TEST_F(StepsOfPyTorchTest, SeveralInOneHaveTheSameBits) {
  constexpr int32_t kParts = 4 * kColumns;
  Numbers queries = Series(3, 7, 2), dy, repeated(kSteps * kColumns), part(kSteps * kColumns);
  for (int32_t factor : {3, 5, 8, 11}) {
    for (float number : Series(kSteps, factor, 4)) dy.push_back(number * 0.37f);
  }
  Numbers y(kSteps * kParts), expected = y, dq(3 * kColumns), expected_dq = dq;
  Numbers ones(kSteps * kColumns, 1);
  const auto part_of = [](Numbers* numbers, int32_t i) {
    return ColumnsOf(Rows(numbers, kParts), i * kColumns, kColumns);
  };
  steps_.Compare(ranges_, Rows(&queries), Rows(&x_), Rows(&y, kParts));
  steps_.Repeat(ranges_, Rows(&queries), Rows(&repeated));
  layers_.Copy(Rows(&repeated), part_of(&expected, 0));
  layers_.Copy(Rows(&x_), part_of(&expected, 1));
  layers_.MultiplyAdd(-1, Rows(&x_), Rows(&ones), Rows(&repeated), part_of(&expected, 2));
  layers_.MultiplyAdd(1, Rows(&repeated), Rows(&x_), Matrix(), part_of(&expected, 3));
  EXPECT_EQ(y, expected);
  // Gradients are added in the order that a graph's backward pass has.
  Numbers dx = dy_, expected_dx = dy_, of_query(kSteps * kColumns);
  steps_.CompareBackward(ranges_, Rows(&queries), Rows(&x_), Rows(&dy, kParts), Rows(&dq), true,
                         Rows(&dx));
  layers_.Add(Rows(&expected_dx), part_of(&dy, 1), Rows(&expected_dx));
  layers_.MultiplyAdd(1, Rows(&x_), part_of(&dy, 3), Matrix(), Rows(&part));
  layers_.Add(part_of(&dy, 0), Rows(&part), Rows(&of_query));
  layers_.MultiplyAdd(1, Rows(&repeated), part_of(&dy, 3), Matrix(), Rows(&part));
  layers_.Add(Rows(&expected_dx), Rows(&part), Rows(&expected_dx));
  layers_.Add(Rows(&of_query), part_of(&dy, 2), Rows(&of_query));
  layers_.MultiplyAdd(-1, part_of(&dy, 2), Rows(&ones), Rows(&expected_dx), Rows(&expected_dx));
  steps_.Pool(ranges_, StepPooling::kSum, Rows(&of_query), Rows(&expected_dq));
  EXPECT_EQ(dx, expected_dx);
  EXPECT_EQ(dq, expected_dq);

  Numbers weights, pooled(3 * kColumns), expected_pooled = pooled, dw(kSteps), expected_dw = dw;
  for (int32_t t = 0; t < kSteps; ++t) weights.push_back(dy_[5 * t % 24] * 0.7f);
  steps_.PoolWeighted(ranges_, Rows(&weights, 1), Rows(&x_), Rows(&pooled));
  layers_.ScaleRows(Rows(&weights, 1), Rows(&x_), Rows(&part));
  steps_.Pool(ranges_, StepPooling::kSum, Rows(&part), Rows(&expected_pooled));
  EXPECT_EQ(pooled, expected_pooled);
  steps_.PoolWeightedBackward(ranges_, Rows(&weights, 1), Rows(&x_), Rows(&queries), Rows(&dw, 1),
                              Rows(&dx));
  layers_.RowDot(Rows(&repeated), Rows(&x_), Rows(&expected_dw, 1));
  layers_.ScaleRows(Rows(&weights, 1), Rows(&repeated), Rows(&expected_dx));
  EXPECT_EQ(dw, expected_dw);
  EXPECT_EQ(dx, expected_dx);
}

// Two steps have the scores 0 and -x: the second has the share exp(-x) / (1 + exp(-x)).
TEST(AttentionTest, ItsExponentialIsThatOfOneNumber) {
  const std::unique_ptr<Device> device = MakeCpuDevice({1});
  const int32_t offsets[] = {0, 2}, samples[] = {0, 0};
  const StepRanges ranges = {{offsets, 2}, {samples, 2}};
  for (float x = 0; x < 100; x += 0.0173f) {
    float q[] = {1, 1}, k[] = {0, -x}, v[] = {0, 1}, y[2], statistics[4];
    const auto column = [](float* numbers) { return FloatMatrix(numbers, 2, 1); };
    device->steps().AttentionForward(ranges, 1, column(q), column(k), column(v), column(y),
                                     FloatMatrix(statistics, 2, 2));
    const float e = ExpOfNonPositive(-x);
    ASSERT_EQ(y[0], e * (1 / (1 + e))) << x;
    ASSERT_EQ(statistics[0], 0);
    ASSERT_EQ(statistics[1], 1 / (1 + e));
  }
}

// A number that is none makes all of its sample none, and nothing of others.
TEST(AttentionTest, ANanStaysInItsSample) {
  const std::unique_ptr<Device> device = MakeCpuDevice({1});
  const int32_t offsets[] = {0, 20, 23};
  std::vector<int32_t> samples(20, 0);
  samples.resize(23, 1);
  const StepRanges ranges = {{offsets, 3}, {samples.data(), 23}};
  for (int32_t at : {0, 7, 19}) {
    Numbers q(23, 1), k(23, 1), v(23, 1), y(23), statistics(46);
    k[at] = std::nanf("");
    const auto column = [](Numbers* numbers) { return FloatMatrix(numbers->data(), 23, 1); };
    device->steps().AttentionForward(ranges, 1, column(&q), column(&k), column(&v), column(&y),
                                     FloatMatrix(statistics.data(), 23, 2));
    for (int32_t t = 0; t < 20; ++t) EXPECT_TRUE(std::isnan(y[t])) << t;
    for (int32_t t = 20; t < 23; ++t) EXPECT_NEAR(y[t], 1, 1e-6) << t;
  }
}

}  // namespace
}  // namespace thermocline
