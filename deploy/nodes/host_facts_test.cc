#include "deploy/nodes/host_facts.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>

namespace thermocline {
namespace {

using ::testing::HasSubstr;

std::string NewFolder() {
  std::string folder = testing::TempDir() + "/host_facts-XXXXXX";
  EXPECT_NE(mkdtemp(&folder[0]), nullptr);
  return std::filesystem::canonical(folder).string();
}

TEST(OwnFolderTest, IsForItsUserAlone) {
  const std::string folder = NewFolder() + "/above/agent";
  const auto made = MakeOwnFolder(folder + "/", geteuid());
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(*made, folder);
  EXPECT_EQ(std::filesystem::status(folder).permissions(), std::filesystem::perms(0700));
  EXPECT_EQ(*MakeOwnFolder(folder, geteuid()), folder) << "as an agent that is started again";
  const absl::Status no_folder = MakeOwnFolder("/dev/null/agent", geteuid()).status();
  EXPECT_TRUE(absl::IsUnavailable(no_folder)) << no_folder;
}

TEST(OwnFolderTest, AFolderOfAnotherUserIsRefused) {
  const std::string folder = NewFolder();
  // Root's own folders are taken; only root may give one away.
  if (geteuid() == 0) {
    ASSERT_EQ(chown(folder.c_str(), 54321, 54321), 0);
  }
  const absl::Status refused = MakeOwnFolder(folder, geteuid() + 1).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("the folder " + folder + " belongs to user " +
                                           (geteuid() == 0 ? "54321, " : "")));
}

TEST(OwnFolderTest, ALinkIsRefusedWhoeverMadeIt) {
  const std::string folder = NewFolder();
  const std::string link = folder + "/link";
  ASSERT_EQ(mkdir((folder + "/victim").c_str(), 0700), 0);
  ASSERT_EQ(symlink((folder + "/victim").c_str(), link.c_str()), 0);
  for (const std::string& named : {link, link + "/", link + "/."}) {
    const absl::Status refused = MakeOwnFolder(named, geteuid()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr(named + " is a symbolic link"));
  }
}

TEST(OwnFolderTest, AFolderThatOthersMayWriteToIsRefused) {
  const std::string folder = NewFolder();
  for (const mode_t mode : {0770, 01777}) {
    ASSERT_EQ(chmod(folder.c_str(), mode), 0);
    const absl::Status refused = MakeOwnFolder(folder, geteuid()).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(refused.message(), HasSubstr("other users may write to the folder " + folder));
  }
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);  // What an agent makes there has modes of its own.
  EXPECT_TRUE(MakeOwnFolder(folder, geteuid()).ok());
}

// A process with such a command line, which waits for ever.
pid_t StartIdle(const std::string& word) {
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", "kill -STOP $$; exit 0", "sh", word.c_str(), nullptr);
    _exit(1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(WIFSTOPPED(status));
  return child;
}

TEST(EndLeftoversTest, EndsWhatAnAgentOfThisFolderStartedAndNothingElse) {
  const std::string folder = NewFolder();
  const pid_t ours = StartIdle("--port_file=" + folder + "/server-0.port");
  const pid_t below = StartIdle("--port_file=" + folder + "/agent/server-0.port");
  std::set<pid_t> killed;
  const auto end = [&](pid_t pid, int signal) {
    killed.insert(pid);
    EXPECT_EQ(kill(pid, signal), 0);
    EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
    return 0;
  };
  EXPECT_EQ(EndLeftovers(folder, absl::InfiniteDuration(), end), absl::OkStatus());
  EXPECT_EQ(killed, std::set<pid_t>({ours}));
  EXPECT_EQ(kill(below, SIGKILL), 0);
  EXPECT_EQ(waitpid(below, nullptr, 0), below);
}

TEST(EndLeftoversTest, AProcessThatDoesNotEndIsNamed) {
  const std::string folder = NewFolder();
  const pid_t ours = StartIdle("--port_file=" + folder + "/server-0.port");
  const auto in_vain = [](pid_t, int) { return 0; };
  const absl::Status left = EndLeftovers(folder, absl::ZeroDuration(), in_vain);
  EXPECT_TRUE(absl::IsUnavailable(left)) << left;
  EXPECT_THAT(left.message(), HasSubstr("process " + std::to_string(ours)));
  EXPECT_THAT(left.message(), HasSubstr(folder));
  EXPECT_EQ(kill(ours, SIGKILL), 0);
  EXPECT_EQ(waitpid(ours, nullptr, 0), ours);
}

TEST(CheckRunTest, AnAgentServesItsOwnRunAlone) {
  NodeOptions options;
  NodeOrder order;
  order.set_job("j");
  order.set_run_dir("/runs/a");
  EXPECT_EQ(CheckRun(options, order), absl::OkStatus());  // Its user has started it for any.
  options.run_dir = "/runs/a";
  EXPECT_EQ(CheckRun(options, order), absl::OkStatus());
  options.run_dir = "/runs/b";
  const absl::Status refused = CheckRun(options, order);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("in /runs/a, and this agent is for the run in /runs/b"));
}

}  // namespace
}  // namespace thermocline
