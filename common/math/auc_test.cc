#include "common/math/auc.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

// All pairs, one by one.
double PairwiseAuc(const std::vector<float>& scores, const std::vector<float>& labels) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      pairs += 1;
      wins += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  return wins / pairs;
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
  const char* text = std::getenv("THERMOCLINE_TEST_SEED");
  const uint64_t seed = text == nullptr ? 7 : std::strtoull(text, nullptr, 10);
  std::cout << "THERMOCLINE_TEST_SEED=" << seed << std::endl;
  std::mt19937_64 rng(seed);
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

}  // namespace
}  // namespace thermocline
