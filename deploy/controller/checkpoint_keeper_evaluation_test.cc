// Checkpoints of just the steps that evaluations ask for, while the workers wait for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "deploy/controller/checkpoint_keeper.h"
#include "deploy/controller/checkpoint_keeper_testing.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CheckpointKeeperEvaluationTest : public CheckpointKeeperTest {};

// The cut where the servers stand, behind which nothing is pushed before it is made.
TEST_F(CheckpointKeeperEvaluationTest, MakesTheCheckpointOfJustOneStep) {
  EvaluationState state;
  state.set_best_step(7);
  options_.evaluations_through = [&](Step cut) {
    state.set_last_step(cut.value());
    return state;
  };
  std::vector<absl::StatusOr<std::string>> answers;
  const auto take = [&](const absl::StatusOr<std::string>& name) { answers.push_back(name); };
  keeper().RequestOf(Step(7), take);
  cluster_.AdvanceTo(7);
  cluster_.servers_[1].complete_through = 6;  // It still applies the step.
  Poll(2);
  EXPECT_THAT(cluster_.servers_[0].cuts, IsEmpty());
  cluster_.AdvanceTo(7);
  Poll();
  EXPECT_EQ(NamedCut(0), 7);
  EXPECT_EQ(NamedCut(1), 7);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());  // They have pushed it.
  EXPECT_THAT(answers, IsEmpty());
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(*answers[0], "epoch-2-step-7");
  const auto manifest = store_.Load("epoch-2-step-7");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().last_step(), 7);
  EXPECT_EQ(manifest->evaluations().best_step(), 7);
}

// The workers wait at step 7 for its checkpoint, so that they never get to step 9.
TEST_F(CheckpointKeeperEvaluationTest, ACutBeyondTheStepThatIsWantedIsCalledOff) {
  std::vector<absl::StatusOr<std::string>> wished, exact;
  cluster_.AdvanceTo(6);
  cluster_.workers_[0].begun = 7;
  keeper().Request([&](const absl::StatusOr<std::string>& name) { wished.push_back(name); });
  Poll();
  ASSERT_EQ(cluster_.workers_[0].cuts.size(), 1u);
  ASSERT_GT(*cluster_.workers_[0].cuts.begin(), 7);
  keeper().RequestOf(Step(7), [&](const auto& name) { exact.push_back(name); });
  cluster_.AdvanceTo(7);
  Poll(20);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());
  ASSERT_EQ(NamedCut(0), 7);
  cluster_.WriteAll(7);
  Poll();
  ASSERT_EQ(exact.size(), 1u);
  EXPECT_EQ(*exact[0], "epoch-2-step-7");
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-7"));
}

// A periodic cut of the step was committed before the evaluation was over.
TEST_F(CheckpointKeeperEvaluationTest, ACheckpointThatIsThereLearnsOfItsEvaluation) {
  EvaluationState state;
  options_.evaluations_through = [&](Step) { return state; };
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_checkpoint(), "");
  state.set_best_step(9);
  std::string answer;
  keeper().RequestOf(Step(9), [&](const absl::StatusOr<std::string>& name) { answer = *name; });
  Poll();
  EXPECT_EQ(answer, "epoch-2-step-9");
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_step(), 9);
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_checkpoint(), "epoch-2-step-9");
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-9"));
}

// The evaluation is over while the manifest is written, which was composed without it.
TEST_F(CheckpointKeeperEvaluationTest, ACommitThatOvertakesItsEvaluationIsNoAnswerYet) {
  EvaluationState state;
  std::vector<std::string> answers;
  options_.every_steps = 10;
  options_.evaluations_through = [&](Step cut) {
    const EvaluationState as_composed = state;
    if (cut == Step(9) && state.evaluations() == 0) {
      state.set_evaluations(1);
      state.set_best_step(9);
    }
    return as_composed;
  };
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  keeper().RequestOf(Step(9),
                     [&](const absl::StatusOr<std::string>& name) { answers.push_back(*name); });
  Poll();
  EXPECT_THAT(answers, ElementsAre("epoch-2-step-9"));
  const auto manifest = store_.Load("epoch-2-step-9");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->evaluations().evaluations(), 1u);
  EXPECT_EQ(manifest->evaluations().best_step(), 9);
  EXPECT_EQ(manifest->evaluations().best_checkpoint(), "epoch-2-step-9");
}

TEST_F(CheckpointKeeperEvaluationTest, WhoAsksMeanwhileGetsTheSameCheckpoint) {
  std::vector<std::string> exact, wished;
  cluster_.AdvanceTo(7);
  keeper().RequestOf(Step(7),
                     [&](const absl::StatusOr<std::string>& name) { exact.push_back(*name); });
  keeper().Request([&](const absl::StatusOr<std::string>& name) { wished.push_back(*name); });
  Poll();
  ASSERT_EQ(NamedCut(0), 7);
  EXPECT_THAT(cluster_.workers_[0].cuts, IsEmpty());  // None beyond it is named.
  cluster_.WriteAll(7);
  Poll();
  EXPECT_THAT(exact, ElementsAre("epoch-2-step-7"));
  EXPECT_THAT(wished, ElementsAre("epoch-2-step-7"));
}

// Workers that wait at step 7 ask no server for anything, so none of them would notice.
TEST_F(CheckpointKeeperEvaluationTest, AServerThatLostWhatItAcknowledgedIsNoticed) {
  keeper().RequestOf(Step(7), [](const absl::StatusOr<std::string>&) {});
  cluster_.AdvanceTo(6);
  for (auto& server : cluster_.servers_) server.accepted_through = 6;
  for (auto& worker : cluster_.workers_) worker.acked = 7;
  Poll(3);  // It was asked before it accepted the step, for all that is known.
  EXPECT_EQ(keeper().error(), absl::OkStatus());
  EXPECT_EQ(cluster_.workers_asked_, 0);

  EXPECT_EQ(keeper().RestartServer(1), "");
  cluster_.servers_[1].answers = false;  // It recovers, ...
  Poll(3);
  EXPECT_EQ(keeper().error(), absl::OkStatus());
  cluster_.servers_[1].answers = true;  // ... and its log lacks step 7.
  cluster_.servers_[0].accepted_through = 7;
  cluster_.servers_[0].complete_through = 7;
  Poll(3);
  EXPECT_EQ(keeper().error().code(), absl::StatusCode::kDataLoss) << keeper().error();
  EXPECT_THAT(std::string(keeper().error().message()),
              HasSubstr("server 1 has lost pushes that it had acknowledged: it knows of none "
                        "beyond step 6, and all workers have step 7 acknowledged"));
}

// A push that is still on its way, to a server that was not read from or recovers, is no loss.
TEST_F(CheckpointKeeperEvaluationTest, WhatIsNotYetAcknowledgedIsNotLost) {
  keeper().RequestOf(Step(7), [](const absl::StatusOr<std::string>&) {});
  cluster_.AdvanceTo(6);
  cluster_.servers_[1].accepted_through = 6;
  cluster_.workers_[0].acked = 7;
  cluster_.workers_[1].acked = 6;
  EXPECT_EQ(keeper().RestartServer(1), "");
  Poll(5);
  EXPECT_EQ(keeper().error(), absl::OkStatus());
  cluster_.workers_[1].acked = 7;
  cluster_.workers_[1].answers = false;  // Who doesn't answer may lack it.
  Poll(5);
  EXPECT_EQ(keeper().error(), absl::OkStatus());
  cluster_.servers_[1].accepted_through = 7;
  cluster_.AdvanceTo(7);
  cluster_.workers_[1].answers = true;
  Poll(5);
  EXPECT_EQ(keeper().error(), absl::OkStatus());
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

TEST_F(CheckpointKeeperEvaluationTest, SaysWhyTheCheckpointOfAStepCanNotBeMade) {
  cluster_.AdvanceTo(7);
  std::vector<absl::StatusOr<std::string>> answers;
  keeper().RequestOf(Step(7),
                     [&](const absl::StatusOr<std::string>& name) { answers.push_back(name); });
  for (int round = 0; round < 100 && answers.empty(); ++round) {
    Poll();
    if (NamedCut(0).has_value()) cluster_.Fail(0, 7, "disk full");
  }
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(answers[0].status().message()), HasSubstr("server 0: disk full"));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointKeeperEvaluationTest, TheOneThatIsKeptStaysWhateverComesAfter) {
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
  keeper().Keep("epoch-2-step-49");
  cluster_.AdvanceTo(69);
  cluster_.WriteAll(69);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("epoch-2-step-49", "epoch-2-step-59", "epoch-2-step-69"));
}

}  // namespace
}  // namespace thermocline
