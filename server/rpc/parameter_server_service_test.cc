// A real server on a free port, spoken to through protobuf's own classes, as any client would.
#include "server/rpc/parameter_server_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/descriptor_database.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/completion_queue.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/net/control_client.h"
#include "common/net/grpc_server.h"
#include "common/net/status.h"
#include "common/net/test_certificates.h"
#include "common/scheduler.h"
#include "common/wire/messages.h"

namespace thermocline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr int kDim = 4;

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}
std::string Keys(const std::vector<Key>& keys) {
  return std::string(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(Key));
}
std::vector<float> ToFloats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

ConfigureRequest JobOf(uint32_t workers) {
  ConfigureRequest request;
  request.set_protocol_version(wire::kProtocolVersion);
  request.set_job_id("job");
  request.set_epoch(7);
  request.set_num_servers(1);
  request.set_num_workers(workers);
  request.set_seed(5);
  TableSpec* table = request.add_tables();
  table->set_id(3);
  table->set_name("C3");
  table->set_dim(kDim);
  table->mutable_optimizer()->mutable_sgd();
  table->set_init_scale(0.5f);
  return request;
}

void FillHeader(RequestHeader* header, int64_t acked_through = -1) {
  header->set_job_id("job");
  header->set_epoch(7);
  if (acked_through >= 0) header->set_acked_through(acked_through);
}

PullRequest PullOf(int64_t step, const std::vector<Key>& keys) {
  PullRequest pull;
  FillHeader(pull.mutable_header());
  pull.set_step(step);
  if (step > 0) pull.set_after_step(step - 1);
  pull.add_tables()->set_table(3);
  pull.mutable_tables(0)->set_keys(Keys(keys));
  return pull;
}

PushRequest PushOf(int64_t step, const std::vector<Key>& keys, const std::vector<float>& values) {
  PushRequest push;
  FillHeader(push.mutable_header());
  push.set_first_step(step);
  push.set_last_step(step);
  push.set_num_parts(1);
  push.set_learning_rate(1.0f);
  TablePush* table = push.add_tables();
  table->set_table(3);
  table->set_keys(Keys(keys));
  table->set_values(Floats(values));
  const std::vector<uint32_t> counts(keys.size(), 1);
  table->set_counts(std::string(reinterpret_cast<const char*>(counts.data()), counts.size() * 4));
  return push;
}

// A served core. `tls` of the client may differ from the server's.
struct TestServer {
  explicit TestServer(ServiceOptions service_options = {}, TlsFiles server_tls = {},
                      TlsFiles client_tls = {}, ServerLimits limits = {},
                      Scheduler* other_scheduler = nullptr) {
    core = std::make_unique<ServerCore>(limits,
                                        other_scheduler != nullptr ? other_scheduler : &scheduler);
    service = std::make_unique<ParameterServerService>(service_options, core.get());
    GrpcServer::Options options;
    options.tls = server_tls;
    options.max_message_bytes = service_options.max_message_bytes;
    auto started = GrpcServer::Start(options, {service.get()});
    EXPECT_TRUE(started.ok()) << started.status();
    server = *std::move(started);
    channel = OpenChannel(server->address(), *MakeChannelCredentials(client_tls), 64 << 20);
    stub = ParameterServer::NewStub(channel);
    control = *ControlClient::Create(server->address(), client_tls);
  }
  ~TestServer() {
    core->Shutdown();
    server->Shutdown(0);
  }

  absl::Status Configure(const ConfigureRequest& request) {
    return control->Configure(request, kTimeout).status();
  }
  absl::Status Pull(const PullRequest& request, PullReply* reply) {
    grpc::ClientContext context;
    return FromGrpcStatus(stub->Pull(&context, request, reply));
  }
  absl::Status Pull(const PullRequest& request) {
    PullReply reply;
    return Pull(request, &reply);
  }
  absl::Status Push(const PushRequest& request, PushReply* reply) {
    grpc::ClientContext context;
    return FromGrpcStatus(stub->Push(&context, request, reply));
  }
  absl::Status Push(const PushRequest& request) {
    PushReply reply;
    return Push(request, &reply);
  }

  // Until so many pulls are held; each poll is a round trip.
  void AwaitPullsWaiting(uint64_t pulls) {
    const absl::Time deadline = absl::Now() + kTimeout;
    while (true) {
      const auto stats = control->GetStats(kTimeout);
      ASSERT_TRUE(stats.ok()) << stats.status();
      if (stats->pulls_waiting() == pulls) return;
      ASSERT_LT(absl::Now(), deadline) << stats->pulls_waiting() << " pulls wait, not " << pulls;
    }
  }

  ThreadScheduler scheduler;
  std::unique_ptr<ServerCore> core;
  std::unique_ptr<ParameterServerService> service;
  std::unique_ptr<GrpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<ParameterServer::Stub> stub;
  std::unique_ptr<ControlClient> control;
};

void ExpectError(const absl::Status& status, absl::StatusCode code,
                 const std::vector<std::string>& parts) {
  EXPECT_EQ(status.code(), code) << status;
  for (const std::string& part : parts) {
    EXPECT_TRUE(absl::StrContains(status.message(), part)) << status << " lacks '" << part << "'";
  }
}

TEST(ParameterServerService, PullPushPull) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullReply before;
  ASSERT_TRUE(server.Pull(PullOf(0, {11, 12}), &before).ok());
  EXPECT_EQ(before.readiness(), READY);
  EXPECT_FALSE(before.has_complete_through());
  ASSERT_EQ(before.tables_size(), 1);
  EXPECT_EQ(before.tables(0).table(), 3u);
  const std::vector<float> initial = ToFloats(before.tables(0).rows());
  ASSERT_EQ(initial.size(), 2u * kDim);

  PushReply pushed;
  ASSERT_TRUE(server.Push(PushOf(0, {12}, {1, 2, 3, 4}), &pushed).ok());
  EXPECT_EQ(pushed.readiness(), READY);
  EXPECT_EQ(pushed.accepted_through(), 0);

  PullReply after;
  ASSERT_TRUE(server.Pull(PullOf(1, {11, 12}), &after).ok());  // held until step 0 is applied
  EXPECT_EQ(after.readiness(), READY);
  EXPECT_EQ(after.complete_through(), 0);
  std::vector<float> expected = initial;
  for (int i = 0; i < kDim; ++i) expected[kDim + i] -= 1.0f + i;  // SGD at rate 1
  EXPECT_EQ(ToFloats(after.tables(0).rows()), expected);
}

TEST(ParameterServerService, APullWithSlotsBringsWholeRows) {
  TestServer server;
  ConfigureRequest job = JobOf(1);
  job.mutable_tables(0)->mutable_optimizer()->mutable_adagrad()->set_initial_accumulator(0.5f);
  ASSERT_TRUE(server.Configure(job).ok());
  PushReply pushed;
  ASSERT_TRUE(server.Push(PushOf(0, {12}, {1, 2, 3, 4}), &pushed).ok());

  PullRequest request = PullOf(1, {11, 12});
  PullReply weights, rows;
  ASSERT_TRUE(server.Pull(request, &weights).ok());
  request.set_with_slots(true);
  ASSERT_TRUE(server.Pull(request, &rows).ok());
  const std::vector<float> w = ToFloats(weights.tables(0).rows());
  const std::vector<float> r = ToFloats(rows.tables(0).rows());
  ASSERT_EQ(w.size(), 2u * kDim);
  ASSERT_EQ(r.size(), 4u * kDim);
  for (int i = 0; i < kDim; ++i) {
    EXPECT_EQ(r[i], w[i]);  // Key 11 has no row: its initial one.
    EXPECT_EQ(r[kDim + i], 0.5f);
    EXPECT_EQ(r[2 * kDim + i], w[kDim + i]);
    EXPECT_EQ(r[3 * kDim + i], 0.5f + (1.0f + i) * (1.0f + i));
  }
}

TEST(ParameterServerService, AHeldPullIsAnsweredByThePushItWaitsFor) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  // More held pulls than the server has threads of any kind.
  constexpr int kHeld = 64;
  struct HeldPull {
    grpc::ClientContext context;
    PullRequest request;
    PullReply reply;
    grpc::Status status;
    absl::Notification done;
  };
  std::vector<std::unique_ptr<HeldPull>> held;
  for (int i = 0; i < kHeld; ++i) {
    held.push_back(std::make_unique<HeldPull>());
    HeldPull* pull = held.back().get();
    pull->request = PullOf(1, {static_cast<Key>(i)});
    server.stub->async()->Pull(&pull->context, &pull->request, &pull->reply,
                               [pull](grpc::Status status) {
                                 pull->status = status;
                                 pull->done.Notify();
                               });
  }
  server.AwaitPullsWaiting(kHeld);
  for (const auto& pull : held) EXPECT_FALSE(pull->done.HasBeenNotified());
  ASSERT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  for (const auto& pull : held) {
    pull->done.WaitForNotification();
    ASSERT_TRUE(pull->status.ok()) << pull->status.error_message();
    EXPECT_EQ(pull->reply.readiness(), READY);
    EXPECT_EQ(pull->reply.complete_through(), 0);
  }
}

TEST(ParameterServerService, AServerWithoutAJobRefusesData) {
  TestServer server;
  ExpectError(server.Pull(PullOf(0, {1})), absl::StatusCode::kUnavailable,
              {"Pull at a server without a job", "not configured"});
  ExpectError(server.Push(PushOf(0, {1}, {1, 2, 3, 4})), absl::StatusCode::kUnavailable,
              {"Push at a server without a job", "not configured"});
  ExpectError(server.control->GetDigest("job", 7, kTimeout).status(),
              absl::StatusCode::kUnavailable, {"GetDigest", "not configured"});
  EXPECT_FALSE(server.control->GetStats(kTimeout)->configured());
}

TEST(ParameterServerService, ConfigureIsIdempotentAndNamesDifferences) {
  TestServer server;
  ConfigureRequest other_version = JobOf(1);
  other_version.set_protocol_version(wire::kProtocolVersion + 41);
  ExpectError(server.Configure(other_version), absl::StatusCode::kFailedPrecondition,
              {"version 42", "version 1"});
  ConfigureRequest other_features = JobOf(1);
  other_features.set_feature_bits(0x30);
  ExpectError(server.Configure(other_features), absl::StatusCode::kFailedPrecondition,
              {"features 0x30"});
  ConfigureRequest no_optimizer = JobOf(1);
  no_optimizer.mutable_tables(0)->clear_optimizer();
  ExpectError(server.Configure(no_optimizer), absl::StatusCode::kInvalidArgument, {"C3"});
  ConfigureRequest no_dim = JobOf(1);
  no_dim.mutable_tables(0)->set_dim(0);
  ExpectError(server.Configure(no_dim), absl::StatusCode::kInvalidArgument, {"C3", "dim"});

  const auto reply = server.control->Configure(JobOf(1), kTimeout);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->protocol_version(), wire::kProtocolVersion);
  EXPECT_EQ(reply->feature_bits(), wire::kFeatureBits);
  EXPECT_TRUE(server.Configure(JobOf(1)).ok());
  ConfigureRequest other_dim = JobOf(1);
  other_dim.mutable_tables(0)->set_dim(8);
  ExpectError(server.Configure(other_dim), absl::StatusCode::kFailedPrecondition,
              {"C3", "dim", "4", "8"});
  ExpectError(server.Configure(JobOf(2)), absl::StatusCode::kFailedPrecondition, {"worker"});
}

TEST(ParameterServerService, AServerStartedForAJobRefusesOthers) {
  ServiceOptions options;
  options.job_id = "another";
  TestServer server(options);
  ExpectError(server.Configure(JobOf(1)), absl::StatusCode::kFailedPrecondition,
              {"'another'", "'job'"});
}

TEST(ParameterServerService, StrangersAreRefused) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest pull = PullOf(0, {1});
  pull.mutable_header()->set_job_id("other");
  ExpectError(server.Pull(pull), absl::StatusCode::kFailedPrecondition,
              {"Pull at server 0", "step 0", "1 tables", "1 keys", "other"});
  pull = PullOf(0, {1});
  pull.mutable_header()->set_epoch(8);
  ExpectError(server.Pull(pull), absl::StatusCode::kFailedPrecondition, {"epoch", "8", "7"});
  PushRequest push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_header()->set_job_id("other");
  ExpectError(server.Push(push), absl::StatusCode::kFailedPrecondition,
              {"Push at server 0", "steps 0..0", "1 keys", "other"});
  push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_header()->set_epoch(6);
  ExpectError(server.Push(push), absl::StatusCode::kFailedPrecondition, {"epoch", "6", "7"});
  ExpectError(server.control->GetDigest("other", 7, kTimeout).status(),
              absl::StatusCode::kFailedPrecondition, {"other"});
}

TEST(ParameterServerService, AReaderNeedsNeitherRankNorAcknowledgement) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest read = PullOf(0, {1});
  read.set_kind(PullRequest::READ);
  read.clear_after_step();
  read.mutable_header()->clear_acked_through();
  EXPECT_TRUE(server.Pull(read).ok());
  read.mutable_header()->set_acked_through(0);
  EXPECT_TRUE(server.Pull(read).ok());
  // A worker that was acknowledged step 0 knows of more than this server.
  read.set_kind(PullRequest::TRAIN);
  EXPECT_EQ(server.Pull(read).code(), absl::StatusCode::kDataLoss);
}

TEST(ParameterServerService, AKeyTwiceInAPushIsRefused) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ExpectError(server.Push(PushOf(0, {6, 6}, {1, 2, 3, 4, 5, 6, 7, 8})),
              absl::StatusCode::kInvalidArgument, {"Push at server 0", "key 6 of table 3 twice"});
  EXPECT_TRUE(server.Push(PushOf(0, {6}, {1, 2, 3, 4})).ok());
}

TEST(ParameterServerService, WrongTablesAndSizesAreRefused) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest pull = PullOf(0, {1});
  pull.mutable_tables(0)->set_table(9);
  ExpectError(server.Pull(pull), absl::StatusCode::kNotFound, {"Pull at server 0", "9"});
  pull = PullOf(0, {1});
  pull.mutable_tables(0)->set_keys("ten bytes!");
  ExpectError(server.Pull(pull), absl::StatusCode::kInvalidArgument,
              {"Pull at server 0", "table 3", "10 bytes", "multiple of 8"});
  pull = PullOf(0, {1});
  pull.set_wire_dtype(BF16);
  ExpectError(server.Pull(pull), absl::StatusCode::kUnimplemented, {"wire_dtype"});

  PushRequest push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_tables(0)->set_table(9);
  ExpectError(server.Push(push), absl::StatusCode::kNotFound, {"Push at server 0", "9"});
  ExpectError(server.Push(PushOf(0, {1}, {1, 2, 3})), absl::StatusCode::kInvalidArgument,
              {"Push at server 0"});
  push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_tables(0)->set_keys("seven b");
  ExpectError(server.Push(push), absl::StatusCode::kInvalidArgument, {"7 bytes", "multiple of 8"});
  push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_tables(0)->clear_counts();
  ExpectError(server.Push(push), absl::StatusCode::kInvalidArgument, {"counts"});
  // Nothing of all this was kept.
  EXPECT_EQ(server.control->GetStats(kTimeout)->pushes_accepted(), 0u);
}

TEST(ParameterServerService, MalformedBytesAreInvalidArgument) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  grpc::GenericStub stub(server.channel);
  for (const char* method : {"Pull", "Push"}) {
    const grpc::Slice slice(std::string("\x0a\xff garbage"));
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::ClientContext context;
    grpc::Status status;
    absl::Notification done;
    stub.UnaryCall(&context, std::string("/thermocline.ParameterServer/") + method,
                   grpc::StubOptions(), &request, &reply, [&](grpc::Status s) {
                     status = s;
                     done.Notify();
                   });
    done.WaitForNotification();
    ExpectError(FromGrpcStatus(status), absl::StatusCode::kInvalidArgument,
                {method, "at server 0", "malformed"});
  }
}

TEST(ParameterServerService, MessagesOverTheLimitAreRefused) {
  ServiceOptions options;
  options.max_message_bytes = 1 << 20;
  TestServer server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  // A little over the limit: our own words.
  std::vector<Key> keys((1 << 17) + 10);
  ExpectError(server.Pull(PullOf(0, keys)), absl::StatusCode::kOutOfRange,
              {"Pull at server 0", "the request has", "1048576"});
  constexpr size_t kBytesPerKey = sizeof(Key) + sizeof(uint32_t) + kDim * sizeof(float);
  const size_t over = (1 << 20) / kBytesPerKey + 1;
  const PushRequest push = PushOf(0, std::vector<Key>(over), std::vector<float>(kDim * over));
  ASSERT_LT(push.ByteSizeLong(), (1u << 20) + kMessageSlackBytes);  // gRPC lets it through.
  ExpectError(server.Push(push), absl::StatusCode::kOutOfRange,
              {"Push at server 0", "the request has", "1048576"});
  // Far over: gRPC refuses it before it is in memory.
  keys.resize(1 << 20);
  ExpectError(server.Pull(PullOf(0, keys)), absl::StatusCode::kResourceExhausted, {"larger"});
  // A reply over the limit.
  keys.resize(100000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  ExpectError(server.Pull(PullOf(0, keys)), absl::StatusCode::kOutOfRange,
              {"Pull at server 0", "100000 keys", "reply", "1048576"});
  EXPECT_TRUE(server.Pull(PullOf(0, {1, 2, 3})).ok());
}

TEST(ParameterServerService, AdmissionRefusesAndCounts) {
  ServiceOptions options;
  options.max_pulls = 0;
  options.max_pushes = 0;
  TestServer server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ExpectError(server.Pull(PullOf(0, {1})), absl::StatusCode::kResourceExhausted, {"0 pulls"});
  ExpectError(server.Push(PushOf(0, {1}, {1, 2, 3, 4})), absl::StatusCode::kResourceExhausted,
              {"0 pushes"});
  EXPECT_EQ(server.control->GetStats(kTimeout)->requests_refused(), 2u);
}

TEST(ParameterServerService, TheBytesOfHeldPullsAreBounded) {
  ServiceOptions options;
  options.max_pull_bytes = 20'000;
  TestServer server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  std::vector<Key> keys(800);  // 6,400 bytes, and again decoded.
  absl::Status held_status;
  std::thread held([&] { held_status = server.Pull(PullOf(1, keys)); });
  server.AwaitPullsWaiting(1);
  ExpectError(server.Pull(PullOf(1, keys)), absl::StatusCode::kResourceExhausted,
              {"Pull at server 0", "20000 bytes of pulls"});
  EXPECT_EQ(server.control->GetStats(kTimeout)->requests_refused(), 1u);
  EXPECT_TRUE(server.Pull(PullOf(0, {1})).ok());  // A small one finds room.
  EXPECT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  held.join();
  EXPECT_TRUE(held_status.ok()) << held_status;
  // The room is there again once the server's end of the call has ended, too.
  const absl::Time deadline = absl::Now() + kTimeout;
  absl::Status again;
  do {
    again = server.Pull(PullOf(1, keys));
  } while (absl::IsResourceExhausted(again) && absl::Now() < deadline);
  EXPECT_TRUE(again.ok()) << again;
}

// Takes timers and never runs them.
class StoppedScheduler : public Scheduler {
 public:
  int64_t NowMicros() const override { return 0; }
  void RunAfter(int64_t delay_us, std::function<void()>) override {
    absl::MutexLock lock(&mutex_);
    delays_us_.push_back(delay_us);
  }
  std::vector<int64_t> delays_us() const {
    absl::MutexLock lock(&mutex_);
    return delays_us_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<int64_t> delays_us_ ABSL_GUARDED_BY(mutex_);
};

TEST(ParameterServerService, AHeldPullWhoseCallerLeavesIsDropped) {
  StoppedScheduler scheduler;
  ServerLimits limits;
  limits.max_held_pulls = 1;
  TestServer server({}, {}, {}, limits, &scheduler);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  grpc::ClientContext context;
  absl::Status status;
  std::thread held([&] {
    PullReply reply;
    status = FromGrpcStatus(server.stub->Pull(&context, PullOf(1, {1}), &reply));
  });
  server.AwaitPullsWaiting(1);
  context.TryCancel();
  held.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  server.AwaitPullsWaiting(0);
}

TEST(ParameterServerService, APullIsHeldForHalfOfTheTimeItsCallerGaveIt) {
  StoppedScheduler scheduler;
  ServerLimits limits;
  limits.hold_us = absl::ToInt64Microseconds(absl::Hours(10));
  TestServer server({}, {}, {}, limits, &scheduler);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Hours(1)));
  std::thread held([&] {
    PullReply reply;
    EXPECT_FALSE(server.stub->Pull(&context, PullOf(1, {1}), &reply).ok());
  });
  server.AwaitPullsWaiting(1);
  const std::vector<int64_t> delays_us = scheduler.delays_us();
  ASSERT_EQ(delays_us.size(), 1u);
  EXPECT_GT(delays_us[0], absl::ToInt64Microseconds(absl::Minutes(20)));
  EXPECT_LE(delays_us[0], absl::ToInt64Microseconds(absl::Minutes(31)));  // gRPC rounds up.
  context.TryCancel();
  held.join();
}

TEST(ParameterServerService, HeldPullsLeaveRoomForPushes) {
  ServiceOptions options;
  options.max_pulls = 1;
  TestServer server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullReply held_reply;
  absl::Status held_status;
  std::thread held([&] { held_status = server.Pull(PullOf(1, {1}), &held_reply); });
  server.AwaitPullsWaiting(1);
  ExpectError(server.Pull(PullOf(1, {1})), absl::StatusCode::kResourceExhausted, {"1 pulls"});
  EXPECT_TRUE(server.Push(PushOf(0, {}, {})).ok());
  held.join();
  EXPECT_TRUE(held_status.ok()) << held_status;
  EXPECT_EQ(held_reply.readiness(), READY);
}

TEST(ParameterServerService, ShutdownAnswersHeldPulls) {
  auto server = std::make_unique<TestServer>();
  ASSERT_TRUE(server->Configure(JobOf(1)).ok());
  absl::Status status;
  std::thread held([&, stub = server->stub.get()] {
    grpc::ClientContext context;
    PullReply reply;
    status = FromGrpcStatus(stub->Pull(&context, PullOf(1, {1}), &reply));
  });
  server->AwaitPullsWaiting(1);
  server->core->Shutdown();
  held.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST(ParameterServerService, DigestIsTheCores) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ASSERT_TRUE(server.Push(PushOf(0, {5, 6}, {1, 2, 3, 4, 5, 6, 7, 8})).ok());
  ASSERT_TRUE(server.Pull(PullOf(1, {5})).ok());  // step 0 is applied
  const auto reply = server.control->GetDigest("job", 7, kTimeout);
  ASSERT_TRUE(reply.ok()) << reply.status();
  absl::StatusOr<ServerCore::DigestAnswer> direct = absl::UnknownError("no answer");
  absl::Notification answered;
  server.core->ComputeDigest("job", 7, [&](absl::StatusOr<ServerCore::DigestAnswer> answer) {
    direct = std::move(answer);
    answered.Notify();
  });
  answered.WaitForNotification();
  ASSERT_TRUE(direct.ok()) << direct.status();
  EXPECT_EQ(reply->low(), direct->digest.low);
  EXPECT_EQ(reply->high(), direct->digest.high);
  EXPECT_NE(reply->low(), 0u);
  EXPECT_EQ(reply->rows(), 2u);
  EXPECT_EQ(reply->complete_through(), 0);
}

TEST(ParameterServerService, StatsCountCallsAndErrors) {
  TestServer server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ASSERT_TRUE(server.Pull(PullOf(0, {1, 2})).ok());
  ASSERT_TRUE(server.Pull(PullOf(0, {3})).ok());
  PullRequest bad = PullOf(0, {1});
  bad.mutable_tables(0)->set_table(9);
  EXPECT_FALSE(server.Pull(bad).ok());
  ASSERT_TRUE(server.Push(PushOf(0, {1}, {1, 2, 3, 4})).ok());
  ASSERT_TRUE(server.Push(PushOf(0, {1}, {1, 2, 3, 4})).ok());  // a duplicate
  const auto stats = server.control->GetStats(kTimeout);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_EQ(stats->job_id(), "job");
  EXPECT_EQ(stats->epoch(), 7u);
  EXPECT_GT(stats->uptime_s(), 0);
  EXPECT_GT(stats->resident_bytes(), 1u << 20);
  EXPECT_EQ(stats->push_duplicates(), 1u);
  ASSERT_EQ(stats->tables_size(), 1);
  EXPECT_EQ(stats->tables(0).keys_pulled(), 3u);
  ASSERT_GE(stats->rpcs_size(), 2);
  EXPECT_EQ(stats->rpcs(0).method(), "Pull");
  EXPECT_EQ(stats->rpcs(0).count(), 3u);
  EXPECT_EQ(stats->rpcs(0).errors(), 1u);
  EXPECT_EQ(stats->rpcs(0).in_flight(), 0u);
  EXPECT_GE(stats->rpcs(0).latency().p99_us(), stats->rpcs(0).latency().p50_us());
  EXPECT_EQ(stats->rpcs(1).method(), "Push");
  EXPECT_EQ(stats->rpcs(1).count(), 2u);
}

// ---- Listening.

TEST(GrpcServer, APortInUseIsNamed) {
  TestServer first;
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
  TestServer server({}, ours, ours);
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
  grpc::SslCredentialsOptions no_certificate;
  {
    std::FILE* file = std::fopen(ours.ca.c_str(), "r");
    ASSERT_NE(file, nullptr);
    char text[8192];
    no_certificate.pem_root_certs.assign(text, std::fread(text, 1, sizeof(text), file));
    std::fclose(file);
  }
  EXPECT_EQ(refused(grpc::SslCredentials(no_certificate)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(refused(grpc::InsecureChannelCredentials()).code(), absl::StatusCode::kUnavailable);
  TlsFiles stranger = theirs;
  stranger.ca = ours.ca;
  EXPECT_EQ(refused(*MakeChannelCredentials(stranger)).code(), absl::StatusCode::kUnavailable);
  TlsFiles distrusts = ours;
  distrusts.ca = theirs.ca;
  EXPECT_EQ(refused(*MakeChannelCredentials(distrusts)).code(), absl::StatusCode::kUnavailable);
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
  TestServer server;
  const auto reply = CallRaw(server.channel, "/grpc.health.v1.Health/Check", "");
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(*reply, "\x08\x01");  // HealthCheckResponse{status: SERVING}
}

TEST(GrpcServer, StatsAreReadableThroughReflectionAlone) {
  TestServer server;
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
