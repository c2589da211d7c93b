#include "worker/predict/score_file.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "common/arrow/parquet.h"
#include "common/disk/npy.h"
#include "gtest/gtest.h"

namespace thermocline {
namespace {

std::string NewFolder(const std::string& name) {
  const std::string folder = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  return folder;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Rows 0, 1 and 3 of four.
struct Scores {
  Scores() {
    batch.size = 3;
    batch.labels = {1, NAN, 0};
    batch.carried = {{"plain", "a,b", ""}, {"say \"x\"", "1\n2", "z"}};
    scored.batch = &batch;
    scored.rows = {0, 1, 3};
    scored.logits = logits;
  }
  Batch batch;
  const std::vector<float> logits = {0, -1.5f, 20};
  ScoredBatch scored;
};

TEST(ScoreFile, CsvHasEveryColumn) {
  const std::string folder = NewFolder("csv");
  const Scores scores;
  ScoreFileOptions options;
  options.path = folder + "/s.csv";
  options.columns = {"user", "a \"b\""};
  options.has_labels = true;
  auto file = ScoreFile::Create(options);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(scores.scored).ok());
  EXPECT_FALSE(std::filesystem::exists(options.path));
  ASSERT_TRUE((*file)->Finish(4).ok());
  file->reset();
  EXPECT_EQ(ReadFile(options.path),
            "row,label,user,\"a \"\"b\"\"\",score\n"
            "0,1,plain,\"say \"\"x\"\"\",0.5\n"
            "1,,\"a,b\",\"1\n2\",0.18242552380635635\n"
            "3,0,,z,0.9999999979388463\n");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(ScoreFile, LogitsAndNoLabels) {
  const Scores scores;
  ScoreFileOptions options;
  options.path = NewFolder("logits") + "/s.csv";
  options.logits = true;
  auto file = ScoreFile::Create(options);
  ASSERT_TRUE(file.ok()) << file.status();
  Scores more;
  more.batch.carried.clear();
  ASSERT_TRUE((*file)->Append(more.scored).ok());
  ASSERT_TRUE((*file)->Finish(4).ok());
  EXPECT_EQ(ReadFile(options.path), "row,score\n0,0\n1,-1.5\n3,20\n");
}

TEST(ScoreFile, NpyHasNanWhereARowIsLeftOut) {
  const Scores scores;
  ScoreFileOptions options;
  options.path = NewFolder("npy") + "/s.npy";
  auto file = ScoreFile::Create(options);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(scores.scored).ok());
  ASSERT_TRUE((*file)->Finish(6).ok());
  const auto npy = MappedNpy::Open(options.path);
  ASSERT_TRUE(npy.ok()) << npy.status();
  EXPECT_EQ((*npy)->header().dtype, "<f4");
  ASSERT_EQ((*npy)->rows(), 6);
  const auto* const values = reinterpret_cast<const float*>((*npy)->data());
  EXPECT_EQ(values[0], 0.5f);
  EXPECT_EQ(values[1], static_cast<float>(Probability(-1.5f)));
  EXPECT_TRUE(std::isnan(values[2]) && std::isnan(values[4]) && std::isnan(values[5]));
  EXPECT_EQ(values[3], static_cast<float>(Probability(20)));
}

TEST(ScoreFile, ParquetHasTheColumnsOfCsv) {
  const std::string folder = NewFolder("parquet");
  const Scores scores;
  ScoreFileOptions options;
  options.path = folder + "/s.parquet";
  options.columns = {"user", "item"};
  options.has_labels = true;
  auto file = ScoreFile::Create(options);
  if (!RequireArrow("").ok()) {
    EXPECT_EQ(file.status().code(), absl::StatusCode::kFailedPrecondition);
    GTEST_SKIP() << "no Arrow";
  }
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Append(scores.scored).ok());
  ASSERT_TRUE((*file)->Finish(4).ok());
  file->reset();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  auto parquet = ParquetFile::Open(options.path);
  ASSERT_TRUE(parquet.ok()) << parquet.status();
  std::vector<std::string> names;
  for (const ParquetColumn& column : (*parquet)->columns()) {
    names.push_back(column.name + " " + column.type);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"row int64", "label float32", "user string",
                                             "item string", "score float64"}));
  ASSERT_TRUE((*parquet)->Seek(0, {0, 2, 4}).ok());
  std::vector<ParquetCells> cells(3);
  ASSERT_EQ(*(*parquet)->Read(10, &cells), 3);
  EXPECT_EQ(cells[0].values->integers[cells[0].index(2)], 3);
  EXPECT_EQ(cells[1].values->text(cells[1].index(1)), "a,b");
  EXPECT_EQ(cells[2].values->reals[cells[2].index(1)], Probability(-1.5f));
}

TEST(ScoreFile, EachOfSeveralTasksHasAScore) {
  const std::string folder = NewFolder("tasks");
  Batch batch;
  batch.size = 2;
  batch.num_tasks = 2;
  batch.labels = {1, NAN, 0, 1};
  batch.carried = {{"u", "v"}};
  const std::vector<float> logits = {0, -1, 20, -1.5f};  // Task by task.
  ScoredBatch scored = {&batch, {0, 2}, logits};
  ScoreFileOptions options;
  options.tasks = {"click", "buy,now"};
  options.columns = {"user"};
  options.has_labels = true;
  options.logits = true;
  const auto write = [&](const std::string& name) {
    options.path = folder + name;
    auto file = ScoreFile::Create(options);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Append(scored).ok());
    ASSERT_TRUE((*file)->Finish(3).ok());
  };
  write("/s.csv");
  EXPECT_EQ(ReadFile(options.path),
            "row,label_click,\"label_buy,now\",user,score_click,\"score_buy,now\"\n"
            "0,1,,u,0,20\n"
            "2,0,1,v,-1,-1.5\n");
  options.columns.clear();
  batch.carried.clear();
  write("/s.npy");
  const auto npy = MappedNpy::Open(options.path);
  ASSERT_TRUE(npy.ok()) << npy.status();
  EXPECT_EQ((*npy)->header().shape, (std::vector<int64_t>{3, 2}));
  const auto* const values = reinterpret_cast<const float*>((*npy)->data());
  EXPECT_EQ(values[0], 0);
  EXPECT_EQ(values[1], 20);
  EXPECT_TRUE(std::isnan(values[2]) && std::isnan(values[3]));
  EXPECT_EQ(values[5], -1.5f);
  if (!RequireArrow("").ok()) return;
  write("/s.parquet");
  auto parquet = ParquetFile::Open(options.path);
  ASSERT_TRUE(parquet.ok()) << parquet.status();
  std::vector<std::string> names;
  for (const ParquetColumn& column : (*parquet)->columns()) names.push_back(column.name);
  EXPECT_EQ(names, (std::vector<std::string>{"row", "label_click", "label_buy,now", "score_click",
                                             "score_buy,now"}));
  ASSERT_TRUE((*parquet)->Seek(0, {2, 4}).ok());
  std::vector<ParquetCells> cells(2);
  ASSERT_EQ(*(*parquet)->Read(10, &cells), 2);
  EXPECT_EQ(cells[0].values->reals[cells[0].index(1)], 1);
  EXPECT_EQ(cells[1].values->reals[cells[1].index(0)], 20);
}

TEST(ScoreFile, ParquetRefusesTextsThatAreNotUtf8) {
  if (!RequireArrow("").ok()) GTEST_SKIP() << "no Arrow";
  const std::string folder = NewFolder("latin");
  Scores scores;
  scores.batch.carried[1][2] = "caf\xe9";
  ScoreFileOptions options;
  options.columns = {"user", "item"};
  options.path = folder + "/s.csv";
  EXPECT_TRUE((*ScoreFile::Create(options))->Append(scores.scored).ok());
  options.path = folder + "/s.parquet";
  const absl::Status status = (*ScoreFile::Create(options))->Append(scores.scored);
  EXPECT_EQ(status, absl::InvalidArgumentError(
                        "row 3 (counted from 0): --column item is 'caf\\xe9', which is not UTF-8, "
                        "as texts of a Parquet file have to be; a .csv file takes it as it is"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(ScoreFile, WhatIsNotFinishedIsRemoved) {
  const std::string folder = NewFolder("unfinished");
  for (const char* name : {"/s.csv", "/s.npy"}) {
    ScoreFileOptions options;
    options.path = folder + name;
    auto file = ScoreFile::Create(options);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(std::filesystem::exists(options.path + ".tmp"));
    file->reset();
    EXPECT_TRUE(std::filesystem::is_empty(folder)) << name;
  }
}

TEST(ScoreFile, RefusesWhatItCanNotWrite) {
  const std::string folder = NewFolder("refused");
  ScoreFileOptions options;
  options.path = folder + "/s.txt";
  EXPECT_EQ(ScoreFile::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.path = folder + "/s.npy";
  options.columns = {"user"};
  EXPECT_EQ(ScoreFile::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.path = folder + "/none/s.csv";
  EXPECT_FALSE(ScoreFile::Create(options).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace thermocline
