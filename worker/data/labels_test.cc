// The labels of several tasks, of which a row may lack some.
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/disk/npy.h"
#include "common/job/job_loader.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

// The tasks "buy" and "click"; the label "seen" is checked only.
absl::StatusOr<Job> MakeJob(const std::string& files, const std::string& label,
                            const std::string& data = "",
                            const std::string& column = "column: 'id'") {
  return ParseJob(absl::StrCat("name: 'j' data { ", files,
                               " split { last_share: 0 } label { column: ['seen', 'click', 'buy'] ",
                               label, " } ", data, R"( } feature { name: "id" )", column, R"( }
      layer { name: "deep" input: "id" mlp { units: 4 } }
      task { label: "buy" input: "deep" } task { label: "click" input: "deep" }
      train { batch_size: 16 learning_rate { base: 0.1 } })"),
                  "j", {});
}

// "labels of a sample *weights", sample by sample; or what is wrong.
std::string Labels(const absl::StatusOr<Job>& job, bool needs_labels = true) {
  if (!job.ok()) return std::string(job.status().message());
  DatasetOptions options;
  options.needs_labels = needs_labels;
  const auto dataset = Dataset::Open(*job, options);
  if (!dataset.ok()) return std::string(dataset.status().message());
  const auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  if (!reader.ok()) return std::string(reader.status().message());
  const auto batch = (*reader)->Next();
  if (!batch.ok()) return std::string(batch.status().message());
  const Batch& b = **batch;
  EXPECT_EQ(b.num_tasks, 2);
  EXPECT_EQ(b.labels.size(), size_t{2} * b.size);
  std::vector<std::string> samples;
  for (int i = 0; i < b.size; ++i) {
    samples.push_back(absl::StrCat(b.labels[2 * i], " ", b.labels[2 * i + 1]));
    if (b.weights.empty()) continue;
    absl::StrAppend(&samples.back(), " *", b.weights[2 * i], " ", b.weights[2 * i + 1]);
  }
  return absl::StrJoin(samples, ", ");
}

class TextLabels : public testing::Test {
 protected:
  std::string Read(const std::string& rows, const std::string& label, const std::string& data = "",
                   bool needs_labels = true) {
    const std::string path = folder_.Write("rows.csv", absl::StrCat(header_, "\n", rows));
    std::string found = Labels(
        MakeJob(absl::StrCat("train { path: '", path, "' csv { header: true } }"), label, data),
        needs_labels);
    const size_t at = found.find(path);
    return at == found.npos ? found : found.substr(at + path.size() + 1);
  }

  TempFolder folder_;
  std::string header_ = "seen,click,buy,id,w";
};

TEST_F(TextLabels, StandInTheTasksOrder) {
  EXPECT_EQ(Read("1,1,0,a,2\n0,0,1,b,0\n", ""), "0 1, 1 0");
  EXPECT_EQ(Read("1,1,0,a,2\n0,0,1,b,0\n", "", "weight: 'w'"), "0 1 *2 2, 1 0 *0 0");
  EXPECT_EQ(Read("1,1,0,a,2\n1,1,,b,0\n", ""),
            "3: column 3 ('buy'): '' is not 0 or 1 (data.label.may_be_missing lets rows lack some "
            "labels)");
  EXPECT_EQ(
      Read("1,1,0,a,2\nNA,1,1,b,0\n", ""),
      "3: column 1 ('seen'): 'NA' is not 0 or 1 (data.label.may_be_missing lets rows lack some "
      "labels)");
  EXPECT_EQ(Read("1,1,0,a,2\n2,1,1,b,0\n", ""), "3: column 1 ('seen'): '2' is not 0 or 1");
}

TEST_F(TextLabels, OneThatIsMissingWeighsNothing) {
  const std::string may = "may_be_missing: true";
  EXPECT_EQ(Read("1,1,0,a,2\n1,,1,a,2\n,NA,0,a,2\n1,,NULL,a,2\n", may),
            "0 1 *1 1, 1 0 *1 0, 0 0 *1 0, 0 0 *0 0");
  EXPECT_EQ(Read("1,1,0,a,2\n1,,1,a,0.5\n", may, "weight: 'w'"), "0 1 *2 2, 1 0 *0.5 0");
  EXPECT_EQ(Read("1,-1,0,a,2\n1,0,-1.0,a,2\n", may, "missing_number: '-1'"), "0 0 *1 0, 0 0 *0 1");
  // What is a label is there, whatever numbers are missing.
  EXPECT_EQ(Read("1,0,1,a,2\n", may, "missing_number: '0'"), "1 0 *1 1");
  EXPECT_EQ(Read("1,1,2,a,2\n", may), "2: column 3 ('buy'): '2' is not 0 or 1");
  EXPECT_EQ(Read(",,,a,2\n", may), "2: no label is there (seen, click, buy)");
}

TEST_F(TextLabels, PositiveTextsAreThoseOfAllTasks) {
  EXPECT_EQ(Read("1,yes,no,a,2\n1,,on,a,2\n", "positive: ['yes', 'on']"), "0 1, 1 0");
  EXPECT_EQ(Read("1,yes,no,a,2\n1,,on,a,2\n", "positive: ['yes', 'on'] may_be_missing: true"),
            "0 1 *1 1, 1 0 *1 0");
  EXPECT_EQ(Read("yes,yes,no,a,2\n", "positive: 'yes'"),
            "2: column 1 ('seen'): 'yes' is not 0 or 1");
}

TEST_F(TextLabels, RowsToBeScoredMayLackAnyColumn) {
  EXPECT_EQ(Read("1,1,0,a,2\n,,,b,0\n1,x,1,b,0\n", "", "", /*needs_labels=*/false),
            "0 1, nan nan, 1 nan");
  header_ = "click,id,w";
  EXPECT_EQ(Read("1,a,2\n0,b,0\n", "", "", /*needs_labels=*/false), "nan 1, nan 0");
  EXPECT_EQ(Read(",a,2\n0,b,0\n", "may_be_missing: true", "", /*needs_labels=*/false),
            "nan nan *1 0, nan 0 *1 1");
}

TEST(NpyLabels, HaveAColumnForEachLabel) {
  TempFolder folder;
  const auto write = [&](const std::string& name, const std::string& dtype, int64_t columns,
                         const auto& values) {
    auto writer =
        NpyWriter::Create(absl::StrCat(folder.path(), "/train_", name, ".npy"), dtype, {columns});
    CHECK(writer.ok());
    CHECK((*writer)->Append(values.data(), values.size() / columns).ok());
    CHECK((*writer)->Finish().ok());
  };
  const auto read = [&](const std::string& label, bool needs_labels = true) {
    std::string found =
        Labels(MakeJob(absl::StrCat("train { path: '", folder.path(), "' npy {} } num_dense: 0"),
                       label, "", ""),
               needs_labels);
    const size_t at = found.find("train_");
    return at == found.npos ? found : found.substr(at);
  };
  write("sparse", "<i4", 1, std::vector<int32_t>{5, 6});
  write("labels", "<i4", 3, std::vector<int32_t>{1, 1, 0, 0, 0, 1});
  EXPECT_EQ(read(""), "0 1, 1 0");
  EXPECT_EQ(read("may_be_missing: true"), "0 1 *1 1, 1 0 *1 1");
  write("labels", "<f4", 3, std::vector<float>{1, NAN, 0, 0, 1, NAN});
  EXPECT_EQ(read("may_be_missing: true"), "0 0 *1 0, 0 1 *0 1");
  EXPECT_EQ(read(""),
            "train_labels.npy: row 0, column 1: label nan is not 0 or 1; 1 more in this batch is "
            "malformed, too");
  write("labels", "<f4", 3, std::vector<float>{1, 1, 0, NAN, NAN, NAN});
  EXPECT_EQ(read("may_be_missing: true"), "train_labels.npy: row 1: no label is there");
  EXPECT_EQ(read("may_be_missing: true", /*needs_labels=*/false), "0 1 *1 1, nan nan *0 0");
  write("labels", "<f4", 3, std::vector<float>{1, 1, 0, 7, 0.5, -1});
  EXPECT_EQ(read("", /*needs_labels=*/false), "0 1, nan nan");
  write("labels", "<f4", 2, std::vector<float>{1, 1, 0, 0});
  EXPECT_EQ(read(""),
            "train_labels.npy: is float32 [2, 2], wanted int32 or int64 or float32 [rows, 3]");
  EXPECT_EQ(read("positive: 'x'"),
            "j:1: data.label.positive is for text; the labels of npy are 0 or 1");
}

}  // namespace
}  // namespace thermocline
