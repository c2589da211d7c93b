// The golden bits were computed by another implementation (Python, every operation in double and
// rounded to float, which is exact for a single operation).
#include "common/math/sparse_optimizer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/math/row_update.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

constexpr int kDim = 19;  // not a multiple of the vector width: the loops' remainders run, too

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

uint64_t Fold(const std::vector<float>& values) {
  uint64_t hash = 0;
  for (float value : values) hash = Mix64(hash ^ Bits(value));
  return hash;
}

std::vector<float> Gradient() {
  std::vector<float> gradient;
  for (int i = 0; i < kDim; ++i) {
    gradient.push_back(static_cast<float>((i * 37) % 23 - 11) * 0.0731f);
  }
  return gradient;
}

// Weights, then state.
std::vector<float> FirstRow(const OptimizerConfig& config) {
  std::vector<float> row;
  for (int i = 0; i < kDim; ++i) row.push_back(static_cast<float>((i * 29) % 31 - 15) * 0.1173f);
  row.resize(kDim + StateFloats(config, kDim));
  InitState(config, absl::MakeSpan(row).subspan(kDim));
  return row;
}

OptimizerConfig Config(OptimizerKind kind) {
  OptimizerConfig config;
  config.kind = kind;
  config.initial_accumulator = 0.1f;
  if (kind == OptimizerKind::kAdam) config.epsilon = 1e-8f;
  return config;
}

// A row after three steps.
std::vector<float> AfterThreeSteps(OptimizerKind kind) {
  const OptimizerConfig config = Config(kind);
  const std::vector<float> gradient = Gradient();
  std::vector<float> row = FirstRow(config);
  for (int64_t step = 0; step < 3; ++step) {
    SelectRowUpdate(kind)(ScalarsForStep(config, 0.013f, Step(step)), gradient.data(), row.data(),
                          row.data() + kDim, kDim);
  }
  return row;
}

TEST(RowUpdateTest, SgdHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kSgd);
  ASSERT_EQ(row.size(), size_t{kDim});
  EXPECT_EQ(Bits(row[0]), 0xbfdd33b0u);
  EXPECT_EQ(Bits(row[1]), 0x3fd11b5bu);
  EXPECT_EQ(Fold(row), 0xa88c78f069ebf33bull);
}

TEST(RowUpdateTest, AdagradHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kAdagrad);
  ASSERT_EQ(row.size(), size_t{2 * kDim});
  EXPECT_EQ(Bits(row[0]), 0xbfdd98d3u);
  EXPECT_EQ(Bits(row[kDim]), 0x40028af2u);
  EXPECT_EQ(Fold(row), 0xa279e9324930f578ull);
}

TEST(RowUpdateTest, RowWiseAdagradHasItsGoldenBits) {
  EXPECT_EQ(Bits(SumOfSquares(Gradient().data(), kDim)), 0x409aec04u);
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kRowWiseAdagrad);
  ASSERT_EQ(row.size(), size_t{kDim + 1});
  EXPECT_EQ(Bits(row[0]), 0xbfdbd11cu);
  EXPECT_EQ(Bits(row[kDim]), 0x3f5d4a76u);
  EXPECT_EQ(Fold(row), 0xa20418a0619abdfaull);
}

TEST(RowUpdateTest, AdamHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kAdam);
  ASSERT_EQ(row.size(), size_t{3 * kDim});
  EXPECT_EQ(Bits(row[0]), 0xbfdc3957u);
  EXPECT_EQ(Bits(row[kDim]), 0xbe5f241au);
  EXPECT_EQ(Fold(row), 0x6b673c89254af7f0ull);
}

// A contraction might not change the golden values above; it changes these. 1 - a * a with a = 1 +
// 2^-12 loses 2^-24 where the product is rounded.
TEST(RowUpdateTest, ProductsAreRoundedBeforeTheyAreSubtracted) {
  UpdateScalars scalars;
  scalars.learning_rate = 1 + 1.0f / 4096;
  std::vector<float> gradient(kDim, 1 + 1.0f / 4096);
  std::vector<float> weights(kDim, 1.0f);
  SelectRowUpdate(OptimizerKind::kSgd)(scalars, gradient.data(), weights.data(), nullptr, kDim);
  const float fused = std::fma(-scalars.learning_rate, gradient[0], 1.0f);
  for (float weight : weights) {
    EXPECT_EQ(Bits(weight), 0xba000000u);
    EXPECT_NE(Bits(weight), Bits(fused));
  }
  std::vector<float> state(kDim, -1.0f);
  weights.assign(kDim, 0.0f);
  SelectRowUpdate(OptimizerKind::kAdagrad)(scalars, gradient.data(), weights.data(), state.data(),
                                           kDim);
  for (float value : state) EXPECT_EQ(Bits(value), 0x3a000000u);
  // Nor are the lanes of a sum of squares fused: 2^-26, then a * a.
  gradient.assign(32, 0.0f);
  gradient[0] = 1.0f / 8192;
  gradient[16] = 1 + 1.0f / 4096;
  const float square = gradient[0] * gradient[0];
  EXPECT_EQ(Bits(SumOfSquares(gradient.data(), 32)), 0x3f801000u);
  EXPECT_NE(Bits(std::fma(gradient[16], gradient[16], square)), 0x3f801000u);
}

template <OptimizerKind kKind, int kFixedDim>
void ExpectInlineGivesTheSameBits() {
  const OptimizerConfig config = Config(kKind);
  std::vector<float> gradient(kFixedDim);
  std::vector<float> row(kFixedDim + StateFloats(config, kFixedDim));
  for (int i = 0; i < kFixedDim; ++i) {
    gradient[i] = std::sin(1.0f + i);
    row[i] = std::cos(1.0f + i);
  }
  InitState(config, absl::MakeSpan(row).subspan(kFixedDim));
  std::vector<float> other = row;
  for (int64_t step = 0; step < 5; ++step) {
    const UpdateScalars scalars = ScalarsForStep(config, 0.1f, Step(step));
    SelectRowUpdate(kKind)(scalars, gradient.data(), row.data(), row.data() + kFixedDim, kFixedDim);
    UpdateRow<kKind>(scalars, gradient.data(), other.data(), other.data() + kFixedDim, kFixedDim);
  }
  EXPECT_EQ(Fold(row), Fold(other)) << OptimizerKindName(kKind) << " " << kFixedDim;
}

TEST(RowUpdateTest, InlineWithConstantDimGivesTheSameBits) {
  ExpectInlineGivesTheSameBits<OptimizerKind::kSgd, 16>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kAdagrad, 16>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kAdagrad, 3>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kRowWiseAdagrad, 16>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kRowWiseAdagrad, 100>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kAdam, 64>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kAdam, 7>();
}

TEST(RowUpdateTest, AGradientOfZeroChangesNoWeight) {
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdagrad,
                             OptimizerKind::kRowWiseAdagrad, OptimizerKind::kAdam}) {
    OptimizerConfig config = Config(kind);
    config.initial_accumulator = 0;
    const std::vector<float> before = FirstRow(config);
    std::vector<float> row = before;
    const std::vector<float> zeros(kDim, 0.0f);
    SelectRowUpdate(kind)(ScalarsForStep(config, 0.1f, Step(0)), zeros.data(), row.data(),
                          row.data() + kDim, kDim);
    EXPECT_EQ(Fold(row), Fold(before)) << OptimizerKindName(kind);
  }
}

TEST(ScalarsForStepTest, AdamCorrectsByTheStep) {
  const OptimizerConfig config = Config(OptimizerKind::kAdam);
  const struct {
    int64_t step;
    uint32_t learning_rate;
    uint32_t sqrt_bias2;
  } golden[] = {{0, 0x3e051eb6, 0x3d0186ac},
                {2, 0x3d447caf, 0x3d603bca},
                {9, 0x3ca381ee, 0x3dcc56af},
                {999, 0x3c54fdf4, 0x3f4b9072},
                {99999, 0x3c54fdf4, 0x3f800000}};
  for (const auto& entry : golden) {
    const UpdateScalars scalars = ScalarsForStep(config, 0.013f, Step(entry.step));
    EXPECT_EQ(Bits(scalars.learning_rate), entry.learning_rate) << entry.step;
    EXPECT_EQ(Bits(scalars.sqrt_bias2), entry.sqrt_bias2) << entry.step;
  }
}

TEST(ScalarsForStepTest, OthersTakeTheScaledRateAtEveryStep) {
  OptimizerConfig config = Config(OptimizerKind::kAdagrad);
  config.learning_rate_scale = 0.5f;
  EXPECT_EQ(ScalarsForStep(config, 0.02f, Step(0)).learning_rate, 0.01f);
  EXPECT_EQ(ScalarsForStep(config, 0.02f, Step(100)).learning_rate, 0.01f);
}

TEST(OptimizerStateTest, NumberAndFirstValues) {
  const struct {
    OptimizerKind kind;
    int floats;
    float first;
  } expected[] = {{OptimizerKind::kSgd, 0, 0},
                  {OptimizerKind::kAdagrad, 8, 0.1f},
                  {OptimizerKind::kRowWiseAdagrad, 1, 0.1f},
                  {OptimizerKind::kAdam, 16, 0}};
  for (const auto& entry : expected) {
    const OptimizerConfig config = Config(entry.kind);
    ASSERT_EQ(StateFloats(config, 8), entry.floats);
    std::vector<float> state(entry.floats, 77.0f);
    InitState(config, absl::MakeSpan(state));
    for (float value : state) EXPECT_EQ(value, entry.first);
  }
}

TEST(OptimizerFromProtoTest, FillsDefaultsIn) {
  Optimizer proto;
  proto.mutable_sgd();
  auto config = OptimizerFromProto(proto);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->kind, OptimizerKind::kSgd);
  EXPECT_EQ(config->learning_rate_scale, 1.0f);
  proto.mutable_adagrad();
  config = OptimizerFromProto(proto);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->kind, OptimizerKind::kAdagrad);
  EXPECT_EQ(config->initial_accumulator, 0.0f);
  EXPECT_EQ(config->epsilon, 1e-10f);
  proto.mutable_row_wise_adagrad();
  config = OptimizerFromProto(proto);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->kind, OptimizerKind::kRowWiseAdagrad);
  EXPECT_EQ(config->epsilon, 1e-10f);
  proto.mutable_adam();
  config = OptimizerFromProto(proto);
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->kind, OptimizerKind::kAdam);
  EXPECT_EQ(config->beta1, 0.9f);
  EXPECT_EQ(config->beta2, 0.999f);
  EXPECT_EQ(config->epsilon, 1e-8f);
}

TEST(OptimizerFromProtoTest, RoundTrips) {
  Optimizer adam;
  adam.mutable_adam()->set_beta1(0.0f);
  adam.mutable_adam()->set_beta2(0.99f);
  adam.mutable_adam()->set_epsilon(1e-6f);
  adam.set_learning_rate_scale(0.25f);
  Optimizer adagrad;
  adagrad.mutable_adagrad()->set_initial_accumulator(0.5f);
  adagrad.mutable_adagrad()->set_epsilon(1e-5f);
  Optimizer row_wise;
  row_wise.mutable_row_wise_adagrad()->set_initial_accumulator(0.125f);
  Optimizer sgd;
  sgd.mutable_sgd();
  for (const Optimizer& proto : {adam, adagrad, row_wise, sgd}) {
    const auto config = OptimizerFromProto(proto);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto again = OptimizerFromProto(OptimizerToProto(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(*config == *again) << proto.ShortDebugString();
  }
}

void ExpectRefused(const Optimizer& proto, const std::string& named) {
  const auto config = OptimizerFromProto(proto);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(config.status().message()).find(named), std::string::npos)
      << config.status();
}

TEST(OptimizerFromProtoTest, RefusesWhatIsOutOfRangeAndNamesIt) {
  ExpectRefused(Optimizer(), "no optimizer");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Optimizer adam;
  adam.mutable_adam()->set_beta1(1.0f);
  ExpectRefused(adam, "beta1");
  adam.mutable_adam()->set_beta1(0.9f);
  adam.mutable_adam()->set_beta2(-0.1f);
  ExpectRefused(adam, "beta2");
  adam.mutable_adam()->set_beta2(nan);
  ExpectRefused(adam, "beta2");
  Optimizer adagrad;
  adagrad.mutable_adagrad()->set_initial_accumulator(-1.0f);
  ExpectRefused(adagrad, "initial_accumulator");
  adagrad.mutable_adagrad()->set_initial_accumulator(0.0f);
  adagrad.mutable_adagrad()->set_epsilon(0.0f);  // 0 / 0 at the first gradient of 0
  ExpectRefused(adagrad, "epsilon");
  adagrad.mutable_adagrad()->set_epsilon(1e-8f);
  adagrad.set_learning_rate_scale(-1.0f);
  ExpectRefused(adagrad, "learning_rate_scale");
  adagrad.set_learning_rate_scale(std::numeric_limits<float>::infinity());
  ExpectRefused(adagrad, "learning_rate_scale");
}

}  // namespace
}  // namespace thermocline
