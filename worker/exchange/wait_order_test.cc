#include "worker/exchange/wait_order.h"

#include <string>

#include "gtest/gtest.h"

namespace thermocline {
namespace {

ExchangeOptions Options() {
  ExchangeOptions options;
  options.rank = WorkerRank(3);
  options.start_step = Step(10);
  options.window_steps = 2;
  options.credit_steps = {4, 2, 2, 2, 2, 2};
  return options;
}

class WaitOrderTest : public testing::Test {
 protected:
  void Post(Phase phase, int64_t through) {
    int64_t& next = next_[static_cast<size_t>(phase)];
    for (; next <= through; ++next) order_.NotePosted({Step(next), phase});
  }
  // Planning is at step `through`, and has the keys of the window.
  void Plan(int64_t through) {
    Post(Phase::kKeys, through + 2);
    Post(Phase::kPlans, through);
  }
  void Train(int64_t step) {
    for (const Phase phase :
         {Phase::kRows, Phase::kGradients, Phase::kDenseGradients, Phase::kDenseWeights}) {
      Post(phase, step);
      if (phase == Phase::kRows) order_.NoteReleased({Step(step), phase});
    }
    order_.NotePushed(Step(step));
  }
  // "": the wait is in order.
  std::string Wait(int64_t step, Phase phase) const {
    return std::string(order_.CheckWait({Step(step), phase}).message());
  }

  const ExchangeOptions options_ = Options();
  WaitOrder order_{options_};
  int64_t next_[kNumPhases] = {10, 10, 10, 10, 10, 10};
};

TEST_F(WaitOrderTest, PlanningOwesKeysAndPlans) {
  EXPECT_EQ(
      Wait(10, Phase::kKeys),
      "the order of waits: rank 3 waits for the keys of step 10 and owes the keys of step 10");
  Post(Phase::kKeys, 13);
  EXPECT_EQ(Wait(12, Phase::kKeys), "") << "step 10 can't be planned without them";
  EXPECT_EQ(Wait(13, Phase::kKeys),
            "the order of waits: rank 3 waits for the keys of step 13 and owes the plans of step "
            "10");
  EXPECT_EQ(Wait(10, Phase::kPlans),
            "the order of waits: rank 3 waits for the plans of step 10 and owes the plans of step "
            "10");
  Post(Phase::kPlans, 10);
  EXPECT_EQ(Wait(13, Phase::kKeys), "");
  EXPECT_EQ(Wait(10, Phase::kPlans), "") << "training is far behind";
}

TEST_F(WaitOrderTest, TrainingOwesAllThatIsEarlier) {
  Plan(11);
  EXPECT_EQ(Wait(10, Phase::kRows),
            "the order of waits: rank 3 waits for the rows of step 10 and owes the rows of step "
            "10");
  Post(Phase::kRows, 10);
  EXPECT_EQ(Wait(10, Phase::kRows), "");
  Post(Phase::kDenseGradients, 10);
  EXPECT_EQ(Wait(10, Phase::kDenseGradients),
            "the order of waits: rank 3 waits for the dense gradients of step 10 and owes the "
            "gradients of step 10");
  Post(Phase::kGradients, 10);
  EXPECT_EQ(Wait(10, Phase::kDenseGradients), "");
  Post(Phase::kRows, 11);
  EXPECT_EQ(Wait(11, Phase::kRows),
            "the order of waits: rank 3 waits for the rows of step 11 and owes the dense weights "
            "of step 10");
  Post(Phase::kDenseWeights, 10);
  EXPECT_EQ(Wait(11, Phase::kRows), "");
  // It comes late, and is no earlier for it.
  EXPECT_EQ(Wait(10, Phase::kDenseWeights), "");
}

TEST_F(WaitOrderTest, ARankHasRoomForWhatItWaitsFor) {
  Plan(12);
  Post(Phase::kRows, 12);
  for (const Phase phase : {Phase::kGradients, Phase::kDenseGradients, Phase::kDenseWeights}) {
    Post(phase, 11);
  }
  EXPECT_EQ(Wait(11, Phase::kRows), "");
  EXPECT_EQ(Wait(12, Phase::kRows),
            "the order of waits: rank 3 waits for the rows of step 12 and has no room for more: "
            "that of step 10 is not released");
  order_.NoteReleased({Step(10), Phase::kRows});
  EXPECT_EQ(Wait(12, Phase::kRows), "");
}

TEST_F(WaitOrderTest, BetweenStepsTrainingOwesNothing) {
  EXPECT_TRUE(order_.CheckOwesNothing().ok());
  Plan(11);
  EXPECT_TRUE(order_.CheckOwesNothing().ok());
  Train(10);
  EXPECT_TRUE(order_.CheckOwesNothing().ok());
  Post(Phase::kRows, 11);
  EXPECT_EQ(order_.CheckOwesNothing().message(),
            "the order of waits: rank 3 waits for the next batch or its rows and owes the "
            "gradients of step 11");
  Post(Phase::kGradients, 11);
  Post(Phase::kDenseGradients, 11);
  Post(Phase::kDenseWeights, 11);
  EXPECT_EQ(order_.CheckOwesNothing().message(),
            "the order of waits: rank 3 waits for the next batch or its rows and owes the push of "
            "step 11");
  order_.NotePushed(Step(11));
  EXPECT_TRUE(order_.CheckOwesNothing().ok());
}

TEST(WaitOrder, AJobWithoutRowsOwesNone) {
  ExchangeOptions options = Options();
  options.phases = kDensePhases;
  WaitOrder order(options);
  order.NotePosted({Step(10), Phase::kDenseGradients});
  EXPECT_TRUE(order.CheckWait({Step(10), Phase::kDenseGradients}).ok());
  EXPECT_EQ(order.CheckOwesNothing().message(),
            "the order of waits: rank 3 waits for the next batch or its rows and owes the dense "
            "weights of step 10");
}

}  // namespace
}  // namespace thermocline
