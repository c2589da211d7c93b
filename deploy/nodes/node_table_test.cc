#include "deploy/nodes/node_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Hosts that report what a test says; time is in seconds.
class NodeTableTest : public testing::Test {
 protected:
  NodeTableTest()
      : table_({NodeOrder(), "ours", absl::Seconds(30), 1,
                [this](const std::string& request, ProcessRole role,
                       const std::string& address) -> absl::StatusOr<std::string> {
                  if (request == "bad") return absl::InvalidArgumentError("no request");
                  return absl::StrCat(request, " of ",
                                      role == ProcessRole::kServer ? "server" : "worker", " at ",
                                      address, " #", ++signatures_);
                },
                absl::Seconds(10)}) {
    table_.BeginGeneration(1);
  }

  static NodeReport From(const std::string& host, uint64_t nonce, uint64_t heartbeat,
                         const std::string& address = "10.0.0.1") {
    NodeReport report;
    NodeHello& hello = *report.mutable_hello();
    hello.set_protocol_version(kNodeProtocolVersion);
    hello.set_host(host);
    hello.set_build("ours");
    hello.set_machine("m");
    hello.set_address(address);
    hello.set_folder("/scratch");
    report.set_nonce(nonce);
    report.set_heartbeat(heartbeat);
    report.set_generation(1);
    report.set_order(1000000);
    return report;
  }
  absl::Status Take(double second, const NodeReport& report, const std::string& peer = "") {
    return table_.OnReport(absl::Seconds(second), report, peer);
  }
  // A first report of a host of its own machine.
  absl::Status Register(const std::string& host, const std::string& address,
                        const std::string& peer) {
    NodeReport report = From(host, ++nonces_, 1, address);
    report.mutable_hello()->set_machine("machine of " + host);
    return Take(1, report, peer);
  }
  ProcessId Start(ProcessRole role, const std::string& host, const std::string& data_place = "") {
    action::StartProcess start;
    start.data_place = data_place;
    start.id = {role, 0, 1, ++incarnations_};
    start.host = host;
    table_.Start(start);
    return start.id;
  }
  static void Ask(const ProcessId& id, const std::string& request, NodeReport* report) {
    ProcessReport* const process = report->add_processes();
    *process->mutable_id() = ToNodeProcess(id);
    process->set_certificate_request(request);
  }
  std::string CertificateAt(const std::string& host, uint64_t nonce) {
    const NodeOrder order = table_.OrderFor(host, nonce);
    return order.wanted_size() == 1 ? order.wanted(0).certificate() : "";
  }

  uint64_t signatures_ = 0, incarnations_ = 0, nonces_ = 100;
  NodeTable table_;
};

TEST_F(NodeTableTest, AWorkersHostLearnsWhichBatchesItBeginsWith) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  Start(ProcessRole::kWorker, "h1");
  EXPECT_EQ(table_.OrderFor("h1", 7).wanted(0).data_place(), "");
  Start(ProcessRole::kWorker, "h1", "a place");
  EXPECT_EQ(table_.OrderFor("h1", 7).wanted(1).data_place(), "a place");
}

TEST_F(NodeTableTest, AnotherBuildOrVersionOfTheProtocolIsRefusedByName) {
  NodeReport report = From("h1", 7, 1);
  report.mutable_hello()->set_build("theirs");
  EXPECT_EQ(Take(1, report), absl::FailedPreconditionError(
                                 "host h1 is of another build: theirs; the controller's is ours"));
  report = From("h2", 8, 1);
  report.mutable_hello()->set_protocol_version(1);
  EXPECT_EQ(Take(1, report),
            absl::FailedPreconditionError("host h2 is of another build: ours, which speaks version "
                                          "1 of the protocol; the controller's is ours, of "
                                          "version 2"));
  const std::vector<JobEvent> events = table_.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(std::get<event::HostUp>(events[1]).host.build,
            "ours, which speaks version 1 of the protocol");
}

TEST_F(NodeTableTest, SignsForProcessesThatWereOrderedThere) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  const ProcessId server = Start(ProcessRole::kServer, "h1");
  EXPECT_EQ(CertificateAt("h1", 7), "");
  NodeReport report = From("h1", 7, 2);
  Ask(server, "key", &report);
  ASSERT_TRUE(Take(2, report).ok());
  EXPECT_EQ(CertificateAt("h1", 7), "key of server at 10.0.0.1 #1");
  report.set_heartbeat(3);  // The certificate has not reached it yet.
  ASSERT_TRUE(Take(3, report).ok());
  EXPECT_EQ(CertificateAt("h1", 7), "key of server at 10.0.0.1 #1");
  EXPECT_THAT(table_.TakeNotices(), IsEmpty());
}

TEST_F(NodeTableTest, SignsAnewInTime) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  const ProcessId worker = Start(ProcessRole::kWorker, "h1");
  NodeReport report = From("h1", 7, 2);
  Ask(worker, "key", &report);
  ASSERT_TRUE(Take(2, report).ok());
  table_.TakeChanged();
  table_.OnTick(absl::Seconds(11));
  EXPECT_EQ(CertificateAt("h1", 7), "key of worker at 10.0.0.1 #1");
  EXPECT_THAT(table_.TakeChanged(), IsEmpty());
  table_.OnTick(absl::Seconds(12));
  EXPECT_EQ(CertificateAt("h1", 7), "key of worker at 10.0.0.1 #2");
  EXPECT_THAT(table_.TakeChanged(), ElementsAre("h1"));
  table_.OnTick(absl::Seconds(22));
  EXPECT_EQ(CertificateAt("h1", 7), "key of worker at 10.0.0.1 #3");
}

TEST_F(NodeTableTest, SignsNothingElse) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  ASSERT_TRUE(Take(1, From("h2", 8, 1, "10.0.0.2")).ok());
  const ProcessId server = Start(ProcessRole::kServer, "h1");
  // Another host asks; and this one for what it runs under another incarnation, or as a worker.
  NodeReport stranger = From("h2", 8, 2, "10.0.0.2");
  Ask(server, "key", &stranger);
  ASSERT_TRUE(Take(2, stranger).ok());
  ProcessId other = server;
  ++other.incarnation;
  NodeReport report = From("h1", 7, 2);
  Ask(other, "key", &report);
  other = server;
  other.role = ProcessRole::kWorker;
  Ask(other, "key", &report);
  ASSERT_TRUE(Take(2, report).ok());
  EXPECT_EQ(signatures_, 0u);
  EXPECT_THAT(
      table_.TakeNotices(),
      ElementsAre(
          "refused: host h2 asks for a certificate of server 0, which it was not ordered to "
          "run",
          // Other processes that it makes up give no further notice.
          "refused: host h1 asks for a certificate of server 0, which it was not ordered to "
          "run"));
  // What was stopped meanwhile gets none either.
  table_.Stop(ProcessRole::kServer, absl::ZeroDuration());
  NodeReport late = From("h1", 7, 3);
  late.set_order(1);
  Ask(server, "key", &late);
  ASSERT_TRUE(Take(3, late).ok());
  EXPECT_EQ(signatures_, 0u);
}

TEST_F(NodeTableTest, ARequestThatCannotBeSignedEndsTheProcess) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  const ProcessId server = Start(ProcessRole::kServer, "h1");
  table_.TakeEvents();
  NodeReport report = From("h1", 7, 2);
  Ask(server, "bad", &report);
  ASSERT_TRUE(Take(2, report).ok());
  const std::vector<JobEvent> events = table_.TakeEvents();
  ASSERT_EQ(events.size(), 1u);
  const auto* const not_started = std::get_if<event::NotStarted>(&events[0]);
  ASSERT_NE(not_started, nullptr);
  EXPECT_EQ(not_started->why,
            absl::InvalidArgumentError("no certificate for it on host h1: no request"));
  EXPECT_EQ(table_.OrderFor("h1", 7).wanted_size(), 0);
}

TEST_F(NodeTableTest, AnotherAddressThanTheConnectionsIsRefused) {
  EXPECT_EQ(Register("h1", "10.0.0.1", "10.0.0.1"), absl::OkStatus());
  EXPECT_EQ(Register("h2", "fd00:0::2", "fd00::2"), absl::OkStatus());
  EXPECT_EQ(Register("h3", "h3.cluster", "h3.cluster"), absl::OkStatus());
  EXPECT_EQ(Register("h4", "10.0.0.1", "10.0.0.1"), absl::OkStatus()) << "two agents of a machine";
  EXPECT_EQ(table_.TakeEvents().size(), 4u);
  // It claims the address of another host, whose machine it claims to be; one of no host; a name.
  NodeReport impostor = From("h5", 7, 1, "10.0.0.1");
  impostor.mutable_hello()->set_machine("machine of h1");
  for (const auto& [report, address] :
       {std::pair(impostor, "10.0.0.1"), std::pair(From("h5", 8, 1, "10.1.0.5"), "10.1.0.5"),
        std::pair(From("h5", 9, 1, "h1.cluster"), "h1.cluster")}) {
    const absl::Status refused = Take(2, report, "10.0.0.5");
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("host h5 says that it is at ", address,
                                       ", and connects from 10.0.0.5: ")));
    EXPECT_THAT(table_.TakeNotices(), ElementsAre(HasSubstr("refused: host h5 says")));
  }
  EXPECT_THAT(table_.TakeEvents(), IsEmpty());
}

// One that knows all that the host says of itself is not the host that was started again.
TEST_F(NodeTableTest, AnAgentElsewhereReplacesNoHostWhateverItSays) {
  ASSERT_EQ(Take(1, From("h1", 7, 1), "10.0.0.1"), absl::OkStatus());
  table_.TakeEvents();
  EXPECT_EQ(Take(2, From("h1", 8, 1), "10.0.0.2"), absl::OkStatus());  // The host may be gone.
  EXPECT_THAT(table_.TakeEvents(), IsEmpty());
  ASSERT_EQ(Take(3, From("h1", 7, 2), "10.0.0.1"), absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(Take(4, From("h1", 8, 2), "10.0.0.2")));
  EXPECT_THAT(table_.TakeEvents(), IsEmpty());
  EXPECT_FALSE(table_.OrderFor("h1", 7).is_lost());
}

TEST_F(NodeTableTest, AnAgentThatIsStartedAgainReplacesItself) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  table_.TakeEvents();
  ASSERT_TRUE(Take(2, From("h1", 8, 1)).ok());
  const std::vector<JobEvent> events = table_.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_NE(std::get_if<event::HostLost>(&events[0]), nullptr);
  EXPECT_NE(std::get_if<event::HostUp>(&events[1]), nullptr);
}

TEST_F(NodeTableTest, AStrangerOfTheSameNameIsRefusedWhileTheHostIsThere) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  table_.TakeEvents();
  ASSERT_TRUE(Take(2, From("h1", 8, 1, "10.0.0.2")).ok());
  ASSERT_TRUE(Take(3, From("h1", 8, 2, "10.0.0.2")).ok());  // The host may be gone.
  EXPECT_FALSE(table_.OrderFor("h1", 8).has_ended());
  EXPECT_EQ(table_.OrderFor("h1", 8).heartbeat(), 0u);  // It has no lease.
  ASSERT_TRUE(Take(4, From("h1", 7, 2)).ok());
  const absl::Status refused = Take(5, From("h1", 8, 3, "10.0.0.2"));
  EXPECT_EQ(
      refused,
      absl::FailedPreconditionError(
          "there is a host h1 already, at 10.0.0.1 (/scratch); an agent of the same name is at "
          "10.0.0.2 (/scratch): give one of them another --name"));
  EXPECT_THAT(table_.TakeNotices(),
              ElementsAre(AllOf(HasSubstr("10.0.0.1"), HasSubstr("10.0.0.2"))));
  EXPECT_THAT(table_.TakeEvents(), IsEmpty());
  // It is said once, however often the agent comes.
  ASSERT_TRUE(Take(6, From("h1", 9, 1, "10.0.0.2")).ok());
  ASSERT_TRUE(Take(7, From("h1", 7, 3)).ok());
  EXPECT_FALSE(Take(8, From("h1", 9, 2, "10.0.0.2")).ok());
  EXPECT_THAT(table_.TakeNotices(), IsEmpty());
}

TEST_F(NodeTableTest, AStrangerTakesThePlaceOfAHostThatIsGone) {
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  for (int second = 2; second < 31; ++second) {
    table_.OnTick(absl::Seconds(second));
    ASSERT_TRUE(Take(second, From("h1", 8, static_cast<uint64_t>(second), "10.0.0.2")).ok());
  }
  table_.TakeEvents();
  table_.OnTick(absl::Seconds(31));
  ASSERT_TRUE(Take(31, From("h1", 8, 31, "10.0.0.2")).ok());
  const std::vector<JobEvent> events = table_.TakeEvents();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_NE(std::get_if<event::HostLost>(&events[0]), nullptr);
  const auto* const up = std::get_if<event::HostUp>(&events[1]);
  ASSERT_NE(up, nullptr);
  EXPECT_EQ(up->host.address, "10.0.0.2");
}

TEST_F(NodeTableTest, ResultsAndPlacesComeWhenTheyHaveChanged) {
  EXPECT_TRUE(table_.TakeResults().has_value());
  EXPECT_TRUE(table_.TakePlaces().has_value());
  EXPECT_FALSE(table_.TakeResults().has_value());
  EXPECT_FALSE(table_.TakePlaces().has_value());
  ASSERT_TRUE(Take(1, From("h1", 7, 1)).ok());
  const ProcessId worker = Start(ProcessRole::kWorker, "h1");
  EXPECT_FALSE(table_.TakeResults().has_value());
  EXPECT_EQ(table_.TakePlaces()->dump(), R"({"worker 0":{"host":"h1","log":""}})");
  NodeReport report = From("h1", 7, 2);
  ProcessReport* const process = report.add_processes();
  *process->mutable_id() = ToNodeProcess(worker);
  process->mutable_end()->set_has_exit_code(true);
  process->mutable_end()->set_result(R"({"steps": 3})");
  ASSERT_TRUE(Take(2, report).ok());
  EXPECT_TRUE(table_.TakeResults().has_value());
  EXPECT_FALSE(table_.TakePlaces().has_value());
}

}  // namespace
}  // namespace thermocline
