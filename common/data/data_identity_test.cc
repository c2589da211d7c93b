#include "common/data/data_identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/job/job_data.h"
#include "common/job/job_loader.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

class DataIdentityTest : public testing::Test {
 protected:
  DataIdentityTest() {
    std::string pattern = testing::TempDir() + "/data_identity_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~DataIdentityTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  static DataFile Look(const std::string& path) {
    const auto identity = IdentifyFile(path, nullptr, kDataFileEndBytes);
    EXPECT_TRUE(identity.ok()) << identity.status();
    return ToDataFile(path, *identity);
  }
  static absl::StatusOr<DataFiles> Files(const std::string& data) {
    const auto job = ParseJob(absl::StrCat("name: 'j' data { ", data,
                                           " } default_table { dim: 4 } dlrm { bottom: 4 top: 4 } "
                                           "train { batch_size: 4 learning_rate { base: 1 } }"),
                              "j", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return IdentifyData(*job);
  }

  std::string folder_;
};

TEST_F(DataIdentityTest, SizeAndEndsTellFilesApart) {
  const std::string middle(300'000, 'm');
  const DataFile file = Look(Write("a", absl::StrCat("head", middle, "tail")));
  EXPECT_EQ(DescribeChange(Look(Write("b", absl::StrCat("head", middle, "tail"))), file), "");
  EXPECT_EQ(DescribeChange(Look(Write("b", absl::StrCat("head", middle, "tail+"))), file),
            "has 300009 bytes, and had 300008");
  EXPECT_EQ(DescribeChange(Look(Write("b", absl::StrCat("HEAD", middle, "tail"))), file),
            "has 300008 bytes as before, but others at its beginning");
  EXPECT_EQ(DescribeChange(Look(Write("b", absl::StrCat("head", middle, "TAIL"))), file),
            "has 300008 bytes as before, but others at its end");
  EXPECT_EQ(DescribeChange(Look(Write("b", absl::StrCat("HEAD", middle, "TAIL"))), file),
            "has 300008 bytes as before, but others at its beginning and end");
  EXPECT_EQ(DescribeChange(Look(Write("b", "")), Look(Write("a", ""))), "");
}

TEST_F(DataIdentityTest, APipeIsNotOpenedAndNotCompared) {
  const std::string pipe = folder_ + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const DataFile file = Look(pipe);
  EXPECT_FALSE(file.has_bytes());
  EXPECT_EQ(DescribeChange(file, Look(Write("a", "text"))), "");
}

TEST_F(DataIdentityTest, ErrorsNameTheFile) {
  const auto none = IdentifyFile(folder_ + "/none", nullptr, 4);
  EXPECT_TRUE(absl::IsNotFound(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr(folder_ + "/none"));
  std::atomic<int> calls{0};
  const absl::Status first = ForEachFile(100, [&calls](size_t i) {
    ++calls;
    return i < 40 ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("file ", i));
  });
  EXPECT_EQ(first, absl::UnavailableError("file 40"));
  EXPECT_EQ(calls, 100);
  EXPECT_TRUE(ForEachFile(0, [](size_t) { return absl::InternalError("?"); }).ok());
}

TEST_F(DataIdentityTest, TheFilesOfAJobInTheirOrder) {
  for (const char* name : {"b.tsv", "a.tsv", "_other", "test.csv"}) Write(name, name);
  const auto files = Files(absl::StrCat("format: CRITEO_TSV path: '", folder_,
                                        "/*.tsv' test_path: '", folder_, "/test.csv'"));
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->train_size(), 2);
  EXPECT_EQ(files->train(0).path(), folder_ + "/a.tsv");
  EXPECT_EQ(files->train(1).path(), folder_ + "/b.tsv");
  EXPECT_EQ(files->train(1).bytes(), 5u);
  ASSERT_EQ(files->test_size(), 1);
  EXPECT_EQ(files->test(0).path(), folder_ + "/test.csv");
}

TEST_F(DataIdentityTest, OfAFolderOfNpyFilesThoseThatTheJobReads) {
  for (const char* name : {"train_labels.npy", "train_dense.npy", "train_sparse.npy"}) {
    Write(name, name);
  }
  const std::string data = absl::StrCat("format: DLRM_NPY path: '", folder_, "' num_dense: 2 ");
  auto files = Files(data + "num_categorical: 0");
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->train_size(), 2);
  EXPECT_EQ(files->train(1).path(), folder_ + "/train_dense.npy");
  EXPECT_EQ(files->test_size(), 0);

  for (const char* name : {"test_labels.npy", "test_dense.npy", "test_sparse.npy"}) {
    Write(name, name);
  }
  files = Files(data + "num_categorical: 1");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->train_size(), 3);
  EXPECT_EQ(files->test_size(), 3);
}

}  // namespace
}  // namespace thermocline
