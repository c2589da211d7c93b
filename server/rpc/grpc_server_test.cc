// How a server listens, and what a client without our code sees of it.
#include "common/net/grpc_server.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/descriptor_database.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/net/rpc.h"
#include "server/rpc/testing/served_core.h"
#include "tests/testing/test_certificates.h"

namespace thermocline {
namespace {

using namespace testing_rpc;  // NOLINT: the words of these tests

TEST(GrpcServer, APortInUseIsNamed) {
  ServedCore first;
  GrpcServer::Options options;
  options.address = first.server->address();
  ExpectError(GrpcServer::Start(options, {}).status(), absl::StatusCode::kUnavailable,
              {first.server->address(), "Address already in use"});
}

TEST(GrpcServer, BadAddressesAreInvalid) {
  for (const char* address : {"", "127.0.0.1", "127.0.0.1:http", "127.0.0.1:70000", ":5"}) {
    GrpcServer::Options options;
    options.address = address;
    EXPECT_EQ(GrpcServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << address;
  }
}

TEST(GrpcServer, MutualTls) {
  const TlsFiles ours = MakeTestCertificates(::testing::TempDir(), "ours");
  const TlsFiles theirs = MakeTestCertificates(::testing::TempDir(), "theirs");
  ServedCore server({}, ours, ours);
  EXPECT_TRUE(server.control->GetStats(kTimeout).ok());
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  EXPECT_TRUE(server.Pull(PullOf(0, {1})).ok());

  const auto refused = [&](const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub = ParameterServer::NewStub(
        OpenChannel(server.server->address(), credentials, kDefaultMaxMessageBytes));
    grpc::ClientContext context;
    ServerStats stats;
    return FromGrpcStatus(stub->GetStats(&context, GetStatsRequest(), &stats));
  };
  // No client certificate; plain text; a certificate of another CA; another CA trusted.
  const auto text_of = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  // MakeChannelCredentials refuses such files by itself; a stranger's program need not.
  const auto unchecked = [&](const TlsFiles& own, const TlsFiles& trusted) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = text_of(trusted.ca);
    options.pem_cert_chain = text_of(own.certificate);
    options.pem_private_key = text_of(own.private_key);
    return grpc::SslCredentials(options);
  };
  ASSERT_TRUE(refused(unchecked(ours, ours)).ok());
  grpc::SslCredentialsOptions no_certificate;
  no_certificate.pem_root_certs = text_of(ours.ca);
  EXPECT_EQ(refused(grpc::SslCredentials(no_certificate)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(refused(grpc::InsecureChannelCredentials()).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(refused(unchecked(theirs, ours)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(refused(unchecked(ours, theirs)).code(), absl::StatusCode::kUnavailable);
}

// What a role may do of a method: the methods themselves are tested in common/net.
TEST(GrpcServer, RolesWithinAMethod) {
  const std::string folder = ::testing::TempDir() + "/roles-within";
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(WriteCertificates(*CertificateAuthority::Create("job"), folder,
                                {Role::kController, Role::kServer, Role::kWorker, Role::kReader},
                                {"127.0.0.1"}, absl::Hours(1))
                  .ok());
  ServedCore server({}, TlsFilesIn(folder, Role::kServer), TlsFilesIn(folder, Role::kController));
  RpcClient worker(server.server->address(), TlsFilesIn(folder, Role::kWorker));
  RpcClient reader(server.server->address(), TlsFilesIn(folder, Role::kReader));

  // A worker looks whether the server is configured, and configures nothing.
  ConfigureRequest job = JobOf(1);
  ExpectError(worker.control->Configure(job, kTimeout).status(),
              absl::StatusCode::kPermissionDenied, {"role worker", "Configure", "controller"});
  EXPECT_FALSE(server.control->GetStats(kTimeout)->configured());
  ASSERT_TRUE(server.Configure(job).ok());
  job.set_check_only(true);
  EXPECT_TRUE(worker.control->Configure(job, kTimeout).ok());
  ExpectError(reader.control->Configure(job, kTimeout).status(),
              absl::StatusCode::kPermissionDenied, {"role reader", "Configure"});

  PullRequest read = PullOf(0, {1});
  read.set_kind(PullRequest::READ);
  EXPECT_TRUE(worker.Pull(PullOf(0, {1})).ok());
  EXPECT_TRUE(worker.Pull(read).ok());
  EXPECT_TRUE(reader.Pull(read).ok());
  ExpectError(reader.Pull(PullOf(0, {1})), absl::StatusCode::kPermissionDenied,
              {"Pull at server 0", "role reader", "Pull of kind TRAIN", "worker"});
  ExpectError(reader.Push(PushOf(0, {1}, {1, 2, 3, 4})), absl::StatusCode::kPermissionDenied,
              {"role reader", "Push", "worker"});
  EXPECT_EQ(server.control->GetStats(kTimeout)->pushes_accepted(), 0u);
  EXPECT_TRUE(worker.Push(PushOf(0, {1}, {1, 2, 3, 4})).ok());
}

// ---- What a client without our code sees.

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// Calls a method with one serialized message and takes the first reply.
absl::StatusOr<std::string> CallRaw(const std::shared_ptr<grpc::Channel>& channel,
                                    const std::string& method, const std::string& request) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  void* tag;
  bool ok = false;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  stream->StartCall(nullptr);
  queue.Next(&tag, &ok);
  const grpc::Slice slice(request);
  stream->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  queue.Next(&tag, &ok);
  grpc::ByteBuffer reply;
  stream->Read(&reply, nullptr);
  queue.Next(&tag, &ok);
  const std::string bytes = ok ? ToString(reply) : "";
  grpc::Status status;
  stream->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
  if (!status.ok()) return FromGrpcStatus(status);
  return bytes;
}

constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

// The nested message or string that is field `number` of `bytes`, each time it occurs.
std::vector<std::string> Field(const std::string& bytes, int number) {
  google::protobuf::UnknownFieldSet fields;
  EXPECT_TRUE(fields.ParseFromString(bytes));
  std::vector<std::string> found;
  for (int i = 0; i < fields.field_count(); ++i) {
    if (fields.field(i).number() == number) found.push_back(fields.field(i).length_delimited());
  }
  return found;
}

TEST(GrpcServer, AnswersTheStandardHealthService) {
  ServedCore server;
  const auto reply = CallRaw(server.channel, "/grpc.health.v1.Health/Check", "");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, "\x08\x01");  // HealthCheckResponse{status: SERVING}
  // HealthCheckRequest{service}
  const std::string name = ParameterServer::service_full_name();
  const std::string named = "\x0a" + std::string(1, name.size()) + name;
  const auto by_name = CallRaw(server.channel, "/grpc.health.v1.Health/Check", named);
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_EQ(*by_name, "\x08\x01");
  EXPECT_EQ(CallRaw(server.channel, "/grpc.health.v1.Health/Check", "\x0a\x01x").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(GrpcServer, StatsAreReadableThroughReflectionAlone) {
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  // ServerReflectionRequest.list_services = 7; ...Response.list_services_response = 6.
  const auto list = CallRaw(server.channel, kReflection, "\x3a\x01*");
  ASSERT_TRUE(list.ok()) << list.status();
  std::vector<std::string> services;
  for (const std::string& service : Field(Field(*list, 6).at(0), 1)) {
    services.push_back(Field(service, 1).at(0));
  }
  EXPECT_EQ(std::count(services.begin(), services.end(), "thermocline.ParameterServer"), 1);

  // file_containing_symbol = 4; file_descriptor_response = 4, file_descriptor_proto = 1 in it.
  const std::string symbol = "thermocline.ParameterServer";
  const auto files =
      CallRaw(server.channel, kReflection, "\x22" + std::string(1, symbol.size()) + symbol);
  ASSERT_TRUE(files.ok()) << files.status();
  google::protobuf::SimpleDescriptorDatabase database;
  for (const std::string& bytes : Field(Field(*files, 4).at(0), 1)) {
    google::protobuf::FileDescriptorProto file;
    ASSERT_TRUE(file.ParseFromString(bytes));
    database.Add(file);
  }
  google::protobuf::DescriptorPool pool(&database);
  const auto* service = pool.FindServiceByName(symbol);
  ASSERT_NE(service, nullptr);
  const auto* method = service->FindMethodByName("GetStats");
  ASSERT_NE(method, nullptr);

  const auto bytes = CallRaw(server.channel, "/" + symbol + "/GetStats", "");
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  google::protobuf::DynamicMessageFactory factory(&pool);
  const std::unique_ptr<google::protobuf::Message> stats(
      factory.GetPrototype(method->output_type())->New());
  ASSERT_TRUE(stats->ParseFromString(*bytes));
  const auto* reflection = stats->GetReflection();
  const auto* descriptor = stats->GetDescriptor();
  EXPECT_EQ(reflection->GetString(*stats, descriptor->FindFieldByName("job_id")), "job");
  EXPECT_GT(reflection->GetDouble(*stats, descriptor->FindFieldByName("uptime_s")), 0);
  EXPECT_EQ(reflection->FieldSize(*stats, descriptor->FindFieldByName("tables")), 1);
}

}  // namespace
}  // namespace thermocline
