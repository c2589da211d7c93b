#include "deploy/controller/run_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

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
    char host[256];
    ASSERT_EQ(gethostname(host, sizeof(host)), 0);
    EXPECT_THAT(second.status().message(),
                HasSubstr(absl::StrCat("(process ", getpid(), " on host ", host, ") uses ")));
  }
  EXPECT_FALSE(RunLock::IsHeld(folder_));
  EXPECT_TRUE(RunLock::Take(folder_, absl::ZeroDuration()).ok());
}

TEST_F(RunLockTest, WhoIsWaitedForIsSaidAtOnceAndOnce) {
  std::optional<RunLock> lock = *RunLock::Take(folder_, absl::ZeroDuration());
  std::vector<std::string> said;
  const auto free_it = [&](const std::string& what) {
    said.push_back(what);
    lock.reset();  // The wait ends.
  };
  EXPECT_TRUE(RunLock::Take(folder_, absl::InfiniteDuration(), free_it).ok());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr(absl::StrCat("another launcher (process ", getpid())));
  EXPECT_THAT(said[0], HasSubstr(absl::StrCat(" uses ", folder_, "; waiting up to ")));
  // Without a wait there is nothing to say.
  EXPECT_TRUE(RunLock::Take(folder_, absl::InfiniteDuration(), free_it).ok());
  EXPECT_EQ(said.size(), 1u);
}

TEST_F(RunLockTest, AFullDiskIsCalledSo) {
  ASSERT_EQ(symlink("/dev/full", (folder_ + "/lock").c_str()), 0);
  const absl::Status full = RunLock::Take(folder_, absl::InfiniteDuration()).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(full.message()),
      testing::MatchesRegex("can't lock .*/lock: No space left on device; the disk is full: "
                            ".* has [0-9]+ bytes free.*"));
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
