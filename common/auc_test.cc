#include "common/auc.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

// Over all pairs of a positive and a negative.
double AucByPairs(const std::vector<float>& scores, const std::vector<float>& labels) {
  double wins = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] < 0.5f || labels[j] > 0.5f) continue;
      pairs += 1;
      wins += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  return wins / pairs;
}

TEST(AucTest, CountsPairsAndHalfOfTheTies) {
  std::mt19937 random(7);
  for (int levels : {2, 5, 1000000}) {
    std::vector<float> scores, labels;
    for (int i = 0; i < 300; ++i) {
      scores.push_back(static_cast<float>(random() % levels));
      labels.push_back(random() % 4 == 0 ? 1.0f : 0.0f);
    }
    EXPECT_NEAR(Auc(scores, labels), AucByPairs(scores, labels), 1e-12) << levels;
  }
}

TEST(AucTest, PerfectReversedAndUndefined) {
  EXPECT_EQ(Auc({-1, 0, 2}, {0, 0, 1}), 1.0);
  EXPECT_EQ(Auc({-1, 0, 2}, {1, 0, 0}), 0.0);
  EXPECT_EQ(Auc({3, 3, 3}, {1, 0, 0}), 0.5);
  EXPECT_EQ(Auc({1, 2}, {1, 1}), 0.5);
  EXPECT_EQ(Auc({}, {}), 0.5);
}

TEST(LogLossTest, MatchesTheDefinitionAndSurvivesExtremes) {
  EXPECT_NEAR(LogLoss({0.0f}, {1.0f}), std::log(2.0), 1e-12);
  const double p = 1 / (1 + std::exp(-1.5));
  EXPECT_NEAR(LogLoss({1.5f, 1.5f}, {1.0f, 0.0f}), -(std::log(p) + std::log(1 - p)) / 2, 1e-12);
  EXPECT_NEAR(LogLoss({1000.0f, -1000.0f}, {0.0f, 1.0f}), 1000.0, 1e-9);
  EXPECT_EQ(LogLoss({}, {}), 0);
}

}  // namespace
}  // namespace thermocline
