#include "deploy/job/evaluation_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

EvaluationReport ReportOf(int64_t step, double auc) {
  EvaluationReport report;
  report.step = Step(step);
  report.is_scheduled = true;
  report.auc = auc;
  return report;
}

class EvaluationCoordinatorTest : public testing::Test {
 protected:
  EvaluationCoordinatorTest() {
    policy_.set_every_steps(10);
    policy_.set_patience(1);
    policy_.set_keep_best(true);
  }
  Evaluate policy_;
};

TEST_F(EvaluationCoordinatorTest, TheBestHasItsCheckpointBeforeAnyWorkerLearnsOfIt) {
  EvaluationCoordinator evaluations(policy_, 1, {}, /*keeps_best=*/true);
  EXPECT_EQ(evaluations.Begin(), std::nullopt);
  evaluations.Take(ReportOf(9, 0.6));
  EXPECT_EQ(evaluations.Begin(), Step(9));
  EXPECT_EQ(evaluations.Begin(), std::nullopt);
  EXPECT_FALSE(evaluations.TakeDecided({0, 1}).has_value());
  evaluations.OnCheckpoint(std::string("epoch-1-step-9"));
  const auto decided = evaluations.TakeDecided({0, 1});
  ASSERT_TRUE(decided.has_value());
  EXPECT_TRUE(decided->verdict.is_best);
  EXPECT_EQ(decided->state.best_checkpoint(), "epoch-1-step-9");
  EXPECT_TRUE(evaluations.is_deciding());
  EXPECT_FALSE(evaluations.TakeDecided({0, 1}).has_value());
}

TEST_F(EvaluationCoordinatorTest, WithoutACheckpointItIsDecidedAllTheSame) {
  EvaluationCoordinator evaluations(policy_, 1, {}, /*keeps_best=*/true);
  evaluations.Take(ReportOf(9, 0.6));
  evaluations.Begin();
  evaluations.OnCheckpoint(absl::AbortedError("disk full"));
  const auto decided = evaluations.TakeDecided({0});
  ASSERT_TRUE(decided.has_value());
  EXPECT_EQ(decided->checkpoint_error, absl::AbortedError("disk full"));
  EXPECT_EQ(decided->state.best_checkpoint(), "");
}

TEST_F(EvaluationCoordinatorTest, TheNextReportWaitsForEveryWorkerThatRuns) {
  EvaluationCoordinator evaluations(policy_, 1, {}, /*keeps_best=*/false);
  evaluations.Take(ReportOf(9, 0.6));
  evaluations.Take(ReportOf(19, 0.5));
  EXPECT_EQ(evaluations.Begin(), std::nullopt);
  ASSERT_TRUE(evaluations.TakeDecided({0, 1, 2}).has_value());
  EXPECT_FALSE(evaluations.stops());
  evaluations.OnAnswered(1);
  EXPECT_THAT(evaluations.Unanswered({0, 1, 2}), ElementsAre(0, 2));
  evaluations.Begin();
  EXPECT_EQ(evaluations.step(), Step(9));
  evaluations.OnAnswered(0);
  EXPECT_THAT(evaluations.Unanswered({0, 1}), IsEmpty());  // Worker 2 has ended.
  EXPECT_FALSE(evaluations.is_deciding());
  evaluations.Begin();
  ASSERT_TRUE(evaluations.TakeDecided({0, 1}).has_value());
  EXPECT_EQ(evaluations.step(), Step(19));
  EXPECT_TRUE(evaluations.stops());
}

}  // namespace
}  // namespace thermocline
