#include "deploy/controller/cut_board.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

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
  status->mutable_part()->set_base_step(-1);
  return reply;
}

TEST(CutBoard, ACutIsWholeOnceAllHaveWrittenTheirPart) {
  CutBoard board(2);
  board.Update(0, With(9, 9, CutStatus::WRITTEN));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kUnderWay);
  board.Update(1, With(9, 9, CutStatus::WRITING));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kUnderWay);
  board.Update(1, With(12, 9, CutStatus::WRITTEN));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kWhole);
  EXPECT_EQ(board.Parts(Step(9)).size(), 2u);
  EXPECT_THAT(board.Cuts(), ElementsAre(Step(9)));
  EXPECT_EQ(board.Furthest(), Step(12));
}

TEST(CutBoard, OneFailureIsEnough) {
  CutBoard board(2);
  board.Update(0, With(9, 9, CutStatus::WRITTEN));
  board.Update(1, With(9, 9, CutStatus::FAILED, "disk full"));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kLost);
  EXPECT_EQ(board.Judge(Step(9)).reason, "server 1: disk full");
}

TEST(CutBoard, WhoCanStillTakeItOn) {
  CutBoard board(3);
  board.Update(0, With(9, 9, CutStatus::WRITTEN));
  board.Update(1, At(5));
  board.Update(2, At(9));
  const CutVerdict verdict = board.Judge(Step(9));
  EXPECT_EQ(verdict.kind, CutVerdict::kUnderWay);
  EXPECT_THAT(verdict.ahead, ElementsAre(1));
  EXPECT_THAT(verdict.there, ElementsAre(2));
}

TEST(CutBoard, WhoHasNotAnsweredMayStillHaveIt) {
  CutBoard board(2);
  board.Update(0, With(9, 9, CutStatus::WRITTEN));
  const CutVerdict verdict = board.Judge(Step(9));
  EXPECT_EQ(verdict.kind, CutVerdict::kUnderWay);
  EXPECT_THAT(verdict.ahead, IsEmpty());
  EXPECT_THAT(verdict.there, IsEmpty());
}

TEST(CutBoard, WhoWasBeyondItBeforeAndDoesNotHaveItNeverWill) {
  CutBoard board(2);
  board.Update(0, With(9, 9, CutStatus::WRITTEN));
  board.Update(1, At(10));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kUnderWay);  // It may just have come there.
  board.Update(1, At(10));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kLost);
  EXPECT_THAT(board.Judge(Step(9)).reason, HasSubstr("server 1 "));
}

TEST(CutBoard, ANamedCutIsThereBeforeTheNextAnswer) {
  CutBoard board(1);
  board.Update(0, At(9));
  board.Update(0, At(9));
  board.Named(0, Step(9));
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kUnderWay);
  EXPECT_THAT(board.Judge(Step(9)).there, IsEmpty());
}

TEST(CutBoard, AnotherProcessKnowsNothing) {
  CutBoard board(2);
  board.Update(0, With(9, 9, CutStatus::WRITTEN));
  board.Update(1, With(9, 9, CutStatus::WRITTEN));
  const uint64_t before = board.incarnation(1);
  board.Forget(1);
  EXPECT_NE(board.incarnation(1), before);
  EXPECT_EQ(board.Judge(Step(9)).kind, CutVerdict::kUnderWay);
  board.Update(1, At(9));  // It has recovered, and passed the cut meanwhile.
  EXPECT_THAT(board.Judge(Step(9)).there, ElementsAre(1));
}

TEST(CutBoard, WhereAllStand) {
  CutBoard board(2);
  EXPECT_EQ(board.CommonStep(), std::nullopt);
  board.Update(0, At(9));
  EXPECT_EQ(board.CommonStep(), std::nullopt);
  board.Update(1, At(8));
  EXPECT_EQ(board.CommonStep(), std::nullopt);
  board.Update(1, At(9));
  EXPECT_EQ(board.CommonStep(), Step(9));
}

}  // namespace
}  // namespace thermocline
