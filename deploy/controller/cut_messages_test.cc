#include "deploy/controller/cut_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace thermocline {
namespace {

using ::testing::ElementsAre;

// Notes what it is asked, and answers as the test says.
class Listeners : public CutParticipants {
 public:
  size_t num_servers() const override { return 2; }
  size_t num_workers() const override { return 1; }
  absl::StatusOr<CheckpointReply> AskServer(size_t index, CheckpointRequest::Action action,
                                            Step cut) override {
    heard.push_back(std::to_string(index) + " " + CheckpointRequest::Action_Name(action) + " " +
                    std::to_string(cut.value()));
    if (!answers[index].ok()) return answers[index];
    return CheckpointReply();
  }
  absl::StatusOr<CheckpointReply> AskWorker(size_t, CheckpointRequest::Action action,
                                            Step cut) override {
    heard.push_back("worker " + CheckpointRequest::Action_Name(action) + " " +
                    std::to_string(cut.value()));
    return CheckpointReply();
  }
  absl::StatusOr<uint64_t> LogBytes(size_t) override { return 0; }

  std::vector<absl::Status> answers = {absl::OkStatus(), absl::OkStatus()};
  std::vector<std::string> heard;
};

TEST(CutMessagesTest, AServerThatDoesNotAnswerNowIsNotAsked) {
  Listeners listeners;
  uint64_t incarnation = 0;
  CutMessages messages(&listeners, [&](size_t) { return incarnation; });
  messages.Send(CheckpointRequest::COMMITTED, Step(9));
  messages.Deliver({true, false});
  EXPECT_THAT(listeners.heard, ElementsAre("0 COMMITTED 9"));
  EXPECT_TRUE(messages.IsPending(Step(9)));
  messages.Deliver({true, true});
  EXPECT_THAT(listeners.heard, ElementsAre("0 COMMITTED 9", "1 COMMITTED 9"));
  EXPECT_FALSE(messages.IsPending(Step(9)));
  // What is for a process that is gone is void, whether the next one answers or not.
  messages.Send(CheckpointRequest::COMMITTED, Step(19));
  ++incarnation;
  messages.Deliver({false, false});
  EXPECT_FALSE(messages.IsPending(Step(19)));
}

TEST(CutMessagesTest, EachServerHearsThemInOrder) {
  Listeners listeners;
  CutMessages messages(&listeners, [](size_t) { return 0; });
  messages.Send(CheckpointRequest::COMMITTED, Step(9));
  messages.Send(CheckpointRequest::CALL_OFF, Step(14));
  messages.Send(CheckpointRequest::COMMITTED, Step(19));
  listeners.answers[1] = absl::UnavailableError("nobody there");
  messages.Deliver();
  EXPECT_THAT(listeners.heard,
              ElementsAre("0 COMMITTED 9", "1 COMMITTED 9", "0 CALL_OFF 14", "0 COMMITTED 19"));
  EXPECT_TRUE(messages.IsPending(Step(9)));
  EXPECT_TRUE(messages.IsPending(Step(19)));
  listeners.heard.clear();
  messages.Deliver();
  EXPECT_THAT(listeners.heard, ElementsAre("1 COMMITTED 9"));
  listeners.heard.clear();
  listeners.answers[1] = absl::FailedPreconditionError("no");  // An answer, too.
  messages.Deliver();
  EXPECT_THAT(listeners.heard, ElementsAre("1 COMMITTED 9", "1 CALL_OFF 14", "1 COMMITTED 19",
                                           "worker CALL_OFF 14"));
  EXPECT_FALSE(messages.IsPending(Step(19)));
}

TEST(CutMessagesTest, OfACutThatNoServerKnowsWorkersHearAtOnce) {
  Listeners listeners;
  listeners.answers[0] = absl::UnavailableError("nobody there");
  CutMessages messages(&listeners, [](size_t) { return 0; });
  messages.Send(CheckpointRequest::COMMITTED, Step(9));
  messages.CallOffAtWorkers(Step(14));
  messages.Deliver();
  EXPECT_THAT(listeners.heard, ElementsAre("0 COMMITTED 9", "1 COMMITTED 9", "worker CALL_OFF 14"));
}

TEST(CutMessagesTest, AWorkerHearsThatACutIsCalledOffWhenNoServerHasItAnyMore) {
  Listeners listeners;
  uint64_t incarnation = 0;
  CutMessages messages(&listeners, [&](size_t) { return incarnation; });
  messages.Send(CheckpointRequest::CALL_OFF, Step(14));
  listeners.answers[0] = absl::DeadlineExceededError("no answer");
  messages.Deliver();
  EXPECT_THAT(listeners.heard, ElementsAre("0 CALL_OFF 14", "1 CALL_OFF 14"));
  listeners.heard.clear();
  incarnation = 1;  // The next process of server 0 never had it.
  messages.Deliver();
  EXPECT_THAT(listeners.heard, ElementsAre("worker CALL_OFF 14"));
  EXPECT_FALSE(messages.IsPending(Step(14)));
}

// Somebody else's request was taken: ours would be overtaken for ever.
TEST(CutRequestsTest, GoesOnAboveWhatAProcessHasTaken) {
  CutRequests requests("job", 3);
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
