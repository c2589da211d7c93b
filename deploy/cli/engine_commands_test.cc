#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/process_limits.h"
#include "deploy/cli/command_line.h"
#include "deploy/engines/engine.h"
#include "deploy/engines/scripts.h"
#include "deploy/processes/run_directory.h"
#include "deploy/report/summary.h"
#include "tests/testing/fake_programs.h"

namespace thermocline {
namespace {

namespace fs = std::filesystem;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A job of Slurm's, whose commands are fakes that note their calls.
class StopTest : public testing::Test {
 protected:
  StopTest() {
    fs::create_directories(SubmitFolder(RunDir()));
    fakes_.Add("scontrol", "cat \"$FAKES/state\"");
    fakes_.Add("scancel", "echo JobState=CANCELLED >\"$FAKES/state\"");
    EngineJob job;
    job.engine = "slurm";
    job.id = "7";
    job.job = "j";
    job.hosts = 2;
    job.run_dir = RunDir();
    EXPECT_TRUE(WriteEngineJob(job).ok());
  }

  std::string RunDir() const { return fakes_.folder() + "/run"; }
  void SetState(const std::string& state) {
    fakes_.Write("state", absl::StrCat("JobState=", state, "\n"));
  }
  std::string Calls() const { return fakes_.Text("calls"); }
  int Stop(int timeout_s) const {
    return RunCommandLine({"stop", RunDir(), "--timeout", absl::StrCat(timeout_s)});
  }

  const FakePrograms fakes_;
};

TEST_F(StopTest, AJobThatWaitsIsTakenOutOfTheQueue) {
  SetState("PENDING");
  EXPECT_EQ(Stop(60), kExitDone);
  EXPECT_THAT(Calls(), HasSubstr("scancel 7\n"));
  EXPECT_THAT(Calls(), EndsWith("scontrol show job -o 7\n"));
  EXPECT_EQ(Stop(60), kExitFailed);  // It has ended.
}

TEST_F(StopTest, TheEngineIsAskedNowAndThen) {
  SetState("RUNNING");
  EXPECT_EQ(Stop(1), kExitFailed);
  EXPECT_TRUE(fs::exists(RunDir() + "/stop.request"));
  EXPECT_THAT(Calls(), Not(HasSubstr("scancel")));
  // Once to begin with, and every kEnginePeriod: the wait is shorter, or the machine was slow.
  const std::string calls = Calls();
  EXPECT_LE(std::count(calls.begin(), calls.end(), '\n'), 3) << calls;
}

TEST_F(StopTest, NeedsNoEngineThatAnswers) {
  fakes_.Add("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1");
  // Nothing tells whether it runs: its script will see the request.
  EXPECT_EQ(Stop(60), kExitFailed);
  EXPECT_TRUE(fs::exists(RunDir() + "/stop.request"));
  fs::remove(RunDir() + "/stop.request");
  // The controller ends as the request comes.
  auto lock = std::make_unique<RunLock>(*RunLock::Take(RunDir(), absl::ZeroDuration()));
  std::thread controller([&] {
    while (!fs::exists(RunDir() + "/stop.request")) absl::SleepFor(absl::Milliseconds(5));
    lock.reset();
  });
  EXPECT_EQ(Stop(60), kExitDone);
  controller.join();
}

class SubmitTest : public testing::Test {
 protected:
  SubmitTest() {
    std::string name = testing::TempDir() + "/submit_XXXXXX";
    folder_ = fs::path(mkdtemp(name.data())).lexically_normal().string();
    std::ofstream(folder_ + "/rows.tsv") << "1\n";
    std::ofstream(folder_ + "/job.textproto") << R"(
        name: "j" data { format: CRITEO_TSV path: ")"
                                              << folder_ << R"(/rows.tsv" }
        default_table { dim: 8 } dlrm { bottom: [8] } checkpoint {}
        train { batch_size: 8 learning_rate { base: 1 } })";
  }

  std::string JobFile() const { return folder_ + "/job.textproto"; }
  // What `submit` answers to these flags, which nothing is started for.
  int Submit(std::vector<std::string> flags, const std::string& run_dir = "run") const {
    flags.insert(flags.begin(), {"submit", "--write-only", "--run-dir", folder_ + "/" + run_dir});
    return RunCommandLine(flags);
  }
  int SubmitJob(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), {JobFile(), "--engine", "slurm", "--nodes", "2"});
    return Submit(std::move(flags));
  }
  std::string Script() const {
    std::ifstream file(folder_ + "/run/submit/batch.sh");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
};

TEST_F(SubmitTest, AJobHasCertificatesUnlessItsUserWantsNone) {
  ASSERT_EQ(SubmitJob(), kExitDone);
  const std::string folder = folder_ + "/run/certificates";
  EXPECT_THAT(Script(), HasSubstr(" --set cluster.tls.automatic=true "));
  EXPECT_THAT(Script(), HasSubstr("--tls-certificate=" + folder + "/node.pem"));
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms(0700));
  for (const char* name : {"/ca.key", "/node.key", "/reader.key"}) {
    EXPECT_EQ(fs::status(folder + name).permissions(), fs::perms(0600)) << name;
  }
  EXPECT_FALSE(fs::exists(folder + "/server.key"));
  fs::remove_all(folder_ + "/run");
  ASSERT_EQ(SubmitJob({"--insecure"}), kExitDone);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_THAT(Script(), Not(HasSubstr("tls")));
}

TEST_F(SubmitTest, TheControllerServesThePageWhereTheUserSays) {
  ASSERT_EQ(SubmitJob({"--http=0.0.0.0:9090"}), kExitDone);  // With certificates, as above.
  EXPECT_THAT(Script(), HasSubstr(" --http 0.0.0.0:9090 "));
  fs::remove_all(folder_ + "/run");
  EXPECT_EQ(SubmitJob({"--http=9090"}), kExitUsage);
}

TEST_F(SubmitTest, ResumeTakesNoFolderWithoutARun) {
  fs::create_directories(folder_ + "/run/thesis");
  std::ofstream(folder_ + "/run/data.csv") << "precious";
  EXPECT_EQ(SubmitJob({"--resume"}), kExitUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/run/submit"));
  const std::vector<std::string> resume = {"--resume", "--engine=slurm", "--nodes=2"};
  EXPECT_EQ(Submit(resume, "none"), kExitUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/none"));
  // One that is there does not begin anew if it can't be read later.
  fs::copy_file(JobFile(), folder_ + "/run/job.textproto");
  EXPECT_EQ(Submit(resume), kExitDone);
  EXPECT_THAT(Script(), Not(HasSubstr("--or-begin")));
}

TEST_F(SubmitTest, OtherDataAreTakenWhereTheUserInsistsAndNoLonger) {
  EXPECT_EQ(SubmitJob({"--other-data"}), kExitUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/run"));
  ASSERT_EQ(SubmitJob(), kExitDone);
  fs::copy_file(JobFile(), folder_ + "/run/job.textproto");
  ASSERT_EQ(Submit({"--resume", "--other-data"}), kExitDone);
  EXPECT_THAT(Script(), HasSubstr(" --other-data --nodes 2 "));
  ASSERT_EQ(Submit({"--resume"}), kExitDone);
  EXPECT_THAT(Script(), Not(HasSubstr("--other-data")));
}

TEST_F(SubmitTest, ARunThatGoesOnIsAskedForAsBefore) {
  ASSERT_EQ(SubmitJob({"--time=8:00:00", "--memory=3GiB", "--sbatch=--constraint=avx2"}),
            kExitDone);
  fs::copy_file(JobFile(), folder_ + "/run/job.textproto");
  ASSERT_EQ(Submit({"--resume"}), kExitDone);
  for (const char* line :
       {"#SBATCH --nodes=2\n", "#SBATCH --time=8:00:00\n", "#SBATCH --mem=3072M\n",
        "#SBATCH --constraint=avx2\n", "#SBATCH --signal=B:USR1@300\n"}) {
    EXPECT_THAT(Script(), HasSubstr(line));
  }
  ASSERT_EQ(Submit({"--resume", "--nodes=3"}), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("#SBATCH --nodes=3\n"));
  EXPECT_THAT(Script(), HasSubstr("#SBATCH --time=8:00:00\n"));
  // Another engine has nothing of it, and needs its hosts.
  EXPECT_EQ(Submit({"--resume", "--engine=ssh"}), kExitUsage);
  ASSERT_EQ(Submit({"--resume", "--engine=ssh", "--hosts=a,b"}), kExitDone);
  ASSERT_EQ(Submit({"--resume"}), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("\nhosts=(a b)\n"));
  ASSERT_EQ(Submit({"--resume", "--hosts=c"}), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("\nhosts=(c)\n"));
  EXPECT_THAT(Script(), HasSubstr(" --nodes 1 "));
}

TEST_F(SubmitTest, OneThatWasStoppedBeforeItBeganIsSubmittedAgain) {
  ASSERT_EQ(SubmitJob({"--set=seed=7", "--workers=3"}), kExitDone);
  const std::string first = Script();
  EXPECT_THAT(first, HasSubstr(" --or-begin"));
  ASSERT_EQ(Submit({}), kExitDone);
  EXPECT_EQ(Script(), first);
}

TEST_F(SubmitTest, FiguresOfTheDataSayHowMuchMemoryAHostNeeds) {
  std::ofstream(JobFile()) << R"(
      name: "j" data { train { path: ")"
                           << folder_ << R"(/rows.tsv" csv { header: true } }
      label { column: "click" } }
      feature { column: ["user"] categorical {} } default_table { dim: 8 } dlrm { top: [8] }
      checkpoint {} train { batch_size: 256 learning_rate { base: 1 } })";
  std::ofstream(folder_ + "/rows.tsv") << "click,user\n1,a\n";
  ASSERT_EQ(SubmitJob(), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("#SBATCH --mem=0\n"));
  fs::remove_all(folder_ + "/run");
  std::ofstream(folder_ + "/figures") << R"({"rows": 1000, "complete": true, "columns": [
      {"name": "user", "rows": 1000, "missing": 0, "values": 1000, "distinct": 500,
       "once_share": 0, "text_bytes": 4000, "distinct_in_batch": {"256": 200}},
      {"name": "click", "rows": 1000, "missing": 0, "values": 1000, "distinct": 2,
       "once_share": 0, "text_bytes": 1000, "distinct_in_batch": {"256": 2}}]})";
  ASSERT_EQ(SubmitJob({"--figures", folder_ + "/figures"}), kExitDone);
  const std::string script = Script();
  EXPECT_THAT(script, Not(HasSubstr("#SBATCH --mem=0\n")));
  // The next submission has them, too.
  fs::remove(folder_ + "/figures");
  ASSERT_EQ(Submit({}), kExitDone);
  EXPECT_EQ(Script(), script);
}

TEST(SubmitUsageTest, WithoutAnEngineOrHostsIsBadUsage) {
  EXPECT_EQ(RunCommandLine({"submit"}), kExitUsage);
  EXPECT_EQ(RunCommandLine({"submit", "--engine=ssh"}), kExitUsage);
  EXPECT_EQ(RunCommandLine({"submit", "--engine=ssh", "--nodes=2"}), kExitUsage);
}

}  // namespace
}  // namespace thermocline
