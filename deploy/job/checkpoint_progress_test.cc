#include "deploy/job/checkpoint_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CheckpointReply At(int64_t complete_through) {
  CheckpointReply reply;
  reply.set_complete_through(complete_through);
  return reply;
}

CheckpointReply With(int64_t complete_through, int64_t cut, CutStatus::State state,
                     const std::string& error = "") {
  CheckpointReply reply = At(complete_through);
  CutStatus* status = reply.add_cuts();
  status->set_step(cut);
  status->set_state(state);
  status->set_error(error);
  status->mutable_shard()->set_base_step(-1);
  return reply;
}

TEST(CheckpointProgress, ACutIsWholeOnceAllHaveWrittenTheirShard) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kUnderWay);
  progress.Update(1, With(9, 9, CutStatus::WRITING));
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kUnderWay);
  progress.Update(1, With(12, 9, CutStatus::WRITTEN));
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kWhole);
  EXPECT_EQ(progress.Shards(Step(9)).size(), 2u);
  EXPECT_THAT(progress.Cuts(), ElementsAre(Step(9)));
  EXPECT_EQ(progress.Furthest(), Step(12));
}

TEST(CheckpointProgress, OneFailureIsEnough) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, With(9, 9, CutStatus::FAILED, "disk full"));
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kLost);
  EXPECT_EQ(progress.Judge(Step(9)).reason, "server 1: disk full");
}

TEST(CheckpointProgress, WhoCanStillTakeItOn) {
  CheckpointProgress progress(3);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, At(5));
  progress.Update(2, At(9));
  const CheckpointVerdict verdict = progress.Judge(Step(9));
  EXPECT_EQ(verdict.kind, CheckpointVerdict::kUnderWay);
  EXPECT_THAT(verdict.ahead, ElementsAre(1));
  EXPECT_THAT(verdict.there, ElementsAre(2));
}

TEST(CheckpointProgress, WhoHasNotAnsweredMayStillHaveIt) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  const CheckpointVerdict verdict = progress.Judge(Step(9));
  EXPECT_EQ(verdict.kind, CheckpointVerdict::kUnderWay);
  EXPECT_THAT(verdict.ahead, IsEmpty());
  EXPECT_THAT(verdict.there, IsEmpty());
}

TEST(CheckpointProgress, WhoWasBeyondItBeforeAndDoesNotHaveItNeverWill) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, At(10));
  EXPECT_EQ(progress.Judge(Step(9)).kind,
            CheckpointVerdict::kUnderWay);  // It may just have come there.
  progress.Update(1, At(10));
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kLost);
  EXPECT_THAT(progress.Judge(Step(9)).reason, HasSubstr("server 1 "));
}

TEST(CheckpointProgress, ANamedCutIsThereBeforeTheNextAnswer) {
  CheckpointProgress progress(1);
  progress.Update(0, At(9));
  progress.Update(0, At(9));
  progress.Named(0, Step(9));
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kUnderWay);
  EXPECT_THAT(progress.Judge(Step(9)).there, IsEmpty());
}

TEST(CheckpointProgress, AnotherProcessKnowsNothing) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, With(9, 9, CutStatus::WRITTEN));
  const uint64_t before = progress.incarnation(1);
  progress.Forget(1);
  EXPECT_NE(progress.incarnation(1), before);
  EXPECT_EQ(progress.Judge(Step(9)).kind, CheckpointVerdict::kUnderWay);
  progress.Update(1, At(9));  // It has recovered, and passed the cut meanwhile.
  EXPECT_THAT(progress.Judge(Step(9)).there, ElementsAre(1));
}

TEST(CheckpointProgress, WhereAllStand) {
  CheckpointProgress progress(2);
  EXPECT_EQ(progress.CommonStep(), std::nullopt);
  progress.Update(0, At(9));
  EXPECT_EQ(progress.CommonStep(), std::nullopt);
  progress.Update(1, At(8));
  EXPECT_EQ(progress.CommonStep(), std::nullopt);
  progress.Update(1, At(9));
  EXPECT_EQ(progress.CommonStep(), Step(9));
}

}  // namespace
}  // namespace thermocline
