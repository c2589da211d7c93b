#include "deploy/cli/job_files.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

// Both forms of the data stanza, for text and for npy.
class JobFilesTest : public testing::Test {
 protected:
  JobFilesTest()
      : folder_(absl::StrCat(testing::TempDir(), "/",
                             testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ + "/day.tsv") << "0\t1\n";
  }
  // `data`: the stanza, with PATH where the path stands.
  static absl::Status Check(std::string data, const std::string& path) {
    data.replace(data.find("PATH"), 4, absl::StrCat("'", path, "'"));
    const auto job = ParseJob(
        absl::StrCat("name: 'j' data { ", data,
                     " } dlrm { top: 4 } train { batch_size: 1 learning_rate { base: 1 } }"),
        "j", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return CheckJobFiles(*job);
  }

  const std::string folder_;
};

TEST_F(JobFilesTest, TextIsAFileAFolderOrAPatternInBothForms) {
  for (const char* data : {"format: CRITEO_TSV path: PATH", "train { path: PATH criteo_tsv {} }"}) {
    EXPECT_TRUE(Check(data, folder_ + "/day.tsv").ok());
    EXPECT_TRUE(Check(data, folder_).ok()) << Check(data, folder_);
    EXPECT_TRUE(Check(data, folder_ + "/d*.tsv").ok());
    const absl::Status none = Check(data, folder_ + "/no*.tsv");
    EXPECT_EQ(none.code(), absl::StatusCode::kNotFound) << none;
  }
}

TEST_F(JobFilesTest, NpyIsAFolderInBothForms) {
  for (const auto& [data, field] : {std::pair("format: DLRM_NPY path: PATH", "data.path"),
                                    std::pair("train { path: PATH npy {} }", "data.train.path")}) {
    EXPECT_TRUE(Check(data, folder_).ok());
    const absl::Status file = Check(data, folder_ + "/day.tsv");
    EXPECT_EQ(file.code(), absl::StatusCode::kInvalidArgument) << file;
    EXPECT_THAT(std::string(file.message()), HasSubstr("is not a folder; npy reads a folder"));
    const absl::Status none = Check(data, folder_ + "/none");
    EXPECT_EQ(none.code(), absl::StatusCode::kNotFound) << none;
    EXPECT_THAT(std::string(none.message()),
                HasSubstr(absl::StrCat(field, " '", folder_, "/none'")));
  }
}

}  // namespace
}  // namespace thermocline
