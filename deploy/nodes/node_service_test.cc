#include "deploy/nodes/node_service.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/net/grpc_server.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

NodeTable::Options TableOptions() {
  NodeTable::Options options;
  options.order.set_lease_ms(20000);
  options.build = "ours";
  options.host_timeout = absl::Hours(1);
  options.num_workers = 1;
  return options;
}

// The service behind a port, and a stream of a node that does what a test says.
class NodeServiceTest : public testing::Test {
 protected:
  NodeServiceTest() : service_(TableOptions(), [] {}) {
    server_ = *GrpcServer::Start(GrpcServer::Options(), {&service_});
    stub_ = Controller::NewStub(
        grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
    stream_ = stub_->Attach(&context_);
  }

  NodeReport Report(const std::string& build = "ours") {
    NodeReport report;
    report.mutable_hello()->set_protocol_version(kNodeProtocolVersion);
    report.mutable_hello()->set_host("h1");
    report.mutable_hello()->set_build(build);
    report.set_nonce(7);
    report.set_heartbeat(++heartbeat_);
    report.set_generation(order_.generation());
    report.set_order(order_.number());
    return report;
  }
  // The host is up, and a server is to run there.
  void StartServer() {
    service_.WithTable([](NodeTable* table) { table->BeginGeneration(1); });
    ASSERT_TRUE(stream_->Write(Report()) && stream_->Read(&order_));
    action::StartProcess start;
    start.id = {ProcessRole::kServer, 0, 1, 1};
    start.host = "h1";
    service_.WithTable([&start](NodeTable* table) { table->Start(start); });
    ASSERT_TRUE(stream_->Read(&order_));
    ASSERT_EQ(order_.wanted_size(), 1);
  }
  grpc::Status GetLog(LogLines* lines) {
    grpc::ClientContext context;
    LogRequest request;
    request.set_process("server 0");
    return stub_->GetLog(&context, request, lines);
  }

  NodeService service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<Controller::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<NodeReport, NodeOrder>> stream_;
  NodeOrder order_;  // The last that came.
  uint64_t heartbeat_ = 0;
};

TEST_F(NodeServiceTest, ANodeOfAnotherBuildIsRefused) {
  ASSERT_TRUE(stream_->Write(Report("theirs")));
  EXPECT_FALSE(stream_->Read(&order_));
  const grpc::Status end = stream_->Finish();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(end.error_message(), HasSubstr("host h1 is of another build: theirs"));
  EXPECT_THAT(end.error_message(), HasSubstr("ours"));
}

// Connects from loopback, and names an address: how the controller ends its stream, or that it
// takes orders.
grpc::Status RegisterAt(const std::string& address) {
  NodeTable::Options options = TableOptions();
  options.sign = [](const std::string&, ProcessRole, const std::string&) { return std::string(); };
  NodeService service(options, [] {});
  const auto server = *GrpcServer::Start(GrpcServer::Options(), {&service});
  const auto stub = Controller::NewStub(
      grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()));
  service.WithTable([](NodeTable* table) { table->BeginGeneration(1); });
  grpc::ClientContext context;
  const auto stream = stub->Attach(&context);
  NodeReport report;
  report.mutable_hello()->set_protocol_version(kNodeProtocolVersion);
  report.mutable_hello()->set_host("h1");
  report.mutable_hello()->set_build("ours");
  report.mutable_hello()->set_address(address);
  report.set_nonce(7);
  report.set_heartbeat(1);
  NodeOrder order;
  EXPECT_TRUE(stream->Write(report));
  const bool is_taken = stream->Read(&order);
  if (is_taken) context.TryCancel();
  const grpc::Status end = stream->Finish();
  server->Shutdown(0);
  return is_taken ? grpc::Status::OK : end;
}

TEST(NodeServiceAddressTest, AHostIsWhereItConnectsFrom) {
  EXPECT_TRUE(RegisterAt("127.0.0.1").ok());
  EXPECT_TRUE(RegisterAt("::1").ok()) << "the other address of this machine for itself";
  EXPECT_TRUE(RegisterAt("localhost").ok()) << "a name that leads there";
  for (const char* other : {"10.9.9.9", "host.invalid"}) {
    const grpc::Status end = RegisterAt(other);
    EXPECT_EQ(end.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(end.error_message(), HasSubstr(absl::StrCat("host h1 says that it is at ", other,
                                                            ", and connects from 127.0.0.1: ")));
  }
}

TEST_F(NodeServiceTest, LogsComeFromTheHost) {
  StartServer();
  LogLines lines;
  grpc::Status status;
  std::thread client([&] { status = GetLog(&lines); });
  ASSERT_TRUE(stream_->Read(&order_));
  ASSERT_EQ(order_.logs_size(), 1);
  NodeReport report = Report();
  LogLines* const answer = report.add_logs();
  answer->set_id(order_.logs(0).id());
  answer->add_lines("serving");
  ASSERT_TRUE(stream_->Write(report));
  client.join();
  EXPECT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(lines.lines_size(), 1);
  EXPECT_EQ(lines.lines(0), "serving");
}

TEST_F(NodeServiceTest, TheReasonOfAProcessComesAlong) {
  StartServer();
  NodeReport report = Report();
  ProcessReport* const process = report.add_processes();
  *process->mutable_id() = order_.wanted(0).id();
  process->mutable_end()->set_has_exit_code(true);
  process->mutable_end()->set_exit_code(1);
  process->mutable_end()->set_report("exited with code 1; its log: a");
  process->mutable_end()->set_reason("day.csv:17: no id");
  ASSERT_TRUE(stream_->Write(report) && stream_->Read(&order_));
  std::vector<JobEvent> events;
  service_.WithTable([&events](NodeTable* table) { events = table->TakeEvents(); });
  ASSERT_FALSE(events.empty());
  const auto* ended = std::get_if<event::ProcessEnded>(&events.back());
  ASSERT_NE(ended, nullptr);
  EXPECT_EQ(ended->end.exit_code, 1);
  EXPECT_EQ(ended->end.report, "on host h1 exited with code 1; its log: a");
  EXPECT_EQ(ended->end.reason, "day.csv:17: no id");
}

TEST_F(NodeServiceTest, AJobThatEndsRefusesLogsThatItsHostsHaveNotSent) {
  StartServer();
  LogLines lines;
  grpc::Status status;
  std::thread client([&] { status = GetLog(&lines); });
  ASSERT_TRUE(stream_->Read(&order_));  // It has been asked for.
  service_.Close(absl::ZeroDuration());
  client.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "the job has ended");
  EXPECT_EQ(GetLog(&lines).error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->Shutdown(0);  // Waits for all calls.
}

}  // namespace
}  // namespace thermocline
