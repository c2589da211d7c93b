#include "deploy/runner/process_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/net/grpc_server.h"
#include "proto/parameter_server.grpc.pb.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

// Keeps the decisions, and accepts or refuses them.
class FakeWorker : public Worker::Service {
 public:
  explicit FakeWorker(bool refuses = false) : refuses_(refuses) {
    GrpcServer::Options options;
    options.address = "127.0.0.1:0";
    absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(options, {this});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~FakeWorker() override { server_->Shutdown(/*grace_ms=*/0); }

  std::string address() const { return server_->address(); }
  std::vector<EvaluationDecision> decisions() const {
    absl::MutexLock lock(&mutex_);
    return decisions_;
  }

  grpc::Status Decide(grpc::ServerContext*, const EvaluationDecision* decision,
                      EvaluationDecisionReply*) override {
    absl::MutexLock lock(&mutex_);
    decisions_.push_back(*decision);
    if (refuses_) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another job");
    return grpc::Status::OK;
  }

 private:
  const bool refuses_;
  mutable absl::Mutex mutex_;
  std::vector<EvaluationDecision> decisions_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcServer> server_;
};

class ProcessCallsTest : public testing::Test {
 protected:
  ProcessCallsTest() {
    job_.set_name("job");
    job_.mutable_cluster()->set_servers(1);
    job_.mutable_cluster()->set_workers(4);
  }
  Job job_;
};

// A worker that refuses has answered; one that is gone does not keep the decision from the others.
TEST_F(ProcessCallsTest, EveryWorkerLearnsOfADecision) {
  ProcessCalls calls(job_, 3);
  FakeWorker first, other(/*refuses=*/true);
  std::string gone;
  { gone = FakeWorker().address(); }
  const std::string addresses[] = {first.address(), gone, other.address()};
  for (size_t rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(calls.Connect(ProcessRole::kWorker, rank, addresses[rank]).ok());
  }
  const action::Decide decide = {3, {0, 1, 2, 3}, Step(9), /*stop=*/true};
  EXPECT_THAT(calls.Decide(decide), ElementsAre(true, false, true, true));  // 3 has ended.
  for (const FakeWorker* worker : {&first, &other}) {
    const std::vector<EvaluationDecision> decisions = worker->decisions();
    ASSERT_THAT(decisions, SizeIs(1));
    EXPECT_EQ(decisions[0].job_id(), "job");
    EXPECT_EQ(decisions[0].generation(), 3u);
    EXPECT_EQ(decisions[0].step(), 9);
    EXPECT_TRUE(decisions[0].stop());
  }
}

TEST_F(ProcessCallsTest, CallsToAProcessThatIsNotThereAreUnanswered) {
  ProcessCalls calls(job_, 3);
  const CheckpointAnswers answers = calls.Call({{false, 0, CheckpointRequest::STATUS, kNoStep},
                                                {false, 0, CheckpointRequest::NAME_CUT, Step(4)},
                                                {true, 1, CheckpointRequest::CALL_OFF, Step(4)}});
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_TRUE(IsUnanswered(answers[0].status())) << answers[0].status();
  EXPECT_TRUE(IsUnanswered(answers[1].status())) << answers[1].status();
  // A worker that has ended is not asked again.
  EXPECT_EQ(answers[2].status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(calls.GetDigest({3, Step(9), absl::Seconds(1)}).status().code(),
            absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace thermocline
