#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"
#include "common/net/grpc_server.h"
#include "gtest/gtest.h"
#include "proto/parameter_server.grpc.pb.h"
#include "worker/session/retry_policy.h"
#include "worker/train/worker.h"

namespace thermocline {
namespace {

// Answers Configure as the test says.
class FakeServer : public ParameterServer::Service {
 public:
  grpc::Status Configure(grpc::ServerContext*, const ConfigureRequest* request,
                         ConfigureReply*) override {
    EXPECT_TRUE(request->check_only());
    EXPECT_EQ(request->job_id(), "run-1");
    EXPECT_EQ(request->generation(), 4u);
    EXPECT_EQ(request->server_index(), 0u);
    return answer(++asked);
  }
  grpc::Status GetStats(grpc::ServerContext*, const GetStatsRequest*, ServerStats* stats) override {
    stats->set_loaded_rows(loaded_rows);
    return grpc::Status::OK;
  }

  std::function<grpc::Status(int asked)> answer;
  std::atomic<int> asked{0};
  std::atomic<uint64_t> loaded_rows{0};
};

class ServerCheckTest : public testing::Test {
 protected:
  // A server whose Configure answers `answer(how often it was asked)`.
  absl::Status Await(absl::Duration patience, std::function<grpc::Status(int)> answer) {
    fake_.answer = std::move(answer);
    GrpcServer::Options options;
    options.address = "127.0.0.1:0";
    absl::StatusOr<std::unique_ptr<GrpcServer>> server = GrpcServer::Start(options, {&fake_});
    EXPECT_TRUE(server.ok()) << server.status();
    return Await(patience, (*server)->address());
  }
  absl::Status Await(absl::Duration patience, const std::string& address) {
    ServerCheckOptions options;
    options.job_id = "run-1";
    options.generation = 4;
    options.addresses = {address};
    options.patience = patience;
    return AwaitServers(job_, options);
  }
  static Job MakeJob() {
    absl::StatusOr<Job> job = ParseJob(R"(
        name: "j"
        data { format: CRITEO_TSV path: "x.tsv" num_dense: 2 num_categorical: 1 }
        default_table { dim: 4 }
        dlrm { bottom: [4] top: [4] }
        train { batch_size: 10 learning_rate { base: 0.1 } })",
                                       "j.textproto", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return *job;
  }

  const Job job_ = MakeJob();
  FakeServer fake_;
};

grpc::Status Unavailable(const std::string& why) {
  return grpc::Status(grpc::StatusCode::UNAVAILABLE, why);
}

TEST_F(ServerCheckTest, AServerThatServesIsAskedOnce) {
  EXPECT_TRUE(Await(absl::Seconds(30), [](int) { return grpc::Status::OK; }).ok());
  EXPECT_EQ(fake_.asked, 1);
}

TEST_F(ServerCheckTest, AServerThatRecoversIsAskedAgain) {
  EXPECT_TRUE(Await(absl::Seconds(30), [](int asked) {
                return asked < 6 ? Unavailable("recovering") : grpc::Status::OK;
              }).ok());
  EXPECT_EQ(fake_.asked, 6);
}

// The pauses between the questions alone are longer than the patience.
TEST_F(ServerCheckTest, PatienceBeginsAnewWithEveryProgress) {
  // It is asked for longer than that, and an answer may take as long.
  const absl::Status status = Await(absl::Seconds(1), [this](int asked) {
    fake_.loaded_rows = asked;
    return asked < 10 ? Unavailable("loading a checkpoint") : grpc::Status::OK;
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ServerCheckTest, AServerThatStandsStillIsLost) {
  const absl::Status status =
      Await(absl::Milliseconds(300), [](int) { return Unavailable("recovering: 5 parts"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "recovering: 5 parts")) << status;
  EXPECT_TRUE(IsServerLoss(status));
  EXPECT_GT(fake_.asked, 1);
}

TEST_F(ServerCheckTest, NobodyThereIsALossThatNamesTheAddress) {
  const absl::Status status = Await(absl::Milliseconds(200), "127.0.0.1:1");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(absl::StrContains(status.message(), "127.0.0.1:1")) << status;
  EXPECT_TRUE(IsServerLoss(status));
}

TEST_F(ServerCheckTest, ADifferenceIsTheJobsOwnFault) {
  const absl::Status status = Await(absl::Seconds(30), [](int) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "table 'C1': dim is 8 here");
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(status.message(), "dim is 8 here")) << status;
  EXPECT_FALSE(IsServerLoss(status));
  EXPECT_EQ(fake_.asked, 1);
}

}  // namespace
}  // namespace thermocline
