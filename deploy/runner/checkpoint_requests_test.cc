#include "deploy/runner/checkpoint_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Only a hanging test reaches it.
constexpr absl::Duration kSoon = absl::Seconds(60);
bool Never() { return false; }

class CheckpointRequestsTest : public testing::Test {
 protected:
  CheckpointRequestsTest() {
    std::string name = testing::TempDir() + "/requests_XXXXXX";
    folder_ = mkdtemp(name.data());
  }

  // The id of the next request.
  static std::string Await(CheckpointRequests* requests) {
    while (true) {
      const std::vector<std::string> fresh = requests->TakeNew();
      if (!fresh.empty()) return fresh[0];
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  // All but the lock.
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename() != "lock") files.push_back(entry.path().filename());
    }
    return files;
  }

  std::string folder_;
};

TEST_F(CheckpointRequestsTest, AnAnswerReachesWhoAsked) {
  const auto lock = RunLock::Take(folder_, absl::ZeroDuration());
  ASSERT_TRUE(lock.ok());
  CheckpointRequests requests(folder_);
  absl::StatusOr<std::string> first, second;
  std::thread asks([&] { first = AskForCheckpoint(folder_, kSoon, Never); });
  const std::string id = Await(&requests);
  EXPECT_THAT(requests.TakeNew(), IsEmpty());  // Once is enough.
  std::thread asks_too([&] { second = AskForCheckpoint(folder_, kSoon, Never); });
  const std::string other_id = Await(&requests);
  requests.Answer(id, "step-000000009");
  requests.Answer(other_id, absl::AbortedError("server 0: disk full"));
  asks.join();
  asks_too.join();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(*first, "step-000000009");
  EXPECT_EQ(second.status(), absl::AbortedError("server 0: disk full"));
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(CheckpointRequestsTest, WhereNoLauncherRuns) {
  const auto nobody = AskForCheckpoint(folder_, kSoon, Never);
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(nobody.status().message(), HasSubstr(folder_));
}

TEST_F(CheckpointRequestsTest, ALauncherThatEndsMeanwhile) {
  std::optional<RunLock> lock = *RunLock::Take(folder_, absl::ZeroDuration());
  CheckpointRequests requests(folder_);
  absl::StatusOr<std::string> result;
  std::thread asks([&] { result = AskForCheckpoint(folder_, kSoon, Never); });
  Await(&requests);
  lock.reset();
  asks.join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(CheckpointRequestsTest, WhoGivesUpLeavesNothing) {
  const auto lock = RunLock::Take(folder_, absl::ZeroDuration());
  EXPECT_EQ(AskForCheckpoint(folder_, absl::ZeroDuration(), Never).status().code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(AskForCheckpoint(folder_, kSoon, [] { return true; }).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_THAT(Files(), IsEmpty());
  CheckpointRequests requests(folder_);
  requests.Answer("gone", "step-000000009");
  EXPECT_THAT(Files(), IsEmpty());
}

TEST_F(CheckpointRequestsTest, ARequestOfTheDeadIsDropped) {
  const pid_t dead = fork();
  if (dead == 0) _exit(0);
  ASSERT_EQ(waitpid(dead, nullptr, 0), dead);
  const auto make = [&](const std::string& id) {
    std::ofstream(absl::StrCat(folder_, "/checkpoint-", id, ".request")).flush();
    return id;
  };
  make(absl::StrCat(dead, "-", HostName(), "-1f"));
  const std::string alive = make(absl::StrCat(getpid(), "-", HostName(), "-2e"));
  // This host can't see whether a process of another host is alive.
  const std::string elsewhere = make(absl::StrCat(dead, "-another-host-1f"));
  CheckpointRequests requests(folder_);
  EXPECT_THAT(requests.TakeNew(), UnorderedElementsAre(alive, elsewhere));
  EXPECT_THAT(Files(), UnorderedElementsAre(absl::StrCat("checkpoint-", alive, ".request"),
                                            absl::StrCat("checkpoint-", elsewhere, ".request")));
}

TEST_F(CheckpointRequestsTest, AStopIsAskedForUntilItIsWithdrawn) {
  const CheckpointRequests requests(folder_);
  EXPECT_FALSE(requests.IsStopRequested());
  EXPECT_EQ(AskToStop(folder_), absl::OkStatus());
  EXPECT_EQ(AskToStop(folder_), absl::OkStatus());
  EXPECT_TRUE(requests.IsStopRequested());
  WithdrawStop(folder_);
  EXPECT_FALSE(requests.IsStopRequested());
  EXPECT_EQ(AskToStop(folder_ + "/none").code(), absl::StatusCode::kUnavailable);
}

TEST_F(CheckpointRequestsTest, AllAreRefusedAtTheEnd) {
  const auto lock = RunLock::Take(folder_, absl::ZeroDuration());
  CheckpointRequests requests(folder_);
  absl::StatusOr<std::string> result;
  std::thread asks([&] { result = AskForCheckpoint(folder_, kSoon, Never); });
  Await(&requests);
  requests.RefuseAll(absl::AbortedError("the job has ended"));
  asks.join();
  EXPECT_EQ(result.status(), absl::AbortedError("the job has ended"));
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace thermocline
