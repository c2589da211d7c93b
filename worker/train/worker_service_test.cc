#include "worker/train/worker_service.h"

#include <memory>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "common/net/control_client.h"
#include "common/net/grpc_server.h"
#include "common/net/rpc.h"
#include "gtest/gtest.h"
#include "tests/testing/virtual_scheduler.h"
#include "worker/session/ps_session.h"
#include "worker/session/testing/fake_transport.h"

namespace thermocline {
namespace {

constexpr absl::Duration kTimeout = absl::Seconds(30);

class WorkerServiceTest : public testing::Test {
 protected:
  void SetUp() override {
    GrpcServer::Options options;
    options.address = "127.0.0.1:0";
    absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(options, {&service_});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    absl::StatusOr<std::unique_ptr<ControlClient>> client =
        ControlClient::Create(server_->address(), {});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }
  absl::StatusOr<CheckpointReply> Ask(CheckpointRequest::Action action, int64_t step,
                                      uint64_t generation = 3, const std::string& job_id = "job",
                                      uint64_t sequence = 0) {
    CheckpointRequest request;
    request.set_job_id(job_id);
    request.set_generation(generation);
    request.set_action(action);
    request.set_step(step);
    request.set_sequence(sequence);
    return client_->CheckpointWorker(request, kTimeout);
  }

  NamedCheckpoints checkpoints_{Step(5)};
  EvaluationDecisions decisions_;
  WorkerProgress progress_{"job", WorkerRank(1), /*fd=*/-1};
  GrpcExchangeServer exchange_{{"job", 3, WorkerRank(1), 2}};
  WorkerService service_{"job", 3, &progress_, &checkpoints_, &decisions_, &exchange_};
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<ControlClient> client_;
};

TEST_F(WorkerServiceTest, LearnsWhereTheOthersListen) {
  const std::unique_ptr<Worker::Stub> stub =
      Worker::NewStub(OpenChannel(server_->address(), grpc::InsecureChannelCredentials(), 1 << 20));
  WorkerPeers peers;
  peers.set_job_id("job");
  peers.set_generation(3);
  peers.add_addresses("127.0.0.1:1");
  WorkerPeersReply reply;
  grpc::ClientContext too_few;
  EXPECT_EQ(stub->Introduce(&too_few, peers, &reply).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  peers.add_addresses(server_->address());
  grpc::ClientContext all;
  EXPECT_TRUE(stub->Introduce(&all, peers, &reply).ok());
  const auto addresses = exchange_.AwaitIntroduction(kTimeout);
  ASSERT_TRUE(addresses.ok()) << addresses.status();
  EXPECT_EQ(addresses->at(1), server_->address());
}

TEST_F(WorkerServiceTest, WhatIsDecidedReachesWhoWaits) {
  EvaluationDecision decision;
  decision.set_job_id("job");
  decision.set_generation(2);
  decision.set_step(9);
  decision.set_stop(true);
  EXPECT_EQ(client_->Decide(decision, kTimeout).code(), absl::StatusCode::kFailedPrecondition);
  decision.set_generation(3);
  decision.set_stop(false);
  std::thread waits([&] { EXPECT_TRUE(decisions_.Await(Step(9)).goes_on); });
  EXPECT_EQ(client_->Decide(decision, kTimeout), absl::OkStatus());
  waits.join();
  EXPECT_EQ(client_->Decide(decision, kTimeout), absl::OkStatus());  // Again.
  decision.set_step(19);
  decision.set_stop(true);
  decision.set_data_place("a place");
  EXPECT_EQ(client_->Decide(decision, kTimeout), absl::OkStatus());
  EXPECT_FALSE(decisions_.Await(Step(19)).goes_on);
  // A retry of the one before, that was long on its way.
  decision.set_step(9);
  decision.set_stop(false);
  decision.clear_data_place();
  EXPECT_EQ(client_->Decide(decision, kTimeout), absl::OkStatus());
  EXPECT_FALSE(decisions_.Await(Step(19)).goes_on);
  EXPECT_EQ(decisions_.Await(Step(19)).data_place, "a place");
}

TEST_F(WorkerServiceTest, NamesAndCallsOffCuts) {
  absl::StatusOr<CheckpointReply> reply = Ask(CheckpointRequest::NAME_CUT, 6);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->complete_through(), 4);
  ASSERT_TRUE(Ask(CheckpointRequest::NAME_CUT, 7).ok());
  ASSERT_TRUE(Ask(CheckpointRequest::CALL_OFF, 7).ok());
  EXPECT_FALSE(checkpoints_.BeginPush(Step(5)));
  EXPECT_TRUE(checkpoints_.BeginPush(Step(6)));
  EXPECT_FALSE(checkpoints_.BeginPush(Step(7)));
  reply = Ask(CheckpointRequest::STATUS, 0);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->complete_through(), 7);
}

TEST_F(WorkerServiceTest, SaysWhatEveryServerHasAcknowledged) {
  EXPECT_EQ(Ask(CheckpointRequest::STATUS, 0)->accepted_through(), -1);  // It connects still.
  FakeTransport transport;
  VirtualScheduler scheduler;
  PsSessionOptions options;
  options.start_step = Step(5);
  const PsSession session(options, &transport, &scheduler);
  WorkerProgress::Watched watched;
  watched.session = &session;
  progress_.Watch(watched);
  EXPECT_EQ(Ask(CheckpointRequest::STATUS, 0)->accepted_through(), 4);
  progress_.Watch({});
}

TEST_F(WorkerServiceTest, ACutThatIsTooLateIsRefusedWithTheStepItIsAt) {
  EXPECT_FALSE(checkpoints_.BeginPush(Step(5)));
  const absl::Status late = Ask(CheckpointRequest::NAME_CUT, 5).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(late.message(), "this worker is at step 5")) << late;
}

TEST_F(WorkerServiceTest, ARequestThatALaterOneHasOvertakenIsRefused) {
  ASSERT_TRUE(Ask(CheckpointRequest::CALL_OFF, 6, 3, "job", 2).ok());
  EXPECT_EQ(Ask(CheckpointRequest::NAME_CUT, 6, 3, "job", 1).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(checkpoints_.BeginPush(Step(6)));
}

TEST_F(WorkerServiceTest, ARequestTooFarAheadOvertakesNothing) {
  EXPECT_EQ(Ask(CheckpointRequest::CALL_OFF, 6, 3, "job", uint64_t{1} << 63).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Ask(CheckpointRequest::STATUS, 0)->newest_sequence(), 0u);
  EXPECT_TRUE(Ask(CheckpointRequest::NAME_CUT, 6, 3, "job", 5).ok());
  EXPECT_EQ(Ask(CheckpointRequest::STATUS, 0)->newest_sequence(), 5u);
}

TEST_F(WorkerServiceTest, StrangersAreRefused) {
  for (const auto& reply : {Ask(CheckpointRequest::NAME_CUT, 6, /*generation=*/2),
                            Ask(CheckpointRequest::NAME_CUT, 6, 3, "other")}) {
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(reply.status().message(), "job 'job', generation 3"))
        << reply.status();
  }
  EXPECT_FALSE(checkpoints_.BeginPush(Step(6)));
}

TEST_F(WorkerServiceTest, CommittingIsNoWorkersBusiness) {
  EXPECT_EQ(Ask(CheckpointRequest::COMMITTED, 6).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace thermocline
