#include "deploy/job/evaluations.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "common/job/data_place.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Evaluate Policy(uint32_t patience, Evaluate::Metric metric = Evaluate::AUC) {
  Evaluate policy;
  policy.set_every_steps(10);
  policy.set_metric(metric);
  policy.set_patience(patience);
  policy.set_keep_best(true);
  return policy;
}

EvaluationReport Report(int64_t step, double auc, double logloss = 0.5) {
  EvaluationReport report;
  report.step = Step(step);
  report.is_scheduled = true;
  report.auc = auc;
  report.logloss = logloss;
  return report;
}

// The verdicts on scores 10 steps apart: 'b' best, '-' nothing, 's' stop.
std::string Verdicts(EvaluationBoard* board, const std::vector<double>& scores, int64_t first = 9) {
  std::string text;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto decision = board->Take(Report(first + 10 * static_cast<int64_t>(i), scores[i]));
    EXPECT_FALSE(decision.is_best && decision.stops);
    text += decision.is_best ? 'b' : decision.stops ? 's' : '-';
  }
  return text;
}

TEST(EvaluationBoardTest, StopsAfterSoManyInARowWithoutImprovement) {
  EvaluationBoard board(Policy(2), {1}, {});
  // An equal score is no improvement.
  EXPECT_EQ(Verdicts(&board, {0.6, 0.6, 0.7, 0.65, 0.7}), "b-b-s");
  const EvaluationState state = board.latest();
  EXPECT_EQ(state.evaluations(), 5u);
  EXPECT_EQ(state.best_step(), 29);
  EXPECT_EQ(state.best_auc(), 0.7);
  EXPECT_EQ(state.best_checkpoint(), "step-000000029");
  EXPECT_EQ(state.without_improvement(), 2u);
}

TEST(EvaluationBoardTest, WithoutPatienceNothingStops) {
  EvaluationBoard board(Policy(0), {1}, {});
  EXPECT_EQ(Verdicts(&board, {0.6, 0.5, 0.4, 0.3}), "b---");
}

TEST(EvaluationBoardTest, OfTheLoglossLessIsBetter) {
  EvaluationBoard board(Policy(0, Evaluate::LOGLOSS), {1}, {});
  EXPECT_TRUE(board.Take(Report(9, 0.5, 0.7)).is_best);
  EXPECT_FALSE(board.Take(Report(19, 0.9, 0.71)).is_best);
  EXPECT_TRUE(board.Take(Report(29, 0.4, 0.69)).is_best);
}

TEST(EvaluationBoardTest, TheScriptsOwnMetricDecidesInPlaceOfTheOthers) {
  for (const bool minimize : {false, true}) {
    SCOPED_TRACE(minimize);
    Evaluate policy = Policy(2);
    policy.set_own_metric("hit_rate");
    policy.set_minimize(minimize);
    const auto report = [&](int64_t step, double own) {
      // By the AUC and the logloss each is worse than the one before.
      const double worse = static_cast<double>(step) / 1000;
      EvaluationReport report = Report(step, 0.9 - worse, 0.1 + worse);
      report.own_metric = minimize ? -own : own;
      return report;
    };
    EvaluationBoard board(policy, {1}, {});
    EXPECT_TRUE(board.Take(report(9, 0.25)).is_best);
    EXPECT_TRUE(board.Take(report(19, 0.5)).is_best);
    EXPECT_FALSE(board.Take(report(29, 0.5)).is_best);
    const EvaluationState state = board.latest();
    EXPECT_EQ(state.best_step(), 19);
    EXPECT_EQ(state.best_own(), minimize ? -0.5 : 0.5);
    EXPECT_EQ(state.best_checkpoint(), "step-000000019");
    // A job that goes on knows it.
    EvaluationBoard after(policy, {2}, state);
    EXPECT_TRUE(after.Take(report(39, 0.4)).stops);
    EXPECT_TRUE(after.Take(report(49, 0.75)).is_best);
    // The values of another metric, or those of the same name the other way round, don't count.
    for (const bool other_name : {false, true}) {
      Evaluate other = policy;
      if (other_name) other.set_own_metric("coverage");
      if (!other_name) other.set_minimize(!minimize);
      EvaluationBoard anew(other, {2}, state);
      EXPECT_TRUE(anew.Take(report(39, 0.4)).is_best);
      EXPECT_EQ(anew.latest().evaluations(), 1u);
    }
    EvaluationBoard by_auc(Policy(2), {2}, state);
    EXPECT_TRUE(by_auc.Take(report(39, 0.4)).is_best);
    EXPECT_EQ(by_auc.latest().own_metric(), "");
    EXPECT_EQ(by_auc.latest().best_own(), 0);
  }
}

// Rows of one label have no AUC.
TEST(EvaluationBoardTest, WithoutANumberItIsNeverTheBest) {
  EvaluationBoard board(Policy(0), {1}, {});
  EXPECT_EQ(Verdicts(&board, {std::nan(""), std::nan(""), 0.1, std::nan("")}), "--b-");
}

TEST(EvaluationBoardTest, TheOneAtTheEndCountsAsTheBestButNotForThePatience) {
  EvaluationBoard board(Policy(1), {1}, {});
  EXPECT_TRUE(board.Take(Report(9, 0.6)).is_best);
  EvaluationReport last = Report(12, 0.5);
  last.is_scheduled = false;
  EXPECT_FALSE(board.Take(last).stops);
  EXPECT_EQ(board.latest().without_improvement(), 0u);
  last.step = Step(14);
  last.auc = 0.7;
  EXPECT_TRUE(board.Take(last).is_best);
}

// A job that goes on from any checkpoint, in another generation, decides the same.
TEST(EvaluationBoardTest, GoesOnFromAnyCheckpointAsIfNothingHadHappened) {
  const std::vector<double> scores = {0.5, 0.6, 0.55, 0.65, 0.64, 0.63};
  EvaluationBoard whole(Policy(2), {1}, {});
  EXPECT_EQ(Verdicts(&whole, scores), "bb-b-s");
  for (int64_t cut = 0; cut < 60; ++cut) {
    EvaluationBoard after(Policy(2), {2}, whole.Through(Step(cut)));
    // The evaluation of the cut's own step is repeated.
    const auto first = static_cast<size_t>(cut / 10);
    const int64_t first_step = 9 + 10 * static_cast<int64_t>(first);
    const std::string verdicts =
        Verdicts(&after, {scores.begin() + static_cast<int64_t>(first), scores.end()}, first_step);
    EXPECT_EQ(verdicts, std::string("bb-b-s").substr(first)) << "cut " << cut;
    EXPECT_EQ(after.latest().without_improvement(), 2u) << cut;
    EXPECT_EQ(after.latest().evaluations(), 6u) << cut;
    EXPECT_EQ(after.latest().best_step(), 39) << cut;
    EXPECT_EQ(after.latest().best_checkpoint(), "step-000000039") << cut;
    EXPECT_EQ(after.latest().best_generation(), cut >= 39 ? 1u : 2u) << cut;
  }
}

TEST(EvaluationBoardTest, WhatWasStoppedStaysSoUnlessThePatienceGrows) {
  EvaluationBoard before(Policy(1), {1}, {});
  EXPECT_EQ(Verdicts(&before, {0.6, 0.5}), "bs");
  EvaluationBoard same(Policy(1), {2}, before.latest());
  EXPECT_TRUE(same.Take(Report(19, 0.5)).stops);
  EvaluationBoard patient(Policy(2), {2}, before.latest());
  EXPECT_FALSE(patient.Take(Report(19, 0.5)).stops);
  EXPECT_TRUE(patient.Take(Report(29, 0.5)).stops);
}

// Its manifest was written before the evaluation of its step had come.
TEST(EvaluationBoardTest, TheBestMayBeTheBaseThatAnotherGenerationMade) {
  GenerationStart start;
  start.generation = 3;
  start.base = "epoch-2-step-9";
  start.base_step = Step(9);
  start.base_generation = 2;
  EvaluationBoard board(Policy(0), start, {});
  EXPECT_TRUE(board.Take(Report(9, 0.5)).is_best);
  EXPECT_EQ(board.latest().best_checkpoint(), "epoch-2-step-9");
  EXPECT_EQ(board.latest().best_generation(), 2u);
  EXPECT_TRUE(board.Take(Report(19, 0.6)).is_best);
  EXPECT_EQ(board.latest().best_checkpoint(), "step-000000019");
  EXPECT_EQ(board.latest().best_generation(), 3u);
  board.SetBestCheckpoint(absl::AbortedError("disk full"));
  EXPECT_EQ(board.latest().best_checkpoint(), "epoch-2-step-9");
  EXPECT_EQ(board.latest().best_generation(), 2u);
}

TEST(EvaluationBoardTest, AnotherMetricBeginsAnew) {
  EvaluationBoard before(Policy(3), {1}, {});
  EXPECT_EQ(Verdicts(&before, {0.6, 0.5}), "b-");
  EvaluationBoard after(Policy(3, Evaluate::LOGLOSS), {2}, before.latest());
  EXPECT_TRUE(after.Take(Report(19, 0.5)).is_best);
  EXPECT_EQ(after.latest().evaluations(), 1u);
}

TEST(EvaluationBoardTest, AnotherTaskBeginsAnew) {
  Evaluate policy = Policy(3);
  policy.set_task("click");
  EvaluationBoard before(policy, {1}, {});
  EXPECT_EQ(Verdicts(&before, {0.6, 0.5}), "b-");
  EXPECT_EQ(EvaluationBoard(policy, {2}, before.latest()).latest().evaluations(), 2u);
  policy.set_task("buy");
  EvaluationBoard after(policy, {2}, before.latest());
  EXPECT_TRUE(after.Take(Report(19, 0.5)).is_best);
  EXPECT_EQ(after.latest().evaluations(), 1u);
  EXPECT_EQ(after.latest().task(), "buy");
}

TEST(EvaluationBoardTest, WhereTheCheckpointCannotBeMadeTheOneBeforeStands) {
  EvaluationBoard board(Policy(0), {1}, {});
  EXPECT_TRUE(board.Take(Report(9, 0.5)).is_best);
  board.SetBestCheckpoint(std::string("step-000000009"));
  EXPECT_TRUE(board.Take(Report(19, 0.6)).is_best);
  board.SetBestCheckpoint(absl::AbortedError("disk full"));
  EXPECT_EQ(board.latest().best_step(), 19);
  EXPECT_EQ(board.latest().best_checkpoint(), "step-000000009");
}

// Data whose order depends on the loss
// ------------------------------------------------------------------------------------------------

std::string Place(int64_t first_step, double rate) {
  ScheduleState schedule;
  schedule.set_first_step(first_step);
  schedule.set_rate(rate);
  return MakeDataPlace(schedule);
}

EvaluationReport Change(int64_t step, double rate) {
  EvaluationReport report = Report(step, 0.9);
  report.is_scheduled = false;
  report.is_evaluation = false;
  report.data_place = Place(step + 1, rate);
  return report;
}

TEST(ChangeTest, CountsNeitherAsTheBestNorForThePatience) {
  EvaluationBoard board(Policy(2), {1}, {});
  EXPECT_TRUE(board.Take(Report(9, 0.6)).is_best);
  EXPECT_FALSE(board.Take(Report(19, 0.5)).stops);
  const EvaluationState before = board.latest();
  const EvaluationBoard::Decision decision = board.Take(Change(24, 25));
  EXPECT_FALSE(decision.is_best);
  EXPECT_FALSE(decision.stops);
  EXPECT_EQ(decision.data_place, Place(25, 25));
  EvaluationState after = board.latest();
  EXPECT_EQ(after.data_place(), Place(25, 25));
  after.clear_data_place();
  EXPECT_EQ(after.SerializeAsString(), before.SerializeAsString());
  EXPECT_TRUE(board.Take(Report(29, 0.55)).stops);
}

TEST(ChangeTest, OneReportMayBeBoth) {
  EvaluationBoard board(Policy(2), {1}, {});
  EvaluationReport both = Report(9, 0.6);
  both.data_place = Place(10, 50);
  const EvaluationBoard::Decision decision = board.Take(both);
  EXPECT_TRUE(decision.is_best);
  EXPECT_EQ(decision.data_place, Place(10, 50));
  EXPECT_EQ(board.latest().evaluations(), 1u);
  EXPECT_EQ(board.Take(Report(19, 0.5)).data_place, "") << "nothing changes there";
}

// A checkpoint may hold its own step's change, or not yet; the job goes on alike.
TEST(ChangeTest, EachCheckpointHasThePlaceOfItsStep) {
  EvaluationBoard whole(Policy(0), {1}, {});
  for (const int64_t step : {4, 9, 14}) whole.Take(Change(step, static_cast<double>(step)));
  EXPECT_EQ(whole.Through(Step(3)).data_place(), "");
  for (int64_t cut = 0; cut < 20; ++cut) {
    const EvaluationState before = whole.Through(Step(cut));
    const int64_t last = cut >= 14 ? 14 : cut >= 9 ? 9 : cut >= 4 ? 4 : -1;
    EXPECT_EQ(FirstStepAt(before.data_place()), last < 0 ? kNoStep : Step(last + 1)) << cut;
    GenerationStart start;
    start.base_step = Step(cut);
    EvaluationBoard after(Policy(0), start, before);
    for (const int64_t step : {4, 9, 14}) {
      if (step >= cut) after.Take(Change(step, static_cast<double>(step)));
    }
    EXPECT_EQ(after.latest().SerializeAsString(), whole.latest().SerializeAsString()) << cut;
  }
}

TEST(ChangeTest, ARepetitionGetsWhatFollowedTheFirstTime) {
  EvaluationBoard first(Policy(0), {1}, {});
  first.Take(Change(9, 50));
  GenerationStart start;
  start.generation = 2;
  start.base_step = Step(9);
  EvaluationBoard second(Policy(0), start, first.latest());
  const EvaluationBoard::Decision decision = second.Take(Change(9, 12.5));
  EXPECT_EQ(decision.data_place, Place(10, 50));
  EXPECT_EQ(second.latest().data_place(), Place(10, 50));
}

TEST(ChangeTest, StaysWhereTheMetricIsAnother) {
  EvaluationBoard before(Policy(3), {1}, {});
  before.Take(Report(9, 0.6));
  before.Take(Change(14, 25));
  const EvaluationBoard after(Policy(3, Evaluate::LOGLOSS), {2}, before.latest());
  EXPECT_EQ(after.latest().evaluations(), 0u);
  EXPECT_EQ(after.latest().data_place(), Place(15, 25));
}

// The coordinator
// ------------------------------------------------------------------------------------------------

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
  EvaluationCoordinator evaluations(policy_, {1}, {}, /*keeps_best=*/true);
  EXPECT_EQ(evaluations.Begin(), std::nullopt);
  evaluations.Take(ReportOf(9, 0.6));
  EXPECT_EQ(evaluations.Begin(), Step(9));
  EXPECT_EQ(evaluations.Begin(), std::nullopt);
  EXPECT_FALSE(evaluations.TakeDecided({0, 1}).has_value());
  evaluations.OnCheckpoint(std::string("step-000000009"));
  const auto decided = evaluations.TakeDecided({0, 1});
  ASSERT_TRUE(decided.has_value());
  EXPECT_TRUE(decided->decision.is_best);
  EXPECT_EQ(decided->state.best_checkpoint(), "step-000000009");
  EXPECT_TRUE(evaluations.is_deciding());
  EXPECT_FALSE(evaluations.TakeDecided({0, 1}).has_value());
}

TEST_F(EvaluationCoordinatorTest, WithoutACheckpointItIsDecidedAllTheSame) {
  EvaluationCoordinator evaluations(policy_, {1}, {}, /*keeps_best=*/true);
  evaluations.Take(ReportOf(9, 0.6));
  evaluations.Begin();
  evaluations.OnCheckpoint(absl::AbortedError("disk full"));
  const auto decided = evaluations.TakeDecided({0});
  ASSERT_TRUE(decided.has_value());
  EXPECT_EQ(decided->checkpoint_error, absl::AbortedError("disk full"));
  EXPECT_EQ(decided->state.best_checkpoint(), "");
}

TEST_F(EvaluationCoordinatorTest, TheNextReportWaitsForEveryWorkerThatRuns) {
  EvaluationCoordinator evaluations(policy_, {1}, {}, /*keeps_best=*/false);
  evaluations.Take(ReportOf(9, 0.6));
  evaluations.Take(ReportOf(19, 0.5));
  EXPECT_EQ(evaluations.Begin(), std::nullopt);
  ASSERT_TRUE(evaluations.TakeDecided({0, 1, 2}).has_value());
  EXPECT_FALSE(evaluations.decision().stops);
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
  EXPECT_TRUE(evaluations.decision().stops);
}

}  // namespace
}  // namespace thermocline
