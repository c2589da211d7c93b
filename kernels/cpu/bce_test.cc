#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "kernels/bce_arithmetic.h"
#include "kernels/cpu/cpu_operations.h"
#include "kernels/layer_arithmetic.h"
#include "kernels/testing/random_values.h"

namespace thermocline {
namespace {

TEST(BceTest, ExpAndLogAreAccurate) {
  for (double x = -60; x < 60; x += 0.0137) {
    const double e = std::exp(-std::fabs(x));
    ASSERT_NEAR(ExpOfMinusAbs(x), e, 1e-12 * e) << x;
    ASSERT_NEAR(Log1pOfUnit(e), std::log1p(e), 1e-12 * std::log1p(e)) << x;
  }
  EXPECT_EQ(ExpOfMinusAbs(0), 1);
  EXPECT_GT(ExpOfMinusAbs(1e30), 0);  // Clamped, not zero and not NaN.
  EXPECT_LT(ExpOfMinusAbs(1e30), 1e-300);
}

TEST(BceTest, LossAndGradientAgreeWithLibm) {
  std::mt19937_64 rng(TestSeed());
  const int64_t batch = 257, stride = 3;
  const std::vector<float> logits = RandomFloats(&rng, batch * stride, 12);
  std::vector<float> labels, gradient(batch * stride, 77);
  for (int64_t i = 0; i < batch; ++i) labels.push_back(static_cast<float>(rng() % 2));
  const float scale = 1.0f / 512;
  const double sum = CpuBceWithLogits(logits.data(), stride, labels.data(), nullptr, batch, scale,
                                      gradient.data(), stride);
  double expected = 0;
  for (int64_t i = 0; i < batch; ++i) {
    const double p = 1 / (1 + std::exp(-static_cast<double>(logits[i * stride])));
    expected -= labels[i] != 0 ? std::log(p) : std::log1p(-p);
    ASSERT_NEAR(gradient[i * stride], (p - labels[i]) * scale, 1e-9);
    ASSERT_EQ(gradient[i * stride + 1], 77);
  }
  EXPECT_NEAR(sum, expected, 1e-7);
}

TEST(BceTest, GradientAgreesWithFiniteDifferences) {
  for (float label : {0.0f, 1.0f}) {
    for (float x = -8; x <= 8; x += 0.37f) {
      const float step = 1.0f / 256;
      const float points[] = {x - step, x + step};
      const float labels[] = {label, label};
      float ignored, gradient;
      const double down = CpuBceWithLogits(&points[0], 1, labels, nullptr, 1, 1, &ignored, 1);
      const double up = CpuBceWithLogits(&points[1], 1, labels, nullptr, 1, 1, &ignored, 1);
      CpuBceWithLogits(&x, 1, labels, nullptr, 1, 1, &gradient, 1);
      const double width = static_cast<double>(points[1]) - points[0];
      ASSERT_NEAR(gradient, (up - down) / width, 2e-6) << x;
    }
  }
}

TEST(BceTest, ExtremeLogitsStayFinite) {
  const float logits[] = {1e30f, -1e30f, 1e30f, -1e30f};
  const float labels[] = {1, 0, 0, 1};
  float gradient[4];
  const double right = CpuBceWithLogits(logits, 1, labels, nullptr, 2, 1, gradient, 1);
  EXPECT_NEAR(right, 0, 1e-12);
  const double wrong = CpuBceWithLogits(logits + 2, 1, labels + 2, nullptr, 2, 1, gradient + 2, 1);
  EXPECT_NEAR(wrong, 2 * static_cast<double>(1e30f), 1e20);
  EXPECT_EQ(gradient[2], 1);
  EXPECT_EQ(gradient[3], -1);
}

TEST(ProductLogitTest, IsAccurateAtAllMagnitudes) {
  std::vector<double> points = {0, 1e-20, 0.3, 1, 5, 12.5, 30, 88, 104, 500};
  for (const double a : points) {
    for (const double b : points) {
      for (const int signs : {0, 1, 2, 3}) {
        const auto x = static_cast<float>(signs % 2 == 0 ? a : -a);
        const auto y = static_cast<float>(signs / 2 == 0 ? b : -b);
        // The logarithm of the greatest term, and the three over it, in 64 bits of precision.
        const long double of_both = -static_cast<long double>(x) - y;
        const long double most =
            std::max({-static_cast<long double>(x), -static_cast<long double>(y), of_both});
        const long double one = std::exp(-x - most), other = std::exp(-y - most);
        const long double both = std::exp(of_both - most);
        const auto logit = static_cast<double>(-(most + std::log(one + other + both)));
        EXPECT_NEAR(ProductLogit(x, y), logit, 1e-7 * std::fabs(logit) + 1e-17) << x << " " << y;
        EXPECT_EQ(ProductLogit(x, y), ProductLogit(y, x)) << x << " " << y;
        const auto slope = static_cast<double>((one + both) / (one + other + both));
        EXPECT_NEAR(ProductLogitSlope(x, y), slope, 1e-7 * slope + 1e-40) << x << " " << y;
      }
    }
  }
}

TEST(ProductLogitTest, HasItsGoldenBitsAndKeepsNans) {
  uint64_t hash = 0;
  for (int i = 0; i <= 2000; ++i) {
    const float a = static_cast<float>(i - 1000) * 0.0317f;
    const float b = static_cast<float>((i * 37) % 2001 - 1000) * 0.0291f;
    for (const float value : {ProductLogit(a, b), ProductLogitSlope(a, b)}) {
      hash = Mix64(hash ^ FloatBits(value));
    }
  }
  EXPECT_EQ(hash, 0x9a2191a92f2760d2u);
  EXPECT_TRUE(std::isnan(ProductLogit(NAN, 1)));
  EXPECT_TRUE(std::isnan(ProductLogit(1, NAN)));
  EXPECT_TRUE(std::isnan(ProductLogitSlope(NAN, 1)));
  EXPECT_TRUE(std::isnan(ProductLogitSlope(1, NAN)));
  EXPECT_EQ(ProductLogit(1.5f, INFINITY), 1.5f);
}

}  // namespace
}  // namespace thermocline
