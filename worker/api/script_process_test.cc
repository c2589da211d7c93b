#include "worker/api/script_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Beginning of a script that leaves processes which have left its group: a child with a session of
// its own, one whose parent is gone, and a daemon that was forked twice.
constexpr char kLeavesProcesses[] =
    "sleep 600 & echo $! >child; "
    "setsid sleep 600 & echo $! >session; "
    "(setsid sleep 600 & echo $! >orphan); "
    "setsid sh -c '(sleep 600 & echo $! >daemon)'; "
    "echo $$ >script; ";
constexpr const char* kLeft[] = {"session", "orphan", "daemon"};

class ScriptProcessTest : public testing::Test {
 protected:
  ScriptProcessTest() {
    folder_ =
        absl::StrCat(testing::TempDir(), "/",
                     testing::UnitTest::GetInstance()->current_test_info()->name(), ".", getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    folder_ = std::filesystem::canonical(folder_).string();
    options_.directory = folder_;
  }
  // Starts a script of the shell, which runs in folder_.
  std::unique_ptr<ScriptProcess> Start(const std::string& script) {
    options_.command = {"sh", "-c", script};
    absl::StatusOr<std::unique_ptr<ScriptProcess>> started = ScriptProcess::Start(options_);
    EXPECT_TRUE(started.ok()) << started.status();
    return started.ok() ? *std::move(started) : nullptr;
  }
  absl::Status StartError(std::vector<std::string> command) {
    options_.command = std::move(command);
    return ScriptProcess::Start(options_).status();
  }
  void WaitForEnd(ScriptProcess* script) {
    EXPECT_TRUE(script->AwaitEnd(absl::InfiniteDuration()));
  }
  std::vector<std::string> Lines(const std::string& name) {
    std::ifstream file(absl::StrCat(folder_, "/", name));
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
  }
  // The number that a script writes, whole, into a file.
  pid_t WaitForNumber(const std::string& name) {
    std::vector<std::string> lines;
    while (lines.empty()) {
      usleep(1000);
      lines = Lines(name);
    }
    return std::stoi(lines[0]);
  }
  // Whether a process runs. One that has ended, and that its parent has not waited for, does not.
  static bool Runs(pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string number, name, state;
    return (file >> number >> name >> state) && state != "Z" && state != "X";
  }

  static pid_t ParentOf(pid_t pid) {
    std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
    std::string number, name, state;
    pid_t parent = -1;
    file >> number >> name >> state >> parent;
    return parent;
  }
  // A process that starts a script which leaves processes, and then waits for ever.
  pid_t StartWorker() {
    const pid_t worker = fork();
    if (worker != 0) return worker;
    const std::unique_ptr<ScriptProcess> script =
        Start(absl::StrCat(kLeavesProcesses, "while true; do wait; sleep 0.01; done"));
    while (true) pause();
  }
  // All of them, the script included, once they run.
  std::vector<pid_t> WaitForProcesses() {
    std::vector<pid_t> pids = {WaitForNumber("script"), WaitForNumber("child")};
    for (const char* name : kLeft) pids.push_back(WaitForNumber(name));
    for (const pid_t pid : pids) EXPECT_TRUE(Runs(pid)) << pid;
    return pids;
  }

  std::string folder_;
  ScriptProcessOptions options_;
};

TEST_F(ScriptProcessTest, StartsAScriptWithItsEnvironment) {
  unsetenv("OMP_NUM_THREADS");
  setenv("PYTHONUNBUFFERED", "", 1);
  options_.threads = 2;
  const std::string script =
      "echo $THERMOCLINE_WORKER $PYTHONUNBUFFERED $OMP_NUM_THREADS >out; pwd >>out; "
      "test -S /dev/fd/3 && echo socket >>out; cut -d ' ' -f 5 /proc/$$/stat >>out";
  std::unique_ptr<ScriptProcess> started = Start(script);
  ASSERT_NE(started, nullptr);
  const pid_t pid = started->pid();
  WaitForEnd(started.get());
  EXPECT_EQ(started->exit_code(), 0);
  EXPECT_EQ(started->DescribeEnd(), "exited with code 0");
  EXPECT_THAT(Lines("out"),
              ElementsAre(absl::StrCat("3:", pid, " 1 2"), folder_, "socket", absl::StrCat(pid)));
}

TEST_F(ScriptProcessTest, KeepsTheThreadsThatItsUserHasSet) {
  setenv("OMP_NUM_THREADS", "7", 1);
  options_.threads = 2;
  std::unique_ptr<ScriptProcess> script = Start("echo $OMP_NUM_THREADS >out");
  WaitForEnd(script.get());
  EXPECT_THAT(Lines("out"), ElementsAre("7"));
  script.reset();
  unsetenv("OMP_NUM_THREADS");
  options_.threads = 0;
  script = Start("echo ${OMP_NUM_THREADS-none} >out");
  WaitForEnd(script.get());
  EXPECT_THAT(Lines("out"), ElementsAre("none"));
}

TEST_F(ScriptProcessTest, ItsThreadsSpinShortlyUnlessItsUserSaysHow) {
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("GOMP_SPINCOUNT");
  std::unique_ptr<ScriptProcess> script = Start("echo $GOMP_SPINCOUNT $KMP_BLOCKTIME >out");
  WaitForEnd(script.get());
  EXPECT_THAT(Lines("out"), ElementsAre("500 1"));
  script.reset();
  setenv("GOMP_SPINCOUNT", "9", 1);
  script = Start("echo $GOMP_SPINCOUNT $KMP_BLOCKTIME >out");
  WaitForEnd(script.get());
  EXPECT_THAT(Lines("out"), ElementsAre("9 1"));
  script.reset();
  unsetenv("GOMP_SPINCOUNT");
  setenv("OMP_WAIT_POLICY", "active", 1);
  script = Start("echo ${GOMP_SPINCOUNT-none} >out");
  WaitForEnd(script.get());
  EXPECT_THAT(Lines("out"), ElementsAre("none"));
  unsetenv("OMP_WAIT_POLICY");
}

TEST_F(ScriptProcessTest, SaysHowTheScriptHasEnded) {
  std::unique_ptr<ScriptProcess> script = Start("exit 3");
  WaitForEnd(script.get());
  EXPECT_EQ(script->exit_code(), 3);
  EXPECT_EQ(script->DescribeEnd(), "exited with code 3");
  script.reset();
  script = Start("kill -KILL $$");
  WaitForEnd(script.get());
  EXPECT_EQ(script->exit_code(), std::nullopt);
  EXPECT_THAT(script->DescribeEnd(), HasSubstr("was killed by signal 9 (Killed)"));
}

TEST_F(ScriptProcessTest, HasOneEndOfTheWayToTheScript) {
  std::unique_ptr<ScriptProcess> script = Start("head -c 5 <&3 >out");
  const int fd = script->TakeSocket();
  int type = 0;
  socklen_t size = sizeof(type);
  ASSERT_EQ(getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size), 0);
  EXPECT_EQ(type, SOCK_SEQPACKET);
  EXPECT_EQ(send(fd, "hello", 5, 0), 5);
  WaitForEnd(script.get());
  EXPECT_THAT(Lines("out"), ElementsAre("hello"));
  char end = 0;
  EXPECT_EQ(recv(fd, &end, 1, 0), 0) << "No process but the script has had the other end.";
  close(fd);
}

TEST_F(ScriptProcessTest, FindsProgramsOfItsDirectory) {
  const std::string path = folder_ + "/train.sh";
  std::ofstream(path) << "#!/bin/sh\necho \"$@\" >out\n";
  const absl::Status refused = StartError({"./train.sh"});
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("train.sh is not executable"));
  chmod(path.c_str(), 0755);
  options_.command = {"./train.sh", "one", "two three"};
  absl::StatusOr<std::unique_ptr<ScriptProcess>> script = ScriptProcess::Start(options_);
  ASSERT_TRUE(script.ok()) << script.status();
  WaitForEnd(script->get());
  EXPECT_THAT(Lines("out"), ElementsAre("one two three"));
}

TEST_F(ScriptProcessTest, NamesAProgramThatIsNotThere) {
  const std::string path = getenv("PATH");
  const absl::Status on_path = StartError({"pythn3", "train.py"});
  EXPECT_EQ(on_path.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(on_path.message(),
            absl::StrCat("worker.command: there is no program 'pythn3' on PATH (", path, ")"));
  const absl::Status by_path = StartError({"/no/such/python3"});
  EXPECT_EQ(by_path.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(by_path.message(), "worker.command: there is no program '/no/such/python3'");
  const absl::Status in_directory = StartError({"./train.sh"});
  EXPECT_EQ(in_directory.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(in_directory.message(),
            absl::StrCat("worker.command: there is no program './train.sh' in ", folder_));
  options_.directory = "/no/such/folder";
  const absl::Status no_directory = StartError({"sh"});
  EXPECT_EQ(no_directory.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(no_directory.message()),
              HasSubstr("the script: can't enter the directory /no/such/folder"));
}

TEST_F(ScriptProcessTest, LetsTheScriptEndByItself) {
  options_.grace = absl::Seconds(60);
  std::unique_ptr<ScriptProcess> script =
      Start("trap 'echo bye >out; exit 0' TERM; echo $$ >ready; while true; do sleep 0.01; done");
  WaitForNumber("ready");
  EXPECT_FALSE(script->AwaitEnd(absl::ZeroDuration()));
  EXPECT_FALSE(script->AwaitEnd(absl::Milliseconds(30)));
  script.reset();
  EXPECT_THAT(Lines("out"), ElementsAre("bye"));
}

TEST_F(ScriptProcessTest, KillsAScriptThatIgnoresTheRequestToEnd) {
  options_.grace = absl::Milliseconds(50);
  std::unique_ptr<ScriptProcess> script =
      Start("trap '' TERM; sleep 600 & echo $! >child; echo $$ >ready; while true; do wait; done");
  const pid_t pid = WaitForNumber("ready"), child = WaitForNumber("child");
  EXPECT_EQ(pid, script->pid());
  script.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(kill(child, 0), -1) << "Ended, and waited for.";
}

TEST_F(ScriptProcessTest, TheScriptsEndIsThatOfItsGroup) {
  std::unique_ptr<ScriptProcess> script = Start("sleep 600 & echo $! >child");
  const pid_t child = WaitForNumber("child");
  WaitForEnd(script.get());
  while (kill(child, 0) == 0) {
    usleep(1000);
    script->HasEnded();
  }
}

TEST_F(ScriptProcessTest, EndsProcessesThatHaveLeftItsGroup) {
  // One whose parent lives until the end, one whose parent is gone, and one of a deeper family.
  std::unique_ptr<ScriptProcess> script = Start(
      "setsid sleep 600 & echo $! >near; "
      "(setsid sleep 600 & echo $! >orphan); "
      "setsid sh -c 'setsid sleep 600 & echo $! >deep; wait' & "
      "while true; do wait; sleep 0.01; done");
  const pid_t near = WaitForNumber("near"), orphan = WaitForNumber("orphan"),
              deep = WaitForNumber("deep");
  for (const pid_t pid : {near, orphan, deep}) EXPECT_TRUE(Runs(pid));
  script.reset();
  for (const pid_t pid : {near, orphan, deep}) EXPECT_EQ(kill(pid, 0), -1) << pid;
}

TEST_F(ScriptProcessTest, OrphansOfARunningScriptAreWaitedFor) {
  std::unique_ptr<ScriptProcess> script =
      Start("(sh -c 'echo $$ >orphan' &); while true; do sleep 0.01; done");
  const pid_t orphan = WaitForNumber("orphan");
  while (kill(orphan, 0) == 0) usleep(1000);
  EXPECT_FALSE(script->HasEnded());
}

TEST_F(ScriptProcessTest, LeavesOtherChildrenOfThisProcessAlone) {
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  const pid_t ended = fork();
  if (ended == 0) _exit(9);
  Start("true").reset();
  EXPECT_TRUE(Runs(other));
  kill(other, SIGKILL);
  EXPECT_EQ(waitpid(other, nullptr, 0), other);
  int how = 0;
  EXPECT_EQ(waitpid(ended, &how, 0), ended);
  EXPECT_EQ(WEXITSTATUS(how), 9);
}

TEST_F(ScriptProcessTest, TheEndOfTheScriptIsThatOfItsDaemons) {
  std::unique_ptr<ScriptProcess> script = Start(absl::StrCat(kLeavesProcesses, "exit 4"));
  WaitForEnd(script.get());
  EXPECT_EQ(script->exit_code(), 4);
  for (const char* name : kLeft) EXPECT_FALSE(Runs(WaitForNumber(name))) << name;
}

TEST_F(ScriptProcessTest, EndsWithThisProcessHoweverThatEnds) {
  const pid_t worker = StartWorker();
  const std::vector<pid_t> pids = WaitForProcesses();
  kill(worker, SIGKILL);
  waitpid(worker, nullptr, 0);
  for (const pid_t pid : pids) {
    while (Runs(pid)) usleep(1000);
  }
  while (waitpid(-1, nullptr, 0) > 0) {  // The worker's guard, and the script.
  }
}

TEST_F(ScriptProcessTest, AScriptWhoseGuardIsKilledWasKilled) {
  std::unique_ptr<ScriptProcess> script =
      Start(absl::StrCat(kLeavesProcesses, "while true; do wait; sleep 0.01; done"));
  const std::vector<pid_t> pids = WaitForProcesses();
  const pid_t guard = ParentOf(script->pid());
  EXPECT_NE(guard, getpid());
  std::ifstream words(absl::StrCat("/proc/", guard, "/cmdline"));
  std::string name;
  std::getline(words, name, '\0');
  EXPECT_EQ(name, "thermocline-guard");
  kill(guard, SIGKILL);
  WaitForEnd(script.get());
  EXPECT_EQ(script->signal(), SIGKILL);
  script.reset();
  for (const pid_t pid : pids) EXPECT_EQ(kill(pid, 0), -1) << pid;
}

TEST_F(ScriptProcessTest, AKilledGuardAndAKilledWorkerLeaveOnlyWhatHasLeftTheGroup) {
  const pid_t worker = StartWorker();
  const std::vector<pid_t> pids = WaitForProcesses();
  const pid_t script = WaitForNumber("script");
  kill(worker, SIGSTOP);
  kill(ParentOf(script), SIGKILL);
  while (Runs(script)) usleep(1000);
  kill(worker, SIGKILL);
  waitpid(worker, nullptr, 0);
  for (const char* name : kLeft) {
    const pid_t pid = WaitForNumber(name);
    EXPECT_TRUE(Runs(pid)) << name;
    kill(pid, SIGKILL);
  }
  kill(WaitForNumber("child"), SIGKILL);
  while (waitpid(-1, nullptr, 0) > 0) {
  }
}

TEST_F(ScriptProcessTest, EndsInTheWayOfTheScript) {
  for (const int number : {SIGSEGV, SIGABRT, SIGTERM, SIGHUP, SIGKILL}) {
    std::unique_ptr<ScriptProcess> script = Start(absl::StrCat("kill -", number, " $$"));
    WaitForEnd(script.get());
    EXPECT_EQ(script->signal(), number);
    EXPECT_EQ(script->exit_code(), std::nullopt);
  }
  for (const int code : {0, 1, 127, 255}) {
    std::unique_ptr<ScriptProcess> script = Start(absl::StrCat("exit ", code));
    WaitForEnd(script.get());
    EXPECT_EQ(script->exit_code(), code);
  }
}

}  // namespace
}  // namespace thermocline
