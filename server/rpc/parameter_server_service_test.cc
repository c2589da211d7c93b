// A real server on a free port, spoken to through protobuf's own classes, as any client would.
#include "server/rpc/parameter_server_service.h"

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/net/rpc.h"
#include "common/wire/messages.h"
#include "server/rpc/testing/served_core.h"

namespace thermocline {
namespace {

using namespace testing_rpc;  // NOLINT: the words of these tests

TEST(ParameterServerService, PullPushPull) {
  ServedCore server;
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

TEST(ParameterServerService, APullWithStateBringsWholeRows) {
  ServedCore server;
  ConfigureRequest job = JobOf(1);
  job.mutable_tables(0)->mutable_optimizer()->mutable_adagrad()->set_initial_accumulator(0.5f);
  ASSERT_TRUE(server.Configure(job).ok());
  PushReply pushed;
  ASSERT_TRUE(server.Push(PushOf(0, {12}, {1, 2, 3, 4}), &pushed).ok());

  PullRequest request = PullOf(1, {11, 12});
  PullReply weights, rows;
  ASSERT_TRUE(server.Pull(request, &weights).ok());
  request.set_with_state(true);
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

TEST(ParameterServerService, AServerWithoutAJobRefusesData) {
  ServedCore server;
  ExpectError(server.Pull(PullOf(0, {1})), absl::StatusCode::kUnavailable,
              {"Pull at a server without a job", "not configured"});
  ExpectError(server.Push(PushOf(0, {1}, {1, 2, 3, 4})), absl::StatusCode::kUnavailable,
              {"Push at a server without a job", "not configured"});
  ExpectError(server.control->GetDigest("job", 7, kTimeout).status(),
              absl::StatusCode::kUnavailable, {"GetDigest", "not configured"});
  EXPECT_FALSE(server.control->GetStats(kTimeout)->configured());
}

TEST(ParameterServerService, ConfigureIsIdempotentAndNamesDifferences) {
  ServedCore server;
  ConfigureRequest other_version = JobOf(1);
  other_version.set_protocol_version(wire::kProtocolVersion + 41);
  ExpectError(server.Configure(other_version), absl::StatusCode::kFailedPrecondition,
              {"version 43", "version 2", "of one build"});
  other_version.set_protocol_version(1);  // In that version a push had a first and a last step.
  ExpectError(server.Configure(other_version), absl::StatusCode::kFailedPrecondition,
              {"version 1,", "version 2"});
  ConfigureRequest no_optimizer = JobOf(1);
  no_optimizer.mutable_tables(0)->clear_optimizer();
  ExpectError(server.Configure(no_optimizer), absl::StatusCode::kInvalidArgument, {"C3"});
  ConfigureRequest no_dim = JobOf(1);
  no_dim.mutable_tables(0)->set_dim(0);
  ExpectError(server.Configure(no_dim), absl::StatusCode::kInvalidArgument, {"C3", "dim"});

  const auto reply = server.control->Configure(JobOf(1), kTimeout);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->protocol_version(), wire::kProtocolVersion);
  EXPECT_TRUE(server.Configure(JobOf(1)).ok());
  ConfigureRequest other_dim = JobOf(1);
  other_dim.mutable_tables(0)->set_dim(8);
  ExpectError(server.Configure(other_dim), absl::StatusCode::kFailedPrecondition,
              {"C3", "dim", "4", "8"});
  ExpectError(server.Configure(JobOf(2)), absl::StatusCode::kFailedPrecondition,
              {": server 0: ", "worker"});
}

TEST(ParameterServerService, AServerStartedForAJobRefusesOthers) {
  ServiceOptions options;
  options.job_id = "another";
  ServedCore server(options);
  // The message does not say that the server has no job yet.
  EXPECT_EQ(server.Configure(JobOf(1)),
            absl::FailedPreconditionError(
                absl::StrCat("Configure at ", server.server->address(),
                             ": this server was started for job 'another', not for 'job'")));
}

TEST(ParameterServerService, StrangersAreRefused) {
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest pull = PullOf(0, {1});
  pull.mutable_header()->set_job_id("other");
  ExpectError(server.Pull(pull), absl::StatusCode::kFailedPrecondition,
              {"Pull at server 0", "step 0", "1 tables", "1 keys", "other"});
  pull = PullOf(0, {1});
  pull.mutable_header()->set_generation(8);
  ExpectError(server.Pull(pull), absl::StatusCode::kFailedPrecondition, {"generation", "8", "7"});
  PushRequest push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_header()->set_job_id("other");
  ExpectError(server.Push(push), absl::StatusCode::kFailedPrecondition,
              {"Push at server 0", "step 0, chunk 0 of 1", "1 keys", "other"});
  push = PushOf(0, {1}, {1, 2, 3, 4});
  push.mutable_header()->set_generation(6);
  ExpectError(server.Push(push), absl::StatusCode::kFailedPrecondition, {"generation", "6", "7"});
  ExpectError(server.control->GetDigest("other", 7, kTimeout).status(),
              absl::StatusCode::kFailedPrecondition, {"other"});
}

TEST(ParameterServerService, AReaderNeedsNeitherRankNorAcknowledgement) {
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest read = PullOf(0, {1});
  read.set_kind(PullRequest::READ);
  read.clear_after_step();
  read.mutable_header()->clear_acked_through();
  EXPECT_TRUE(server.Pull(read).ok());
  // A worker whose step 0 was acknowledged knows more than this server.
  read.mutable_header()->set_acked_through(0);
  EXPECT_EQ(server.Pull(read).code(), absl::StatusCode::kDataLoss);
  read.set_kind(PullRequest::TRAIN);
  EXPECT_EQ(server.Pull(read).code(), absl::StatusCode::kDataLoss);
}

TEST(ParameterServerService, AKeyTwiceInAPushIsRefused) {
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  ExpectError(server.Push(PushOf(0, {6, 6}, {1, 2, 3, 4, 5, 6, 7, 8})),
              absl::StatusCode::kInvalidArgument, {"Push at server 0", "key 6 of table 3 twice"});
  EXPECT_TRUE(server.Push(PushOf(0, {6}, {1, 2, 3, 4})).ok());
}

TEST(ParameterServerService, WrongTablesAndSizesAreRefused) {
  ServedCore server;
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  PullRequest pull = PullOf(0, {1});
  pull.mutable_tables(0)->set_table(9);
  ExpectError(server.Pull(pull), absl::StatusCode::kNotFound, {"Pull at server 0", "9"});
  pull = PullOf(0, {1});
  pull.mutable_tables(0)->set_keys("ten bytes!");
  ExpectError(server.Pull(pull), absl::StatusCode::kInvalidArgument,
              {"Pull at server 0", "table 3", "10 bytes", "multiple of 8"});

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
  // None of these pushes was kept.
  EXPECT_EQ(server.control->GetStats(kTimeout)->pushes_accepted(), 0u);
}

TEST(ParameterServerService, MalformedBytesAreInvalidArgument) {
  ServedCore server;
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
  ServedCore server(options);
  ASSERT_TRUE(server.Configure(JobOf(1)).ok());
  // A little over the limit: our own error message.
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

TEST(ParameterServerService, DigestIsTheCores) {
  ServedCore server;
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
  ServedCore server;
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
  EXPECT_EQ(stats->generation(), 7u);
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

}  // namespace
}  // namespace thermocline
