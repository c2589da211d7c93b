#include "deploy/job/checkpoint_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

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
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kUnderWay);
  progress.Update(1, With(9, 9, CutStatus::WRITING));
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kUnderWay);
  progress.Update(1, With(12, 9, CutStatus::WRITTEN));
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kWhole);
  EXPECT_EQ(progress.Shards(Step(9)).size(), 2u);
  EXPECT_THAT(progress.Cuts(), ElementsAre(Step(9)));
  EXPECT_EQ(progress.Furthest(), Step(12));
}

TEST(CheckpointProgress, OneFailureIsEnough) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, With(9, 9, CutStatus::FAILED, "disk full"));
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kLost);
  EXPECT_EQ(progress.StateOf(Step(9)).reason, "server 1: disk full");
}

TEST(CheckpointProgress, WhoCanStillTakeItOn) {
  CheckpointProgress progress(3);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, At(5));
  progress.Update(2, At(9));
  const CheckpointState state = progress.StateOf(Step(9));
  EXPECT_EQ(state.kind, CheckpointState::kUnderWay);
  EXPECT_THAT(state.ahead, ElementsAre(1));
  EXPECT_THAT(state.there, ElementsAre(2));
}

TEST(CheckpointProgress, WhoHasNotAnsweredMayStillHaveIt) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  const CheckpointState state = progress.StateOf(Step(9));
  EXPECT_EQ(state.kind, CheckpointState::kUnderWay);
  EXPECT_THAT(state.ahead, IsEmpty());
  EXPECT_THAT(state.there, IsEmpty());
}

TEST(CheckpointProgress, WhoWasBeyondItBeforeAndDoesNotHaveItNeverWill) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, At(10));
  EXPECT_EQ(progress.StateOf(Step(9)).kind,
            CheckpointState::kUnderWay);  // It may just have come there.
  progress.Update(1, At(10));
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kLost);
  EXPECT_THAT(progress.StateOf(Step(9)).reason, HasSubstr("server 1 "));
}

TEST(CheckpointProgress, ANamedCutIsThereBeforeTheNextAnswer) {
  CheckpointProgress progress(1);
  progress.Update(0, At(9));
  progress.Update(0, At(9));
  progress.Named(0, Step(9));
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kUnderWay);
  EXPECT_THAT(progress.StateOf(Step(9)).there, IsEmpty());
}

TEST(CheckpointProgress, AnotherProcessKnowsNothing) {
  CheckpointProgress progress(2);
  progress.Update(0, With(9, 9, CutStatus::WRITTEN));
  progress.Update(1, With(9, 9, CutStatus::WRITTEN));
  const uint64_t before = progress.incarnation(1);
  progress.Forget(1);
  EXPECT_NE(progress.incarnation(1), before);
  EXPECT_EQ(progress.StateOf(Step(9)).kind, CheckpointState::kUnderWay);
  progress.Update(1, At(9));  // It has recovered, and passed the cut meanwhile.
  EXPECT_THAT(progress.StateOf(Step(9)).there, ElementsAre(1));
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

// The notifier
// ------------------------------------------------------------------------------------------------

const absl::Status kSilent = absl::UnavailableError("it does not answer");

// Two servers and a worker, that answer as the test says.
class CheckpointNotifierTest : public testing::Test {
 protected:
  void Deliver(const std::vector<bool>& may_answer = {true, true}) {
    for (const bool to_workers : {false, true}) {
      const std::vector<CheckpointCall> calls =
          to_workers ? notifier_.CallsToWorkers() : notifier_.CallsToServers(may_answer);
      CheckpointAnswers results;
      std::vector<bool> is_silent(2);
      for (const CheckpointCall& call : calls) {
        if (!call.to_worker && is_silent[call.index]) {
          results.push_back(kSilent);
          continue;
        }
        asked_.push_back(absl::StrCat(call.to_worker ? "worker" : absl::StrCat(call.index), " ",
                                      CheckpointRequest::Action_Name(call.action), " ",
                                      call.step.value()));
        const absl::Status& answer = call.to_worker ? worker_answer_ : answers_[call.index];
        results.push_back(answer.ok() ? absl::StatusOr<CheckpointReply>(CheckpointReply())
                                      : answer);
        if (!call.to_worker) is_silent[call.index] = IsUnanswered(answer);
      }
      notifier_.OnAnswers(results);
    }
  }
  std::vector<std::string> TakeAsked() { return std::exchange(asked_, {}); }

  CheckpointNotifier notifier_{2, 1};
  std::vector<absl::Status> answers_ = {absl::OkStatus(), absl::OkStatus()};
  absl::Status worker_answer_;
  std::vector<std::string> asked_;
};

TEST_F(CheckpointNotifierTest, AServerThatDoesNotAnswerNowIsNotAsked) {
  notifier_.Send(CheckpointRequest::COMMITTED, Step(9));
  Deliver({true, false});
  EXPECT_THAT(TakeAsked(), ElementsAre("0 COMMITTED 9"));
  EXPECT_TRUE(notifier_.IsPending(Step(9)));
  Deliver();
  EXPECT_THAT(TakeAsked(), ElementsAre("1 COMMITTED 9"));
  EXPECT_FALSE(notifier_.IsPending(Step(9)));
  // What is for a process that is gone is void, whether the next one answers or not.
  notifier_.Send(CheckpointRequest::COMMITTED, Step(19));
  notifier_.OnServerReplaced(0);
  notifier_.OnServerReplaced(1);
  Deliver({false, false});
  EXPECT_FALSE(notifier_.IsPending(Step(19)));
}

TEST_F(CheckpointNotifierTest, EachServerGetsThemInOrder) {
  notifier_.Send(CheckpointRequest::COMMITTED, Step(9));
  notifier_.Send(CheckpointRequest::CALL_OFF, Step(14));
  notifier_.Send(CheckpointRequest::COMMITTED, Step(19));
  answers_[1] = kSilent;
  Deliver();
  EXPECT_THAT(TakeAsked(),
              ElementsAre("0 COMMITTED 9", "1 COMMITTED 9", "0 CALL_OFF 14", "0 COMMITTED 19"));
  EXPECT_TRUE(notifier_.IsPending(Step(9)));
  EXPECT_TRUE(notifier_.IsPending(Step(19)));
  Deliver();
  EXPECT_THAT(TakeAsked(), ElementsAre("1 COMMITTED 9"));
  answers_[1] = absl::FailedPreconditionError("no");  // An answer, too.
  Deliver();
  EXPECT_THAT(TakeAsked(), ElementsAre("1 COMMITTED 9", "1 CALL_OFF 14", "1 COMMITTED 19",
                                       "worker CALL_OFF 14"));
  EXPECT_FALSE(notifier_.IsPending(Step(19)));
}

TEST_F(CheckpointNotifierTest, OfOneThatNoServerKnowsWorkersLearnAtOnce) {
  answers_[0] = kSilent;
  notifier_.Send(CheckpointRequest::COMMITTED, Step(9));
  notifier_.CallOffAtWorkers(Step(14));
  Deliver();
  EXPECT_THAT(TakeAsked(), ElementsAre("0 COMMITTED 9", "1 COMMITTED 9", "worker CALL_OFF 14"));
}

TEST_F(CheckpointNotifierTest, AWorkerLearnsThatOneIsCalledOffWhenNoServerHasItAnyMore) {
  notifier_.Send(CheckpointRequest::CALL_OFF, Step(14));
  answers_[0] = absl::DeadlineExceededError("no answer");
  Deliver();
  EXPECT_THAT(TakeAsked(), ElementsAre("0 CALL_OFF 14", "1 CALL_OFF 14"));
  notifier_.OnServerReplaced(0);  // The next process of server 0 never had it.
  Deliver();
  EXPECT_THAT(TakeAsked(), ElementsAre("worker CALL_OFF 14"));
  EXPECT_FALSE(notifier_.IsPending(Step(14)));
}

TEST_F(CheckpointNotifierTest, AWorkerIsAskedOnlyAFewTimes) {
  notifier_.CallOffAtWorkers(Step(14));
  worker_answer_ = kSilent;
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(notifier_.IsPending(Step(14)));
    Deliver();
    EXPECT_THAT(TakeAsked(), ElementsAre("worker CALL_OFF 14"));
  }
  EXPECT_FALSE(notifier_.IsPending(Step(14)));
  Deliver();
  EXPECT_THAT(TakeAsked(), IsEmpty());
}

// A request of another launcher was taken: ours would be overtaken for ever.
TEST(CheckpointRequestNumbersTest, GoOnAboveWhatAProcessHasTaken) {
  CheckpointRequestNumbers requests("job", 3);
  EXPECT_EQ(requests.Next(CheckpointRequest::NAME_CUT, Step(4)).sequence(), 1u);
  CheckpointReply reply;
  requests.Learn(reply);
  EXPECT_EQ(requests.Next(CheckpointRequest::STATUS, Step(4)).sequence(), 0u);
  reply.set_newest_sequence(1000);
  requests.Learn(reply);
  EXPECT_EQ(requests.Next(CheckpointRequest::CALL_OFF, Step(4)).sequence(), 1001u);
}

}  // namespace
}  // namespace thermocline
