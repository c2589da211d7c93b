#include "deploy/nodes/node_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint32_t kLeaseMs = 20000;

absl::Duration At(double seconds) { return absl::Seconds(seconds); }

WantedProcess Server(uint32_t index, uint64_t generation, uint64_t incarnation = 1) {
  WantedProcess wanted;
  wanted.mutable_id()->set_role(NodeProcess::SERVER);
  wanted.mutable_id()->set_index(index);
  wanted.mutable_id()->set_generation(generation);
  wanted.mutable_id()->set_incarnation(incarnation);
  return wanted;
}

// "start 0.1" for index and incarnation, "term 0.1", "kill 0.1", "prepare 3" for a generation.
std::vector<std::string> Texts(const std::vector<NodeAction>& actions) {
  std::vector<std::string> texts;
  const auto name = [](const NodeProcess& id) {
    return absl::StrCat(id.index(), ".", id.incarnation());
  };
  for (const NodeAction& action : actions) {
    if (const auto* prepare = std::get_if<node_action::Prepare>(&action)) {
      texts.push_back(absl::StrCat("prepare ", prepare->order.generation()));
    } else if (const auto* start = std::get_if<node_action::Start>(&action)) {
      texts.push_back("start " + name(start->process.id()));
    } else if (const auto* renew = std::get_if<node_action::Renew>(&action)) {
      texts.push_back("renew " + name(renew->process.id()));
    } else if (const auto* signal = std::get_if<node_action::Signal>(&action)) {
      texts.push_back((signal->kill ? "kill " : "term ") + name(signal->id));
    }
  }
  return texts;
}

class NodeAgentTest : public testing::Test {
 protected:
  NodeAgentTest() : agent_(NodeHello(), [this] { return ++nonces_; }) {}

  NodeOrder Order(uint64_t number, const std::vector<WantedProcess>& wanted,
                  uint64_t generation = 3) {
    NodeOrder order;
    order.set_job("job");
    order.set_nonce(agent_.nonce());
    order.set_heartbeat(heartbeat_);
    order.set_lease_ms(kLeaseMs);
    order.set_generation(generation);
    order.set_number(number);
    for (const WantedProcess& process : wanted) *order.add_wanted() = process;
    return order;
  }
  void Beat(absl::Duration now) { heartbeat_ = agent_.MakeReport(now).heartbeat(); }
  std::vector<std::string> Take(absl::Duration now, const NodeOrder& order) {
    agent_.OnOrder(now, order);
    return Texts(agent_.TakeActions());
  }
  std::vector<std::string> Tick(absl::Duration now) {
    agent_.OnTick(now);
    return Texts(agent_.TakeActions());
  }
  std::vector<std::string> End(absl::Duration now, const WantedProcess& process) {
    agent_.OnEnd(now, process.id(), ProcessEndReport());
    return Texts(agent_.TakeActions());
  }

  uint64_t nonces_ = 0;
  uint64_t heartbeat_ = 0;
  NodeAgent agent_;
};

TEST_F(NodeAgentTest, TheLeaseRunsFromWhenItsHeartbeatWasSent) {
  Beat(At(0));
  EXPECT_FALSE(agent_.HasLease(At(0)));
  EXPECT_THAT(Take(At(15), Order(1, {Server(0, 3)})), ElementsAre("prepare 3", "start 0.1"));
  EXPECT_TRUE(agent_.HasLease(At(19.9)));
  EXPECT_EQ(agent_.next_tick(), At(20));
  EXPECT_THAT(Tick(At(19.9)), IsEmpty());
  EXPECT_THAT(Tick(At(20)), ElementsAre("kill 0.1"));
}

TEST_F(NodeAgentTest, OrdersAloneDoNotRenewTheLease) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3)}));
  for (int s = 2; s < 20; ++s) {
    Beat(At(s));  // It never arrives.
    NodeOrder order = Order(static_cast<uint64_t>(s), {Server(0, 3)});
    order.set_heartbeat(1);
    EXPECT_THAT(Take(At(s), order), IsEmpty());
  }
  EXPECT_THAT(Tick(At(20)), ElementsAre("kill 0.1"));
}

TEST_F(NodeAgentTest, AnAnswerThatComesAfterItsLeaseStartsNothing) {
  Beat(At(0));
  EXPECT_THAT(Take(At(21), Order(1, {Server(0, 3)})), IsEmpty());
  Beat(At(22));
  EXPECT_THAT(Take(At(23), Order(1, {Server(0, 3)})), ElementsAre("prepare 3", "start 0.1"));
}

TEST_F(NodeAgentTest, WithoutALeaseItEndsAllAndRegistersAnew) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3), Server(1, 3)}));
  const NodeOrder late = Order(2, {Server(0, 3), Server(1, 3), Server(2, 3)});
  EXPECT_THAT(Tick(At(20)), ElementsAre("kill 0.1", "kill 1.1"));
  EXPECT_FALSE(agent_.MayReport());
  EXPECT_THAT(End(At(20), Server(0, 3)), IsEmpty());
  EXPECT_FALSE(agent_.MayReport());
  End(At(21), Server(1, 3));
  ASSERT_TRUE(agent_.MayReport());
  EXPECT_EQ(agent_.nonce(), 2u);
  EXPECT_EQ(agent_.MakeReport(At(21)).processes_size(), 0);
  EXPECT_THAT(Take(At(21), late), IsEmpty());  // It is of the nonce before.
}

TEST_F(NodeAgentTest, AnIncarnationIsStartedOnce) {
  Beat(At(0));
  const NodeOrder order = Order(1, {Server(0, 3)});
  EXPECT_THAT(Take(At(1), order), ElementsAre("prepare 3", "start 0.1"));
  EXPECT_THAT(Take(At(1), order), IsEmpty());
  EXPECT_THAT(End(At(2), Server(0, 3)), IsEmpty());
  EXPECT_THAT(Take(At(2), order), IsEmpty());
  EXPECT_THAT(Take(At(3), Order(2, {})), IsEmpty());
  EXPECT_THAT(Take(At(4), Order(3, {Server(0, 3), Server(0, 3, 2)})), ElementsAre("start 0.2"));
}

TEST_F(NodeAgentTest, OrdersThatCameTooLateAreDropped) {
  Beat(At(0));
  const NodeOrder first = Order(1, {Server(0, 3), Server(1, 3)});
  EXPECT_THAT(Take(At(1), Order(2, {Server(0, 3)})), ElementsAre("prepare 3", "start 0.1"));
  EXPECT_THAT(Take(At(2), first), IsEmpty());
  EXPECT_THAT(Take(At(3), Order(9, {Server(7, 2)}, /*generation=*/2)), IsEmpty());
}

TEST_F(NodeAgentTest, AGenerationBeginsWhenNoProcessOfAnEarlierOneIsLeft) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3)}));
  EXPECT_THAT(Take(At(2), Order(1, {Server(0, 4)}, 4)), ElementsAre("kill 0.1"));
  EXPECT_THAT(End(At(2), Server(0, 3)), ElementsAre("prepare 4", "start 0.1"));
}

TEST_F(NodeAgentTest, WhatIsNotWantedHasItsGraceToEnd) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3), Server(1, 3)}));
  NodeOrder order = Order(2, {Server(1, 3)});
  order.set_grace_ms(5000);
  EXPECT_THAT(Take(At(2), order), ElementsAre("term 0.1"));
  EXPECT_EQ(agent_.next_tick(), At(7));
  EXPECT_THAT(Tick(At(6.9)), IsEmpty());
  EXPECT_THAT(Tick(At(7)), ElementsAre("kill 0.1"));
  EXPECT_THAT(Tick(At(8)), IsEmpty());
  EXPECT_EQ(agent_.MakeReport(At(8)).processes_size(), 2);  // Until it has ended.
  End(At(9), Server(0, 3));
  EXPECT_EQ(agent_.MakeReport(At(9)).processes_size(), 1);
}

TEST_F(NodeAgentTest, AnEndIsReportedAsLongAsTheProcessIsWanted) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3)}));
  ProcessEndReport end;
  end.set_has_exit_code(true);
  end.set_exit_code(3);
  agent_.OnEnd(At(2), Server(0, 3).id(), end);
  for (int i = 0; i < 2; ++i) {
    const NodeReport report = agent_.MakeReport(At(2));
    ASSERT_EQ(report.processes_size(), 1);
    EXPECT_EQ(report.processes(0).end().exit_code(), 3);
  }
  Take(At(3), Order(2, {}));
  EXPECT_EQ(agent_.MakeReport(At(3)).processes_size(), 0);
}

TEST_F(NodeAgentTest, AnotherJobHasToWaitForTheEndOfTheLease) {
  Beat(At(0));
  Take(At(1), Order(5, {Server(0, 3)}));
  NodeOrder other = Order(1, {Server(1, 1)}, /*generation=*/1);
  other.set_job("other");
  EXPECT_THAT(Take(At(2), other), IsEmpty());
  Tick(At(20));
  End(At(20), Server(0, 3));
  Beat(At(21));
  other.set_nonce(agent_.nonce());
  other.set_heartbeat(heartbeat_);
  EXPECT_THAT(Take(At(22), other), ElementsAre("prepare 1", "start 1.1"));
}

TEST_F(NodeAgentTest, AControllerThatDeclaredItLostEndsIt) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3)}));
  NodeOrder order = Order(2, {Server(0, 3)});
  order.set_is_lost(true);
  EXPECT_THAT(Take(At(2), order), ElementsAre("kill 0.1"));
  End(At(2), Server(0, 3));
  EXPECT_EQ(agent_.nonce(), 2u);
}

TEST_F(NodeAgentTest, MetricsAreSaidUntilTheyHaveArrived) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3)}));
  agent_.OnMetrics(Server(0, 3).id(), "abc");
  EXPECT_EQ(agent_.MakeReport(At(1)).metrics().data(), "abc");
  agent_.OnMetrics(Server(0, 3).id(), "def");
  NodeOrder order = Order(1, {Server(0, 3)});
  *order.mutable_metrics()->mutable_id() = Server(0, 3).id();
  order.mutable_metrics()->set_offset(2);
  Take(At(2), order);
  const NodeReport report = agent_.MakeReport(At(2));
  EXPECT_EQ(report.metrics().offset(), 2u);
  EXPECT_EQ(report.metrics().data(), "cdef");
  order.mutable_metrics()->set_offset(6);
  Take(At(2), order);
  End(At(3), Server(0, 3));
  const NodeReport last = agent_.MakeReport(At(3));
  EXPECT_EQ(last.metrics().data(), "");
  EXPECT_EQ(last.processes(0).metrics_bytes(), 6u);
}

TEST_F(NodeAgentTest, ItEndsWithTheJobWhenNoProcessIsLeft) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3)}));
  NodeOrder order = Order(2, {});
  order.set_has_ended(true);
  order.set_grace_ms(1000);
  EXPECT_THAT(Take(At(2), order), ElementsAre("term 0.1"));
  EXPECT_FALSE(agent_.has_ended());
  End(At(2), Server(0, 3));
  EXPECT_TRUE(agent_.has_ended());
}

TEST_F(NodeAgentTest, AHostThatIsUnfitStartsNothing) {
  agent_.OnUnfit("no such folder");
  Beat(At(0));
  EXPECT_THAT(Take(At(1), Order(1, {Server(0, 3)})), IsEmpty());
  EXPECT_EQ(agent_.MakeReport(At(1)).unfit(), "no such folder");
}

TEST_F(NodeAgentTest, AProcessThatNeedsACertificateWaitsForIt) {
  Beat(At(0));
  WantedProcess wanted = Server(0, 3);
  EXPECT_THAT(Take(At(1), Order(1, {wanted})), ElementsAre("prepare 3", "start 0.1"));
  agent_.OnNeedsCertificate(wanted.id(), "request");
  EXPECT_EQ(agent_.running(), 0u);
  for (int i = 0; i < 2; ++i) {  // Until the certificate is there.
    EXPECT_EQ(agent_.MakeReport(At(1)).processes(0).certificate_request(), "request");
  }
  EXPECT_THAT(Take(At(2), Order(1, {wanted})), IsEmpty());
  wanted.set_certificate("first");
  EXPECT_THAT(Take(At(3), Order(2, {wanted})), ElementsAre("start 0.1"));
  EXPECT_EQ(agent_.running(), 1u);
  EXPECT_EQ(agent_.MakeReport(At(3)).processes(0).certificate_request(), "");
  EXPECT_THAT(Take(At(4), Order(2, {wanted})), IsEmpty());
  wanted.set_certificate("second");
  EXPECT_THAT(Take(At(5), Order(3, {wanted})), ElementsAre("renew 0.1"));
  EXPECT_THAT(End(At(6), wanted), IsEmpty());
  wanted.set_certificate("third");
  EXPECT_THAT(Take(At(7), Order(4, {wanted})), IsEmpty());
}

TEST_F(NodeAgentTest, NoProcessIsLeftWhereOneWaitsForItsCertificate) {
  Beat(At(0));
  Take(At(1), Order(1, {Server(0, 3), Server(1, 3)}));
  agent_.OnNeedsCertificate(Server(0, 3).id(), "request");
  agent_.OnNeedsCertificate(Server(1, 3).id(), "request");
  EXPECT_THAT(Take(At(2), Order(2, {Server(1, 3)})), IsEmpty());
  EXPECT_EQ(agent_.MakeReport(At(2)).processes_size(), 1);
  EXPECT_THAT(Tick(At(20)), IsEmpty());  // The lease is over.
  EXPECT_TRUE(agent_.MayReport());
  EXPECT_EQ(agent_.nonce(), 2u);
}

}  // namespace
}  // namespace thermocline
