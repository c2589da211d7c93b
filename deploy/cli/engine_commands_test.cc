#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "deploy/cli/host_commands.h"
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
    StopFlags flags;
    flags.target = RunDir();
    flags.timeout_s = timeout_s;
    return RunStop(flags);
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
    flags_.engine = "slurm";
    flags_.nodes = 2;
    flags_.write_only = true;
    flags_.job = folder_ + "/job.textproto";
    flags_.run_dir = folder_ + "/run";
  }
  std::string Script() const {
    std::ifstream file(folder_ + "/run/submit/batch.sh");
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  SubmitFlags flags_;
};

TEST_F(SubmitTest, AJobHasCertificatesUnlessItsUserWantsNone) {
  ASSERT_EQ(RunSubmit(flags_), kExitDone);
  const std::string folder = folder_ + "/run/certificates";
  EXPECT_THAT(Script(), HasSubstr(" --set cluster.tls.automatic=true "));
  EXPECT_THAT(Script(), HasSubstr("--tls-certificate=" + folder + "/node.pem"));
  EXPECT_EQ(fs::status(folder).permissions(), fs::perms(0700));
  for (const char* name : {"/ca.key", "/node.key", "/reader.key"}) {
    EXPECT_EQ(fs::status(folder + name).permissions(), fs::perms(0600)) << name;
  }
  EXPECT_FALSE(fs::exists(folder + "/server.key"));
  fs::remove_all(folder_ + "/run");
  flags_.insecure = true;
  ASSERT_EQ(RunSubmit(flags_), kExitDone);
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_THAT(Script(), Not(HasSubstr("tls")));
}

TEST_F(SubmitTest, ResumeTakesNoFolderWithoutARun) {
  fs::create_directories(folder_ + "/run/thesis");
  std::ofstream(folder_ + "/run/data.csv") << "precious";
  flags_.resume = true;
  EXPECT_EQ(RunSubmit(flags_), kExitUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/run/submit"));
  flags_.run_dir = folder_ + "/none";
  EXPECT_EQ(RunSubmit(flags_), kExitUsage);
  EXPECT_FALSE(fs::exists(folder_ + "/none"));
  // One that is there does not begin anew if it can't be read later.
  fs::copy_file(flags_.job, folder_ + "/run/job.textproto");
  flags_.run_dir = folder_ + "/run";
  flags_.job = "";
  EXPECT_EQ(RunSubmit(flags_), kExitDone);
  EXPECT_THAT(Script(), Not(HasSubstr("--or-begin")));
}

TEST_F(SubmitTest, ARunThatGoesOnIsAskedForAsBefore) {
  flags_.time = "8:00:00";
  flags_.memory = "3GiB";
  flags_.sbatch = {"--constraint=avx2"};
  ASSERT_EQ(RunSubmit(flags_), kExitDone);
  fs::copy_file(flags_.job, folder_ + "/run/job.textproto");
  SubmitFlags again;
  again.resume = again.write_only = true;
  again.run_dir = folder_ + "/run";
  ASSERT_EQ(RunSubmit(again), kExitDone);
  for (const char* line :
       {"#SBATCH --nodes=2\n", "#SBATCH --time=8:00:00\n", "#SBATCH --mem=3072M\n",
        "#SBATCH --constraint=avx2\n", "#SBATCH --signal=B:USR1@300\n"}) {
    EXPECT_THAT(Script(), HasSubstr(line));
  }
  again.nodes = 3;
  ASSERT_EQ(RunSubmit(again), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("#SBATCH --nodes=3\n"));
  EXPECT_THAT(Script(), HasSubstr("#SBATCH --time=8:00:00\n"));
  // Another engine has nothing of it, and needs its hosts.
  again.engine = "ssh";
  again.nodes = 0;
  EXPECT_EQ(RunSubmit(again), kExitUsage);
  again.hosts = {"a", "b"};
  ASSERT_EQ(RunSubmit(again), kExitDone);
  again = SubmitFlags();
  again.resume = again.write_only = true;
  again.run_dir = folder_ + "/run";
  ASSERT_EQ(RunSubmit(again), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("\nhosts=(a b)\n"));
  again.hosts = {"c"};
  ASSERT_EQ(RunSubmit(again), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("\nhosts=(c)\n"));
  EXPECT_THAT(Script(), HasSubstr(" --nodes 1 "));
}

TEST_F(SubmitTest, OneThatWasStoppedBeforeItBeganIsSubmittedAgain) {
  flags_.set = {"seed=7"};
  flags_.workers = "3";
  ASSERT_EQ(RunSubmit(flags_), kExitDone);
  const std::string first = Script();
  EXPECT_THAT(first, HasSubstr(" --or-begin"));
  SubmitFlags again;
  again.write_only = true;
  again.run_dir = folder_ + "/run";
  ASSERT_EQ(RunSubmit(again), kExitDone);
  EXPECT_EQ(Script(), first);
}

TEST_F(SubmitTest, FiguresOfTheDataSayHowMuchMemoryAHostNeeds) {
  std::ofstream(flags_.job) << R"(
      name: "j" data { train { path: ")"
                            << folder_ << R"(/rows.tsv" csv { header: true } }
      label { column: "click" } }
      feature { column: ["user"] categorical {} } default_table { dim: 8 } dlrm { top: [8] }
      checkpoint {} train { batch_size: 256 learning_rate { base: 1 } })";
  std::ofstream(folder_ + "/rows.tsv") << "click,user\n1,a\n";
  ASSERT_EQ(RunSubmit(flags_), kExitDone);
  EXPECT_THAT(Script(), HasSubstr("#SBATCH --mem=0\n"));
  fs::remove_all(folder_ + "/run");
  std::ofstream(folder_ + "/figures") << R"({"rows": 1000, "complete": true, "columns": [
      {"name": "user", "rows": 1000, "missing": 0, "values": 1000, "distinct": 500,
       "once_share": 0, "text_bytes": 4000, "distinct_in_batch": {"256": 200}},
      {"name": "click", "rows": 1000, "missing": 0, "values": 1000, "distinct": 2,
       "once_share": 0, "text_bytes": 1000, "distinct_in_batch": {"256": 2}}]})";
  flags_.figures = folder_ + "/figures";
  ASSERT_EQ(RunSubmit(flags_), kExitDone);
  const std::string script = Script();
  EXPECT_THAT(script, Not(HasSubstr("#SBATCH --mem=0\n")));
  // The next submission has them, too.
  fs::remove(folder_ + "/figures");
  SubmitFlags again;
  again.write_only = true;
  again.run_dir = folder_ + "/run";
  ASSERT_EQ(RunSubmit(again), kExitDone);
  EXPECT_EQ(Script(), script);
}

TEST(SubmitUsageTest, WithoutAnEngineOrHostsIsBadUsage) {
  SubmitFlags flags;
  EXPECT_EQ(RunSubmit(flags), kExitUsage);
  flags.engine = "ssh";
  EXPECT_EQ(RunSubmit(flags), kExitUsage);
  flags.nodes = 2;
  EXPECT_EQ(RunSubmit(flags), kExitUsage);
}

}  // namespace
}  // namespace thermocline
