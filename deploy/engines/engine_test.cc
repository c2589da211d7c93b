#include "deploy/engines/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "deploy/engines/scripts.h"
#include "deploy/processes/run_directory.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using What = EngineState::What;

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    std::string name = testing::TempDir() + "/engine_XXXXXX";
    folder_ = mkdtemp(name.data());
    fs::create_directories(folder_ + "/bin");
    fs::create_directories(folder_ + "/run/submit");
    old_path_ = getenv("PATH");
    setenv("PATH", absl::StrCat(folder_, "/bin:", old_path_).c_str(), 1);
    setenv("XDG_STATE_HOME", (folder_ + "/state").c_str(), 1);
  }
  ~EngineTest() override { setenv("PATH", old_path_.c_str(), 1); }

  void Fake(const std::string& name, const std::string& body) {
    const std::string path = absl::StrCat(folder_, "/bin/", name);
    std::ofstream(path) << "#!/bin/sh\n" << body << "\n";
    chmod(path.c_str(), 0755);
  }
  EngineJob SlurmJob() const { return {"slurm", "12", "login", "my job", 3, folder_ + "/run"}; }

  std::string folder_, old_path_;
};

TEST_F(EngineTest, ACommandSaysHowItEnded) {
  const auto done = RunCommand({"sh", "-c", "echo out; echo err >&2; exit 3"});
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(done->exit_code, 3);
  EXPECT_EQ(done->text, "out\nerr\n");
  EXPECT_EQ(RunCommand({"sh", "-c", "kill -TERM $$"})->exit_code, 128 + SIGTERM);
  EXPECT_EQ(RunCommand({"no-such-program"}).status().code(), absl::StatusCode::kNotFound);
  const auto late =
      RunCommand({"sh", "-c", "echo begun; sleep 1000"}, absl::Milliseconds(100)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(RunCommand({"sh", "-c", "echo out"}, absl::Seconds(60))->text, "out\n");
}

TEST_F(EngineTest, AnyCommandFindsASubmission) {
  EXPECT_EQ(ReadEngineJob(folder_ + "/run").status().code(), absl::StatusCode::kNotFound);
  ASSERT_EQ(WriteEngineJob(SlurmJob()), absl::OkStatus());
  ASSERT_EQ(RememberRunDirectory(folder_ + "/run"), absl::OkStatus());
  ASSERT_EQ(RememberRunDirectory(folder_ + "/run"), absl::OkStatus());
  ASSERT_EQ(RememberRunDirectory(folder_ + "/gone"), absl::OkStatus());
  EXPECT_THAT(KnownRunDirectories(), ElementsAre(folder_ + "/run"));
  const auto job = FindEngineJob("12");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job, "my job");
  EXPECT_EQ(job->hosts, 3u);
  EXPECT_EQ(job->host, "login");
  EXPECT_EQ(FindEngineJob("13").status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder_ + "/run/submit/engine.json") << "{}";
  EXPECT_EQ(ReadEngineJob(folder_ + "/run").status().code(), absl::StatusCode::kDataLoss);
}

TEST(SlurmStateTest, IsWhatScontrolSays) {
  const auto parse = [](const char* text) { return ParseSlurmState(text); };
  EXPECT_EQ(parse("JobId=12 JobState=PENDING Reason=Resources Dependency=(null)\n").what,
            What::kWaiting);
  EXPECT_EQ(parse("JobId=12 JobState=PENDING Reason=Resources Dependency=(null)\n").text,
            "PENDING (Resources)");
  EXPECT_EQ(parse("JobState=RUNNING Reason=None").what, What::kRunning);
  EXPECT_EQ(parse("JobState=COMPLETING").what, What::kRunning);
  for (const char* end :
       {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}) {
    EXPECT_EQ(parse(absl::StrCat("JobState=", end).c_str()).what, What::kEnded) << end;
  }
  EXPECT_EQ(parse("slurm_load_jobs error: Invalid job id specified").what, What::kEnded);
}

TEST_F(EngineTest, SlurmMayHaveTooFewHostsOrRefuse) {
  // The lines have nodes, cores and MiB.
  Fake("sinfo", "echo 2 4 4000; echo 1 64 4000");
  Fake("sbatch", "echo 'a warning' >&2; echo '12;here'");
  EXPECT_EQ(SubmitToSlurm("s", 3, {uint64_t{4000} << 20, 4, 0}, "").value_or(""), "12");
  EXPECT_EQ(SubmitToSlurm("s", 1, {0, 64, 0}, "").value_or(""), "12");
  const absl::Status small = SubmitToSlurm("s", 2, {uint64_t{3000} << 20, 64, 0}, "").status();
  EXPECT_EQ(small.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(small.message()),
      HasSubstr("asks for 64 cores and 3000 MiB on each of 2 hosts, and of Slurm's 3 1 have"));
  EXPECT_EQ(SubmitToSlurm("s", 1, {uint64_t{4001} << 20, 1, 0}, "").status().code(),
            absl::StatusCode::kFailedPrecondition);
  const absl::Status few = SubmitToSlurm("s", 4, {}, "long").status();
  EXPECT_EQ(few.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(few.message(), "too few hosts: --nodes is 4, and Slurm has 3 in partition long");
  Fake("sbatch", "echo 'sbatch: error: invalid account' >&2; exit 1");
  const absl::Status refused = SubmitToSlurm("s", 3, {}, "").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("invalid account"));
}

TEST_F(EngineTest, AnEngineThatIsNotThereIsNamed) {
  setenv("PATH", (folder_ + "/bin").c_str(), 1);
  absl::Status none = SubmitToSlurm("s", 1, {}, "").status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("Debian's package slurm-client"));
  EXPECT_EQ(AskEngine(SlurmJob()).status().code(), absl::StatusCode::kNotFound);
  none = CheckSshHosts({"a"}, "p", "f");
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("openssh-client"));
}

TEST_F(EngineTest, SshHostsAreLookedAtBefore) {
  // The last word is the command; the one before the host.
  Fake("ssh", R"(
    for word; do host=$command; command=$word; done
    case $host in
      away) echo 'ssh: connect to host away: No route to host' >&2; exit 255 ;;
      bare) echo run_dir ;;
      alone) echo program ;;
      *) sh -c "$command" ;;
    esac)");
  const std::string program = folder_ + "/bin/ssh", probe = folder_ + "/a probe";
  std::ofstream(probe).flush();
  EXPECT_EQ(CheckSshHosts({"a", "b"}, program, probe), absl::OkStatus());
  const absl::Status bad = CheckSshHosts({"a", "away", "bare", "alone"}, program, probe);
  EXPECT_EQ(bad.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(
      bad.message(),
      absl::StrCat(
          "away: ssh does not work: ssh: connect to host away: No route to host\nbare: has no ",
          program, " (--program names it)\nalone: does not see ", probe,
          ": --run-dir must be on a file system that all hosts share"));
}

TEST_F(EngineTest, ALoginShellThatHangsIsNamed) {
  Fake("ssh", "sleep 1000");
  const absl::Status hangs = CheckSshHosts({"a", "b"}, "p", "f", absl::Milliseconds(50));
  EXPECT_EQ(hangs.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(hangs.message()), HasSubstr("\nb: its login shell does not end"));
}

TEST_F(EngineTest, AScriptRunsUntilItIsCanceled) {
  const std::string script = SubmitFolder(folder_ + "/run") + "/batch.sh";
  std::ofstream(script) << "while :; do sleep 0.02; done\n";
  const auto id = StartScript(script, folder_ + "/log");
  ASSERT_TRUE(id.ok()) << id.status();
  EngineJob job = {"ssh", *id, HostName(), "j", 1, folder_ + "/run"};
  EXPECT_EQ(AskEngine(job)->what, What::kRunning);
  EXPECT_EQ(Cancel(job), absl::OkStatus());
  // Also of a child of this process, which is there until its parent looks.
  while (AskEngine(job)->what == What::kRunning) absl::SleepFor(absl::Milliseconds(5));
  // After a boot the number may be another's.
  job.id = absl::StrCat(getpid());
  EXPECT_EQ(AskEngine(job)->what, What::kEnded);
  EXPECT_EQ(Cancel(job), absl::OkStatus());
  // A controller that has lost its script still runs; so it is on another host.
  for (const std::string& host : {HostName(), std::string("another")}) {
    job.host = host;
    EXPECT_EQ(AskEngine(job)->what, What::kEnded);
    const auto lock = RunLock::Take(job.run_dir, absl::ZeroDuration());
    EXPECT_EQ(AskEngine(job)->what, What::kRunning);
  }
  EXPECT_EQ(Cancel(job).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EngineTest, TheLockTellsWhatSlurmDoesNot) {
  Fake("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1");
  EXPECT_EQ(AskEngine(SlurmJob()).status().code(), absl::StatusCode::kUnavailable);
  {
    const auto lock = RunLock::Take(folder_ + "/run", absl::ZeroDuration());
    EXPECT_EQ(AskEngine(SlurmJob())->what, What::kRunning);
    Fake("scontrol", "echo JobState=FAILED");
    EXPECT_EQ(AskEngine(SlurmJob())->what, What::kRunning);
    Fake("scontrol", "echo JobState=PENDING");
    EXPECT_EQ(AskEngine(SlurmJob())->what, What::kWaiting);
  }
  Fake("scontrol", "echo JobState=FAILED");
  EXPECT_EQ(AskEngine(SlurmJob())->what, What::kEnded);
}

TEST_F(EngineTest, AJobThatNeverBeganIsSubmittedAgainAndNotResumed) {
  const std::string run_dir = folder_ + "/a b";
  fs::create_directories(run_dir);
  EngineJob job;
  job.run_dir = run_dir;
  EXPECT_EQ(ResumeCommand(job), absl::StrCat("thermocline submit --run-dir '", run_dir, "'"));
  std::ofstream(run_dir + "/job.textproto") << "name: 'j'";
  EXPECT_EQ(ResumeCommand(job),
            absl::StrCat("thermocline submit --resume --run-dir '", run_dir, "'"));
}

}  // namespace
}  // namespace thermocline
