#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/math/initial_weights.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

std::vector<uint32_t> Bits(const std::vector<float>& floats) {
  std::vector<uint32_t> bits(floats.size());
  std::memcpy(bits.data(), floats.data(), floats.size() * sizeof(float));
  return bits;
}

std::vector<float> Initial(uint64_t seed, uint32_t table, Key key, float scale, size_t dim) {
  std::vector<float> weights(dim);
  InitialWeights(seed, TableId(table), key, InitialDistribution::kUniform, scale,
                 absl::MakeSpan(weights));
  return weights;
}

std::vector<float> Initial(InitialDistribution distribution, uint64_t seed, uint32_t table, Key key,
                           float scale, size_t dim) {
  std::vector<float> weights(dim);
  InitialWeights(seed, TableId(table), key, distribution, scale, absl::MakeSpan(weights));
  return weights;
}

// Computed by another implementation (Python).
TEST(InitialWeightsTest, HaveTheirGoldenBits) {
  EXPECT_EQ(Bits(Initial(42, 7, 123456789, 0.01f, 5)),
            (std::vector<uint32_t>{0x3af16e29, 0xbc16ddf0, 0xbc212f18, 0xbc032f10, 0x3c1b8e73}));
  EXPECT_EQ(Bits(Initial(0, 0, 0, 1.0f, 4)),
            (std::vector<uint32_t>{0x3e6ab018, 0xbe5d5930, 0xbed66068, 0x3f27d36a}));
}

TEST(InitialWeightsTest, DependOnSeedTableAndKey) {
  const std::vector<float> weights = Initial(1, 2, 3, 1, 8);
  EXPECT_EQ(weights, Initial(1, 2, 3, 1, 8));
  EXPECT_NE(weights, Initial(2, 2, 3, 1, 8));
  EXPECT_NE(weights, Initial(1, 3, 3, 1, 8));
  EXPECT_NE(weights, Initial(1, 2, 4, 1, 8));
}

TEST(InitialWeightsTest, ShorterRowsAreAPrefix) {
  const std::vector<float> all = Initial(1, 2, 3, 0.5f, 9);
  for (size_t dim = 0; dim < all.size(); ++dim) {
    EXPECT_EQ(Initial(1, 2, 3, 0.5f, dim), std::vector<float>(all.begin(), all.begin() + dim));
  }
}

TEST(InitialWeightsTest, AreUniform) {
  const float scale = 0.05f;
  double sum = 0;
  double squares = 0;
  constexpr int kKeys = 4000;
  constexpr int kDim = 16;
  for (Key key = 0; key < kKeys; ++key) {
    for (float weight : Initial(9, 1, key, scale, kDim)) {
      ASSERT_GE(weight, -scale);
      ASSERT_LT(weight, scale);
      sum += weight;
      squares += weight * weight;
    }
  }
  constexpr int kWeights = kKeys * kDim;
  EXPECT_NEAR(sum / kWeights, 0, 5 * scale / std::sqrt(3.0 * kWeights));
  EXPECT_NEAR(squares / kWeights / (scale * scale / 3), 1, 0.02);
}

TEST(InitialWeightsTest, ScaleZeroGivesZeros) {
  for (float weight : Initial(1, 2, 3, 0, 8)) EXPECT_EQ(weight, 0);
}

// Computed by another implementation (Python).
TEST(InitialWeightsTest, NormalOnesHaveTheirGoldenBits) {
  EXPECT_EQ(Bits(Initial(InitialDistribution::kNormal, 42, 7, 123456789, 0.01f, 5)),
            (std::vector<uint32_t>{0x3b18a9e3, 0xbc8fce95, 0xbcc4f22d, 0xbc5249d5, 0x3ca02ba5}));
  EXPECT_EQ(Bits(Initial(InitialDistribution::kTruncatedNormal, 42, 7, 123456789, 0.01f, 5)),
            (std::vector<uint32_t>{0x3b11995f, 0xbc7dfeac, 0xbc997e06, 0xbc424305, 0x3c894a16}));
}

TEST(InitialWeightsTest, AllAreTheSameForEveryWeightOfAConstant) {
  EXPECT_EQ(Initial(InitialDistribution::kConstant, 1, 2, 3, -0.25f, 3),
            (std::vector<float>{-0.25f, -0.25f, -0.25f}));
}

// Mean, variance, kurtosis, and the share beyond two standard deviations.
struct Moments {
  double mean = 0, variance = 0, fourth = 0, beyond_two = 0;
};

Moments MomentsOf(InitialDistribution distribution, float scale) {
  Moments moments;
  constexpr int kKeys = 20000;
  constexpr int kDim = 16;
  for (Key key = 0; key < kKeys; ++key) {
    for (const float weight : Initial(distribution, 9, 1, key, scale, kDim)) {
      const double x = weight / scale;
      moments.mean += x;
      moments.variance += x * x;
      moments.fourth += x * x * x * x;
      moments.beyond_two += std::abs(weight) > 2 * scale ? 1 : 0;
    }
  }
  constexpr double kWeights = double{kKeys} * kDim;
  return {moments.mean / kWeights, moments.variance / kWeights, moments.fourth / kWeights,
          moments.beyond_two / kWeights};
}

TEST(InitialWeightsTest, AreNormal) {
  const Moments moments = MomentsOf(InitialDistribution::kNormal, 0.05f);
  EXPECT_NEAR(moments.mean, 0, 0.01);
  EXPECT_NEAR(moments.variance, 1, 0.015);
  EXPECT_NEAR(moments.fourth, 3, 0.1);
  EXPECT_NEAR(moments.beyond_two, 0.0455, 0.002);
}

TEST(InitialWeightsTest, AreNormalWithoutTheTails) {
  const Moments moments = MomentsOf(InitialDistribution::kTruncatedNormal, 0.05f);
  EXPECT_NEAR(moments.mean, 0, 0.01);
  EXPECT_NEAR(moments.variance, 0.7737, 0.015);
  EXPECT_EQ(moments.beyond_two, 0);
}

// Python's statistics.NormalDist().inv_cdf.
TEST(NormalQuantileTest, IsTheInverseOfTheNormalDistribution) {
  const std::vector<std::pair<double, double>> known = {
      {0x1p-33, -6.337957754553789},
      {1e-9, -5.9978070150076865},
      {0.001, -3.090232306167813},
      {0.0749, -1.4402382675279632},
      {0.0751, -1.4388253927525398},
      {0.3, -0.5244005127080407},
      {0.5, 0},
      {0.925, 1.439531470938456},
      {0.99999, 4.26489079392384},
  };
  for (const auto& [p, x] : known) EXPECT_NEAR(NormalQuantile(p), x, 1e-14 * std::abs(x)) << p;
}

TEST(NormalQuantileTest, Rises) {
  double last = NormalQuantile(0x1p-33);
  for (int i = 1; i < 4096; ++i) {
    const double x = NormalQuantile(i / 4096.0);
    EXPECT_GT(x, last) << i;
    last = x;
  }
}

struct BadInitializer {
  void (*set)(Initializer*);
  const char* error;
};

TEST(ReadInitializerTest, RefusesWhatIsNoScale) {
  const std::vector<BadInitializer> cases = {
      {[](Initializer*) {}, "no initializer is set"},
      {[](Initializer* i) { i->mutable_uniform()->set_scale(-1); }, "uniform.scale is -1;"},
      {[](Initializer* i) { i->mutable_normal()->set_std(NAN); }, "normal.std is nan;"},
      {[](Initializer* i) { i->mutable_truncated_normal()->set_std(2e6f); },
       "truncated_normal.std is 2e+06; it must be in [0, 1e+06]"},
      {[](Initializer* i) { i->mutable_constant()->set_value(-2e6f); },
       "constant.value is -2e+06;"},
      {[](Initializer* i) { i->mutable_by_rows(); }, "by_rows.rows is 0;"},
  };
  for (const BadInitializer& bad : cases) {
    Initializer proto;
    bad.set(&proto);
    InitialDistribution distribution;
    float scale;
    const absl::Status status = ReadInitializer(proto, "", &distribution, &scale);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.error;
    EXPECT_TRUE(absl::StartsWith(status.message(), bad.error)) << status;
  }
}

TEST(ReadInitializerTest, RowsGiveAUniformScale) {
  Initializer proto;
  proto.mutable_by_rows()->set_rows(10000);
  InitialDistribution distribution;
  float scale;
  ASSERT_TRUE(ReadInitializer(proto, "", &distribution, &scale).ok());
  EXPECT_EQ(distribution, InitialDistribution::kUniform);
  EXPECT_EQ(scale, 0.01f);
}

}  // namespace
}  // namespace thermocline
