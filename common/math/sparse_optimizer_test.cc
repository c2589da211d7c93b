// The golden bits were computed by another implementation (Python, every operation in double and
// rounded to float, which is exact for a single operation).
#include "common/math/sparse_optimizer.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/base/hash.h"
#include "common/math/row_update.h"
#include "common/math/testing/random_optimizers.h"
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
  InitState(config, kDim, absl::MakeSpan(row).subspan(kDim));
  return row;
}

OptimizerConfig Config(OptimizerKind kind) {
  OptimizerConfig config;
  config.kind = kind;
  config.initial_accumulator = 0.1f;
  if (kind == OptimizerKind::kAdam) config.epsilon = 1e-8f;
  if (kind == OptimizerKind::kMomentum) config.nesterov = true;
  if (kind == OptimizerKind::kFtrl) {
    config.l1 = 0.05f;
    config.l2 = 0.2f;
  }
  if (kind == OptimizerKind::kRmsProp) {
    config.beta2 = 0.99f;
    config.epsilon = 1e-8f;
  }
  if (kind == OptimizerKind::kAdamW) {
    config.epsilon = 1e-8f;
    config.weight_decay = 0.3f;
  }
  return config;
}

// A row after three steps.
std::vector<float> AfterThreeSteps(const OptimizerConfig& config) {
  const std::vector<float> gradient = Gradient();
  std::vector<float> row = FirstRow(config);
  for (int64_t step = 0; step < 3; ++step) {
    UpdateRow(ScalarsForStep(config, 0.013f, Step(step)), gradient.data(),
              static_cast<uint32_t>(step + 1), row.data(), row.data() + kDim, kDim);
  }
  return row;
}
std::vector<float> AfterThreeSteps(OptimizerKind kind) { return AfterThreeSteps(Config(kind)); }

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

TEST(RowUpdateTest, MomentumHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kMomentum);
  ASSERT_EQ(row.size(), size_t{2 * kDim});
  EXPECT_EQ(Bits(row[0]), 0xbfd6723eu);
  EXPECT_EQ(Bits(row[kDim]), 0xc00b768eu);
  EXPECT_EQ(Fold(row), 0x64fc6e5bd0c2c34bull);
}

TEST(RowUpdateTest, FtrlHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kFtrl);
  ASSERT_EQ(row.size(), size_t{3 * kDim});
  EXPECT_EQ(Bits(row[0]), 0xbf8a3d34u);
  EXPECT_EQ(Bits(row[kDim]), 0x40028af2u);
  EXPECT_EQ(Fold(row), 0xa5b5df7be2003af2ull);
}

TEST(RowUpdateTest, RmsPropHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kRmsProp);
  ASSERT_EQ(row.size(), size_t{2 * kDim});
  EXPECT_EQ(Bits(row[0]), 0xbfbb1ff6u);
  EXPECT_EQ(Bits(row[kDim]), 0x3c9d51a0u);
  EXPECT_EQ(Fold(row), 0x762e5c6be82e6a33ull);
}

TEST(RowUpdateTest, AdamWHasItsGoldenBits) {
  const std::vector<float> row = AfterThreeSteps(OptimizerKind::kAdamW);
  ASSERT_EQ(row.size(), size_t{3 * kDim});
  EXPECT_EQ(Bits(row[0]), 0xbfd99e61u);
  EXPECT_EQ(Bits(row[kDim]), 0xbe5f241au);
  EXPECT_EQ(Fold(row), 0x40b3c28bdd3a7649ull);
}

TEST(RowUpdateTest, ClippingAndDecayHaveTheirGoldenBits) {
  OptimizerConfig config = Config(OptimizerKind::kRowWiseAdagrad);
  config.clip_value = 0.5f;
  config.clip_norm = 1.25f;
  config.cow_clip_ratio = 0.05f;
  config.cow_clip_floor = 0.01f;
  config.weight_decay = 0.02f;
  const std::vector<float> row = AfterThreeSteps(config);
  ASSERT_EQ(row.size(), size_t{kDim + 1});
  EXPECT_EQ(Bits(row[0]), 0xbfdeb00eu);
  EXPECT_EQ(Bits(row[kDim]), 0x3e1c6f15u);
  EXPECT_EQ(Fold(row), 0x50b8e17627d0dce3ull);
}

// Three weights after three steps with a rate of 0.1. Expected values without a further word are
// those of torch.optim (PyTorch 1.13, in double).
void ExpectAfterThreeSteps(const std::string& what, const OptimizerConfig& config,
                           const std::vector<double>& expected,
                           const std::vector<uint32_t>& lookups = {1, 1, 1}) {
  const float gradients[3][3] = {{0.3f, -0.1f, 0.02f}, {-0.2f, 0.4f, 0.05f}, {0.1f, 0.1f, -0.6f}};
  std::vector<float> row = {0.5f, -0.25f, 0.125f};
  row.resize(3 + StateFloats(config, 3));
  InitState(config, 3, absl::MakeSpan(row).subspan(3));
  for (int64_t step = 0; step < 3; ++step) {
    UpdateRow(ScalarsForStep(config, 0.1f, Step(step)), gradients[step], lookups[step], row.data(),
              row.data() + 3, 3);
  }
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(row[i], expected[i], 2e-6) << what << ", weight " << i;
}

OptimizerConfig ConfigOf(const std::string& text) {
  Optimizer proto;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
  const auto config = OptimizerFromProto(proto);
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

TEST(RowUpdateTest, AgreesWithPyTorch) {
  const struct {
    const char* optimizer;
    std::vector<double> expected;
  } cases[] = {
      {"momentum { momentum: 0.8 }", {0.4528, -0.3076, 0.17112}},
      {"momentum { momentum: 0.8 nesterov: true }", {0.44224, -0.33608, 0.214896}},
      {"rms_prop { decay: 0.9 epsilon: 1e-6 }", {0.273884547, -0.32001474, -0.171714867}},
      {"adam_w {} weight_decay: 0.3", {0.320377122, -0.245444605, -0.0140213746}},
      {"adam {} weight_decay: 0.3", {0.283630904, -0.222707737, -0.0216612744}},
      {"sgd {} weight_decay: 0.3", {0.4375095, -0.26755925, 0.167352325}},
      // With torch.nn.utils.clip_grad_value_ and clip_grad_norm_.
      {"sgd {} weight_decay: 0.3 clip_value: 0.15", {0.446773, -0.24330925, 0.122352325}},
      {"momentum { momentum: 0.8 } clip_norm: 0.35", {0.449122197, -0.287277616, 0.147186459}},
  };
  for (const auto& c : cases) ExpectAfterThreeSteps(c.optimizer, ConfigOf(c.optimizer), c.expected);
}

// By the formulas of TensorFlow's ApplyFtrl and of the CowClip paper, in double.
TEST(RowUpdateTest, FtrlAndCowClipFollowTheirFormulas) {
  ExpectAfterThreeSteps("ftrl", ConfigOf("ftrl {}"), {0.0897276231, -0.0773614778, 0.066537944});
  ExpectAfterThreeSteps("ftrl with l1, l2", ConfigOf("ftrl { l1: 0.05 l2: 0.2 }"),
                        {0.0717990076, -0.0681074581, 0.0640843813});
  ExpectAfterThreeSteps("cow_clip by the row",
                        ConfigOf("sgd {} cow_clip { ratio: 0.1 floor: 0.02 }"),
                        {0.492139521, -0.273318093, 0.1827477}, {1, 3, 12});
  ExpectAfterThreeSteps("cow_clip by the floor",
                        ConfigOf("sgd {} cow_clip { ratio: 0.1 floor: 0.2 }"),
                        {0.497819739, -0.286932484, 0.138204182}, {1, 3, 1});
}

TEST(RowUpdateTest, FtrlDropsWeightsWithinL1AndKeepsAFrozenOne) {
  OptimizerConfig config = ConfigOf("ftrl { l1: 10 }");
  std::vector<float> row = {0.5f, 0.1f, 0.0f};
  const float gradient = 0.25f;
  UpdateRow(ScalarsForStep(config, 0.1f, Step(0)), &gradient, 1, &row[0], &row[1], 1);
  EXPECT_EQ(row[0], 0.0f);
  EXPECT_GT(row[1], 0.1f);
  const std::vector<float> frozen = row = {0.5f, 0.1f, 0.0f};
  UpdateRow(ScalarsForStep(config, 0.0f, Step(0)), &gradient, 1, &row[0], &row[1], 1);
  EXPECT_EQ(row, frozen);
}

TEST(RowUpdateTest, AFirstOrderWeightIsUpdatedAsARowOfItsOwn) {
  std::mt19937_64 random(20261129);
  const auto draw = [&](int n) { return static_cast<int>(random() % n); };
  for (int i = 0; i < 300; ++i) {
    const OptimizerConfig vector = DrawOptimizer(draw), last = DrawOptimizer(draw);
    const RowOptimizer optimizer(vector, last);
    const int dim = 1 + draw(20);
    std::vector<float> gradient(dim), row(dim + StateFloats(optimizer, dim));
    for (float& value : gradient) value = static_cast<float>(draw(200) - 100) * 0.013f;
    for (int w = 0; w < dim; ++w) row[w] = static_cast<float>(draw(200) - 100) * 0.017f;
    InitState(optimizer, dim, absl::MakeSpan(row).subspan(dim));
    // The same weights in two rows.
    std::vector<float> rest(row.begin(), row.begin() + (dim - 1)), alone = {row[dim - 1]};
    rest.resize(dim - 1 + StateFloats(vector, dim - 1));
    InitState(vector, dim - 1, absl::MakeSpan(rest).subspan(dim - 1));
    alone.resize(1 + StateFloats(last, 1));
    InitState(last, 1, absl::MakeSpan(alone).subspan(1));
    for (int64_t step = 0; step < 3; ++step) {
      const Step at(step);
      UpdateRow(ScalarsForStep(optimizer, 0.1f, at), gradient.data(), 1, row.data(),
                row.data() + dim, dim);
      UpdateRow(ScalarsForStep(vector, 0.1f, at), gradient.data(), 1, rest.data(),
                rest.data() + (dim - 1), dim - 1);
      UpdateRow(ScalarsForStep(last, 0.1f, at), &gradient[dim - 1], 1, alone.data(),
                alone.data() + 1, 1);
    }
    std::vector<float> joined(rest.begin(), rest.begin() + (dim - 1));
    joined.push_back(alone[0]);
    joined.insert(joined.end(), rest.begin() + (dim - 1), rest.end());
    joined.insert(joined.end(), alone.begin() + 1, alone.end());
    EXPECT_EQ(Fold(row), Fold(joined)) << i;
  }
}

// A contraction might not change the golden values above; it changes these. 1 - a * a with a = 1 +
// 2^-12 loses 2^-24 where the product is rounded.
TEST(RowUpdateTest, ProductsAreRoundedBeforeTheyAreSubtracted) {
  UpdateScalars scalars;
  scalars.kind = OptimizerKind::kSgd;
  scalars.learning_rate = 1 + 1.0f / 4096;
  std::vector<float> gradient(kDim, 1 + 1.0f / 4096);
  std::vector<float> weights(kDim, 1.0f);
  UpdateRow(scalars, gradient.data(), 1, weights.data(), nullptr, kDim);
  const float fused = std::fma(-scalars.learning_rate, gradient[0], 1.0f);
  for (float weight : weights) {
    EXPECT_EQ(Bits(weight), 0xba000000u);
    EXPECT_NE(Bits(weight), Bits(fused));
  }
  std::vector<float> state(kDim, -1.0f);
  weights.assign(kDim, 0.0f);
  scalars.kind = OptimizerKind::kAdagrad;
  UpdateRow(scalars, gradient.data(), 1, weights.data(), state.data(), kDim);
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
  InitState(config, kFixedDim, absl::MakeSpan(row).subspan(kFixedDim));
  std::vector<float> other = row;
  for (int64_t step = 0; step < 5; ++step) {
    const UpdateScalars scalars = ScalarsForStep(config, 0.1f, Step(step));
    SelectRowUpdate(scalars)(scalars, gradient.data(), 1, row.data(), row.data() + kFixedDim,
                             kFixedDim);
    UpdateWeights<kKind>(scalars, gradient.data(), 1, other.data(), other.data() + kFixedDim,
                         kFixedDim);
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
  ExpectInlineGivesTheSameBits<OptimizerKind::kMomentum, 16>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kFtrl, 19>();
  ExpectInlineGivesTheSameBits<OptimizerKind::kRmsProp, 16>();
}

TEST(RowUpdateTest, AGradientOfZeroChangesNoWeight) {
  for (OptimizerKind kind : kRowOptimizerKinds) {
    if (kind == OptimizerKind::kFtrl) continue;  // It moves weights to its closed form.
    OptimizerConfig config = Config(kind);
    config.initial_accumulator = 0;
    const std::vector<float> before = FirstRow(config);
    std::vector<float> row = before;
    const std::vector<float> zeros(kDim, 0.0f);
    UpdateRow(ScalarsForStep(config, 0.1f, Step(0)), zeros.data(), 1, row.data(), row.data() + kDim,
              kDim);
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
                  {OptimizerKind::kAdam, 16, 0},
                  {OptimizerKind::kMomentum, 8, 0},
                  {OptimizerKind::kRmsProp, 8, 0},
                  {OptimizerKind::kAdamW, 16, 0}};
  for (const auto& entry : expected) {
    OptimizerConfig config = Config(entry.kind);
    ASSERT_EQ(StateFloats(config, 8), entry.floats);
    std::vector<float> state(entry.floats, 77.0f);
    InitState(config, 8, absl::MakeSpan(state));
    for (float value : state) EXPECT_EQ(value, entry.first);
  }
  const OptimizerConfig ftrl = Config(OptimizerKind::kFtrl);
  std::vector<float> state(4);
  InitState(ftrl, 2, absl::MakeSpan(state));
  EXPECT_EQ(state, std::vector<float>({0.1f, 0.1f, 0, 0}));
  // A vector with one accumulator, then FTRL's first-order weight.
  const RowOptimizer of_row(Config(OptimizerKind::kRowWiseAdagrad), ftrl);
  EXPECT_EQ(StateFloats(of_row, 5), 3);
  EXPECT_EQ(StateFloats(of_row, 1), 2);
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
  std::vector<Optimizer> protos = {adam, adagrad, row_wise, sgd};
  for (const char* text :
       {"momentum { momentum: 0.5 nesterov: true } weight_decay: 0.01", "ftrl { l1: 0.5 l2: 2 }",
        "ftrl { initial_accumulator: 3 } clip_value: 4 clip_norm: 5", "rms_prop { decay: 0.5 }",
        "adam_w { beta1: 0.5 } clip_global_norm: 2", "adam { epsilon: 1e-3 } cow_clip {}",
        "sgd {} cow_clip { ratio: 0 floor: 2 }"}) {
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &protos.emplace_back()));
  }
  for (const Optimizer& proto : protos) {
    const auto config = OptimizerFromProto(proto);
    ASSERT_TRUE(config.ok()) << config.status();
    const auto again = OptimizerFromProto(OptimizerToProto(*config));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_TRUE(*config == *again) << proto.ShortDebugString();
    // Names are those of the fields.
    EXPECT_EQ(OptimizerKindName(config->kind),
              Optimizer::descriptor()->FindFieldByNumber(proto.kind_case())->name());
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
  for (const auto& [text, named] : std::map<std::string, std::string>{
           {"momentum { momentum: 1 }", "momentum is 1; it must be in [0, 1)"},
           {"ftrl { l1: -1 }", "l1 is -1"},
           {"ftrl { l2: nan }", "l2 is nan"},
           {"ftrl { initial_accumulator: 0 }", "initial_accumulator is 0"},
           {"rms_prop { decay: -0.5 }", "decay is -0.5"},
           {"rms_prop { epsilon: 0 }", "epsilon is 0"},
           {"adam_w { beta2: 2 }", "beta2 is 2"},
           {"sgd {} weight_decay: -1", "weight_decay is -1"},
           {"sgd {} clip_value: -2", "clip_value is -2"},
           {"sgd {} clip_norm: inf", "clip_norm is inf"},
           {"sgd {} clip_global_norm: -3", "clip_global_norm is -3"},
           {"sgd {} cow_clip { ratio: -1 }", "cow_clip.ratio is -1"},
           {"sgd {} cow_clip { ratio: 0 floor: 0 }", "cow_clip.ratio and cow_clip.floor are 0"}}) {
    Optimizer proto;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &proto)) << text;
    ExpectRefused(proto, named);
  }
}

TEST(OptimizerFromProtoTest, SomeFieldsAreForRowsOrForDenseParametersAlone) {
  EXPECT_TRUE(CheckForRows(ConfigOf("ftrl {} clip_norm: 1 cow_clip {}")).ok());
  EXPECT_TRUE(CheckForDense(ConfigOf("adam_w {} clip_global_norm: 1 clip_value: 1")).ok());
  EXPECT_EQ(CheckForRows(ConfigOf("adam_w {}")),
            absl::InvalidArgumentError("adam_w is set; it is for dense_optimizer alone"));
  EXPECT_EQ(CheckForRows(ConfigOf("sgd {} clip_global_norm: 1")),
            absl::InvalidArgumentError("clip_global_norm is 1; it is for dense_optimizer alone"));
  EXPECT_EQ(CheckForDense(ConfigOf("sgd {} clip_norm: 1")),
            absl::InvalidArgumentError("clip_norm is 1; it is for rows alone"));
  EXPECT_EQ(CheckForDense(ConfigOf("sgd {} cow_clip {}")),
            absl::InvalidArgumentError("cow_clip is set; it is for rows alone"));
}

}  // namespace
}  // namespace thermocline
