#include "deploy/processes/supervisor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/timing.h"
#include "deploy/processes/child_process.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

SignalWatch& Signals() {
  static SignalWatch* const signals = new SignalWatch;
  return *signals;
}

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
  ProcessId StartShell(ProcessRole role, uint32_t index, const std::string& script) {
    const ProcessId id = {role, index, 1, ++incarnations_};
    EXPECT_TRUE(supervisor_.Start(id, Shell(id.Name(), script)).ok());
    return id;
  }
  // Waits until `count` processes have ended.
  std::vector<Supervisor::Ended> TakeEnded(size_t count) {
    std::vector<Supervisor::Ended> all;
    while (all.size() < count) {
      supervisor_.Poll(absl::Milliseconds(20));
      for (Supervisor::Ended& ended : supervisor_.TakeEnded()) all.push_back(std::move(ended));
    }
    return all;
  }
  void WaitForLog(const std::string& name) {
    while (LogTail(Log(name), 1).empty()) supervisor_.Poll(absl::Milliseconds(5));
  }

  Supervisor supervisor_;
  uint64_t incarnations_ = 0;
};

TEST_F(SupervisorTest, SaysHowEachHasEnded) {
  const ProcessId server = StartShell(ProcessRole::kServer, 0, "kill -KILL $$");
  const ProcessId worker = StartShell(ProcessRole::kWorker, 1,
                                      "echo 2026-11-22T06:00:00.123Z no; "
                                      "echo 2026-11-22T06:00:00.456Z it is lost; exit 3");
  const ProcessId done = StartShell(ProcessRole::kWorker, 2, "exit 0");
  StartShell(ProcessRole::kWorker, 3, "exec sleep 600");
  for (const Supervisor::Ended& ended : TakeEnded(3)) {
    if (ended.id == server) {
      EXPECT_EQ(ended.end.how, "was killed by signal 9 (Killed)");
      EXPECT_EQ(ended.end.exit_code, std::nullopt);
      EXPECT_EQ(ended.end.report,
                absl::StrCat("was killed by signal 9 (Killed); it wrote nothing to its log ",
                             Log("server 0")));
    } else if (ended.id == worker) {
      EXPECT_EQ(ended.end.how, "exited with code 3 (it is lost)");
      EXPECT_EQ(ended.end.exit_code, 3);
      EXPECT_EQ(ended.end.report,
                absl::StrCat("exited with code 3; last lines of ", Log("worker 1"),
                             ":\n  | 2026-11-22T06:00:00.123Z no\n  | 2026-11-22T06:00:00.456Z it "
                             "is lost"));
    } else {
      EXPECT_TRUE(ended.id == done);
      EXPECT_EQ(ended.end.exit_code, 0);
      EXPECT_EQ(ended.end.how, "exited with code 0");
    }
  }
  EXPECT_TRUE(supervisor_.TakeEnded().empty());  // Each is said once; one runs.
}

TEST_F(SupervisorTest, TellsTheReasonThatAProcessGives) {
  const std::string words = "2026-11-22T06:00:00.123Z failed: INVALID_ARGUMENT: day.csv:17: no: id";
  const ProcessId failed =
      StartShell(ProcessRole::kWorker, 0, absl::StrCat("echo ", words, "; exit 1"));
  StartShell(ProcessRole::kWorker, 1, absl::StrCat("echo ", words, "; exit 3"));
  StartShell(ProcessRole::kWorker, 2, absl::StrCat("echo ", words, "; echo more; exit 1"));
  for (const Supervisor::Ended& ended : TakeEnded(3)) {
    EXPECT_EQ(ended.end.reason, ended.id == failed ? "day.csv:17: no: id" : "");
    if (!(ended.id == failed)) continue;
    EXPECT_EQ(ended.end.how, "exited with code 1 (failed: INVALID_ARGUMENT: day.csv:17: no: id)");
    EXPECT_EQ(ended.end.report, absl::StrCat("exited with code 1; its log: ", Log("worker 0")));
  }
}

TEST_F(SupervisorTest, ShowsBothEndsOfLongLastWords) {
  const std::string path = absl::StrCat("/data/", std::string(400, 'x'), "/day.csv");
  StartShell(ProcessRole::kWorker, 0,
             absl::StrCat("echo failed: UNAVAILABLE: ", path, ": Input/output error; exit 4"));
  const std::vector<Supervisor::Ended> ended = TakeEnded(1);
  const std::string& how = ended[0].end.how;
  EXPECT_TRUE(absl::StartsWith(how, "exited with code 4 (failed: UNAVAILABLE: /data/xx")) << how;
  EXPECT_TRUE(absl::EndsWith(how, "xx/day.csv: Input/output error)")) << how;
  EXPECT_TRUE(absl::StrContains(how, "x ... x")) << how;
  EXPECT_LE(how.size(), 330u);
  EXPECT_EQ(ended[0].end.reason, path + ": Input/output error") << "whole";
}

TEST_F(SupervisorTest, ReportsNothingThatAnEarlierProcessWrote) {
  StartShell(ProcessRole::kWorker, 0, "echo long ago");
  TakeEnded(1);
  StartShell(ProcessRole::kWorker, 0, "exit 1");
  const std::vector<Supervisor::Ended> ended = TakeEnded(1);
  EXPECT_EQ(ended[0].end.report,
            absl::StrCat("exited with code 1; it wrote nothing to its log ", Log("worker 0")));
  EXPECT_EQ(ended[0].end.how, "exited with code 1");
}

TEST_F(SupervisorTest, WhatWasStoppedIsNotSeenToEnd) {
  StartShell(ProcessRole::kServer, 0, "exec sleep 600");
  const ProcessId worker = StartShell(ProcessRole::kWorker, 0, "exit 1");
  supervisor_.Stop(ProcessRole::kServer, absl::ZeroDuration());
  const std::vector<Supervisor::Ended> ended = TakeEnded(1);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].id == worker);
}

TEST_F(SupervisorTest, StopKillsWhatIgnoresTheRequestAndItsChildren) {
  StartShell(ProcessRole::kServer, 0, "trap '' TERM; sleep 600 & echo $!; wait; wait");
  WaitForLog("server 0");
  const std::vector<std::string> lines = LogTail(Log("server 0"), 5);
  supervisor_.Stop(ProcessRole::kServer, absl::Milliseconds(100));
  // The grandchild is gone or a zombie that init has not yet collected.
  const std::string stat_path = absl::StrCat("/proc/", lines[0], "/stat");
  const Stopwatch watch;
  bool gone = false;
  while (!gone && watch.Elapsed() < absl::Seconds(60)) {
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
  const ProcessId id = {ProcessRole::kWorker, 0, 1, 1};
  ASSERT_TRUE(supervisor_.Start(id, Shell("worker 0", "echo one >&3; echo two >&3", fds[1])).ok());
  close(fds[1]);
  while (!ended) supervisor_.Poll(absl::Seconds(60));
  EXPECT_EQ(text, "one\ntwo\n");
}

TEST_F(SupervisorTest, AMissingProgramIsNamed) {
  const ProcessId id = {ProcessRole::kServer, 7, 1, 1};
  const absl::Status missing =
      supervisor_.Start(id, {"server 7", {"/no/such/program"}, Log("x"), -1});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("server 7: can't start /no/such/program"));
  const absl::Status no_log =
      supervisor_.Start(id, {"server 8", {"/bin/true"}, "/no/such/folder/log", -1});
  EXPECT_THAT(std::string(no_log.message()), HasSubstr("/no/such/folder/log"));
  EXPECT_TRUE(supervisor_.TakeEnded().empty());
}

TEST_F(SupervisorTest, ChildrenRunInTheirOwnGroupWithDefaultSignals) {
  // Not through a shell, which blocks signals for a moment whenever it starts a program.
  ASSERT_TRUE(
      supervisor_
          .Start({ProcessRole::kWorker, 0, 1, 1},
                 {"worker 0", {"/bin/grep", "SigBlk", "/proc/self/status"}, Log("worker 0"), -1})
          .ok());
  TakeEnded(1);
  const std::vector<std::string> lines = LogTail(Log("worker 0"), 5);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.back(), HasSubstr("0000000000000000"));
}

// Asked to end, this child sends us a second stop signal and goes on. If that were ignored, the
// grace would outlast the test.
TEST_F(SupervisorTest, ASecondStopRequestEndsTheGrace) {
  SignalWatch signals;
  Supervisor supervisor(&signals);
  const std::string script = absl::StrCat(
      "trap 'kill -INT ", getpid(), "' TERM; echo ready; while true; do sleep 600 & wait; done");
  ASSERT_TRUE(supervisor.Start({ProcessRole::kServer, 0, 1, 1}, Shell("server 0", script)).ok());
  WaitForLog("server 0");
  supervisor.Stop(ProcessRole::kServer, absl::Hours(1));
  EXPECT_EQ(signals.stop_requests(), 1);
  EXPECT_EQ(signals.last_stop_signal(), SIGINT);
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
