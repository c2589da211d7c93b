#include "deploy/controller/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

class RunLockTest : public testing::Test {
 protected:
  RunLockTest() {
    std::string name = testing::TempDir() + "/run_lock_XXXXXX";
    folder_ = mkdtemp(name.data());
  }

  std::string folder_;
};

TEST_F(RunLockTest, OneAtATime) {
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  {
    const auto lock = RunLock::Take(folder_, absl::ZeroDuration());
    ASSERT_TRUE(lock.ok()) << lock.status();
    EXPECT_TRUE(RunLock::IsHeld(folder_));
    const auto second = RunLock::Take(folder_, absl::ZeroDuration());
    EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(second.status().message(), HasSubstr(folder_));
    EXPECT_THAT(second.status().message(), HasSubstr(absl::StrCat("process ", getpid())));
  }
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  EXPECT_TRUE(RunLock::Take(folder_, absl::ZeroDuration()).ok());
}

TEST_F(RunLockTest, AChildKeepsIt) {
  std::optional<RunLock> lock = *RunLock::Take(folder_, absl::ZeroDuration());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ready[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", "echo; exec sleep 600", nullptr);
    _exit(1);
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);  // Its exec has closed what exec closes.
  lock.reset();
  EXPECT_TRUE(RunLock::IsHeld(folder_));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  close(ready[0]);
  close(ready[1]);
}

TEST_F(RunLockTest, NoFolder) {
  EXPECT_EQ(RunLock::Take(folder_ + "/none", absl::ZeroDuration()).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_FALSE(RunLock::IsHeld(folder_ + "/none"));
}

}  // namespace
}  // namespace thermocline
