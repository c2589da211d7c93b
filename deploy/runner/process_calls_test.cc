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

// Keeps the decisions and introductions, and accepts or refuses them.
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

  grpc::Status Introduce(grpc::ServerContext*, const WorkerPeers* peers,
                         WorkerPeersReply*) override {
    absl::MutexLock lock(&mutex_);
    peers_ = *peers;
    if (refuses_) return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "another job");
    return grpc::Status::OK;
  }
  WorkerPeers peers() const {
    absl::MutexLock lock(&mutex_);
    return peers_;
  }

 private:
  const bool refuses_;
  mutable absl::Mutex mutex_;
  std::vector<EvaluationDecision> decisions_ ABSL_GUARDED_BY(mutex_);
  WorkerPeers peers_ ABSL_GUARDED_BY(mutex_);
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

TEST_F(ProcessCallsTest, WorkersAreToldWhereAllAre) {
  ProcessCalls calls(job_, 3);
  FakeWorker first, other(/*refuses=*/true);
  ASSERT_TRUE(calls.Connect(ProcessRole::kWorker, 0, first.address()).ok());
  ASSERT_TRUE(calls.Connect(ProcessRole::kWorker, 2, other.address()).ok());
  const std::vector<absl::Status> answers = calls.Introduce({3, {0, 1, 2}, {"a", "b", "c", "d"}});
  ASSERT_THAT(answers, SizeIs(3));
  EXPECT_EQ(answers[0], absl::OkStatus());
  EXPECT_TRUE(IsUnanswered(answers[1])) << answers[1];
  EXPECT_EQ(answers[2].code(), absl::StatusCode::kFailedPrecondition);
  for (const FakeWorker* worker : {&first, &other}) {
    EXPECT_EQ(worker->peers().job_id(), "job");
    EXPECT_EQ(worker->peers().generation(), 3u);
    EXPECT_THAT(worker->peers().addresses(), ElementsAre("a", "b", "c", "d"));
  }
}

// Answers a round once all of them are asked.
class MeetingWorker : public Worker::Service {
 public:
  MeetingWorker(int of, absl::Mutex* mutex, int* asked) : of_(of), mutex_(*mutex), asked_(*asked) {
    GrpcServer::Options options;
    options.address = "127.0.0.1:0";
    absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(options, {this});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  ~MeetingWorker() override { server_->Shutdown(/*grace_ms=*/0); }

  std::string address() const { return server_->address(); }

  grpc::Status Checkpoint(grpc::ServerContext*, const CheckpointRequest*,
                          CheckpointReply* reply) override {
    absl::MutexLock lock(&mutex_);
    ++asked_;
    const auto all = [this] { return asked_ == of_; };
    // Longer than the call takes.
    if (!mutex_.AwaitWithTimeout(absl::Condition(&all), absl::Seconds(10))) {
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the others are not asked");
    }
    reply->set_accepted_through(7);
    return grpc::Status::OK;
  }

 private:
  const int of_;
  absl::Mutex& mutex_;
  int& asked_;
  std::unique_ptr<GrpcServer> server_;
};

// So a host that hangs costs a round one timeout, however many processes it has.
TEST_F(ProcessCallsTest, NoProcessWaitsForAnother) {
  constexpr uint32_t kWorkers = 24;
  job_.mutable_cluster()->set_workers(kWorkers);
  ProcessCalls calls(job_, 3);
  absl::Mutex mutex;
  int asked = 0;
  std::vector<std::unique_ptr<MeetingWorker>> workers;
  std::vector<CheckpointCall> round;
  for (uint32_t rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(std::make_unique<MeetingWorker>(kWorkers, &mutex, &asked));
    ASSERT_TRUE(calls.Connect(ProcessRole::kWorker, rank, workers[rank]->address()).ok());
    round.push_back({true, rank, CheckpointRequest::STATUS, kNoStep});
  }
  for (const absl::StatusOr<CheckpointReply>& answer : calls.Call(round)) {
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->accepted_through(), 7);
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
