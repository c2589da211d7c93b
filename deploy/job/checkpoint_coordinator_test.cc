#include "deploy/job/checkpoint_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/checkpoint_testing.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(CheckpointCoordinatorTest, CommitsAPeriodicCutOnceAllHaveWrittenIt) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.Write(0, 9);
  cluster_.Begin(1, 9);
  Poll(3);
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(coordinator().newest(), "");
  cluster_.Write(1, 9);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
  EXPECT_EQ(coordinator().newest(), "step-000000009");
  EXPECT_EQ(coordinator().newest_step(), Step(9));
  for (const auto& server : cluster_.servers_) {
    EXPECT_EQ(server.committed, 9);
    EXPECT_THAT(server.cuts, IsEmpty());
  }
  const auto manifest = store_.Load("step-000000009");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->samples(), 100u);
  EXPECT_EQ(manifest->shards_size(), 2);
  const auto events = coordinator().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CheckpointEvent::kCommitted);
  EXPECT_TRUE(events[0].is_full);
  EXPECT_GT(events[0].bytes, 0u);
  EXPECT_DOUBLE_EQ(events[0].pause_s, 0.002);
}

TEST_F(CheckpointCoordinatorTest, AnIncrementNamesTheFilesOfItsBaseFirst) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  cluster_.AdvanceTo(19);
  cluster_.Write(0, 19, /*base=*/9);
  cluster_.Write(1, 19);  // This one writes all rows.
  Poll();
  const auto manifest = store_.Load("step-000000019");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  ASSERT_EQ(manifest->shards(0).files_size(), 2);
  EXPECT_EQ(manifest->shards(0).files(0).path(), "step-000000009/generation-2-server-0.sst");
  EXPECT_EQ(manifest->shards(0).files(1).path(), "step-000000019/generation-2-server-0.sst");
  EXPECT_EQ(manifest->shards(0).base_step(), 9);
  EXPECT_EQ(manifest->shards(1).files_size(), 1);
  // The first checkpoint is gone, but for the file that the second needs.
  EXPECT_THAT(Names(), ElementsAre("step-000000019"));
  EXPECT_TRUE(store_.CheckFiles(*manifest).ok());
}

TEST_F(CheckpointCoordinatorTest, KeepsAsManyAsTheJobWants) {
  options_.every_steps = 1;
  options_.keep = 2;
  for (int64_t cut = 0; cut < 5; ++cut) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut, cut - 1);
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("step-000000003", "step-000000004"));
}

TEST_F(CheckpointCoordinatorTest, KeptFilesAreReadAgainOnlyAfterAChange) {
  options_.every_steps = 1;
  options_.keep = 2;
  for (int64_t step = 0; step < 3; ++step) {
    cluster_.AdvanceTo(step);
    cluster_.WriteAll(step);
    if (step == 2) cluster_.Begin(0, 3);  // The next one is under way for long.
    Poll();
  }
  EXPECT_THAT(Names(), ElementsAre("step-000000000", "step-000000001", "step-000000002"));
  const int opened = disk_.opened;
  Poll(10);
  EXPECT_EQ(disk_.opened, opened);
  cluster_.AdvanceTo(3);
  cluster_.WriteAll(3);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000002", "step-000000003"));
}

TEST_F(CheckpointCoordinatorTest, AServerThatDoesNotAnswerIsAskedOnceARound) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  cluster_.servers_[0].is_deaf = true;
  Poll();  // It has still to learn of the commit.
  cluster_.servers_[0].answers = false;
  cluster_.unheeded_.clear();
  cluster_.rounds_of_all_ = 0;
  Poll(5);
  EXPECT_EQ(cluster_.rounds_of_all_, 5);
  EXPECT_THAT(cluster_.unheeded_, ElementsAre(0, 0, 0, 0, 0));
  cluster_.servers_[0].answers = true;
  cluster_.servers_[0].is_deaf = false;
  Poll();
  EXPECT_EQ(cluster_.servers_[0].committed, 9);
}

TEST_F(CheckpointCoordinatorTest, AnIncrementOnWhatIsNotKeptIsCalledOff) {
  options_.every_steps = 1;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9, /*base=*/4);
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(coordinator().TakeEvents().at(0).reason, HasSubstr("step 4, which is not kept"));
}

TEST_F(CheckpointCoordinatorTest, OneFailureCallsACutOffEverywhere) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.Write(0, 9);
  cluster_.Fail(1, 9, "No space left on device");
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  for (const auto& server : cluster_.servers_) EXPECT_THAT(server.cuts, IsEmpty());
  const auto events = coordinator().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CheckpointEvent::kCalledOff);
  EXPECT_EQ(events[0].reason, "server 1: No space left on device");
  Poll(3);
  EXPECT_THAT(coordinator().TakeEvents(), IsEmpty());
}

TEST_F(CheckpointCoordinatorTest, WhoDoesNotAnswerIsToldLater) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  cluster_.servers_[1].is_deaf = true;
  Poll(3);
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
  EXPECT_EQ(cluster_.servers_[0].committed, 9);
  EXPECT_EQ(cluster_.servers_[1].committed, -1);
  EXPECT_EQ(coordinator().TakeEvents().size(), 1u);  // Once, though one server shows the cut still.
  cluster_.servers_[1].is_deaf = false;
  Poll();
  EXPECT_EQ(cluster_.servers_[1].committed, 9);
}

TEST_F(CheckpointCoordinatorTest, ARequestNamesACutThatNobodyHasBegun) {
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

TEST_F(CheckpointCoordinatorTest, ARequestTakesThePeriodicCutThatComesNext) {
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

TEST_F(CheckpointCoordinatorTest, ACheckpointOfWhatWasBeforeIsNoAnswer) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(12);
  cluster_.WriteAll(9);
  coordinator().clients().Add("a");
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
  EXPECT_THAT(Answers("a"), IsEmpty());
  EXPECT_THAT(coordinator().clients().Unanswered(), ElementsAre("a"));
}

TEST_F(CheckpointCoordinatorTest, ARequestLearnsWhyThereIsNone) {
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

TEST_F(CheckpointCoordinatorTest, ALongLogMakesACheckpointOncePerGrowth) {
  options_.max_log_bytes = 1000;
  cluster_.AdvanceTo(5);
  cluster_.servers_[1].log_bytes = 1000;
  Poll(10);
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.servers_[1].log_bytes = 1001;
  Poll(10);
  const auto cut = NamedCut(0);
  ASSERT_TRUE(cut.has_value());
  cluster_.AdvanceTo(*cut);
  cluster_.WriteAll(*cut);
  cluster_.servers_[1].log_bytes = 1200;  // Its last segment stays.
  Poll(10);
  EXPECT_EQ(coordinator().newest_step(), Step(*cut));
  cluster_.servers_[1].log_bytes = 1700;
  Poll(10);
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.servers_[1].log_bytes = 1701;
  Poll(10);
  EXPECT_NE(NamedCut(0), std::nullopt);
}

TEST_F(CheckpointCoordinatorTest, AtTheEndTheLastStepHasACheckpoint) {
  cluster_.AdvanceTo(38);
  coordinator().Finish(Step(39));
  Poll(3);
  EXPECT_FALSE(coordinator().finished());  // A push is still to be applied.
  EXPECT_EQ(NamedCut(0), std::nullopt);
  cluster_.AdvanceTo(39);
  Poll(2);
  EXPECT_EQ(NamedCut(0), 39);
  EXPECT_FALSE(coordinator().finished());
  cluster_.WriteAll(39);
  Poll(2);
  EXPECT_TRUE(coordinator().finished());
  EXPECT_TRUE(coordinator().error().ok());
  EXPECT_THAT(Names(), ElementsAre("step-000000039"));
}

TEST_F(CheckpointCoordinatorTest, AtTheEndAServerThatLostPushesIsNoticed) {
  cluster_.AdvanceTo(39);
  cluster_.servers_[1].accepted_through = 38;  // On its way to 39, when it was asked.
  Poll();
  coordinator().Finish(Step(39));
  Poll();
  EXPECT_TRUE(coordinator().error().ok()) << coordinator().error();
  cluster_.servers_[1].answers = false;  // It dies with its host, ...
  Poll(2);
  EXPECT_TRUE(coordinator().error().ok()) << coordinator().error();
  cluster_.servers_[1].answers = true;  // ... and its log has lost the end.
  cluster_.servers_[1].complete_through = 38;
  Poll();
  EXPECT_EQ(coordinator().error().code(), absl::StatusCode::kDataLoss) << coordinator().error();
  EXPECT_FALSE(coordinator().finished());
}

TEST_F(CheckpointCoordinatorTest, NoneAtTheEndWhereNoneIsWanted) {
  options_.at_end = false;
  cluster_.AdvanceTo(39);
  coordinator().Finish(Step(39));
  Poll(2);
  EXPECT_TRUE(coordinator().finished());
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(CheckpointCoordinatorTest, NoneAtTheEndOfAGenerationWithoutSteps) {
  options_.base = "step-000000039";
  options_.base_step = Step(39);
  cluster_.AdvanceTo(39);
  coordinator().Finish(Step(39));
  Poll();
  EXPECT_TRUE(coordinator().finished());
  EXPECT_TRUE(coordinator().error().ok());
  EXPECT_EQ(coordinator().newest(), "step-000000039");
}

TEST_F(CheckpointCoordinatorTest, ACutThatTrainingDoesNotReachIsCalledOff) {
  options_.at_end = false;
  cluster_.AdvanceTo(38);
  coordinator().clients().Add("a");
  Poll();
  ASSERT_EQ(NamedCut(0), 40);
  cluster_.AdvanceTo(39);
  coordinator().Finish(Step(39));
  Poll(3);
  EXPECT_EQ(NamedCut(0), 39);  // The request gets that of the last step.
  cluster_.WriteAll(39);
  Poll(2);
  ASSERT_EQ(Answers("a").size(), 1u);
  EXPECT_EQ(*Answers("a")[0], "step-000000039");
  EXPECT_TRUE(coordinator().finished());
}

TEST_F(CheckpointCoordinatorTest, AnEndWithoutItsCheckpointIsAnError) {
  cluster_.AdvanceTo(39);
  coordinator().Finish(Step(39));
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_FALSE(coordinator().finished());
    // Not at once: there may be room a little later.
    for (int round = 0; round < 20 && NamedCut(0) != 39; ++round) Poll();
    ASSERT_EQ(NamedCut(0), 39) << attempt;
    cluster_.Fail(0, 39, "disk full");
    Poll();
    EXPECT_EQ(NamedCut(0), std::nullopt);
  }
  Poll();
  EXPECT_TRUE(coordinator().finished());
  EXPECT_EQ(coordinator().error(), absl::AbortedError("server 0: disk full"));
}

TEST_F(CheckpointCoordinatorTest, OnlyTriesOfTheLastStepCountAtTheEnd) {
  cluster_.AdvanceTo(5);
  coordinator().clients().Add("a");
  for (int attempt = 0; attempt < 2; ++attempt) {  // After one more, the request would fail.
    Poll();
    cluster_.Fail(0, *NamedCut(0), "disk full");
    Poll();
  }
  Poll();
  ASSERT_TRUE(NamedCut(0).has_value());  // A cut that training will not reach.
  coordinator().Finish(Step(5));
  for (int attempt = 0; attempt < 5; ++attempt) {
    for (int round = 0; round < 20 && NamedCut(0) != 5; ++round) Poll();
    ASSERT_EQ(NamedCut(0), 5) << attempt;
    cluster_.Fail(0, 5, "busy: the checkpoint of step 3 is being written");
    Poll();
    EXPECT_FALSE(coordinator().finished());
  }
  for (int round = 0; round < 20 && NamedCut(0) != 5; ++round) Poll();
  cluster_.WriteAll(5);
  Poll(2);
  EXPECT_TRUE(coordinator().finished());
  EXPECT_TRUE(coordinator().error().ok());
  EXPECT_EQ(coordinator().newest(), "step-000000005");
}

TEST_F(CheckpointCoordinatorTest, AServerThatBeganAnewWritesItsShardAgain) {
  cluster_.AdvanceTo(39);
  coordinator().Finish(Step(39));
  Poll(2);
  cluster_.Write(0, 39);
  Poll();
  EXPECT_EQ(ReplaceServer(0), "");
  cluster_.servers_[0] = FakeCluster::Server();
  cluster_.servers_[0].answers = false;
  cluster_.Write(1, 39);
  Poll(3);
  EXPECT_THAT(Names(), IsEmpty());
  cluster_.servers_[0].answers = true;
  cluster_.servers_[0].complete_through = 39;  // It has recovered.
  Poll(2);
  EXPECT_EQ(NamedCut(0), 39);
  cluster_.Write(0, 39);
  Poll(2);
  EXPECT_THAT(Names(), ElementsAre("step-000000039"));
  EXPECT_TRUE(coordinator().finished());
}

TEST_F(CheckpointCoordinatorTest, ARestartedServerBeginsWithTheNewest) {
  options_.every_steps = 10;
  options_.base = "step-000000004";
  options_.base_step = Step(4);
  EXPECT_EQ(ReplaceServer(1), "step-000000004");
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(ReplaceServer(1), "step-000000009");
  // It passes the next cut while it recovers, and never writes it.
  cluster_.AdvanceTo(20);
  cluster_.Write(0, 19);
  Poll(2);
  EXPECT_EQ(coordinator().TakeEvents().back().kind, CheckpointEvent::kCalledOff);
  EXPECT_THAT(cluster_.servers_[0].cuts, IsEmpty());
}

TEST_F(CheckpointCoordinatorTest, AFullDiskCallsTheCutOff) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  disk_.SetFreeBytes(10);
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  const auto events = coordinator().TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].kind, CheckpointEvent::kCalledOff);
  EXPECT_TRUE(coordinator().error().ok());
  disk_.SetFreeBytes(UINT64_MAX);
  cluster_.AdvanceTo(19);
  cluster_.WriteAll(19);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000019"));
}

TEST_F(CheckpointCoordinatorTest, WhatStaysForAnotherVersionIsSaidOnce) {
  const std::string foreign = absl::StrCat(kTestCheckpoints, "/step-000000005");
  ASSERT_TRUE(disk_.CreateDirectory(foreign).ok());
  TestRows rows;
  rows[RowKeyOf(TableId(1), 7)] = {1, 1, {1, 2, 3}};
  WriteTestRows(&disk_, kTestCheckpoints, RowsFilePath({1, Step(4)}, {ServerIndex(0)}), rows);
  const FrameFormat later = {kManifestFormat.magic, kCheckpointFormatVersion + 1};
  ASSERT_TRUE(WriteWholeFile(&disk_,
                             EncodeFrame(later, EmptyManifest({1, Step(5)}, 1).SerializeAsString()),
                             foreign + "/MANIFEST")
                  .ok());
  options_.every_steps = 10;
  std::vector<std::string> said;
  for (const int64_t cut : {9, 19, 29}) {
    cluster_.AdvanceTo(cut);
    cluster_.WriteAll(cut);
    Poll(2);
    for (const CheckpointEvent& event : coordinator().TakeEvents()) {
      if (event.kind == CheckpointEvent::kNotRemoved) said.push_back(event.reason);
    }
  }
  EXPECT_THAT(said, ElementsAre(HasSubstr("older than step-000000005 stays")));
  EXPECT_TRUE(disk_.List(absl::StrCat(kTestCheckpoints, "/step-000000004")).ok());
  EXPECT_EQ(disk_.List(absl::StrCat(kTestCheckpoints, "/step-000000009")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(CheckpointCoordinatorTest, AFileThatIsNotThereCallsTheCutOff) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  ASSERT_TRUE(
      disk_.Remove(absl::StrCat(kTestCheckpoints, "/step-000000009/generation-2-server-1.sst"))
          .ok());
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(coordinator().TakeEvents().at(0).reason, HasSubstr("server-1.sst' is missing"));
}

// Whatever fails or dies in a commit: servers hear that a checkpoint is committed only if it
// survives the host, and that it is called off only if it will never be seen.
TEST_F(CheckpointCoordinatorTest, ACommitThatFailsAnywhereIsNeverHalf) {
  int committed = 0, called_off = 0, unknown = 0;
  for (int operation = 0; operation < 12; ++operation) {
    for (const bool dies : {false, true}) {
      SCOPED_TRACE(absl::StrCat("operation ", operation, dies ? " dies" : " fails"));
      SimulatedDisk disk;
      CheckpointStore store(&disk, kTestCheckpoints);
      ASSERT_TRUE(store.Prepare().ok());
      FakeCluster cluster(&disk, 2, 1);
      CheckpointOptions options = options_;
      options.num_workers = 1;
      options.every_steps = 10;
      CoordinatorDriver driver(options, &cluster, &store);
      CheckpointCoordinator& coordinator = driver.coordinator();
      cluster.AdvanceTo(9);
      cluster.WriteAll(9);
      if (dies) {
        disk.DieAfter(operation);
      } else {
        disk.FailAfter(operation);
      }
      driver.Poll();
      const auto events = coordinator.TakeEvents();
      std::mt19937_64 random(operation);
      disk.CrashHost(&random);
      const bool exists = store.Load("step-000000009").ok();
      if (!coordinator.error().ok()) {
        EXPECT_EQ(coordinator.error().code(), absl::StatusCode::kUnavailable);
        EXPECT_EQ(cluster.servers_[0].committed, -1);
        EXPECT_EQ(cluster.servers_[0].cuts.count(9), 1u);
        ++unknown;
      } else if (cluster.servers_[0].committed == 9) {
        EXPECT_TRUE(exists);
        ++committed;
      } else if (!events.empty()) {
        EXPECT_EQ(events[0].kind, CheckpointEvent::kCalledOff);
        EXPECT_FALSE(exists);
        ++called_off;
      }
    }
  }
  EXPECT_GT(committed, 0);
  EXPECT_GT(called_off, 0);
  EXPECT_GT(unknown, 0);
}

// The cut where the servers stand, behind which nothing is pushed before it is made.
// The workers wait at step 7 for its checkpoint, so that they never get to step 9.
// A periodic cut of the step was committed before the evaluation was over.

// Checkpoints of evaluations
// ------------------------------------------------------------------------------------------------

class CheckpointEvaluationTest : public CheckpointCoordinatorTest {};

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
  EvaluationState state;  // Of the base.
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
