#include "worker/train/named_cuts.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

TEST(NamedCutsTest, ANamedStepIsACutOnce) {
  NamedCuts cuts(Step(0));
  EXPECT_EQ(cuts.begun(), kNoStep);
  EXPECT_TRUE(cuts.Name(Step(2)).ok());
  EXPECT_TRUE(cuts.Name(Step(2)).ok());
  EXPECT_FALSE(cuts.BeginPush(Step(0)));
  EXPECT_FALSE(cuts.BeginPush(Step(1)));
  EXPECT_TRUE(cuts.BeginPush(Step(2)));
  EXPECT_FALSE(cuts.BeginPush(Step(3)));
  EXPECT_EQ(cuts.begun(), Step(3));
}

TEST(NamedCutsTest, AStepWhosePushHasBegunIsTooLate) {
  NamedCuts cuts(Step(7));
  const absl::Status before = cuts.Name(Step(6));
  EXPECT_EQ(before.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(before.message(), "at step 6")) << before;
  EXPECT_TRUE(cuts.Name(Step(7)).ok());
  EXPECT_TRUE(cuts.BeginPush(Step(7)));
  const absl::Status late = cuts.Name(Step(7));
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(late.message(), "at step 7")) << late;
  EXPECT_TRUE(cuts.Name(Step(8)).ok());
}

TEST(NamedCutsTest, ACutThatIsCalledOffIsNone) {
  NamedCuts cuts(Step(0));
  EXPECT_TRUE(cuts.Name(Step(1)).ok());
  EXPECT_TRUE(cuts.Name(Step(2)).ok());
  cuts.CallOff(Step(1));
  cuts.CallOff(Step(5));  // Nobody named it.
  EXPECT_FALSE(cuts.BeginPush(Step(1)));
  EXPECT_TRUE(cuts.BeginPush(Step(2)));
  cuts.CallOff(Step(2));  // Too late, and no harm.
}

TEST(NamedCutsTest, NoneIsNamedWhenTrainingIsOver) {
  NamedCuts cuts(Step(0));
  EXPECT_FALSE(cuts.BeginPush(Step(0)));
  cuts.EndTraining();
  const absl::Status status = cuts.Name(Step(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "ended with step 0")) << status;
}

// What was accepted is a cut, what was refused is none, however the threads meet.
TEST(NamedCutsTest, AcceptedIsTheSameAsCut) {
  constexpr int kSteps = 20000;
  NamedCuts cuts(Step(0));
  std::vector<char> accepted(kSteps), cut(kSteps);
  std::thread namer([&] {
    for (int step = 0; step < kSteps; ++step) accepted[step] = cuts.Name(Step(step)).ok();
  });
  for (int step = 0; step < kSteps; ++step) cut[step] = cuts.BeginPush(Step(step));
  namer.join();
  EXPECT_EQ(accepted, cut);
}

}  // namespace
}  // namespace thermocline
