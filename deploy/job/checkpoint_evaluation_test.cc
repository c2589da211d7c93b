// Checkpoints of just the steps that evaluations ask for, while the workers wait for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "deploy/job/checkpoint_coordinator.h"
#include "deploy/job/checkpoint_testing.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointEvaluationTest : public CheckpointCoordinatorTest {};

TEST_F(CheckpointEvaluationTest, MakesTheCheckpointOfJustOneStep) {
  EvaluationState state;
  state.set_best_step(7);
  options_.evaluations_through = [&](Step cut) {
    state.set_last_step(cut.value());
    return state;
  };
  coordinator().wishes().AddExact(Step(7));
  cluster_.AdvanceTo(7);
  cluster_.servers_[1].complete_through = 6;  // It still applies the step.
  Poll(2);
  EXPECT_THAT(cluster_.servers_[0].cuts, IsEmpty());
  cluster_.AdvanceTo(7);
  Poll();
  EXPECT_EQ(NamedCut(0), 7);
  EXPECT_EQ(NamedCut(1), 7);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());  // They have pushed it.
  EXPECT_THAT(Answers(""), IsEmpty());
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(Answers("").size(), 1u);
  EXPECT_EQ(*Answers("")[0], "epoch-2-step-7");
  const auto manifest = store_.Load("epoch-2-step-7");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().last_step(), 7);
  EXPECT_EQ(manifest->evaluations().best_step(), 7);
}

TEST_F(CheckpointEvaluationTest, ACutBeyondTheStepThatIsWantedIsCalledOff) {
  cluster_.AdvanceTo(6);
  cluster_.workers_[0].begun = 7;
  coordinator().wishes().Add("a");
  Poll();
  ASSERT_EQ(cluster_.workers_[0].cuts.size(), 1u);
  ASSERT_GT(*cluster_.workers_[0].cuts.begin(), 7);
  coordinator().wishes().AddExact(Step(7));
  cluster_.AdvanceTo(7);
  Poll(20);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());
  ASSERT_EQ(NamedCut(0), 7);
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(Answers("").size(), 1u);
  EXPECT_EQ(*Answers("")[0], "epoch-2-step-7");
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-7"));
}

TEST_F(CheckpointEvaluationTest, ACheckpointThatIsThereLearnsOfItsEvaluation) {
  EvaluationState state;
  options_.evaluations_through = [&](Step) { return state; };
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_checkpoint(), "");
  state.set_best_step(9);
  coordinator().wishes().AddExact(Step(9));
  Poll();
  ASSERT_EQ(Answers("").size(), 1u);
  EXPECT_EQ(*Answers("")[0], "epoch-2-step-9");
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_step(), 9);
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_checkpoint(), "epoch-2-step-9");
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-9"));
}

TEST_F(CheckpointEvaluationTest, SaysWhyTheCheckpointOfAStepCanNotBeMade) {
  cluster_.AdvanceTo(7);
  coordinator().wishes().AddExact(Step(7));
  for (int round = 0; round < 100 && Answers().empty(); ++round) {
    Poll();
    if (NamedCut(0).has_value()) cluster_.Fail(0, 7, "disk full");
  }
  ASSERT_EQ(Answers("").size(), 1u);
  EXPECT_EQ(Answers("")[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(Answers("")[0].status().message()), HasSubstr("server 0: disk full"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointEvaluationTest, TheOneThatIsKeptStaysWhateverComesAfter) {
  options_.every_steps = 10;
  options_.keep = 2;
  EvaluationState state;  // Of the base.
  state.set_best_checkpoint("epoch-2-step-19");
  options_.evaluations_through = [&](Step) { return state; };
  for (int64_t cut = 9; cut < 60; cut += 10) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut);
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-19", "epoch-2-step-49", "epoch-2-step-59"));
  coordinator().Keep("epoch-2-step-49");
  cluster_.AdvanceTo(69);
  cluster_.WriteAll(69);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-49", "epoch-2-step-59", "epoch-2-step-69"));
}

// The evaluation is over while the manifest is written, which was composed without it.
TEST_F(CheckpointEvaluationTest, ACommitThatOvertakesItsEvaluationIsNoAnswerYet) {
  EvaluationState state;
  options_.every_steps = 10;
  options_.evaluations_through = [&](Step) { return state; };
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  driver().on_composed = [&] {
    state.set_evaluations(1);
    state.set_best_step(9);
  };
  coordinator().wishes().AddExact(Step(9));
  Poll();
  ASSERT_EQ(Answers().size(), 1u);
  EXPECT_EQ(*Answers()[0], "epoch-2-step-9");
  const auto manifest = store_.Load("epoch-2-step-9");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().evaluations(), 1u);
  EXPECT_EQ(manifest->evaluations().best_step(), 9);
  EXPECT_EQ(manifest->evaluations().best_checkpoint(), "epoch-2-step-9");
}

TEST_F(CheckpointEvaluationTest, ARequestMeanwhileGetsTheSameCheckpoint) {
  cluster_.AdvanceTo(7);
  coordinator().wishes().AddExact(Step(7));
  coordinator().wishes().Add("a");
  Poll();
  ASSERT_EQ(NamedCut(0), 7);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());  // None beyond it is named.
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(Answers().size(), 1u);
  EXPECT_EQ(*Answers()[0], "epoch-2-step-7");
  ASSERT_EQ(Answers("a").size(), 1u);
  EXPECT_EQ(*Answers("a")[0], "epoch-2-step-7");
}

// Workers that wait at step 7 ask no server for anything, so none of them would notice.
TEST_F(CheckpointEvaluationTest, AServerThatLostWhatItAcknowledgedIsNoticed) {
  coordinator().wishes().AddExact(Step(7));
  cluster_.AdvanceTo(6);
  for (auto& server : cluster_.servers_) server.accepted_through = 6;
  for (auto& worker : cluster_.workers_) worker.acked = 7;
  Poll(3);  // It was asked before it accepted the step, for all that is known.
  EXPECT_EQ(coordinator().error(), absl::OkStatus());
  EXPECT_EQ(cluster_.workers_asked_, 0);

  EXPECT_EQ(ReplaceServer(1), "");
  cluster_.servers_[1].answers = false;  // It recovers, ...
  Poll(3);
  EXPECT_EQ(coordinator().error(), absl::OkStatus());
  cluster_.servers_[1].answers = true;  // ... and its log lacks step 7.
  cluster_.servers_[0].accepted_through = 7;
  cluster_.servers_[0].complete_through = 7;
  Poll(3);
  EXPECT_EQ(coordinator().error().code(), absl::StatusCode::kDataLoss) << coordinator().error();
  EXPECT_THAT(std::string(coordinator().error().message()),
              HasSubstr("server 1 has lost pushes that it had acknowledged: it knows of none "
                        "beyond step 6, and all workers have step 7 acknowledged"));
}

// A push that is still on its way, to a server that was not read from or recovers, is no loss.
TEST_F(CheckpointEvaluationTest, WhatIsNotYetAcknowledgedIsNotLost) {
  coordinator().wishes().AddExact(Step(7));
  cluster_.AdvanceTo(6);
  cluster_.servers_[1].accepted_through = 6;
  cluster_.workers_[0].acked = 7;
  cluster_.workers_[1].acked = 6;
  EXPECT_EQ(ReplaceServer(1), "");
  Poll(5);
  EXPECT_EQ(coordinator().error(), absl::OkStatus());
  cluster_.workers_[1].acked = 7;
  cluster_.workers_[1].answers = false;  // Who doesn't answer may lack it.
  Poll(5);
  EXPECT_EQ(coordinator().error(), absl::OkStatus());
  cluster_.servers_[1].accepted_through = 7;
  cluster_.AdvanceTo(7);
  cluster_.workers_[1].answers = true;
  Poll(5);
  EXPECT_EQ(coordinator().error(), absl::OkStatus());
  EXPECT_EQ(NamedCut(1), 7);
  cluster_.servers_[1].accepted_through = 8;  // Training goes on: workers are left alone.
  Poll();
  const int asked = cluster_.workers_asked_;
  for (int64_t step = 9; step < 15; ++step) {
    cluster_.servers_[1].accepted_through = step;
    Poll();
  }
  EXPECT_EQ(cluster_.workers_asked_, asked);
}

}  // namespace
}  // namespace thermocline
