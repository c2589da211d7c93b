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
#include "common/process/child_process.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

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
  const ProcessId refused =
      StartShell(ProcessRole::kWorker, 3, absl::StrCat("echo ", words, "; exit 2"));
  for (const Supervisor::Ended& ended : TakeEnded(4)) {
    const bool has_reason = ended.id == failed || ended.id == refused;
    EXPECT_EQ(ended.end.reason, has_reason ? "day.csv:17: no: id" : "");
    if (!(ended.id == failed)) continue;
    EXPECT_EQ(ended.end.how, "exited with code 1 (failed: INVALID_ARGUMENT: day.csv:17: no: id)");
    EXPECT_EQ(ended.end.report, absl::StrCat("exited with code 1; its log: ", Log("worker 0")));
  }
}

// A script's traceback has lines without a time. What the script wrote before is no part of it.
TEST_F(SupervisorTest, TellsTheWholeTracebackOfAScript) {
  const std::string words =
      "2026-11-22T06:00:00.456Z failed: ABORTED: the script ended with code 1\n"
      "Traceback (most recent call last):\n  File \"train.py\", line 7, in <module>\n"
      "ZeroDivisionError: division by zero";
  const auto script = [&](const std::string& before, int code) {
    const char* const blank = code == 5 ? "echo\n" : "";  // The words end with an end of line.
    return absl::StrCat(before, "cat <<'END'\n", words, "\nEND\n", blank, "exit ", code);
  };
  const ProcessId failed = StartShell(
      ProcessRole::kWorker, 0, script("echo 2026-11-22T06:00:00.123Z starts; echo loss 0.5\n", 5));
  const ProcessId other = StartShell(ProcessRole::kWorker, 1, script("", 1));
  // Longer than what is read of a log.
  const ProcessId deep = StartShell(
      ProcessRole::kWorker, 2,
      "echo 2026-11-22T06:00:00.456Z failed: ABORTED: the script failed:; seq 20000; exit 5");
  for (const Supervisor::Ended& ended : TakeEnded(3)) {
    if (ended.id == failed) {
      EXPECT_EQ(ended.end.reason,
                "the script ended with code 1\nTraceback (most recent call last):\n"
                "  File \"train.py\", line 7, in <module>\nZeroDivisionError: division by zero");
      EXPECT_EQ(ended.end.how,
                "exited with code 5 (failed: ABORTED: the script ended with code 1 ... "
                "ZeroDivisionError: division by zero)");
      EXPECT_EQ(ended.end.report, absl::StrCat("exited with code 5; its log: ", Log("worker 0")));
    } else if (ended.id == other) {
      EXPECT_EQ(ended.end.how, "exited with code 1 (ZeroDivisionError: division by zero)");
    } else {
      EXPECT_TRUE(ended.id == deep);
      EXPECT_EQ(ended.end.how,
                "exited with code 5 (failed: ABORTED: the script failed; the log ends with: ... "
                "20000)");
      EXPECT_TRUE(absl::StartsWith(ended.end.reason,
                                   "the script failed; the log ends with:\n19961\n19962\n"))
          << ended.end.reason;
    }
  }
}

// It could not tell its worker, which knows the code alone.
TEST_F(SupervisorTest, TellsWhatAScriptWroteThatEndedEarly) {
  StartShell(
      ProcessRole::kWorker, 0,
      "echo no part of it; echo 2026-11-22T06:00:00.123Z script 7: python3; "
      "echo Traceback; echo \"ModuleNotFoundError: No module named 'torch'\"; "
      "echo 2026-11-22T06:00:00.456Z failed: ABORTED: the script exited with code 1; exit 5");
  StartShell(ProcessRole::kWorker, 1,
             "seq 100; echo 2026-11-22T06:00:00.456Z failed: ABORTED: it ended; exit 5");
  for (const Supervisor::Ended& ended : TakeEnded(2)) {
    if (ended.id.index == 0) {
      EXPECT_EQ(ended.end.reason,
                "the script exited with code 1\nTraceback\n"
                "ModuleNotFoundError: No module named 'torch'");
      EXPECT_EQ(ended.end.how,
                "exited with code 5 (failed: ABORTED: the script exited with code 1 ... "
                "ModuleNotFoundError: No module named 'torch')");
    } else {
      EXPECT_TRUE(absl::StartsWith(ended.end.reason, "it ended\n61\n62\n")) << ended.end.reason;
      EXPECT_TRUE(absl::EndsWith(ended.end.reason, "\n99\n100")) << ended.end.reason;
    }
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

// Reports of hosts have the words of processes, which must be text.
TEST_F(SupervisorTest, ShowsTextWhateverAProcessWrites) {
  const ProcessId script = StartShell(ProcessRole::kWorker, 0,
                                      "printf '2026-11-22T06:00:00.123Z failed: ABORTED: no "
                                      "\\377\\nKeyError: \\303\\251\\n'; exit 5");
  std::string umlauts;
  for (int i = 0; i < 300; ++i) umlauts += "\\303\\251";
  StartShell(ProcessRole::kWorker, 1, absl::StrCat("printf 'x", umlauts, "\\n'; exit 1"));
  for (const Supervisor::Ended& ended : TakeEnded(2)) {
    EXPECT_EQ(ValidUtf8(ended.end.how), ended.end.how);
    EXPECT_EQ(ValidUtf8(ended.end.report), ended.end.report);
    EXPECT_EQ(ended.end.reason, ended.id == script ? "no ?\nKeyError: \xc3\xa9" : "");
  }
}

}  // namespace
}  // namespace thermocline
