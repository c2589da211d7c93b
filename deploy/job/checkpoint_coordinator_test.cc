#include "deploy/job/checkpoint_coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_store.h"
#include "deploy/job/testing/checkpoint_fixture.h"
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

TEST_F(CheckpointCoordinatorTest, AtTheEndOfAGenerationOnlyWhatIsBegunIsMade) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(8);
  cluster_.servers_[0].complete_through = 9;
  cluster_.Write(0, 9);
  Poll();
  coordinator().clients().Add("4711-h1");
  coordinator().Conclude();
  EXPECT_FALSE(coordinator().is_concluded());
  Poll();  // The other server has not begun, and no worker makes it.
  EXPECT_TRUE(coordinator().is_concluded());
  cluster_.servers_[1].complete_through = 9;
  cluster_.Begin(1, 9);
  cluster_.servers_[1].cuts[9].set_state(CutStatus::WRITING);
  Poll();
  EXPECT_FALSE(coordinator().is_concluded());
  cluster_.Write(1, 9);
  Poll();
  EXPECT_THAT(Names(), ElementsAre("step-000000009"));
  EXPECT_TRUE(coordinator().is_concluded());
  // The client wants one of the present step.
  cluster_.AdvanceTo(10);
  Poll(3);
  EXPECT_EQ(NamedCut(0), std::nullopt);
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
  EXPECT_EQ(manifest->shards(0).files(0).path(), "step-000000009/generation-2-server-0.rows");
  EXPECT_EQ(manifest->shards(0).files(1).path(), "step-000000019/generation-2-server-0.rows");
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
  const FrameFormat later = {kManifestFormat.magic, kManifestFormat.version + 1};
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
      disk_.Remove(absl::StrCat(kTestCheckpoints, "/step-000000009/generation-2-server-1.rows"))
          .ok());
  Poll();
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_THAT(coordinator().TakeEvents().at(0).reason, HasSubstr("server-1.rows' is missing"));
}

// Carries out the calls of a round, and returns the operation that is no call: a commit, a removal,
// or none at the end of the round. Calls for which `is_lost` get no answer.
CheckpointOperation CarryOutCalls(CheckpointCoordinator* coordinator, FakeCluster* cluster,
                                  const std::function<bool(const CheckpointCall&)>& is_lost) {
  CheckpointOperation operation = coordinator->TakeOperation();
  while (const auto* calls = std::get_if<std::vector<CheckpointCall>>(&operation)) {
    CheckpointAnswers answers;
    for (const CheckpointCall& call : *calls) {
      answers.push_back(is_lost(call) ? absl::UnavailableError("lost") : cluster->Call({call})[0]);
    }
    coordinator->OnAnswers(answers);
    operation = coordinator->TakeOperation();
  }
  return operation;
}

TEST_F(CheckpointCoordinatorTest, ShardsOfAnAttemptThatWasCalledOffAreNotCommitted) {
  options_.every_steps = 10;
  options_.at_end = true;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  coordinator().Finish(Step(9));
  coordinator().BeginRound();
  const auto is_name = [](const CheckpointCall& call) {
    return call.action == CheckpointRequest::NAME_CUT;
  };
  ASSERT_TRUE(
      std::holds_alternative<CommitCheckpoint>(CarryOutCalls(&coordinator(), &cluster_, is_name)));
  coordinator().OnCommitted(absl::ResourceExhaustedError("disk full"), /*may_exist=*/false);
  CarryOutCalls(&coordinator(), &cluster_, is_name);
  for (const auto& server : cluster_.servers_) EXPECT_THAT(server.cuts, IsEmpty());
  // The last step is named again, and no server hears of it, nor says what it has.
  coordinator().BeginRound();
  EXPECT_FALSE(std::holds_alternative<CommitCheckpoint>(
      CarryOutCalls(&coordinator(), &cluster_, [](const auto&) { return true; })));
}

TEST_F(CheckpointCoordinatorTest, ACommitOfUnknownOutcomeIsNeitherRepeatedNorCalledOff) {
  options_.every_steps = 10;
  cluster_.AdvanceTo(9);
  cluster_.WriteAll(9);
  coordinator().BeginRound();
  ASSERT_TRUE(std::holds_alternative<CommitCheckpoint>(
      CarryOutCalls(&coordinator(), &cluster_, [](const auto&) { return false; })));
  coordinator().OnCommitted(absl::UnavailableError("no answer"), /*may_exist=*/true);
  Poll(3);
  EXPECT_THAT(Names(), IsEmpty());
  EXPECT_EQ(coordinator().error(), absl::UnavailableError("no answer"));
  EXPECT_THAT(coordinator().TakeEvents(), IsEmpty());
  for (const auto& server : cluster_.servers_) EXPECT_EQ(server.cuts.count(9), 1u);
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

}  // namespace
}  // namespace thermocline
