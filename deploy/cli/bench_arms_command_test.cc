#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "deploy/cli/bench_commands.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

JobFlags FlagsOf(const std::string& more) {
  JobFlags flags;
  flags.job = testing::TempDir() + "/arms.textproto";
  flags.data = testing::TempDir() + "/arms.tsv";
  std::ofstream(*flags.data) << "1\n";
  std::ofstream(flags.job) << R"(name: "j"
data { format: CRITEO_TSV test_share: 0.1 num_categorical: 2 }
default_table { dim: 6 optimizer { adagrad {} } }
dlrm { bottom: [8] top: [8] }
train { batch_size: 100 learning_rate { base: 0.1 } }
)" << more;
  return flags;
}

TEST(LoadJobOfArmsTest, ACalibrationNeedsNoBudgetBesideThoseOfTheArms) {
  for (const bool is_set : {false, true}) {
    JobFlags flags = FlagsOf(is_set ? "" : "calibration { sample_share: 1 }");
    if (is_set) flags.set = {"calibration.sample_share=1"};
    EXPECT_EQ(LoadJobOfArms("", &flags).status().code(), absl::StatusCode::kInvalidArgument);
    const auto job = LoadJobOfArms("2MiB,4MiB", &flags);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->calibration().sample_share(), 1);
    EXPECT_EQ(job->fae().budget(), "2MiB");
    EXPECT_FALSE(job->fae().schedule().fixed());
    EXPECT_EQ(flags.set.back(), "fae.budget=2MiB");
  }
}

TEST(LoadJobOfArmsTest, OtherJobsStayAsTheyAre) {
  JobFlags flags = FlagsOf("");
  EXPECT_FALSE(LoadJobOfArms("2MiB", &flags)->has_fae());
  EXPECT_TRUE(flags.set.empty());
  flags.set = {"train.batch_size=0"};
  const auto wrong = LoadJobOfArms("2MiB", &flags);
  EXPECT_THAT(std::string(wrong.status().message()), HasSubstr("train.batch_size"));
  EXPECT_EQ(flags.set.size(), 1u);
}

}  // namespace
}  // namespace thermocline
