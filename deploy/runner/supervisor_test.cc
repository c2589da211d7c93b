#include "deploy/runner/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/stopwatch.h"
#include "deploy/runner/log_tail.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SignalWatch& Signals() {
  static SignalWatch* const signals = new SignalWatch;
  return *signals;
}

// A timeout that only a hanging test reaches.
constexpr absl::Duration kSoon = absl::Seconds(60);
constexpr absl::Duration kPeriod = absl::Milliseconds(20);
bool Never() { return false; }

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() : supervisor_(&Signals()) {}

  std::string Log(const std::string& name) {
    return absl::StrCat(testing::TempDir(), "/",
                        testing::UnitTest::GetInstance()->current_test_info()->name(), ".", name);
  }
  ChildProcessOptions Shell(const std::string& name, const std::string& script, int fd = -1) {
    return {name, {"/bin/sh", "-c", script}, Log(name), fd};
  }
  absl::Status StartShell(ProcessRole role, const std::string& name, const std::string& script) {
    return supervisor_.Start(role, Shell(name, script));
  }

  Supervisor supervisor_;
};

TEST_F(SupervisorTest, WorkersMayFinishServersMayNot) {
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "exec sleep 600").ok());
  ASSERT_TRUE(StartShell(ProcessRole::kWorker, "worker 0", "exit 0").ok());
  const absl::Status done = supervisor_.WaitUntil([&] { return supervisor_.AllWorkersEnded(); },
                                                  kSoon, kPeriod, "workers");
  EXPECT_TRUE(done.ok()) << done;
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 1", "echo farewell; exit 0").ok());
  const absl::Status failed = supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing");
  EXPECT_EQ(failed.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(std::string(failed.message()), HasSubstr("server 1 exited with code 0"));
  EXPECT_THAT(std::string(failed.message()), HasSubstr("  | farewell"));
}

TEST_F(SupervisorTest, SaysHowEachThatFailedHasEnded) {
  ASSERT_TRUE(StartShell(ProcessRole::kWorker, "worker 0",
                         "echo 2026-11-22T06:00:00.123Z no; echo 2026-11-22T06:00:00.456Z it is "
                         "lost; exit 3")
                  .ok());
  ASSERT_TRUE(StartShell(ProcessRole::kWorker, "worker 1", "exit 0").ok());
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "kill -KILL $$").ok());
  // A wait ends with the first failure that it sees.
  while (supervisor_.Failures().size() < 2) {
    ASSERT_EQ(supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing").code(),
              absl::StatusCode::kAborted);
  }
  const std::vector<ProcessFailure> failures = supervisor_.Failures();
  ASSERT_EQ(failures.size(), 2u);
  EXPECT_EQ(failures[0].role, ProcessRole::kServer);
  EXPECT_EQ(failures[0].name, "server 0");
  EXPECT_EQ(failures[0].how_it_ended, "was killed by signal 9 (Killed)");
  EXPECT_EQ(failures[0].exit_code, std::nullopt);
  EXPECT_EQ(failures[1].name, "worker 0");
  EXPECT_EQ(failures[1].exit_code, 3);
  EXPECT_EQ(failures[1].how_it_ended, "exited with code 3 (it is lost)");
}

TEST_F(SupervisorTest, WhatWasStoppedHasNotFailed) {
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "exec sleep 600").ok());
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 1", "kill -KILL $$").ok());
  ASSERT_EQ(supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing").code(),
            absl::StatusCode::kAborted);
  supervisor_.Stop(ProcessRole::kServer, absl::ZeroDuration());
  const std::vector<ProcessFailure> failures = supervisor_.Failures();
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].name, "server 1");
}

// The only worker fails between the look for failures and the question whether all is done.
TEST_F(SupervisorTest, AWorkerThatDiesWithinARoundHasFailed) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  ASSERT_TRUE(
      supervisor_
          .Start(ProcessRole::kWorker, Shell("worker 0", "echo $$; read line <&3; exit 1", fds[0]))
          .ok());
  close(fds[0]);
  bool dies = false;
  const auto done = [&] {
    const std::vector<std::string> log = LogTail(Log("worker 0"), 1);
    if (!dies && !log.empty()) {
      dies = true;
      close(fds[1]);
      std::string state;
      while (state != "Z") {
        std::ifstream stat(absl::StrCat("/proc/", log[0], "/stat"));
        std::string pid, name;
        stat >> pid >> name >> state;
      }
    }
    return supervisor_.AllWorkersEnded();
  };
  const absl::Status failed = supervisor_.WaitUntil(done, kSoon, kPeriod, "workers");
  EXPECT_TRUE(dies);
  EXPECT_EQ(failed.code(), absl::StatusCode::kAborted) << failed;
  EXPECT_THAT(std::string(failed.message()), HasSubstr("worker 0 exited with code 1"));
}

TEST_F(SupervisorTest, StartsLater) {
  supervisor_.StartLater(ProcessRole::kWorker, Shell("worker 0", "exit 0"), absl::Milliseconds(30));
  EXPECT_FALSE(supervisor_.IsRunning("worker 0"));
  supervisor_.StartLater(ProcessRole::kServer, Shell("server 0", "echo up; exec sleep 600"),
                         absl::ZeroDuration());
  const absl::Status up = supervisor_.WaitUntil(
      [&] { return !LogTail(Log("server 0"), 1).empty(); }, kSoon, absl::Hours(1), "the server");
  ASSERT_TRUE(up.ok()) << up;
  supervisor_.StartLater(ProcessRole::kServer, {"server 1", {"/no/such/program"}, Log("x"), -1},
                         absl::Milliseconds(60));
  const absl::Status missing = supervisor_.WaitUntil(Never, kSoon, absl::Hours(1), "nothing");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  // Stopped before its time came.
  supervisor_.StartLater(ProcessRole::kWorker, Shell("worker 1", "exit 1"), absl::Milliseconds(1));
  supervisor_.Stop(ProcessRole::kWorker, absl::ZeroDuration());
  EXPECT_EQ(supervisor_.WaitUntil(Never, absl::Milliseconds(20), kPeriod, "nothing").code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SupervisorTest, AServerThatCanNotBeStartedAgainHasFailed) {
  supervisor_.set_server_replacer([&](const ChildProcess& ended) {
    supervisor_.StartLater(ProcessRole::kServer,
                           {ended.name(), {"/no/such/program"}, ended.log_path(), -1},
                           absl::ZeroDuration());
    return true;
  });
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "exit 7").ok());
  const absl::Status missing = supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing");
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound) << missing;
  ASSERT_EQ(supervisor_.Failures().size(), 1u);
  EXPECT_EQ(supervisor_.Failures()[0].exit_code, 7);
}

TEST_F(SupervisorTest, ReportsTheSignalAndTheServerFirst) {
  ASSERT_TRUE(StartShell(ProcessRole::kWorker, "worker 0", "echo lost it; exit 3").ok());
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "kill -9 $$").ok());
  const absl::Status failed = supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing");
  const std::string message(failed.message());
  EXPECT_EQ(message.rfind("server 0 was killed by signal 9 (Killed)", 0), 0u) << message;
  EXPECT_THAT(message, HasSubstr("worker 0 exited with code 3"));
}

TEST_F(SupervisorTest, ReportsNothingThatAnEarlierProcessWrote) {
  ASSERT_TRUE(StartShell(ProcessRole::kWorker, "worker 0", "echo long ago").ok());
  ASSERT_TRUE(
      supervisor_.WaitUntil([&] { return supervisor_.AllWorkersEnded(); }, kSoon, kPeriod, "it")
          .ok());
  ASSERT_TRUE(StartShell(ProcessRole::kWorker, "worker 0", "exit 1").ok());
  const absl::Status silent = supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing");
  EXPECT_EQ(
      silent.message(),
      absl::StrCat("worker 0 exited with code 1; it wrote nothing to its log ", Log("worker 0")));
  ASSERT_EQ(supervisor_.Failures().size(), 1u);
  EXPECT_EQ(supervisor_.Failures()[0].how_it_ended, "exited with code 1");
}

TEST_F(SupervisorTest, ADeadlineEndsAWait) {
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "exec sleep 600").ok());
  const absl::Status late =
      supervisor_.WaitUntil(Never, absl::Milliseconds(50), kPeriod, "server 0 to come up");
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("server 0 to come up"));
}

TEST_F(SupervisorTest, StopKillsWhatIgnoresTheRequestAndItsChildren) {
  ASSERT_TRUE(
      StartShell(ProcessRole::kServer, "server 0", "trap '' TERM; sleep 600 & echo $!; wait; wait")
          .ok());
  std::vector<std::string> lines;
  const absl::Status up = supervisor_.WaitUntil(
      [&] {
        lines = LogTail(Log("server 0"), 5);
        return !lines.empty();
      },
      kSoon, kPeriod, "the script");
  ASSERT_TRUE(up.ok()) << up;
  supervisor_.Stop(ProcessRole::kServer, absl::Milliseconds(100));
  // The grandchild is gone or a zombie that init has not yet collected.
  const std::string stat_path = absl::StrCat("/proc/", lines[0], "/stat");
  const Stopwatch watch;
  bool gone = false;
  while (!gone && watch.Elapsed() < kSoon) {
    std::ifstream stat(stat_path);
    std::string pid, name, state;
    gone = !(stat >> pid >> name >> state) || state == "Z" || state == "X";
  }
  EXPECT_TRUE(gone);
}

TEST_F(SupervisorTest, ReadsAPipeToItsEnd) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  std::string text;
  bool ended = false;
  supervisor_.ReadFrom(fds[0], [&](absl::string_view data) {
    ended |= data.empty();
    text += std::string(data);
  });
  ASSERT_TRUE(
      supervisor_
          .Start(ProcessRole::kWorker, Shell("worker 0", "echo one >&3; echo two >&3", fds[1]))
          .ok());
  close(fds[1]);
  ASSERT_TRUE(supervisor_.WaitUntil([&] { return ended; }, kSoon, kPeriod, "the pipe").ok());
  EXPECT_EQ(text, "one\ntwo\n");
}

TEST_F(SupervisorTest, AMissingProgramIsNamed) {
  const absl::Status missing =
      supervisor_.Start(ProcessRole::kServer, {"server 7", {"/no/such/program"}, Log("x"), -1});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("server 7: can't start /no/such/program"));
  const absl::Status no_log = supervisor_.Start(
      ProcessRole::kServer, {"server 8", {"/bin/true"}, "/no/such/folder/log", -1});
  EXPECT_THAT(std::string(no_log.message()), HasSubstr("/no/such/folder/log"));
}

TEST_F(SupervisorTest, ChildrenRunInTheirOwnGroupWithDefaultSignals) {
  // Not through a shell, which blocks signals for a moment whenever it starts a program.
  ASSERT_TRUE(
      supervisor_
          .Start(ProcessRole::kWorker,
                 {"worker 0", {"/bin/grep", "SigBlk", "/proc/self/status"}, Log("worker 0"), -1})
          .ok());
  ASSERT_TRUE(
      supervisor_.WaitUntil([&] { return supervisor_.AllWorkersEnded(); }, kSoon, kPeriod, "it")
          .ok());
  const std::vector<std::string> lines = LogTail(Log("worker 0"), 5);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.back(), HasSubstr("0000000000000000"));
}

// Asked to end, this child asks us to stop once more, and goes on. Were that not heeded, the grace
// would outlast the test.
TEST_F(SupervisorTest, ASecondStopRequestEndsTheGrace) {
  SignalWatch signals;
  Supervisor supervisor(&signals);
  const std::string script = absl::StrCat(
      "trap 'kill -INT ", getpid(), "' TERM; echo ready; while true; do sleep 600 & wait; done");
  ASSERT_TRUE(supervisor.Start(ProcessRole::kServer, Shell("server 0", script)).ok());
  const absl::Status up = supervisor.WaitUntil([&] { return !LogTail(Log("server 0"), 1).empty(); },
                                               kSoon, kPeriod, "the script");
  ASSERT_TRUE(up.ok()) << up;
  supervisor.Stop(ProcessRole::kServer, absl::Hours(1));
  EXPECT_EQ(signals.stop_requests(), 1);
  EXPECT_EQ(signals.last_stop_signal(), SIGINT);
}

// The last of the tests: the request to stop stays on record.
TEST_F(SupervisorTest, ZStopRequestsEndWaits) {
  ASSERT_TRUE(StartShell(ProcessRole::kServer, "server 0", "exec sleep 600").ok());
  kill(getpid(), SIGTERM);
  const absl::Status stopped = supervisor_.WaitUntil(Never, kSoon, kPeriod, "nothing");
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("signal 15 (Terminated)"));
}

TEST(LogTail, GivesTheLastLines) {
  const std::string path = testing::TempDir() + "/tail.log";
  std::ofstream(path) << "one\ntwo\nthree\n";
  EXPECT_THAT(LogTail(path, 2), ElementsAre("two", "three"));
  EXPECT_THAT(LogTail(path, 9), ElementsAre("one", "two", "three"));
  std::ofstream(path) << std::string(200000, 'x') << "\nlast, not ended";
  EXPECT_THAT(LogTail(path, 2), ElementsAre("last, not ended"));
  std::ofstream(path) << std::string(1000, 'y');
  EXPECT_THAT(LogTail(path, 2), ElementsAre(std::string(500, 'y')));
  EXPECT_TRUE(LogTail("/no/such/file", 3).empty());
  std::ofstream(path) << "before\nbehind\nlast\n";
  EXPECT_THAT(LogTail(path, 9, 7), ElementsAre("behind", "last"));
  EXPECT_TRUE(LogTail(path, 9, 19).empty());
  EXPECT_TRUE(LogTail(path, 9, 100).empty());
}

}  // namespace
}  // namespace thermocline
