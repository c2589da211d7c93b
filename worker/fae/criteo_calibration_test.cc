// Calibration of a real sample of Criteo's Kaggle log, beside what an independent program counted.
// Found and skipped as by worker/data/text/criteo_sample_test.cc.
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/disk/disk.h"
#include "common/job/job_loader.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "worker/data/testing/test_files.h"
#include "worker/fae/pack.h"
#include "worker/fae/packing.h"

namespace thermocline {
namespace {

using Json = nlohmann::ordered_json;

std::string FindSample() {
  constexpr char kName[] = "criteo_kaggle_137k.tsv.gz";
  std::vector<std::filesystem::path> folders;
  if (const char* const data = std::getenv("THERMOCLINE_DATA")) folders.push_back(data);
  std::error_code error;
  const std::filesystem::path here =
      std::filesystem::canonical("worker/fae/criteo_calibration_test.cc", error);
  if (!error) {
    folders.push_back(here.parent_path().parent_path().parent_path() / "../shared/data");
  }
  for (const std::filesystem::path& folder : folders) {
    if (std::filesystem::exists(folder / kName)) return (folder / kName).string();
  }
  return "";
}

// The model of deploy/jobs/criteo_kaggle.textproto: rows of 128 bytes.
Job CriteoJob(const std::string& data, const std::string& directory,
              const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(absl::StrCat(R"(
      name: "criteo" seed: 1
      data { format: CRITEO_TSV path: ")",
                                         data, R"(" test_share: 0.1 }
      default_table { dim: 16 init_scale: 0.03 optimizer { adagrad {} } }
      dlrm { bottom: [64] top: [64] }
      train { batch_size: 256 learning_rate { base: 0.01 } }
      fae { budget: "1MiB" }
      calibration { sample_share: 1 directory: ")",
                                         directory, R"(" })"),
                            "criteo", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

struct Counted {
  int64_t budget_bytes;
  int64_t threshold;
  int64_t hot_rows;
  double lookup_share;
  double hot_sample_share;
};
const std::vector<Counted> kCounted = {{1 << 20, 29, 8024, 0.820, 0.1443},
                                       {2 << 20, 13, 15913, 0.863, 0.2547},
                                       {4 << 20, 5, 32604, 0.900, 0.3947},
                                       {8 << 20, 3, 51112, 0.918, 0.4776}};

class CriteoCalibration : public testing::Test {
 protected:
  void SetUp() override {
    data_ = FindSample();
    if (data_.empty()) {
      GTEST_SKIP() << "no criteo_kaggle_137k.tsv.gz; set THERMOCLINE_DATA to its folder";
    }
    options_.disk = &disk_;
    options_.threads = 2;
  }

  TempFolder folder_;
  PosixDisk disk_;
  PackingOptions options_;
  std::string data_;
};

TEST_F(CriteoCalibration, AgreesWithAnIndependentCount) {
  CalibrationGrid grid;
  for (const Counted& counted : kCounted) grid.budget_bytes.push_back(counted.budget_bytes);
  grid.sample_shares = {1, 0.05};
  const auto found = CalibrateOnly(CriteoJob(data_, folder_.path()), grid, options_);
  ASSERT_TRUE(found.ok()) << found.status();
  const Json& calibrations = (*found)["calibrations"];
  ASSERT_EQ(calibrations.size(), 8u);
  for (size_t i = 0; i < kCounted.size(); ++i) {
    const Json& exact = calibrations[i];
    EXPECT_EQ(exact["sampled_rows"], 123425);
    EXPECT_EQ(exact["budget_bytes"], kCounted[i].budget_bytes);
    EXPECT_EQ(exact["threshold"], kCounted[i].threshold);
    EXPECT_EQ(exact["hot_rows"], kCounted[i].hot_rows);
    EXPECT_EQ(exact["lookup_share"], exact["sample_lookup_share"]);
    EXPECT_NEAR(exact["lookup_share"].get<double>(), kCounted[i].lookup_share, 0.0005);
    EXPECT_NEAR(exact["hot_sample_share"].get<double>(), kCounted[i].hot_sample_share, 0.00005);
    EXPECT_NEAR(exact["estimated_rows"].get<double>() / static_cast<double>(kCounted[i].hot_rows),
                1, 0.1);
    // A twentieth of the rows finds most of it.
    const Json& sampled = calibrations[4 + i];
    EXPECT_NEAR(sampled["sampled_rows"].get<double>() / 123425, 0.05, 0.003);
    EXPECT_LT(sampled["lookup_share"].get<double>(), kCounted[i].lookup_share);
    EXPECT_GT(sampled["lookup_share"].get<double>(), kCounted[i].lookup_share - 0.06);
  }
}

TEST_F(CriteoCalibration, ThePackHasTheSamplesThatWereCounted) {
  const Job job = CriteoJob(data_, folder_.path(), {"fae.budget=\"4MiB\""});
  const auto done = FindOrMakePack(job, options_);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ((*done)["hot_rows"], 32604);
  const auto pack = Pack::Open(job);
  ASSERT_TRUE(pack.ok()) << pack.status();
  const PackCounts& counts = (*pack)->counts();
  EXPECT_EQ(counts.rows[0] + counts.rows[1], 123425);
  EXPECT_NEAR(static_cast<double>(counts.rows[1]) / 123425, 0.3947, 0.00005);
  EXPECT_EQ(counts.batches[1], (counts.rows[1] + 255) / 256);
  EXPECT_EQ((*pack)->hot_set().num_rows(), 32604);
}

}  // namespace
}  // namespace thermocline
