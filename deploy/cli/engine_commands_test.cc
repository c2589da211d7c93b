#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "deploy/cli/host_commands.h"
#include "deploy/engines/engine.h"
#include "deploy/engines/scripts.h"
#include "deploy/runner/summary.h"
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
