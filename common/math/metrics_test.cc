#include "common/math/metrics.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

// All pairs, one by one.
double PairwiseAuc(const std::vector<float>& scores, const std::vector<float>& labels,
                   const std::vector<float>& weights = {}) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      const double pair = weights.empty() ? 1 : static_cast<double>(weights[i]) * weights[j];
      pairs += pair;
      wins += scores[i] > scores[j] ? pair : scores[i] == scores[j] ? pair / 2 : 0;
    }
  }
  return wins / pairs;
}

std::mt19937_64 MakeRandom() {
  const char* text = std::getenv("THERMOCLINE_TEST_SEED");
  const uint64_t seed = text == nullptr ? 7 : std::strtoull(text, nullptr, 10);
  std::cout << "THERMOCLINE_TEST_SEED=" << seed << std::endl;
  return std::mt19937_64(seed);
}

// Scores with many ties, of both classes, with weights of which some are 0, in `num_groups` groups.
ScoredSamples RandomSamples(std::mt19937_64* rng, int num_groups) {
  ScoredSamples samples;
  for (int i = 0; i < 3 + static_cast<int>((*rng)() % 200); ++i) {
    samples.logits.push_back(static_cast<float>(static_cast<int>((*rng)() % 9) - 4) / 3);
    samples.labels.push_back(i < 2 ? static_cast<float>(i) : static_cast<float>((*rng)() % 2));
    samples.weights.push_back(i < 2 ? 1 : static_cast<float>((*rng)() % 5) / 2);
    samples.groups.push_back(i < 2 ? 0 : (*rng)() % num_groups * 0x9e3779b97f4a7c15);
  }
  return samples;
}

TEST(AucTest, RankedRightWrongAndTied) {
  EXPECT_EQ(Auc({-2.f, -1.f, 1.f, 2.f}, {0, 0, 1, 1}), 1);
  EXPECT_EQ(Auc({-2.f, -1.f, 1.f, 2.f}, {1, 1, 0, 0}), 0);
  EXPECT_EQ(Auc({3.f, 3.f, 3.f, 3.f}, {1, 0, 0, 1}), 0.5);
  EXPECT_EQ(Auc({1.f, 2.f, 2.f}, {0, 0, 1}), 0.75);
}

TEST(AucTest, SignedZerosTieAndInfinitiesRank) {
  EXPECT_EQ(Auc({0.f, -0.f}, {1, 0}), 0.5);
  EXPECT_EQ(Auc({-0.f, 0.f}, {1, 0}), 0.5);
  EXPECT_EQ(Auc({INFINITY, 1e30f, -INFINITY}, {1, 0, 0}), 1);
}

TEST(AucTest, OneClassOnlyHasNone) {
  EXPECT_TRUE(std::isnan(Auc({}, {})));
  EXPECT_TRUE(std::isnan(Auc({1.f, 2.f}, {1, 1})));
  EXPECT_TRUE(std::isnan(Auc({1.f, 2.f}, {0, 0})));
}

TEST(AucTest, AgreesWithAllPairs) {
  std::mt19937_64 rng = MakeRandom();
  for (int round = 0; round < 50; ++round) {
    std::vector<float> scores, labels;
    const int distinct = round % 2 == 0 ? 7 : 100000;  // many ties, few ties
    for (int i = 0; i < 2 + static_cast<int>(rng() % 200); ++i) {
      scores.push_back(static_cast<float>(static_cast<int>(rng() % distinct) - distinct / 2) / 3);
      labels.push_back(i < 2 ? static_cast<float>(i) : static_cast<float>(rng() % 2));
    }
    ASSERT_NEAR(Auc(scores, labels), PairwiseAuc(scores, labels), 1e-12) << "round " << round;
  }
}

TEST(AucTest, WeightsCountPairs) {
  std::mt19937_64 rng = MakeRandom();
  for (int round = 0; round < 50; ++round) {
    const ScoredSamples samples = RandomSamples(&rng, 1);
    ASSERT_NEAR(Auc(samples.logits, samples.labels, samples.weights),
                PairwiseAuc(samples.logits, samples.labels, samples.weights), 1e-12)
        << "round " << round;
    const std::vector<float> ones(samples.logits.size(), 1);
    ASSERT_EQ(Auc(samples.logits, samples.labels, ones), Auc(samples.logits, samples.labels))
        << "round " << round;
  }
  EXPECT_TRUE(std::isnan(Auc({1.f, 2.f}, {0, 1}, {0, 1})));
}

TEST(GroupAucTest, IsTheMeanOverGroupsWithBothClasses) {
  // Group 7 has 1 of 1 pairs, group 9 has 0.5 of 2, and group 4 has one class.
  const std::vector<float> scores = {1, 2, 5, 5, 6, 0};
  const std::vector<float> labels = {0, 1, 1, 0, 0, 1};
  const std::vector<uint64_t> groups = {7, 7, 9, 9, 9, 4};
  EXPECT_EQ(GroupAuc(scores, labels, {}, groups), (2 * 1 + 3 * 0.25) / 5);
  // Group 9 weighs 4 now, and its pairs 1 (a tie) and 2.
  EXPECT_EQ(GroupAuc(scores, labels, {1, 1, 1, 1, 2, 9}, groups), (2 * 1 + 4 * (0.5 / 3)) / 6);
  EXPECT_TRUE(std::isnan(GroupAuc({1, 2}, {0, 1}, {}, {3, 5})));
  EXPECT_TRUE(std::isnan(GroupAuc({}, {}, {}, {})));
}

TEST(GroupAucTest, AgreesWithEachGroupAlone) {
  std::mt19937_64 rng = MakeRandom();
  for (int round = 0; round < 50; ++round) {
    const ScoredSamples samples = RandomSamples(&rng, 1 + round % 10);
    std::map<uint64_t, ScoredSamples> by_group;
    for (size_t i = 0; i < samples.logits.size(); ++i) {
      ScoredSamples& group = by_group[samples.groups[i]];
      group.logits.push_back(samples.logits[i]);
      group.labels.push_back(samples.labels[i]);
      group.weights.push_back(samples.weights[i]);
    }
    double sum = 0, weights = 0;
    for (const auto& [_, group] : by_group) {
      const double auc = PairwiseAuc(group.logits, group.labels, group.weights);
      if (std::isnan(auc)) continue;
      const double weight = std::accumulate(group.weights.begin(), group.weights.end(), 0.0);
      sum += weight * auc;
      weights += weight;
    }
    ASSERT_NEAR(GroupAuc(samples.logits, samples.labels, samples.weights, samples.groups),
                sum / weights, 1e-12)
        << "round " << round;
  }
}

TEST(LogLossTest, WeightsCount) {
  const double once = LogLoss({1.5f}, {0}), twice = LogLoss({-0.5f}, {1});
  EXPECT_NEAR(LogLoss({1.5f, -0.5f}, {0, 1}, {1, 2}), (once + 2 * twice) / 3, 1e-12);
  EXPECT_TRUE(std::isnan(LogLoss({1.5f}, {0}, {0})));
}

TEST(LogLossTest, AgreesWithItsDefinition) {
  EXPECT_EQ(LogLoss({}, {}), 0);
  EXPECT_NEAR(LogLoss({0.f}, {1}), std::log(2.0), 1e-12);
  const double p = 1 / (1 + std::exp(-1.5));
  EXPECT_NEAR(LogLoss({1.5f, 1.5f}, {1, 0}), -(std::log(p) + std::log(1 - p)) / 2, 1e-12);
}

TEST(LogLossTest, LargeLogitsStayFinite) {
  EXPECT_NEAR(LogLoss({1000.f, -1000.f}, {1, 0}), 0, 1e-12);
  EXPECT_NEAR(LogLoss({1000.f, -1000.f}, {0, 1}), 1000, 1e-9);
}

TEST(MetricsTest, ConstantPredictionOfTheBaseRateIsTheMeasure) {
  const float logit = std::log(0.25f / 0.75f);
  const PredictionMetrics metrics =
      ComputeMetrics({{logit, logit, logit, logit}, {0, 0, 1, 0}, {}, {}});
  EXPECT_EQ(metrics.samples, 4);
  EXPECT_EQ(metrics.auc, 0.5);
  EXPECT_FALSE(metrics.gauc.has_value());
  EXPECT_NEAR(metrics.normalized_entropy, 1, 1e-7);
  EXPECT_NEAR(metrics.calibration, 1, 1e-7);
}

TEST(MetricsTest, AgreeWithTheirDefinitions) {
  const ScoredSamples samples = {{1.f, -1.f, 0.f}, {1, 0, 0}, {2, 1, 1}, {6, 6, 6}};
  const PredictionMetrics metrics = ComputeMetrics(samples);
  EXPECT_EQ(metrics.auc, 1);
  EXPECT_EQ(metrics.gauc, 1);
  EXPECT_NEAR(metrics.normalized_entropy, metrics.logloss / std::log(2.0), 1e-12);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  EXPECT_NEAR(metrics.calibration, (2 * sigmoid(1) + sigmoid(-1) + 0.5) / 2, 1e-12);
}

TEST(MetricsTest, OneClassLeavesOnlySomeOfThem) {
  const PredictionMetrics positives = ComputeMetrics({{1.f, 2.f}, {1, 1}, {}, {}});
  EXPECT_TRUE(std::isnan(positives.auc));
  EXPECT_TRUE(std::isnan(positives.normalized_entropy));
  EXPECT_LT(positives.calibration, 1);
  const PredictionMetrics negatives = ComputeMetrics({{1.f, 2.f}, {0, 0}, {}, {3, 3}});
  EXPECT_TRUE(std::isnan(negatives.calibration));
  EXPECT_TRUE(std::isnan(*negatives.gauc));
  EXPECT_GT(negatives.logloss, 1);
}

}  // namespace
}  // namespace thermocline
