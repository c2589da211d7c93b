#include "worker/train/launcher_orders.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"

namespace thermocline {
namespace {

TEST(NamedCheckpointsTest, ANamedStepIsOneOnce) {
  NamedCheckpoints checkpoints(Step(0));
  EXPECT_EQ(checkpoints.begun(), kNoStep);
  EXPECT_TRUE(checkpoints.Name(Step(2)).ok());
  EXPECT_TRUE(checkpoints.Name(Step(2)).ok());
  EXPECT_FALSE(checkpoints.BeginPush(Step(0)));
  EXPECT_FALSE(checkpoints.BeginPush(Step(1)));
  EXPECT_TRUE(checkpoints.BeginPush(Step(2)));
  EXPECT_FALSE(checkpoints.BeginPush(Step(3)));
  EXPECT_EQ(checkpoints.begun(), Step(3));
}

TEST(NamedCheckpointsTest, AStepWhosePushHasBegunIsTooLate) {
  NamedCheckpoints checkpoints(Step(7));
  const absl::Status before = checkpoints.Name(Step(6));
  EXPECT_EQ(before.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(before.message(), "at step 6")) << before;
  EXPECT_TRUE(checkpoints.Name(Step(7)).ok());
  EXPECT_TRUE(checkpoints.BeginPush(Step(7)));
  const absl::Status late = checkpoints.Name(Step(7));
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(late.message(), "at step 7")) << late;
  EXPECT_TRUE(checkpoints.Name(Step(8)).ok());
}

TEST(NamedCheckpointsTest, ACutThatIsCalledOffIsNone) {
  NamedCheckpoints checkpoints(Step(0));
  EXPECT_TRUE(checkpoints.Name(Step(1)).ok());
  EXPECT_TRUE(checkpoints.Name(Step(2)).ok());
  checkpoints.CallOff(Step(1));
  checkpoints.CallOff(Step(5));  // It was not named.
  EXPECT_FALSE(checkpoints.BeginPush(Step(1)));
  EXPECT_TRUE(checkpoints.BeginPush(Step(2)));
  checkpoints.CallOff(Step(2));  // Too late, and no harm.
}

TEST(NamedCheckpointsTest, NoneIsNamedWhenTrainingIsOver) {
  NamedCheckpoints checkpoints(Step(0));
  EXPECT_FALSE(checkpoints.BeginPush(Step(0)));
  checkpoints.EndTraining();
  const absl::Status status = checkpoints.Name(Step(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "ended with step 0")) << status;
}

// Every accepted step has a checkpoint, and no refused one has, in any interleaving of the threads.
TEST(NamedCheckpointsTest, WhatIsAcceptedIsMade) {
  constexpr int kSteps = 20000;
  NamedCheckpoints checkpoints(Step(0));
  std::vector<char> accepted(kSteps), made(kSteps);
  std::thread namer([&] {
    for (int step = 0; step < kSteps; ++step) accepted[step] = checkpoints.Name(Step(step)).ok();
  });
  for (int step = 0; step < kSteps; ++step) made[step] = checkpoints.BeginPush(Step(step));
  namer.join();
  EXPECT_EQ(accepted, made);
}

TEST(EvaluationIsDueTest, BySteps) {
  Evaluate policy;
  policy.set_every_steps(4);
  EXPECT_TRUE(EvaluationIsDue(policy, 8, 0));
  EXPECT_FALSE(EvaluationIsDue(policy, 9, 0));
  EXPECT_FALSE(EvaluationIsDue(policy, 9, 1)) << "the end of a pass does not count";
}

TEST(EvaluationIsDueTest, ByPasses) {
  Evaluate policy;
  policy.set_every_passes(2);
  EXPECT_FALSE(EvaluationIsDue(policy, 8, 0)) << "in the middle of a pass";
  EXPECT_FALSE(EvaluationIsDue(policy, 8, 1));
  EXPECT_TRUE(EvaluationIsDue(policy, 16, 2));
  EXPECT_FALSE(EvaluationIsDue(policy, 24, 3));
}

TEST(EvaluationIsDueTest, WithoutAPolicyNever) { EXPECT_FALSE(EvaluationIsDue(Evaluate(), 8, 2)); }

}  // namespace
}  // namespace thermocline
