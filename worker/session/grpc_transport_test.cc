// The transport against a server of protobuf's own classes, so that the two share no codec.
#include "worker/session/grpc_transport.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "common/net/grpc_server.h"
#include "proto/parameter_server.grpc.pb.h"
#include "tests/testing/test_certificates.h"

namespace thermocline {
namespace {

constexpr int64_t kDeadlineUs = 30'000'000;

class FakeServer final : public ParameterServer::Service {
 public:
  using PullHandler = std::function<grpc::Status(const PullRequest&, PullReply*)>;
  using PushHandler = std::function<grpc::Status(const PushRequest&, PushReply*)>;

  explicit FakeServer(const TlsFiles& tls = {}) {
    GrpcServer::Options options;
    options.tls = tls;
    auto started = GrpcServer::Start(options, {this});
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  ~FakeServer() override { Stop(); }
  void Stop() { server_->Shutdown(0); }

  const std::string& address() const { return server_->address(); }
  std::set<std::string> peers() {
    absl::MutexLock lock(&mutex_);
    return peers_;
  }

  grpc::Status Pull(grpc::ServerContext* context, const PullRequest* request,
                    PullReply* reply) override {
    {
      absl::MutexLock lock(&mutex_);
      peers_.insert(context->peer());
    }
    return on_pull(*request, reply);
  }
  grpc::Status Push(grpc::ServerContext*, const PushRequest* request, PushReply* reply) override {
    return on_push(*request, reply);
  }

  PullHandler on_pull;
  PushHandler on_push;

 private:
  absl::Mutex mutex_;
  std::set<std::string> peers_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcServer> server_;
};

std::unique_ptr<GrpcTransport> Connect(const std::string& address, int channels = 2,
                                       int max_message_bytes = kDefaultMaxMessageBytes,
                                       const TlsFiles& tls = {}) {
  GrpcTransport::Options options;
  options.addresses = {address};
  options.channels_per_server = channels;
  options.max_message_bytes = max_message_bytes;
  options.tls = tls;
  auto transport = GrpcTransport::Create(options);
  EXPECT_TRUE(transport.ok()) << transport.status();
  return *std::move(transport);
}

absl::StatusOr<wire::PullAnswer> PullAndWait(GrpcTransport* transport, const PullCall& call,
                                             int64_t deadline_us = kDeadlineUs) {
  absl::StatusOr<wire::PullAnswer> result;
  absl::Notification done;
  transport->Pull(ServerIndex(0), call, deadline_us, [&](absl::StatusOr<wire::PullAnswer> answer) {
    result = std::move(answer);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

absl::StatusOr<wire::PushAnswer> PushAndWait(GrpcTransport* transport, const PushCall& call) {
  absl::StatusOr<wire::PushAnswer> result;
  absl::Notification done;
  transport->Push(ServerIndex(0), call, kDeadlineUs, [&](absl::StatusOr<wire::PushAnswer> answer) {
    result = std::move(answer);
    done.Notify();
  });
  done.WaitForNotification();
  return result;
}

struct TwoTables {
  std::vector<Key> keys_a = {7, 8, 9}, keys_b = {1};
  std::vector<float> rows_a = std::vector<float>(6), rows_b = std::vector<float>(4);

  PullCall MakeCall() {
    PullCall call;
    call.header = {"job", 3, WorkerRank(2), Step(4)};
    call.step = Step(6);
    call.staleness_steps = 1;
    call.after_step = Step(5);
    call.tables = {{TableId(10), keys_a, absl::MakeSpan(rows_a)},
                   {TableId(11), keys_b, absl::MakeSpan(rows_b)}};
    return call;
  }
};

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

void ExpectError(const absl::Status& status, absl::StatusCode code,
                 const std::vector<std::string>& chunks) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& chunk : chunks) {
    EXPECT_TRUE(absl::StrContains(status.message(), chunk)) << status << " lacks '" << chunk << "'";
  }
}

TEST(GrpcTransport, PullArrivesAndItsRowsComeBack) {
  FakeServer server;
  server.on_pull = [](const PullRequest& request, PullReply* reply) {
    EXPECT_EQ(request.header().job_id(), "job");
    EXPECT_EQ(request.header().generation(), 3u);
    EXPECT_EQ(request.header().worker_rank(), 2u);
    EXPECT_EQ(request.header().acked_through(), 4);
    EXPECT_EQ(request.kind(), PullRequest::TRAIN);
    EXPECT_EQ(request.step(), 6);
    EXPECT_EQ(request.staleness_steps(), 1u);
    EXPECT_EQ(request.after_step(), 5);
    EXPECT_FALSE(request.with_state());
    EXPECT_EQ(request.tables_size(), 2);
    EXPECT_EQ(request.tables(0).table(), 10u);
    Key keys[3];
    EXPECT_EQ(request.tables(0).keys().size(), sizeof(keys));
    std::memcpy(keys, request.tables(0).keys().data(), sizeof(keys));
    EXPECT_EQ(keys[2], 9u);
    reply->set_complete_through(5);
    reply->add_tables()->set_table(10);
    reply->mutable_tables(0)->set_rows(Floats({1, 2, 3, 4, 5, 6}));
    reply->add_tables()->set_table(11);
    reply->mutable_tables(1)->set_rows(Floats({7, 8, 9, 10}));
    return grpc::Status::OK;
  };
  const auto transport = Connect(server.address());
  TwoTables tables;
  const auto answer = PullAndWait(transport.get(), tables.MakeCall());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->readiness, wire::Readiness::kReady);
  EXPECT_EQ(answer->complete_through, Step(5));
  EXPECT_EQ(tables.rows_a, std::vector<float>({1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tables.rows_b, std::vector<float>({7, 8, 9, 10}));
}

TEST(GrpcTransport, APullMayAskForTheStateToo) {
  FakeServer server;
  server.on_pull = [](const PullRequest& request, PullReply* reply) {
    EXPECT_TRUE(request.with_state());
    reply->set_complete_through(5);
    reply->add_tables()->set_table(10);
    reply->mutable_tables(0)->set_rows(Floats({1, 2, 3, 4, 5, 6}));
    reply->add_tables()->set_table(11);
    reply->mutable_tables(1)->set_rows(Floats({7, 8, 9, 10}));
    return grpc::Status::OK;
  };
  const auto transport = Connect(server.address());
  TwoTables tables;
  PullCall call = tables.MakeCall();
  call.with_state = true;
  EXPECT_TRUE(PullAndWait(transport.get(), call).ok());
  EXPECT_EQ(tables.rows_b, std::vector<float>({7, 8, 9, 10}));
}

TEST(GrpcTransport, PushArrives) {
  FakeServer server;
  server.on_push = [](const PushRequest& request, PushReply* reply) {
    EXPECT_EQ(request.step(), 4);
    EXPECT_EQ(request.chunk(), 1u);
    EXPECT_EQ(request.num_chunks(), 2u);
    EXPECT_EQ(request.learning_rate(), 0.5f);
    EXPECT_EQ(request.tables_size(), 1);
    EXPECT_EQ(request.tables(0).kind(), TablePush::ASSIGN);
    EXPECT_EQ(request.tables(0).values(), Floats({1, 2, 3, 4}));
    EXPECT_EQ(request.tables(0).keys().size(), 16u);
    EXPECT_EQ(request.tables(0).counts().size(), 8u);
    reply->set_accepted_through(4);
    return grpc::Status::OK;
  };
  const auto transport = Connect(server.address());
  const std::vector<Key> keys = {5, 6};
  const std::vector<uint32_t> counts = {1, 2};
  const std::vector<float> values = {1, 2, 3, 4};
  PushCall call;
  call.step = Step(4);
  call.chunk = 1;
  call.num_chunks = 2;
  call.learning_rate = 0.5f;
  call.tables = {{TableId(1), wire::PushKind::kAssign, keys, counts, values}};
  const auto answer = PushAndWait(transport.get(), call);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->accepted_through, Step(4));
}

TEST(GrpcTransport, TakesItsChannelsInTurn) {
  FakeServer server;
  server.on_pull = [](const PullRequest&, PullReply*) { return grpc::Status::OK; };
  const auto transport = Connect(server.address(), /*channels=*/3);
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(PullAndWait(transport.get(), PullCall()).ok());
  EXPECT_EQ(server.peers().size(), 3u);  // three connections
}

TEST(GrpcTransport, ErrorsOfTheServerNameTheCall) {
  FakeServer server;
  server.on_pull = [](const PullRequest&, PullReply*) {
    return grpc::Status(grpc::StatusCode::DATA_LOSS, "the ledger is behind");
  };
  server.on_push = [](const PushRequest&, PushReply*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no table");
  };
  const auto transport = Connect(server.address());
  TwoTables tables;
  ExpectError(PullAndWait(transport.get(), tables.MakeCall()).status(), absl::StatusCode::kDataLoss,
              {"Pull for step 6", "2 tables", "4 keys", "server 0", server.address(),
               "the ledger is behind"});
  PushCall push;
  push.step = Step(8);
  ExpectError(PushAndWait(transport.get(), push).status(), absl::StatusCode::kNotFound,
              {"Push for step 8 (", "server 0", "no table"});
}

TEST(GrpcTransport, WrongRepliesAreInternalErrors) {
  FakeServer server;
  server.on_pull = [](const PullRequest&, PullReply* reply) {
    reply->add_tables()->set_table(10);
    reply->mutable_tables(0)->set_rows("too short");
    return grpc::Status::OK;
  };
  const auto transport = Connect(server.address());
  TwoTables tables;
  ExpectError(PullAndWait(transport.get(), tables.MakeCall()).status(), absl::StatusCode::kInternal,
              {"Pull for step 6", "reply"});
}

TEST(GrpcTransport, NobodyThereIsUnavailable) {
  std::string address;
  {
    FakeServer server;
    address = server.address();
  }
  const auto transport = Connect(address);
  ExpectError(PullAndWait(transport.get(), PullCall()).status(), absl::StatusCode::kUnavailable,
              {address});
}

TEST(GrpcTransport, RequestsOverTheLimitAreNotSent) {
  FakeServer server;  // Has no handlers: a call would throw.
  const auto transport = Connect(server.address(), 1, /*max_message_bytes=*/1000);
  const std::vector<Key> keys(200);
  std::vector<float> rows(200);
  PullCall call;
  call.tables = {{TableId(1), keys, absl::MakeSpan(rows)}};
  ExpectError(PullAndWait(transport.get(), call).status(), absl::StatusCode::kOutOfRange,
              {"200 keys", "limit is 1000"});
}

// A request or reply over gRPC's own limit does not mean that the server is full.
TEST(GrpcTransport, MessagesOverGrpcsOwnLimitAreOutOfRange) {
  FakeServer server;
  server.on_pull = [](const PullRequest&, PullReply* reply) {
    reply->add_tables()->set_rows(std::string(kMessageSlackBytes + 2000, 'x'));
    return grpc::Status::OK;
  };
  server.on_push = [](const PushRequest&, PushReply*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "come again");
  };
  const auto small = Connect(server.address(), 1, /*max_message_bytes=*/1000);
  ExpectError(PullAndWait(small.get(), PullCall()).status(), absl::StatusCode::kOutOfRange,
              {"larger than max"});
  ExpectError(PushAndWait(small.get(), PushCall()).status(), absl::StatusCode::kResourceExhausted,
              {"come again"});

  const auto large = Connect(server.address(), 1, 64 << 20);  // More than the server's.
  const std::vector<Key> keys(1 << 20);
  std::vector<float> rows(1 << 20);
  PullCall call;
  call.tables = {{TableId(1), keys, absl::MakeSpan(rows)}};
  ExpectError(PullAndWait(large.get(), call).status(), absl::StatusCode::kOutOfRange,
              {"1048576 keys", "larger than max"});
}

TEST(GrpcTransport, DeadlinesAndDestructionEndCalls) {
  absl::Notification release;
  FakeServer server;  // Its end waits for the calls that it still holds.
  server.on_pull = [&](const PullRequest&, PullReply*) {
    release.WaitForNotification();
    return grpc::Status::OK;
  };
  auto transport = Connect(server.address());
  ExpectError(PullAndWait(transport.get(), PullCall(), /*deadline_us=*/1000).status(),
              absl::StatusCode::kDeadlineExceeded, {"Pull for step 0"});
  absl::Status cancelled;
  transport->Pull(
      ServerIndex(0), PullCall(), kDeadlineUs,
      [&](const absl::StatusOr<wire::PullAnswer>& answer) { cancelled = answer.status(); });
  transport.reset();  // Waits for `done`.
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled) << cancelled;
  release.Notify();
}

// A caller does not wait for its messages, nor need it keep more than what the spans point to.
TEST(GrpcTransport, AnotherThreadSendsWhatTheSpansPointTo) {
  FakeServer server;
  server.on_push = [](const PushRequest& request, PushReply*) {
    EXPECT_EQ(request.tables(0).values(), Floats({1, 2}));
    return grpc::Status::OK;
  };
  const auto transport = Connect(server.address(), /*channels=*/1, /*max_message_bytes=*/1000);
  const std::vector<Key> keys(200);
  std::vector<float> rows(200);
  const std::vector<uint32_t> counts = {1};
  const std::vector<float> values = {1, 2};
  absl::Notification all_called, pushed;
  {
    PullCall too_large;
    too_large.tables = {{TableId(1), keys, absl::MakeSpan(rows)}};
    transport->Pull(ServerIndex(0), too_large, kDeadlineUs,
                    [&, caller = std::this_thread::get_id()](const auto& answer) {
                      EXPECT_EQ(answer.status().code(), absl::StatusCode::kOutOfRange);
                      EXPECT_NE(std::this_thread::get_id(), caller);
                      all_called.WaitForNotification();  // The thread that sends waits here.
                    });
    PushCall push;
    push.tables = {
        {TableId(1), wire::PushKind::kGradient, absl::MakeSpan(keys).first(1), counts, values}};
    transport->Push(ServerIndex(0), push, kDeadlineUs, [&](const auto& answer) {
      EXPECT_TRUE(answer.ok()) << answer.status();
      pushed.Notify();
    });
  }
  all_called.Notify();
  pushed.WaitForNotification();
}

// A server that gets SIGTERM cancels calls; its client takes that as it takes its death.
TEST(GrpcTransport, ACallThatAServerCancelsIsUnavailable) {
  FakeServer server;
  server.on_pull = [&](const PullRequest&, PullReply*) { return grpc::Status::CANCELLED; };
  const auto transport = Connect(server.address());
  ExpectError(PullAndWait(transport.get(), PullCall()).status(), absl::StatusCode::kUnavailable,
              {"Pull for step 0 (0 tables, 0 keys) to server 0 at ", "without an answer"});
}

TEST(GrpcTransport, CloseEndsCallsThatAServerHolds) {
  absl::Notification entered, release;
  FakeServer server;  // Its end waits for the call that it still holds.
  server.on_pull = [&](const PullRequest&, PullReply*) {
    entered.Notify();
    release.WaitForNotification();
    return grpc::Status::OK;
  };
  const auto transport = Connect(server.address());
  absl::Notification ended;
  absl::Status cancelled;
  transport->Pull(ServerIndex(0), PullCall(), kDeadlineUs,
                  [&](const absl::StatusOr<wire::PullAnswer>& answer) {
                    cancelled = answer.status();
                    ended.Notify();
                  });
  entered.WaitForNotification();
  transport->Close();
  ended.WaitForNotification();  // While the server still holds it.
  EXPECT_EQ(cancelled.code(), absl::StatusCode::kCancelled) << cancelled;
  ExpectError(PullAndWait(transport.get(), PullCall()).status(), absl::StatusCode::kCancelled,
              {"Pull for step 0", "closed"});
  release.Notify();
}

TEST(GrpcTransport, BadOptionsAreRefused) {
  GrpcTransport::Options options;
  options.channels_per_server = 0;
  EXPECT_EQ(GrpcTransport::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.channels_per_server = 1;
  options.tls.certificate = "/no/such/file.pem";
  EXPECT_EQ(GrpcTransport::Create(options).status().code(), absl::StatusCode::kNotFound);
}

TEST(GrpcTransport, SpeaksTls) {
  const TlsFiles files = MakeTestCertificates(::testing::TempDir(), "transport");
  FakeServer server(files);
  server.on_pull = [](const PullRequest&, PullReply*) { return grpc::Status::OK; };
  const auto good = Connect(server.address(), 2, kDefaultMaxMessageBytes, files);
  EXPECT_TRUE(PullAndWait(good.get(), PullCall()).ok());
  const auto plain = Connect(server.address());
  EXPECT_EQ(PullAndWait(plain.get(), PullCall()).status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace thermocline
