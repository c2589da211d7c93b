#include "deploy/engines/scripts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/thread_pool.h"
#include "common/job/job_loader.h"
#include "deploy/engines/engine.h"
#include "tests/testing/fake_programs.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Only a hanging test reaches it.
constexpr absl::Duration kSoon = absl::Seconds(60);

Submission ThreeHosts() {
  Submission submission;
  submission.job_name = "my job";
  submission.program = "/opt/it's/thermocline";
  submission.folder = "/home/a b";
  submission.train_flags = {"/runs/r/submit/job.textproto", "--set", "seed=7"};
  submission.run_dir = "/runs/r";
  submission.hosts = 3;
  submission.needs = {uint64_t{3} << 30, 4, 2};
  return submission;
}

TEST(SlurmScriptTest, AsksForWhatTheJobNeeds) {
  SlurmRequest request;
  request.partition = "long";
  request.account = "ads";
  request.time = "8:00:00";
  request.more = {"--constraint=avx2"};
  const std::string script = SlurmScript(ThreeHosts(), request);
  EXPECT_THAT(script, StartsWith(R"(#!/bin/bash
# Job 'my_job' on 3 hosts of Slurm, written by `thermocline submit`. sbatch takes this file as it is.
#SBATCH --job-name=my_job
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=3072M
#SBATCH --gpus-per-node=2
#SBATCH --no-kill
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --output="/runs/r/submit/batch.log"
#SBATCH --partition=long
#SBATCH --account=ads
#SBATCH --time=8:00:00
#SBATCH --constraint=avx2
set -u
cd '/home/a b' || exit 1
program='/opt/it'\''s/thermocline'
run_dir=/runs/r
node_dir=/tmp/thermocline-my_job-647f1e71
)"));
  EXPECT_THAT(script,
              HasSubstr("\"$program\" train /runs/r/submit/job.textproto --set seed=7 --nodes 3 "
                        "--listen \"$controller\" --run-dir \"$run_dir\" $how --or-begin &\n"));
}

TEST(SlurmScriptTest, TakesWholeHostsWhereNothingIsKnown) {
  Submission submission = ThreeHosts();
  submission.needs = {};
  const std::string script = SlurmScript(submission, {});
  EXPECT_THAT(script, HasSubstr("\n#SBATCH --exclusive\n#SBATCH --mem=0\n#SBATCH --no-kill\n"));
  EXPECT_THAT(script, Not(HasSubstr("--cpus-per-task")));
}

TEST(SlurmScriptTest, AJobWithoutCheckpointsIsNotRequeued) {
  Submission submission = ThreeHosts();
  submission.resumable = false;
  const std::string script = SlurmScript(submission, {});
  EXPECT_THAT(script, HasSubstr("#SBATCH --no-requeue\n"));
  EXPECT_THAT(script, Not(HasSubstr("scontrol requeue")));
  EXPECT_THAT(script, Not(HasSubstr("USR1")));
}

TEST(SlurmScriptTest, RefusesWhatWouldBreakABatchLine) {
  SlurmRequest request;
  EXPECT_EQ(CheckSlurm(ThreeHosts(), request), absl::OkStatus());
  request.time = "1\n#SBATCH --uid=0";
  EXPECT_EQ(CheckSlurm(ThreeHosts(), request).code(), absl::StatusCode::kInvalidArgument);
  request.time = "";
  request.more = {"constraint=avx2"};
  EXPECT_EQ(CheckSlurm(ThreeHosts(), request).code(), absl::StatusCode::kInvalidArgument);
  Submission submission = ThreeHosts();
  submission.run_dir = "/runs/50%";
  EXPECT_EQ(CheckSlurm(submission, {}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(SshScriptTest, RefusesHostsThatAreNone) {
  const auto code = [](std::vector<std::string> hosts, const std::string& controller) {
    return CheckSsh(ThreeHosts(), {std::move(hosts), controller}).code();
  };
  EXPECT_EQ(code({"a", "me@b", "10.0.0.3"}, "me@b"), absl::StatusCode::kOk);
  for (const char* strange : {"", "-oProxyCommand=x", "a b", "me@", "a/b"}) {
    EXPECT_EQ(code({"a", "b", strange}, ""), absl::StatusCode::kInvalidArgument) << strange;
  }
  EXPECT_EQ(code({}, ""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"a", "b"}, ""), absl::StatusCode::kInvalidArgument);  // Three are needed.
  EXPECT_EQ(code({"a", "b", "me@a"}, ""), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({"a", "b", "c"}, "d"), absl::StatusCode::kInvalidArgument);
}

TEST(ShellWordTest, AnyTextIsOneWord) {
  EXPECT_EQ(ShellWord("data.path=/a/b-1"), "data.path=/a/b-1");
  for (const char* text : {"", "a b", "it's", "$HOME", "`id`", "a\"b", "*", "a;b", "~"}) {
    const auto shown = RunCommand({"bash", "-c", absl::StrCat("printf %s ", ShellWord(text))});
    ASSERT_TRUE(shown.ok());
    EXPECT_EQ(shown->text, text);
  }
}

// Memory and cores
// ------------------------------------------------------------------------------------------------

Job JobWith(const std::string& text) {
  auto job = ParseJob(
      absl::StrCat("name: \"j\" data { format: DLRM_NPY path: \"d\" } default_table { dim: 8 } "
                   "dlrm { bottom: [8] } train { batch_size: 8 learning_rate { base: 1 } } ",
                   text),
      "j", {}, {}, JobUse::kTrain);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

TEST(HostNeedsTest, TheHostWithTheLargestShareDecides) {
  // As many as this machine has would be taken for the default.
  const uint32_t threads = static_cast<uint32_t>(HardwareThreads()) + 1;
  const Job job = JobWith(absl::StrCat("cluster { servers: 4 workers: 3 worker_threads: ", threads,
                                       " server_threads: 3 } device: CUDA"));
  JobPlan plan;
  plan.server = {{"rows", uint64_t{1} << 30}};
  plan.worker = {{"buffers", uint64_t{2} << 30}, {"the program", uint64_t{1} << 30}};
  HostNeeds needs = NeedsOfHost(job, plan, 3);  // Two servers, one worker.
  EXPECT_EQ(needs.memory_bytes, (uint64_t{5} << 30) / 4 * 5 + (uint64_t{512} << 20));
  EXPECT_EQ(needs.cores, threads + 2 * 3);
  EXPECT_EQ(needs.gpus, 1u);
  plan.is_complete = false;
  needs = NeedsOfHost(job, plan, 1);
  EXPECT_EQ(needs.memory_bytes, 0u);
  EXPECT_EQ(needs.gpus, 3u);
}

// The host of the worker runs its script, too.
TEST(HostNeedsTest, AScriptHasMemoryAndCoresOfItsOwn) {
  const uint32_t threads = static_cast<uint32_t>(HardwareThreads()) + 1;
  Job job = JobWith(
      absl::StrCat("cluster { servers: 1 worker_threads: ", threads, " server_threads: 3 }"));
  job.clear_dlrm();
  job.mutable_worker()->set_threads(threads + 1);
  JobPlan plan;
  plan.server = {{"rows", uint64_t{1} << 30}};
  plan.worker = {{"buffers", uint64_t{2} << 30}};
  plan.script = {{"worker.memory", uint64_t{5} << 30}};
  const HostNeeds needs = NeedsOfHost(job, plan, 1);
  EXPECT_EQ(needs.memory_bytes, (uint64_t{10} << 30) + (uint64_t{512} << 20));
  EXPECT_EQ(needs.cores, threads + (threads + 1) + 3);
  job.mutable_worker()->clear_threads();
  EXPECT_EQ(NeedsOfHost(job, plan, 1).cores, 0u);
}

TEST(HostNeedsTest, ThreadsThatTheJobLeavesOpenAreAllOfTheHost) {
  EXPECT_EQ(NeedsOfHost(JobWith(""), {}, 1).cores, 0u);
  EXPECT_EQ(NeedsOfHost(JobWith(""), {}, 1).gpus, 0u);
}

// The scripts run, with fakes of the programs that they call
// ------------------------------------------------------------------------------------------------

class ScriptTest : public testing::Test {
 protected:
  ScriptTest() {
    fs::create_directories(RunDir() + "/submit");
    setenv("SLURM_JOB_ID", "4711", 1);
    setenv("SLURMD_NODENAME", "h1", 1);
    setenv("SLURM_JOB_NODELIST", "h[1-2]", 1);
    // The controller: it runs until it is stopped, or as END says.
    fakes_.Add("thermocline", R"(
      case $1 in
        train)
          trap 'exit 1' TERM
          echo "$@" >>"$FAKES/trains.new" && cp "$FAKES/trains.new" "$FAKES/t" && mv "$FAKES/t" "$FAKES/trains"
          touch "$FAKES/run/job.textproto"
          if [[ -e $FAKES/killed ]]; then rm "$FAKES/killed"; kill -KILL $$; fi
          if [[ -s $FAKES/codes ]]; then
            code=$(head -n 1 "$FAKES/codes"); sed -i 1d "$FAKES/codes"; exit "$code"
          fi
          [[ -e $FAKES/ends ]] && exit 0
          [[ -e $FAKES/holds ]] && trap '' TERM
          while [[ ! -e $FAKES/released ]]; do sleep 0.02; done
          exit 1 ;;
        node)
          while [[ -e $FAKES/agents_run && ! -e $FAKES/released ]]; do sleep 0.02; done
          [[ ! -e $FAKES/no_controller ]] ;;
      esac)");
    fakes_.Add("squeue", "echo \"$(cat \"$FAKES/hosts\" 2>/dev/null)\"");
    // Its flags are noted alone: the text of a script of agents names what others call.
    fakes_.Add("srun", R"(
      while [[ $1 == --* ]]; do flags+=" $1"; shift; done
      echo "srun$flags" >>"$FAKES/calls"
      exec "$@")",
               /*notes_words=*/false);
    fakes_.Add("scontrol", R"(
      case $2 in
        node) echo "NodeName=h1 NodeAddr=10.1.2.3 " ;;
        hostnames) [[ $3 == h2 ]] || echo h1; echo h2 ;;
        job) echo "JobId=4711 JobState=$(cat "$FAKES/state" 2>/dev/null) Licenses=0" ;;
      esac)");
    fakes_.Add("scancel", "");
    Touch("connection", "connection 127.0.0.1 4000 127.0.0.2 22");
    // Runs the command here. A login shell may print something before.
    fakes_.Add("ssh", R"(
      case "${@: -1}" in
        *SSH_CONNECTION*) echo 'welcome to h1'; cat "$FAKES/connection" ;;
        *) bash -c "${@: -1}" ;;
      esac)");
    submission_.program = folder_ + "/bin/thermocline";
    submission_.folder = folder_;
    submission_.train_flags = {"job file"};
    submission_.run_dir = RunDir();
    submission_.job_name = "j";
    submission_.hosts = 2;
  }

  std::string RunDir() const { return folder_ + "/run"; }
  void Touch(const std::string& name, const std::string& text = "") { fakes_.Write(name, text); }
  std::string Text(const std::string& name) const { return fakes_.Text(name); }
  pid_t Start(const std::string& script) {
    Touch("script", script);
    const auto id = StartScript(folder_ + "/script", folder_ + "/log");
    EXPECT_TRUE(id.ok()) << id.status();
    pid_t pid = -1;
    EXPECT_TRUE(absl::SimpleAtoi(*id, &pid));
    return pid;
  }
  void AwaitText(const std::string& name, const std::string& text) {
    const absl::Time deadline = absl::Now() + kSoon;
    while (!absl::StrContains(Text(name), text)) {
      ASSERT_LT(absl::Now(), deadline)
          << name << " is " << Text(name) << "; the log: " << Text("log");
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  // Its exit code.
  static int End(pid_t pid) {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const FakePrograms fakes_;
  const std::string folder_ = fakes_.folder();
  Submission submission_;
};

TEST_F(ScriptTest, SlurmRunsTheControllerAndAnAgentAHost) {
  Touch("ends");
  EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 0) << Text("log");
  EXPECT_EQ(Text("trains"),
            absl::StrCat("train job file --nodes 2 --listen 10.1.2.3:24711 --run-dir ", RunDir(),
                         " --resume --or-begin\n"));
  for (const char* name : {"h1", "h2"}) {
    AwaitText("calls", absl::StrCat("--nodelist=", name));
    AwaitText("calls", absl::StrCat("thermocline node --controller=10.1.2.3:24711 --run-dir=",
                                    RunDir(), " --name=", name));
  }
  EXPECT_THAT(Text("calls"), Not(HasSubstr("requeue")));
}

// Agents without a controller. They may outlive a script: each test has its own.
class LostScriptTest : public ScriptTest {
 protected:
  // What is called where the script runs on h1, and Slurm says that the job has `hosts`.
  std::string Calls(const std::string& hosts, const std::string& awaited) {
    fakes_.Add("sleep", "exec /bin/sleep 0.02");
    Touch("no_controller");
    Touch("hosts", hosts);
    const pid_t script = Start(SlurmScript(submission_, {}));
    AwaitText("calls", "squeue --noheader --jobs=4711 --format=%N");
    AwaitText("calls", awaited);
    fs::remove(folder_ + "/no_controller");
    Touch("released");
    EXPECT_EQ(End(script), 1);
    return Text("calls");
  }
};

TEST_F(LostScriptTest, HostsRequeueAJobThatHasLostTheHostOfItsScript) {
  Calls("h2", "scontrol requeue 4711");
  EXPECT_THAT(Text("run/submit/batch.log"), HasSubstr("host h1 is lost"));
}

TEST_F(LostScriptTest, WithoutCheckpointsTheyEndIt) {
  submission_.resumable = false;
  EXPECT_THAT(Calls("h2", "scancel 4711"), Not(HasSubstr("requeue")));
}

TEST_F(LostScriptTest, AScriptThatRunsIsNotLost) {
  EXPECT_THAT(Calls("h[1-2]", "sleep 5"), Not(HasSubstr("requeue")));
}

TEST_F(LostScriptTest, AJobThatHasEndedIsNotRequeued) {
  EXPECT_THAT(Calls("", "sleep 5"), Not(HasSubstr("requeue")));
}

// All processes of a job get SIGTERM, where Slurm says so of it. Returns what was called.
class EndedScriptTest : public LostScriptTest {
 protected:
  std::string CallsAtTheEnd(const std::string& state, const std::string& awaited) {
    Touch("agents_run");
    Touch("state", state);
    const pid_t script = Start(SlurmScript(submission_, {}));
    AwaitText("trains", "train");
    for (const char* name : {"--name=h1", "--name=h2"}) AwaitText("calls", name);
    kill(-script, SIGTERM);
    AwaitText("calls", awaited);
    Touch("released");
    EXPECT_EQ(End(script), 1);
    return Text("calls");
  }
};

TEST_F(EndedScriptTest, AHostThatIsTakenOutKillsTheScriptAndNotTheJob) {
  CallsAtTheEnd(
      "COMPLETING Reason=JobLaunchFailure ExitCode=0:9 RunTime=00:00:04 "
      "ResizeTime=2026-11-24T12:26:14",
      "scontrol requeue 4711");
  EXPECT_THAT(Text("run/submit/batch.log"), HasSubstr("host h1 is lost"));
}

TEST_F(EndedScriptTest, WhatAUserHasCanceledStaysSo) {
  const std::string look = "scontrol show job -o 4711\n";
  const std::string calls = CallsAtTheEnd("CANCELLED Reason=None ExitCode=0:15", look);
  EXPECT_THAT(calls, Not(HasSubstr("requeue")));
}

// Bash's `wait` gave 255 in every third of these rounds: one time in ten million in none of them.
TEST_F(ScriptTest, AProcessThatEndsWithASignalHasItsExitCode) {
  const std::string script = SlurmScript(submission_, {});
  const size_t begin = script.find("exec {never}"), end = script.find("\n}\n", begin);
  ASSERT_NE(end, script.npos) << script;
  Touch("rounds", script.substr(begin, end - begin) + R"(
}
trap : TERM
for ((i = 0; i < 40; ++i)); do
  bash -c 'kill -TERM $PPID; exit 7' &
  await $!
  ((code == 7)) || echo "round $i: $code"
done >"$1")");
  const std::string results = folder_ + "/results";
  EXPECT_EQ(std::system(absl::StrCat("nice bash ", folder_, "/rounds ", results).c_str()), 0);
  EXPECT_TRUE(fs::exists(results));
  EXPECT_EQ(Text("results"), "");
}

TEST_F(ScriptTest, NearTheWalltimeTheJobIsRequeuedWithACheckpoint) {
  Touch("state", "RUNNING");
  const pid_t script = Start(SlurmScript(submission_, {}));
  AwaitText("trains", "train");
  kill(script, SIGUSR1);
  EXPECT_EQ(End(script), 1) << Text("log");
  EXPECT_THAT(Text("calls"), HasSubstr("scontrol requeue 4711\n"));
  // Started again, it goes on, unless it has ended; the user who submits it again wants more of it.
  Touch("ends");
  setenv("SLURM_RESTART_COUNT", "1", 1);
  EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 0);
  EXPECT_THAT(Text("trains"), EndsWith(" --restarted --or-begin\n"));
  unsetenv("SLURM_RESTART_COUNT");
  EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 0);
  EXPECT_THAT(Text("trains"), EndsWith(" --resume --or-begin\n"));
}

TEST_F(ScriptTest, AtTheWalltimeTheJobIsRequeuedBeforeItsProcessesAreKilled) {
  Touch("state", "COMPLETING Reason=TimeLimit");
  Touch("holds");
  const pid_t script = Start(SlurmScript(submission_, {}));
  AwaitText("trains", "train");
  kill(script, SIGTERM);
  AwaitText("calls", "scontrol requeue 4711");
  Touch("released");
  EXPECT_EQ(End(script), 1);
  EXPECT_EQ(Text("calls").find("requeue"), Text("calls").rfind("requeue"));
}

TEST_F(ScriptTest, NoStartRemovesAnything) {
  fakes_.Add("sleep", "exec /bin/sleep 0.05");
  Touch("ends");
  fs::create_directories(RunDir() + "/checkpoints/x");
  fs::create_directories(RunDir() + "/thesis");
  Touch("run/thesis/text", "precious");
  Touch("run/data.csv", "precious");
  for (const bool resumes : {false, true}) {
    submission_.resumes = resumes;
    for (const char* restarts : {"0", "1"}) {
      setenv("SLURM_RESTART_COUNT", restarts, 1);
      fs::remove(RunDir() + "/job.textproto");
      EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 0) << Text("log");
      // Whether there is a run to go on with is not for the script to say.
      EXPECT_THAT(Text("trains"),
                  EndsWith(absl::StrCat(*restarts == '0' ? " --resume" : " --restarted",
                                        resumes ? "" : " --or-begin", "\n")));
      fs::remove(RunDir() + "/job.textproto");
      EXPECT_EQ(End(Start(SshScript(submission_, {{"h1", "h2"}, ""}))), 0) << Text("log");
    }
  }
  unsetenv("SLURM_RESTART_COUNT");
  EXPECT_EQ(Text("run/thesis/text"), "precious");
  EXPECT_EQ(Text("run/data.csv"), "precious");
  EXPECT_TRUE(fs::exists(RunDir() + "/checkpoints/x"));
}

TEST_F(ScriptTest, APreemptionAndTheWalltimeRequeueAndAUsersScancelDoesNot) {
  for (const char* state : {"COMPLETING Reason=None PreemptTime=2026-11-23T04:07:04",
                            "COMPLETING Reason=TimeLimit", "COMPLETING Reason=None"}) {
    fs::remove(folder_ + "/trains");
    fs::remove(folder_ + "/trains.new");
    fs::remove(folder_ + "/calls");
    Touch("state", state);
    const pid_t script = Start(SlurmScript(submission_, {}));
    AwaitText("trains", "train");
    kill(script, SIGTERM);
    EXPECT_EQ(End(script), 1);
    const bool is_users = absl::EndsWith(state, "=None");
    EXPECT_EQ(absl::StrContains(Text("calls"), "scontrol requeue"), !is_users) << Text("calls");
  }
}

TEST_F(ScriptTest, AJobThatItsUserStopsStaysSo) {
  Touch("state", "RUNNING");
  const pid_t script = Start(SlurmScript(submission_, {}));
  AwaitText("trains", "train");
  Touch("run/stop.request");
  kill(script, SIGUSR1);
  EXPECT_EQ(End(script), 1);
  EXPECT_THAT(Text("calls"), Not(HasSubstr("scontrol requeue")));
  // It has not failed.
  EXPECT_THAT(Text("calls"), HasSubstr("scancel 4711\n"));
  // Nor does it start.
  EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 0);
  EXPECT_THAT(Text("log"), HasSubstr("stopped this job"));
  EXPECT_EQ(Text("trains").find("train"), Text("trains").rfind("train"));
}

TEST_F(ScriptTest, AControllerThatIsKilledGoesOn) {
  fakes_.Add("sleep", "exec /bin/sleep 0.05");
  Touch("killed");
  Touch("ends");
  EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 0) << Text("log");
  EXPECT_THAT(Text("log"), HasSubstr("the controller was killed (exit code 137)"));
  EXPECT_THAT(Text("trains"), EndsWith(" --restarted --or-begin\n"));
  Touch("killed");
  EXPECT_EQ(End(Start(SshScript(submission_, {{"h1", "h2"}, ""}))), 0) << Text("log");
  Touch("killed");
  submission_.resumable = false;
  EXPECT_EQ(End(Start(SlurmScript(submission_, {}))), 137);
}

TEST_F(ScriptTest, AControllerThatMayStillRunIsWaitedFor) {
  fakes_.Add("sleep", "exec /bin/sleep 0.02");
  // ssh to it breaks, it holds the run for a while, and the next start says how it has ended.
  Touch("codes", "255\n255\n75\n75\n");
  Touch("ends");
  EXPECT_EQ(End(Start(SshScript(submission_, {{"h1", "h2"}, "h2"}))), 0) << Text("log");
  const std::string trains = Text("trains");
  EXPECT_EQ(std::count(trains.begin(), trains.end(), '\n'), 5) << trains;
  EXPECT_THAT(trains, EndsWith(" --restarted --or-begin\n"));
  EXPECT_THAT(Text("log"), HasSubstr("may still run (exit code 255)"));
  EXPECT_THAT(Text("log"), HasSubstr("may still run (exit code 75)"));
  EXPECT_THAT(Text("log"), Not(HasSubstr("was killed")));
  // Its user has stopped it: what ends it there is the request.
  submission_.run_dir = folder_ + "/other";
  fs::create_directories(submission_.run_dir + "/submit");
  fakes_.Add("sleep", "touch \"$FAKES/other/stop.request\"");
  Touch("codes", "255\n255\n255\n");
  EXPECT_EQ(End(Start(SshScript(submission_, {{"h1", "h2"}, "h2"}))), 255) << Text("log");
}

// An agent a host, and the port that the controller listens on.
class SshScriptRunTest : public ScriptTest {
 protected:
  SshScriptRunTest() { Touch("ends"); }
  int Port(const SshRequest& request, const std::string& address) {
    fs::remove(folder_ + "/trains");
    fs::remove(folder_ + "/trains.new");
    EXPECT_EQ(End(Start(SshScript(submission_, request))), 0) << Text("log");
    const std::string trains = Text("trains"),
                      begin = "job file --nodes 2 --listen " + address + ":";
    const size_t at = trains.find(begin);
    EXPECT_NE(at, std::string::npos) << trains;
    return at == std::string::npos ? 0 : std::atoi(trains.c_str() + at + begin.size());
  }
};

TEST_F(SshScriptRunTest, TheControllerRunsHereAndAnAgentOnEachHost) {
  submission_.node_flags = {"--tls-ca", "my ca"};
  submission_.node_dir = "/scratch/j";
  submission_.needs = {};
  const int port = Port({{"h1", "me@h2"}, ""}, "127.0.0.1");
  EXPECT_GE(port, 20000);
  for (const char* name : {"h1", "h2"}) {
    AwaitText("calls", absl::StrCat("thermocline node --controller=127.0.0.1:", port,
                                    " --run-dir=", RunDir(), " --name=", name,
                                    " --dir=/scratch/j --controller-timeout=60 --tls-ca my ca\n"));
  }
  EXPECT_THAT(Text("calls"), HasSubstr("ServerAliveInterval=15 me@h2 exec "));
}

TEST_F(SshScriptRunTest, TheControllerMayRunOnAHost) {
  submission_.folder = folder_ + "/a 'folder'";
  fs::create_directories(submission_.folder);
  EXPECT_GE(Port({{"h1", "h2"}, "h2"}, "127.0.0.2"), 20000);
}

TEST_F(SshScriptRunTest, APortOfAnotherProgramIsLeftToIt) {
  fakes_.Add("sleep", "exec /bin/sleep 0.05");  // At the end, for agents.
  const SshRequest here = {{"h1", "h2"}, ""}, there = {{"h1", "h2"}, "h2"};
  const int port = Port(here, "127.0.0.1");
  EXPECT_EQ(Port(here, "127.0.0.1"), port);  // The run keeps its port while it is free.
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 16), 0);
  EXPECT_GT(Port(here, "127.0.0.1"), port);
  EXPECT_GT(Port(there, "127.0.0.2"), port);
  submission_.port = 7070;
  EXPECT_EQ(Port(here, "127.0.0.1"), 7070);
  close(fd);
}

TEST_F(SshScriptRunTest, AnAddressWithColonsStandsInBrackets) {
  submission_.port = 7070;
  Touch("connection", "connection fd00::1 4000 fd00::2 22");
  EXPECT_EQ(Port({{"h1", "h2"}, ""}, "[fd00::1]"), 7070);
}

}  // namespace
}  // namespace thermocline
