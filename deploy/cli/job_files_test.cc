#include "deploy/cli/job_files.h"

#include <cstdlib>
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

TEST_F(JobFilesTest, TheProgramOfAScriptIsInPathOrBesideIt) {
  const auto job_with = [&](const std::string& command, const std::string& directory) {
    const auto job =
        ParseJob(absl::StrCat("name: 'j' data { format: CRITEO_TSV path: '", folder_,
                              "/day.tsv' } worker { command: ['", command, "', 'x'] directory: '",
                              directory, "' } train { batch_size: 1 learning_rate { base: 1 } }"),
                 "j", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return *job;
  };
  std::filesystem::create_directories(folder_ + "/bin");
  const std::string program = folder_ + "/bin/model_program";
  std::ofstream(program) << "#!/bin/sh\n";
  const auto missing = [&](const Job& job) {
    return std::string(CheckScriptProgram(job).message());
  };
  EXPECT_EQ(missing(job_with("bin/model_program", folder_)),
            absl::StrCat("worker.command: ", program,
                         " is not executable; a Python script is the argument of python3: "
                         "[\"python3\", \"bin/model_program\"]"));
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  EXPECT_EQ(CheckScriptProgram(job_with("bin/model_program", folder_)), absl::OkStatus());
  EXPECT_EQ(CheckScriptProgram(job_with(program, "")), absl::OkStatus());
  EXPECT_EQ(CheckScriptProgram(job_with("sh", folder_)), absl::OkStatus());
  EXPECT_EQ(missing(job_with("model_program", folder_ + "/bin")),
            absl::StrCat("worker.command: there is no program 'model_program' on PATH (",
                         std::getenv("PATH"), ")"));
  EXPECT_EQ(CheckScriptProgram(Job()), absl::OkStatus());
  EXPECT_EQ(CheckJobFiles(job_with("sh", folder_)), absl::OkStatus());
  const absl::Status file = CheckJobFiles(job_with("sh", program));
  EXPECT_EQ(file.code(), absl::StatusCode::kInvalidArgument) << file;
  const absl::Status none = CheckJobFiles(job_with("sh", folder_ + "/none"));
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound) << none;
  EXPECT_THAT(std::string(none.message()), HasSubstr("worker.directory"));
}

}  // namespace
}  // namespace thermocline
