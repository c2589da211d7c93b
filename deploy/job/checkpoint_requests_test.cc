#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/checkpoint_coordinator.h"
#include "deploy/job/testing/checkpoint_fixture.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Checkpoints that a user asks for
// ------------------------------------------------------------------------------------------------

class CheckpointRequestTest : public CheckpointCoordinatorTest {};

TEST_F(CheckpointRequestTest, ARequestNamesACutThatNobodyHasBegun) {
  cluster_.AdvanceTo(5);
  cluster_.workers_[0].begun = 6;
  cluster_.workers_[1].begun = 9;  // Further than a cut is named at first.
  coordinator().clients().Add("a");
  Poll();
  const auto cut = NamedCut(0);
  ASSERT_TRUE(cut.has_value());
  EXPECT_GT(*cut, 9);
  EXPECT_EQ(NamedCut(1), cut);
  // What was tried before is called off.
  EXPECT_THAT(cluster_.workers_[0].cuts, ElementsAre(*cut));
  EXPECT_THAT(cluster_.workers_[1].cuts, ElementsAre(*cut));
  Poll(3);  // One cut is enough.
  EXPECT_EQ(NamedCut(0), cut);
  cluster_.AdvanceTo(*cut);
  cluster_.WriteAll(*cut);
  Poll();
  ASSERT_EQ(Answers("a").size(), 1u);
  EXPECT_EQ(*Answers("a")[0], CheckpointName(Step(*cut)));
}

TEST_F(CheckpointRequestTest, ARequestTakesThePeriodicCutThatComesNext) {
  options_.every_steps = 5;
  cluster_.AdvanceTo(8);
  coordinator().clients().Add("a");
  Poll(2);
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  ASSERT_EQ(Answers("a").size(), 1u);
  EXPECT_EQ(*Answers("a")[0], "step-000000009");
}

TEST_F(CheckpointRequestTest, ACheckpointOfWhatWasBeforeIsNoAnswer) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(12);
  cluster_.WriteAll(9);
  coordinator().clients().Add("a");
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
  EXPECT_THAT(Answers("a"), IsEmpty());
  EXPECT_THAT(coordinator().clients().Unanswered(), ElementsAre("a"));
}

TEST_F(CheckpointRequestTest, ARequestLearnsWhyThereIsNone) {
  cluster_.AdvanceTo(5);
  coordinator().clients().Add("a");
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT(Answers("a"), IsEmpty());
    Poll();
    const auto cut = NamedCut(1);
    ASSERT_TRUE(cut.has_value());
    cluster_.AdvanceTo(*cut);
    cluster_.Fail(1, *cut, "busy");
    Poll();
  }
  ASSERT_EQ(Answers("a").size(), 1u);
  EXPECT_EQ(Answers("a")[0].status(), absl::AbortedError("server 1: busy"));
  Poll(3);
  EXPECT_EQ(NamedCut(1), std::nullopt);
}

// Checkpoints of evaluations: of one step exactly
// ------------------------------------------------------------------------------------------------

class CheckpointEvaluationTest : public CheckpointCoordinatorTest {};

// The cut where the servers stand, behind which nothing is pushed before it is made.
TEST_F(CheckpointEvaluationTest, MakesTheCheckpointOfJustOneStep) {
  EvaluationState state;
  state.set_best_step(7);
  options_.evaluations_through = [&](Step cut) {
    state.set_last_step(cut.value());
    return state;
  };
  coordinator().clients().AddExact(Step(7));
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
  EXPECT_EQ(*Answers("")[0], "step-000000007");
  const auto manifest = store_.Load("step-000000007");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().last_step(), 7);
  EXPECT_EQ(manifest->evaluations().best_step(), 7);
}

// The workers wait at step 7 for its checkpoint, so that they never get to the cut.
TEST_F(CheckpointEvaluationTest, ACutBeyondTheStepThatIsWantedIsCalledOff) {
  cluster_.AdvanceTo(6);
  cluster_.workers_[0].begun = 7;
  coordinator().clients().Add("a");
  Poll();
  ASSERT_EQ(cluster_.workers_[0].cuts.size(), 1u);
  ASSERT_GT(*cluster_.workers_[0].cuts.begin(), 7);
  coordinator().clients().AddExact(Step(7));
  cluster_.AdvanceTo(7);
  Poll(20);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());
  ASSERT_EQ(NamedCut(0), 7);
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(Answers("").size(), 1u);
  EXPECT_EQ(*Answers("")[0], "step-000000007");
  EXPECT_THAT(Names(), ElementsAre("step-000000007"));
}

// A periodic cut of the step was committed before the evaluation was over.
TEST_F(CheckpointEvaluationTest, ACheckpointThatIsThereLearnsOfItsEvaluation) {
  EvaluationState state;
  options_.evaluations_through = [&](Step) { return state; };
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(store_.Load("step-000000009")->evaluations().best_checkpoint(), "");
  state.set_best_step(9);
  coordinator().clients().AddExact(Step(9));
  Poll();
  ASSERT_EQ(Answers("").size(), 1u);
  EXPECT_EQ(*Answers("")[0], "step-000000009");
  EXPECT_EQ(store_.Load("step-000000009")->evaluations().best_step(), 9);
  EXPECT_EQ(store_.Load("step-000000009")->evaluations().best_checkpoint(), "step-000000009");
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
}

TEST_F(CheckpointEvaluationTest, SaysWhyTheCheckpointOfAStepCanNotBeMade) {
  cluster_.AdvanceTo(7);
  coordinator().clients().AddExact(Step(7));
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
  EvaluationState state;  // The base's.
  state.set_best_checkpoint("step-000000019");
  state.set_best_generation(kTestGeneration);
  options_.evaluations_through = [&](Step) { return state; };
  for (int64_t cut = 9; cut < 60; cut += 10) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut);
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("step-000000019", "step-000000049", "step-000000059"));
  coordinator().Keep(CheckpointId{kTestGeneration, Step(49)});
  cluster_.AdvanceTo(69);
  cluster_.WriteAll(69);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000049", "step-000000059", "step-000000069"));
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
  coordinator().clients().AddExact(Step(9));
  Poll();
  ASSERT_EQ(Answers().size(), 1u);
  EXPECT_EQ(*Answers()[0], "step-000000009");
  const auto manifest = store_.Load("step-000000009");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().evaluations(), 1u);
  EXPECT_EQ(manifest->evaluations().best_step(), 9);
  EXPECT_EQ(manifest->evaluations().best_checkpoint(), "step-000000009");
}

TEST_F(CheckpointEvaluationTest, ARequestMeanwhileGetsTheSameCheckpoint) {
  cluster_.AdvanceTo(7);
  coordinator().clients().AddExact(Step(7));
  coordinator().clients().Add("a");
  Poll();
  ASSERT_EQ(NamedCut(0), 7);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());  // None beyond it is named.
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(Answers().size(), 1u);
  EXPECT_EQ(*Answers()[0], "step-000000007");
  ASSERT_EQ(Answers("a").size(), 1u);
  EXPECT_EQ(*Answers("a")[0], "step-000000007");
}

// Workers that wait at step 7 ask no server for anything, so none of them would notice.
TEST_F(CheckpointEvaluationTest, AServerThatLostWhatItAcknowledgedIsNoticed) {
  coordinator().clients().AddExact(Step(7));
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
  coordinator().clients().AddExact(Step(7));
  cluster_.AdvanceTo(6);
  cluster_.servers_[1].accepted_through = 6;
  cluster_.workers_[0].acked = 7;
  cluster_.workers_[1].acked = 6;
  EXPECT_EQ(ReplaceServer(1), "");
  Poll(5);
  EXPECT_EQ(coordinator().error(), absl::OkStatus());
  cluster_.workers_[1].acked = 7;
  cluster_.workers_[1].answers = false;  // A worker that doesn't answer may lack it.
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
