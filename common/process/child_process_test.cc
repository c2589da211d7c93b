#include "common/process/child_process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ChildProcessTest : public testing::Test {
 protected:
  std::string Log() const {
    return absl::StrCat(testing::TempDir(), "/",
                        testing::UnitTest::GetInstance()->current_test_info()->name(), ".log");
  }
  ChildProcessOptions Shell(const std::string& script) const {
    ChildProcessOptions options;
    options.name = "child";
    options.command = {"/bin/sh", "-c", script};
    options.log_path = Log();
    return options;
  }
  // Runs a child to its end, and returns what it wrote.
  std::vector<std::string> Run(const ChildProcessOptions& options) {
    unlink(Log().c_str());
    absl::StatusOr<ChildProcess> child = ChildProcess::Start(options);
    EXPECT_TRUE(child.ok()) << child.status();
    if (!child.ok()) return {};
    pid_ = child->pid();
    while (!child->HasEnded()) usleep(1000);
    how_ = child->DescribeEnd();
    return LogTail(Log(), 100);
  }

  pid_t pid_ = -1;
  std::string how_;
};

TEST_F(ChildProcessTest, HasTheEnvironmentOfItsParentWithChanges) {
  setenv("CHILD_TEST_KEPT", "old", 1);
  setenv("CHILD_TEST_CHANGED", "old", 1);
  ChildProcessOptions options =
      Shell("echo $CHILD_TEST_KEPT $CHILD_TEST_CHANGED $CHILD_TEST_NEW; env | grep -c _CHANGED=");
  options.environment = {"CHILD_TEST_CHANGED=new", "CHILD_TEST_NEW=a=b"};
  EXPECT_THAT(Run(options), ElementsAre("old new a=b", "1"));
  options.environment = {};
  EXPECT_THAT(Run(options), ElementsAre("old old", "1"));
}

TEST_F(ChildProcessTest, LearnsItsDescriptorAndItsNumber) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  ChildProcessOptions options = Shell("echo $CHILD_TEST_FD; echo through >&3");
  options.inherited_fd = fds[1];
  options.fd_variable = "CHILD_TEST_FD";
  setenv("CHILD_TEST_FD", "7:1", 1);
  const std::vector<std::string> lines = Run(options);
  EXPECT_THAT(lines, ElementsAre(absl::StrCat("3:", pid_)));
  char text[16] = {};
  EXPECT_EQ(read(fds[0], text, sizeof(text)), 8);
  EXPECT_STREQ(text, "through\n");
  close(fds[0]);
  close(fds[1]);
}

TEST_F(ChildProcessTest, RunsInItsDirectory) {
  ChildProcessOptions options = Shell("pwd");
  options.directory = "/usr";
  EXPECT_THAT(Run(options), ElementsAre("/usr"));
  options.directory = "/no/such/directory";
  const absl::Status missing = ChildProcess::Start(options).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()),
              HasSubstr("child: can't enter the directory /no/such/directory"));
}

TEST_F(ChildProcessTest, InheritsNoOtherDescriptorIfAsked) {
  const int open_to_all = fcntl(STDIN_FILENO, F_DUPFD, 50);
  ASSERT_GE(open_to_all, 50);
  ChildProcessOptions options =
      Shell(absl::StrCat("test -e /proc/self/fd/", open_to_all, " && echo open || echo closed"));
  EXPECT_THAT(Run(options), ElementsAre("open"));
  options.closes_others = true;
  EXPECT_THAT(Run(options), ElementsAre("closed"));
  close(open_to_all);
}

TEST_F(ChildProcessTest, WritesToTheOutputOfItsParentWithoutALog) {
  ChildProcessOptions options = Shell("echo out; echo error >&2; exit 3");
  options.log_path = "";
  const std::string path = testing::TempDir() + "/parent.log";
  const int kept_out = dup(STDOUT_FILENO), kept_error = dup(STDERR_FILENO);
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
  dup2(file, STDOUT_FILENO);
  dup2(file, STDERR_FILENO);
  Run(options);
  dup2(kept_out, STDOUT_FILENO);
  dup2(kept_error, STDERR_FILENO);
  for (const int fd : {kept_out, kept_error, file}) close(fd);
  EXPECT_THAT(LogTail(path, 10), ElementsAre("out", "error"));
  EXPECT_EQ(how_, "exited with code 3");
}

TEST_F(ChildProcessTest, AGuardEndsAsItsChildAndTakesAllThatItStarted) {
  ChildProcessOptions options = Shell("setsid sh -c '(sleep 600 & echo $!)'; exit 7");
  options.is_guarded = true;
  const std::vector<std::string> lines = Run(options);
  EXPECT_EQ(how_, "exited with code 7");
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(kill(std::stoi(lines[0]), 0), -1);
  options.command = {"/bin/sh", "-c", "kill -SEGV $$"};
  Run(options);
  EXPECT_THAT(how_, HasSubstr("was killed by signal 11"));
}

TEST_F(ChildProcessTest, AGuardedChildThatCannotStartLeavesNoProcess) {
  ChildProcessOptions options = Shell("");
  options.is_guarded = true;
  options.command = {"/no/such/program"};
  const absl::Status missing = ChildProcess::Start(options).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("child: can't start /no/such/program"));
  EXPECT_EQ(waitpid(-1, nullptr, 0), -1);
}

TEST_F(ChildProcessTest, TheEndOfItsOwnerKillsAGuardedChild) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  unlink(Log().c_str());
  ChildProcessOptions options = Shell("trap '' TERM; sleep 600 & echo $!; wait");
  options.is_guarded = true;
  pid_t pid = -1;
  std::vector<std::string> lines;
  {
    const absl::StatusOr<ChildProcess> child = ChildProcess::Start(options);
    ASSERT_TRUE(child.ok()) << child.status();
    pid = child->pid();
    EXPECT_NE(child->waited_pid(), pid);
    while (lines.empty()) lines = LogTail(Log(), 1);
  }
  EXPECT_EQ(kill(std::stoi(lines[0]), 0), -1);
  int how = 0;
  EXPECT_EQ(waitpid(pid, &how, WNOHANG), pid) << "It has ended, and is this process's to wait for.";
  EXPECT_TRUE(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(FindCommand, LooksWhereAShellDoes) {
  const std::string folder = testing::TempDir() + "/find_command";
  std::filesystem::create_directories(folder + "/bin");
  const std::string program = folder + "/bin/a_program";
  std::ofstream(program) << "#!/bin/sh\n";
  EXPECT_EQ(FindCommand(program, "").status().code(), absl::StatusCode::kPermissionDenied);
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_EQ(*FindCommand(program, "/usr"), program);
  EXPECT_EQ(*FindCommand("bin/a_program", folder), program);
  const absl::Status missing = FindCommand("a_program", folder).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  const std::string path = std::getenv("PATH");
  EXPECT_EQ(missing.message(), "there is no program 'a_program' on PATH (" + path + ")");
  setenv("PATH", ("/none:" + folder + "/bin").c_str(), 1);
  EXPECT_EQ(*FindCommand("a_program", ""), program);
  unsetenv("PATH");
  EXPECT_THAT(*FindCommand("sh", ""), HasSubstr("/bin/sh"));
  setenv("PATH", path.c_str(), 1);
}

TEST(ValidUtf8, ReplacesOtherBytes) {
  for (const char* text : {"", "a b", "caf\u00e9", "\u20ac \U0001f600"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
  EXPECT_EQ(ValidUtf8("a\xff"), "a?");
  EXPECT_EQ(ValidUtf8("\xc3\xa9\xc3"), "\xc3\xa9?");              // Cut in a character.
  EXPECT_EQ(ValidUtf8("\xa9\xc3\xa9 \xf0\x9f"), "?\xc3\xa9 ??");  // At both ends.
  EXPECT_EQ(ValidUtf8("\xff\xe2\x82\xac\xff"), "?\xe2\x82\xac?");
}

TEST(LogTail, GivesTheLastLines) {
  const std::string path = testing::TempDir() + "/tail.log";
  std::ofstream(path) << "one\ntwo\nthree\n";
  EXPECT_THAT(LogTail(path, 2), ElementsAre("two", "three"));
  EXPECT_THAT(LogTail(path, 9), ElementsAre("one", "two", "three"));
  std::ofstream(path) << std::string(200000, 'x') << "\nlast, not ended";
  EXPECT_THAT(LogTail(path, 2), ElementsAre("last, not ended"));
  std::ofstream(path) << std::string(3000, 'y');
  EXPECT_THAT(LogTail(path, 2), ElementsAre(std::string(2000, 'y')));
  EXPECT_TRUE(LogTail("/no/such/file", 3).empty());
  std::ofstream(path) << "before\nbehind\nlast\n";
  EXPECT_THAT(LogTail(path, 9, 7), ElementsAre("behind", "last"));
  EXPECT_TRUE(LogTail(path, 9, 19).empty());
  EXPECT_TRUE(LogTail(path, 9, 100).empty());
  uint64_t end = 7;
  LogTail(path, 1, 0, &end);
  EXPECT_EQ(end, 19u);
}

TEST(NewLogLines, GivesWholeLinesAndGoesOnBehindThem) {
  const std::string path = testing::TempDir() + "/new.log";
  uint64_t offset = 0;
  EXPECT_THAT(NewLogLines("/no/such/file", &offset), IsEmpty());
  std::ofstream file(path);
  file << "one\ntwo\nthr" << std::flush;
  EXPECT_THAT(NewLogLines(path, &offset), ElementsAre("one", "two"));
  EXPECT_EQ(offset, 8u);
  EXPECT_THAT(NewLogLines(path, &offset), IsEmpty());
  file << "ee\n\nfour\n" << std::flush;
  EXPECT_THAT(NewLogLines(path, &offset), ElementsAre("three", "", "four"));
  EXPECT_EQ(offset, 20u);
  // More than is read at once, one line of it too long.
  file << std::string(70000, 'x') << "\nlast\n" << std::flush;
  EXPECT_THAT(NewLogLines(path, &offset), ElementsAre(std::string(2000, 'x')));
  EXPECT_THAT(NewLogLines(path, &offset), ElementsAre(std::string(2000, 'x'), "last"));
  EXPECT_EQ(offset, 20u + 70000 + 6);
}

}  // namespace
}  // namespace thermocline
