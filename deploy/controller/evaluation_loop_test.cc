#include "deploy/controller/evaluation_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/base/stopwatch.h"
#include "common/net/grpc_server.h"
#include "deploy/controller/checkpoint_keeper_testing.h"
#include "proto/parameter_server.grpc.pb.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr absl::Duration kDeadline = absl::Seconds(60);

// Takes what is decided.
class FakeWorker : public Worker::Service {
 public:
  FakeWorker() {
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
  // Waits for as many.
  std::vector<EvaluationDecision> Await(size_t count) const {
    absl::MutexLock lock(&mutex_);
    const auto are_there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return decisions_.size() >= count;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&are_there), kDeadline));
    return decisions_;
  }

  grpc::Status Decide(grpc::ServerContext*, const EvaluationDecision* decision,
                      EvaluationDecisionReply*) override {
    absl::MutexLock lock(&mutex_);
    decisions_.push_back(*decision);
    return grpc::Status::OK;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<EvaluationDecision> decisions_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<GrpcServer> server_;
};

class EvaluationLoopTest : public CheckpointKeeperTest {
 protected:
  EvaluationLoopTest() {
    job_.set_name("job");
    job_.mutable_evaluate()->set_every_steps(10);
    job_.mutable_evaluate()->set_patience(1);
    job_.mutable_evaluate()->set_keep_best(true);
    start_.epoch = kKeeperEpoch;
    loop_ = std::make_unique<EvaluationLoop>(job_, start_, EvaluationState());
    options_.evaluations_through = [this](Step cut) { return loop_->board().Through(cut); };
  }

  void Begin(const std::vector<std::string>& addresses) {
    const absl::Status begun = loop_->Begin(addresses, &keeper());
    ASSERT_TRUE(begun.ok()) << begun;
  }
  void Take(int64_t step, double auc) {
    EvaluationReport report;
    report.step = Step(step);
    report.is_scheduled = true;
    report.auc = auc;
    loop_->Take(report);
  }
  // Rounds of the keeper, until `done`.
  void PollUntil(const std::function<bool()>& done) {
    const Stopwatch watch;
    while (!done()) {
      ASSERT_LT(watch.Elapsed(), kDeadline);
      Poll();
      std::this_thread::yield();
    }
  }

  Job job_;
  EpochStart start_;
  FakeWorker workers_[2];
  std::unique_ptr<EvaluationLoop> loop_;
};

TEST_F(EvaluationLoopTest, WorkersHearOnceTheBestHasItsCheckpoint) {
  Take(9, 0.6);  // Before it begins.
  Begin({workers_[0].address(), workers_[1].address()});
  cluster_.AdvanceTo(9);
  PollUntil([this] { return NamedCut(0) == 9; });
  Poll(20);
  EXPECT_THAT(workers_[0].decisions(), IsEmpty());
  EXPECT_THAT(loop_->TakeEvents(), IsEmpty());
  cluster_.WriteAll(9);
  Poll();
  for (const FakeWorker& worker : workers_) {
    const auto decisions = worker.Await(1);
    EXPECT_EQ(decisions[0].job_id(), "job");
    EXPECT_EQ(decisions[0].epoch(), kKeeperEpoch);
    EXPECT_EQ(decisions[0].step(), 9);
    EXPECT_FALSE(decisions[0].stop());
  }
  const auto events = loop_->TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_TRUE(events[0].verdict.is_best);
  EXPECT_EQ(events[0].checkpoint_error, absl::OkStatus());
  EXPECT_EQ(events[0].state.best_checkpoint(), "epoch-2-step-9");
  EXPECT_EQ(store_.Load("epoch-2-step-9")->evaluations().best_auc(), 0.6);
}

TEST_F(EvaluationLoopTest, AllHearThatTrainingEnds) {
  job_.mutable_evaluate()->set_keep_best(false);
  Begin({workers_[0].address(), workers_[1].address()});
  Take(9, 0.6);
  Take(19, 0.5);
  for (const FakeWorker& worker : workers_) {
    const auto decisions = worker.Await(2);
    EXPECT_EQ(decisions[0].step(), 9);
    EXPECT_FALSE(decisions[0].stop());
    EXPECT_EQ(decisions[1].step(), 19);
    EXPECT_TRUE(decisions[1].stop());
  }
  EXPECT_THAT(loop_->TakeEvents(), SizeIs(2));  // Shown before any worker ends with it.
}

TEST_F(EvaluationLoopTest, WhoDoesNotAnswerKeepsItFromNoOther) {
  std::string gone;
  {
    const FakeWorker ended;
    gone = ended.address();
  }
  Begin({gone, "", workers_[1].address()});
  cluster_.AdvanceTo(9);
  Take(9, 0.6);
  PollUntil([this] { return NamedCut(0) == 9; });
  cluster_.WriteAll(9);
  Poll();
  EXPECT_EQ(workers_[1].Await(1)[0].step(), 9);
  loop_->Stop();  // Though the first is still to be told.
}

TEST_F(EvaluationLoopTest, WithoutItsCheckpointTrainingGoesOn) {
  Begin({workers_[0].address()});
  cluster_.AdvanceTo(9);
  Take(9, 0.6);
  PollUntil([this] {
    if (NamedCut(0) == 9) cluster_.Fail(0, 9, "disk full");
    return !workers_[0].decisions().empty();
  });
  EXPECT_FALSE(workers_[0].decisions()[0].stop());
  const auto events = loop_->TakeEvents();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].checkpoint_error.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(events[0].checkpoint_error.message()), HasSubstr("disk full"));
  EXPECT_EQ(events[0].state.best_step(), 9);
  EXPECT_EQ(events[0].state.best_checkpoint(), "");
}

TEST_F(EvaluationLoopTest, TheEndOfAnEpochWaitsForNoCheckpoint) {
  Begin({workers_[0].address()});
  cluster_.AdvanceTo(9);
  Take(9, 0.6);
  PollUntil([this] { return NamedCut(0) == 9; });
  loop_->Stop();
  cluster_.WriteAll(9);
  Poll(2);  // The keeper's answer comes too late.
  EXPECT_THAT(workers_[0].decisions(), IsEmpty());
  EXPECT_THAT(loop_->TakeEvents(), IsEmpty());
}

}  // namespace
}  // namespace thermocline
