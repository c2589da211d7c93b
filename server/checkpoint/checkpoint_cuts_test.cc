#include "server/checkpoint/checkpoint_cuts.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CheckpointShard ShardBehind(Step base) {
  CheckpointShard shard;
  shard.set_base_step(base.value());
  shard.add_files()->set_path("file");
  return shard;
}
std::vector<std::string> Describe(const CheckpointCuts& cuts) {
  CheckpointReply reply;
  cuts.CopyTo(&reply);
  std::vector<std::string> lines;
  for (const CutStatus& cut : reply.cuts()) {
    lines.push_back(std::to_string(cut.step()) + " " + CutStatus::State_Name(cut.state()));
  }
  return lines;
}
// Takes a due cut to its commit, and gives the step that its shard builds on.
std::optional<Step> RunCut(CheckpointCuts* cuts, int64_t step) {
  EXPECT_TRUE(cuts->IsDue(Step(step)));
  const std::optional<Step> base = cuts->Begin(Step(step));
  if (!base.has_value()) return base;
  EXPECT_TRUE(cuts->End(ShardBehind(*base), 1));
  EXPECT_TRUE(cuts->Commit(Step(step), Step(step)).ok());
  return base;
}

TEST(CheckpointCutsTest, PeriodicCutsComeByThemselves) {
  CheckpointCuts cuts(10, 8, {});
  EXPECT_FALSE(cuts.IsDue(kNoStep));
  EXPECT_FALSE(cuts.IsDue(Step(8)));
  EXPECT_TRUE(cuts.IsDue(Step(9)));
  EXPECT_THAT(Describe(cuts), IsEmpty());
  EXPECT_EQ(cuts.Begin(Step(9)), kNoStep);
  EXPECT_FALSE(cuts.IsDue(Step(9)));
  EXPECT_THAT(Describe(cuts), ElementsAre("9 WRITING"));
  EXPECT_EQ(cuts.writing(), Step(9));
  EXPECT_TRUE(cuts.End(ShardBehind(kNoStep), 0.5));
  EXPECT_THAT(Describe(cuts), ElementsAre("9 WRITTEN"));
  EXPECT_FALSE(cuts.IsDue(Step(9)));
  EXPECT_EQ(cuts.committed(), kNoStep);
  EXPECT_TRUE(cuts.Commit(Step(9), Step(12)).ok());
  EXPECT_TRUE(cuts.Commit(Step(9), Step(12)).ok());
  EXPECT_EQ(cuts.committed(), Step(9));
  EXPECT_THAT(Describe(cuts), IsEmpty());
  EXPECT_FALSE(cuts.IsDue(Step(9)));
  EXPECT_FALSE(CheckpointCuts(0, 8, {}).IsDue(Step(9)));
  EXPECT_FALSE(CheckpointCuts(10, 8, {Step(9)}).IsDue(Step(9)));
}

TEST(CheckpointCutsTest, OneAtATimeIsWritten) {
  CheckpointCuts cuts(10, 8, {});
  ASSERT_TRUE(cuts.Begin(Step(9)).has_value());
  ASSERT_TRUE(cuts.Name(Step(12), true).ok());
  EXPECT_TRUE(cuts.IsDue(Step(12)));
  EXPECT_EQ(cuts.Begin(Step(12)), std::nullopt);
  EXPECT_THAT(Describe(cuts), ElementsAre("9 WRITING", "12 FAILED"));
  CheckpointReply reply;
  cuts.CopyTo(&reply);
  EXPECT_THAT(reply.cuts(1).error(), HasSubstr("busy: the checkpoint of step 9"));
  EXPECT_FALSE(cuts.IsDue(Step(12)));
  EXPECT_TRUE(cuts.End(ShardBehind(kNoStep), 1));
  ASSERT_TRUE(cuts.CallOff(Step(12)).ok());
  EXPECT_THAT(Describe(cuts), ElementsAre("9 WRITTEN"));
}

TEST(CheckpointCutsTest, WhatFailedSaysWhy) {
  CheckpointCuts cuts(10, 8, {});
  ASSERT_TRUE(cuts.Begin(Step(9)).has_value());
  EXPECT_TRUE(cuts.End(absl::ResourceExhaustedError("disk full"), 1));
  CheckpointReply reply;
  cuts.CopyTo(&reply);
  EXPECT_EQ(reply.cuts(0).state(), CutStatus::FAILED);
  EXPECT_EQ(reply.cuts(0).error(), "disk full");
  EXPECT_EQ(cuts.Begin(Step(19)), kNoStep);
}

TEST(CheckpointCutsTest, CallOffAtAnyMoment) {
  CheckpointCuts cuts(10, 8, {});
  // Before it.
  ASSERT_TRUE(cuts.CallOff(Step(9)).ok());
  EXPECT_FALSE(cuts.IsDue(Step(9)));
  // While it is written: nothing is kept.
  ASSERT_TRUE(cuts.Begin(Step(19)).has_value());
  EXPECT_EQ(cuts.CallOff(Step(19))->files_size(), 0);
  EXPECT_THAT(Describe(cuts), IsEmpty());
  EXPECT_FALSE(cuts.IsDue(Step(19)));
  EXPECT_EQ(cuts.writing(), Step(19));
  EXPECT_FALSE(cuts.End(ShardBehind(kNoStep), 1));
  EXPECT_EQ(cuts.writing(), std::nullopt);
  // After it: the files go.
  ASSERT_TRUE(cuts.Begin(Step(29)).has_value());
  EXPECT_TRUE(cuts.End(ShardBehind(kNoStep), 1));
  EXPECT_EQ(cuts.CallOff(Step(29))->files_size(), 1);
  EXPECT_EQ(cuts.CallOff(Step(29))->files_size(), 0);
  EXPECT_FALSE(cuts.IsDue(Step(29)));
  // Too late.
  RunCut(&cuts, 39);
  EXPECT_EQ(cuts.CallOff(Step(39)).status().code(), StatusCode::kFailedPrecondition);
}

TEST(CheckpointCutsTest, NamedCuts) {
  CheckpointCuts cuts(0, 8, {});
  EXPECT_EQ(cuts.Name(Step(4), false).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(cuts.Name(Step(4), true).ok());
  EXPECT_TRUE(cuts.Name(Step(4), false).ok());  // Again: it stands, however late it is.
  EXPECT_THAT(Describe(cuts), ElementsAre("4 NAMED"));
  EXPECT_FALSE(cuts.IsDue(Step(3)));
  EXPECT_EQ(RunCut(&cuts, 4), kNoStep);
  EXPECT_EQ(cuts.Name(Step(4), true).code(), StatusCode::kFailedPrecondition);
  for (int64_t step = 5; step < 1005; ++step) ASSERT_TRUE(cuts.Name(Step(step), true).ok());
  EXPECT_EQ(cuts.Name(Step(5000), true).code(), StatusCode::kResourceExhausted);
}

TEST(CheckpointCutsTest, EverySoManyShardsAreFull) {
  CheckpointCuts cuts(10, 3, {});
  std::vector<int64_t> bases;
  for (int64_t step = 9; step < 80; step += 10) bases.push_back(RunCut(&cuts, step)->value());
  EXPECT_THAT(bases, ElementsAre(-1, 9, 19, -1, 39, 49, -1, 69));
  CheckpointCuts full(10, 1, {});
  for (int64_t step = 9; step < 40; step += 10) EXPECT_EQ(RunCut(&full, step), kNoStep);
}

TEST(CheckpointCutsTest, AShardBuildsOnWhatIsCommittedOrOnNothing) {
  CheckpointCuts cuts(10, 8, {});
  EXPECT_EQ(RunCut(&cuts, 9), kNoStep);
  ASSERT_EQ(cuts.Begin(Step(19)), Step(9));
  EXPECT_TRUE(cuts.End(ShardBehind(Step(9)), 1));
  // It is not known yet whether the cut of step 19 will be a checkpoint.
  ASSERT_EQ(cuts.Begin(Step(29)), kNoStep);
  EXPECT_TRUE(cuts.End(ShardBehind(kNoStep), 1));
  // Now that of step 19 is over, committed or not.
  EXPECT_TRUE(cuts.Commit(Step(29), Step(30)).ok());
  EXPECT_THAT(Describe(cuts), IsEmpty());
  EXPECT_EQ(cuts.CallOff(Step(19)).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(RunCut(&cuts, 39), Step(29));
}

// The files on which the next increment builds may have been removed.
TEST(CheckpointCutsTest, AfterAnIncrementThatWasCalledOffAllRowsAreWritten) {
  CheckpointCuts cuts(10, 8, {});
  EXPECT_EQ(RunCut(&cuts, 9), kNoStep);
  ASSERT_EQ(cuts.Begin(Step(19)), Step(9));
  EXPECT_TRUE(cuts.End(ShardBehind(Step(9)), 1));
  EXPECT_TRUE(cuts.CallOff(Step(19)).ok());
  EXPECT_EQ(RunCut(&cuts, 29), kNoStep);
  EXPECT_EQ(RunCut(&cuts, 39), Step(29));
  // One that was not written says nothing of what it would have built on.
  ASSERT_EQ(cuts.Begin(Step(49)), Step(39));
  EXPECT_TRUE(cuts.CallOff(Step(49)).ok());
  EXPECT_FALSE(cuts.End(ShardBehind(Step(39)), 1));
  EXPECT_EQ(RunCut(&cuts, 59), Step(39));
}

TEST(CheckpointCutsTest, OnlyWhatIsWrittenHereIsCommitted) {
  CheckpointCuts cuts(10, 8, {});
  EXPECT_EQ(RunCut(&cuts, 9), kNoStep);
  cuts.Fail(Step(19), "went past");
  EXPECT_EQ(cuts.Commit(Step(19), Step(25)).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(cuts.Name(Step(22), true).ok());
  EXPECT_EQ(cuts.Commit(Step(22), Step(25)).code(), StatusCode::kFailedPrecondition);
  // The cut of step 19 may be a checkpoint by now, and the one of step 9 none any more.
  EXPECT_EQ(cuts.Begin(Step(29)), kNoStep);
  EXPECT_EQ(cuts.Commit(Step(29), Step(30)).code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(Describe(cuts), ElementsAre("19 FAILED", "22 NAMED", "29 WRITING"));
  EXPECT_EQ(cuts.committed(), Step(9));
  EXPECT_TRUE(cuts.End(ShardBehind(kNoStep), 1));
  EXPECT_TRUE(cuts.Commit(Step(29), Step(30)).ok());
  EXPECT_THAT(Describe(cuts), IsEmpty());
  EXPECT_EQ(RunCut(&cuts, 39), Step(29));
}

TEST(CheckpointCutsTest, WhatACommitOvertakesKeepsItsFiles) {
  CheckpointCuts cuts(10, 8, {});
  ASSERT_TRUE(cuts.Begin(Step(9)).has_value());
  EXPECT_TRUE(cuts.Commit(Step(15), Step(15)).ok());
  EXPECT_THAT(Describe(cuts), IsEmpty());
  EXPECT_TRUE(cuts.End(ShardBehind(kNoStep), 1));
  EXPECT_EQ(cuts.writing(), std::nullopt);
}

TEST(CheckpointCutsTest, ARestartedServerKnowsItsBase) {
  CheckpointCuts cuts(10, 3, {Step(29), Step(29), 1});
  EXPECT_EQ(cuts.committed(), Step(29));
  EXPECT_TRUE(cuts.Commit(Step(29), Step(29)).ok());
  EXPECT_EQ(RunCut(&cuts, 39), Step(29));
  EXPECT_EQ(RunCut(&cuts, 49), kNoStep);
  // A commit that it hears of though it wrote nothing: that was the process before it.
  CheckpointCuts other(10, 3, {Step(9), Step(9), 0});
  EXPECT_EQ(other.Commit(Step(19), Step(18)).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(other.Commit(Step(19), Step(19)).ok());
  EXPECT_EQ(RunCut(&other, 29), Step(19));
  EXPECT_EQ(RunCut(&other, 39), kNoStep);
  // The checkpoint is of an older generation.
  CheckpointCuts next_generation(10, 3, {Step(29)});
  EXPECT_EQ(RunCut(&next_generation, 39), kNoStep);
}

TEST(CheckpointCutsTest, WhatAReplayGoesPastFails) {
  CheckpointCuts cuts(10, 8, {});
  cuts.Fail(Step(9), "went past");
  EXPECT_THAT(Describe(cuts), ElementsAre("9 FAILED"));
  EXPECT_FALSE(cuts.IsDue(Step(9)));
}

}  // namespace
}  // namespace thermocline
