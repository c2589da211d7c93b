// Parquet files from disk to batches: the same as the same values as text and as npy, from any step
// on; and what is wrong with files that can't be read.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/arrow/parquet.h"
#include "common/arrow/testing/test_parquet.h"
#include "common/disk/npy.h"
#include "common/job/job_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

constexpr char kTrain[] = R"(
train { batch_size: 32 eval_batch_size: 64 passes: 2 learning_rate { base: 0.1 } })";

// Every kind of feature, of columns of every type.
constexpr char kFeatures[] = R"(
feature { column: "user" categorical {} }
feature { name: "user_bucket" column: "user" categorical { buckets: 50 } }
feature { column: "item" categorical { id: INTEGER min: 0 missing: NO_KEY } }
feature { column: "hex" categorical { id: HEX } }
feature { column: "device" categorical { buckets: 7 } }
feature { column: "price_band" categorical { boundaries: [0.1, 2, 30.5] } }
feature { column: "score" numeric { missing: -1 transform { log1p {} } } }
feature { column: "price" numeric { missing: 0 transform { standardize { mean: 0.3 std: 1.7 } } } }
feature { column: "count" numeric { missing: 0 transform { log1p {} } } }
feature { column: "plain" numeric { missing: 0.5 } }
feature { column: "tags" pooling: MEAN categorical { separator: "|" missing: NO_KEY } }
feature { column: "clicked" categorical { id: INTEGER } sequence { max_length: 3 } }
feature { column: "words" sequence { max_length: 2 keep: FIRST } }
feature { name: "scored_tags" column: "tags" pooling: MEAN
          categorical { separator: "|" missing: NO_KEY weights: "tag_scores" } }
feature { name: "scored_clicks" column: "clicked" categorical { id: INTEGER weights: "click_scores" }
          sequence { max_length: 3 } }
feature { name: "scored_words" column: "words" categorical { weights: "word_scores" }
          sequence { max_length: 2 keep: FIRST } }
feature { name: "hour" column: "time" categorical { substring { start: 11 length: 2 } } }
feature { column: "day" categorical {} }
feature { name: "user_x_device" cross { of: ["user", "device"] buckets: 1000 } }
)";

struct Column {
  std::string name;
  std::string type;
  std::vector<std::string> csv;   // The text of each row; a list's values are joined by '|'.
  std::vector<std::string> json;  // The same value.
};

// Rows of random values, some of them missing.
class Table {
 public:
  Table(int rows, uint64_t seed) : rows_(rows), random_(seed) {
    Add("label", "int8", 0, [&] { return absl::StrCat(random_() % 2); });
    AddText("user", "int64", 7, [&] { return absl::StrCat(random_() % 300); });
    AddText("item", "int32", 9, [&] { return absl::StrCat(int64_t(random_() % 100) - 3); });
    AddText("hex", "string", 5, [&] { return absl::StrCat(absl::Hex(random_() % 5000)); });
    AddText("device", "dictionary", 4, [&] { return absl::StrCat("d ", random_() % 9); });
    AddText("price_band", "float", 6, [&] { return Real(); });
    AddText("score", "double", 5, [&] { return Real(); });
    AddText("price", "float", 5, [&] { return Real(); });
    AddText("count", "uint16", 5, [&] { return absl::StrCat(random_() % 6000); });
    AddText("plain", "float", 5, [&] { return Real(); });
    AddList("tags", "list of string", [&] { return absl::StrCat("t", random_() % 20); });
    AddList("clicked", "list of int64", [&] { return absl::StrCat(random_() % 400); });
    AddText("words", "string", 3,
            [&] { return absl::StrCat("w", random_() % 8, random_() % 2 == 0 ? "" : "|v|u"); });
    AddTime();
    AddWeights("tag_scores", "list of float", "tags");
    AddWeights("click_scores", "list of int32", "clicked");
    AddWeights("word_scores", "string", "words");
  }

  std::string Csv(int begin, int end) const {
    std::string text = "unused";
    for (const Column& column : columns_) absl::StrAppend(&text, ",", column.name);
    for (int row = begin; row < end; ++row) {
      absl::StrAppend(&text, "\n", row);
      for (const Column& column : columns_) absl::StrAppend(&text, ",", column.csv[row]);
    }
    return text + "\n";
  }

  // `reversed`: the order of the columns.
  void WriteParquet(const std::string& path, int begin, int end, const ParquetTestOptions& options,
                    bool reversed = false) const {
    std::vector<ParquetTestColumn> columns = {{"unused", "list of decimal", "["}};
    for (int row = begin; row < end; ++row) {
      absl::StrAppend(&columns[0].json, row == begin ? "" : ",", "[\"1.00\"]");
    }
    columns[0].json += "]";
    for (const Column& column : columns_) {
      columns.push_back(
          {column.name, column.type,
           absl::StrCat("[",
                        absl::StrJoin(column.json.begin() + begin, column.json.begin() + end, ","),
                        "]")});
    }
    if (reversed) std::reverse(columns.begin(), columns.end());
    WriteTestParquet(path, columns, options);
  }

 private:
  std::string Real() {
    const std::string numbers[] = {"0.1", "0.7", "2", "3.25", "1000000", "0.0001", "-4.5", "30.5"};
    return numbers[random_() % 8];
  }

  template <typename F>
  void Add(const std::string& name, const std::string& type, int missing, const F& make) {
    Column column{name, type, {}, {}};
    for (int row = 0; row < rows_; ++row) {
      const bool is_missing = missing > 0 && random_() % missing == 0;
      column.csv.push_back(is_missing ? "" : make());
      column.json.push_back(is_missing ? "null" : Quoted(type, column.csv.back()));
    }
    columns_.push_back(std::move(column));
  }
  template <typename F>
  void AddText(const std::string& name, const std::string& type, int missing, const F& make) {
    Add(name, type, missing, make);
  }

  template <typename F>
  void AddList(const std::string& name, const std::string& type, const F& make) {
    Column column{name, type, {}, {}};
    for (int row = 0; row < rows_; ++row) {
      std::vector<std::string> values;
      for (int i = static_cast<int>(random_() % 6); i > 0; --i) values.push_back(make());
      column.csv.push_back(absl::StrJoin(values, "|"));
      for (std::string& value : values) value = Quoted(type, value);
      const bool is_null = values.empty() && random_() % 2 == 0;
      column.json.push_back(is_null ? "null" : absl::StrCat("[", absl::StrJoin(values, ","), "]"));
    }
    columns_.push_back(std::move(column));
  }

  // Makes as many numbers as `list` has values; 0 or more.
  void AddWeights(const std::string& name, const std::string& type, const std::string& list) {
    const auto of = std::find_if(columns_.begin(), columns_.end(),
                                 [&](const Column& column) { return column.name == list; });
    const std::vector<std::string> lists = of->csv;
    size_t row = 0;
    const auto make = [&] {
      const auto values = std::count(lists[row].begin(), lists[row].end(), '|') + 1;
      std::vector<std::string> numbers;
      for (int64_t i = 0; i < values; ++i) {
        numbers.push_back(absl::StrContains(type, "int") ? absl::StrCat(random_() % 5)
                                                         : absl::StrCat(random_() % 9, ".25"));
      }
      return absl::StrJoin(numbers, "|");
    };
    Column column{name, type, {}, {}};
    for (; row < lists.size(); ++row) {
      column.csv.push_back(lists[row].empty() ? "" : make());
      const std::string json = absl::StrReplaceAll(column.csv.back(), {{"|", ","}});
      column.json.push_back(type == "string" ? absl::StrCat("\"", column.csv.back(), "\"")
                                             : absl::StrCat("[", json, "]"));
    }
    columns_.push_back(std::move(column));
  }

  void AddTime() {
    Column time{"time", "timestamp[ms]", {}, {}};
    Column day{"day", "date", {}, {}};
    for (int row = 0; row < rows_; ++row) {
      const int days = static_cast<int>(random_() % 28);
      const int seconds = static_cast<int>(random_() % 86400);
      day.csv.push_back(absl::StrCat("2026-11-", absl::Dec(days + 1, absl::kZeroPad2)));
      day.json.push_back(absl::StrCat(20758 + days));
      time.csv.push_back(absl::StrCat(day.csv.back(), " ",
                                      absl::Dec(seconds / 3600, absl::kZeroPad2), ":",
                                      absl::Dec(seconds / 60 % 60, absl::kZeroPad2), ":",
                                      absl::Dec(seconds % 60, absl::kZeroPad2)));
      time.json.push_back(absl::StrCat(((20758 + days) * int64_t{86400} + seconds) * 1000));
    }
    columns_.push_back(std::move(time));
    columns_.push_back(std::move(day));
  }

  static std::string Quoted(const std::string& type, const std::string& value) {
    const bool is_text = type == "dictionary" || absl::StrContains(type, "string");
    return is_text ? absl::StrCat("\"", value, "\"") : value;
  }

  const int rows_;
  std::mt19937_64 random_;
  std::vector<Column> columns_;
};

class ParquetDataTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!RequireArrow("this test").ok()) GTEST_SKIP() << RequireArrow("this test").message();
  }

  static Job MakeJob(const std::string& data, const std::string& features = kFeatures) {
    const auto job = ParseJob(absl::StrCat("name: \"j\" seed: 5 data { ", data, " }", features,
                                           ModelOf(features), kTrain),
                              "j", {});
    if (!job.ok()) ADD_FAILURE() << job.status();
    return *job;
  }

  // A bottom MLP where there are numbers, which npy's features do not tell of.
  static std::string ModelOf(const std::string& features) {
    const bool has_numbers =
        absl::StrContains(features, "numeric") || !absl::StrContains(features, "column");
    return has_numbers ? "dlrm { bottom: 8 top: 8 }" : "dlrm { top: 8 }";
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  TempFolder folder_;
};

// All that batches hold, as text.
std::string Print(const Batch& batch) {
  std::string text = absl::StrCat("step ", batch.step.value(), " of ", batch.global_samples,
                                  batch.begins_pass ? " begins" : "", "\n");
  for (int i = 0; i < batch.size; ++i) {
    absl::StrAppend(&text, batch.labels[i], ":");
    if (!batch.weights.empty()) absl::StrAppend(&text, " *", batch.weights[i]);
    if (!batch.groups.empty()) absl::StrAppend(&text, " of ", batch.groups[i]);
    for (const std::vector<std::string>& column : batch.carried) {
      absl::StrAppend(&text, " '", column[i], "'");
    }
    for (const float value : batch.dense_row(i)) {
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      absl::StrAppend(&text, " ", absl::Hex(bits));
    }
    for (const FeatureLookups& feature : batch.features) {
      absl::StrAppend(&text, " |");
      for (int32_t k = feature.offsets[i]; k < feature.offsets[i + 1]; ++k) {
        absl::StrAppend(&text, " ", absl::Hex(feature.keys[k]));
        if (!feature.weights.empty()) absl::StrAppend(&text, "*", feature.weights[k]);
      }
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

struct ReadResult {
  std::string batches;
  int64_t rows = 0;
  uint64_t bad_rows = 0;
  absl::Status status;
};

ReadResult ReadAll(const Job& job, Split split, uint32_t rank = 0, uint32_t workers = 1,
                   int start = 0, const DatasetOptions& options = {}) {
  ReadResult result;
  auto dataset = Dataset::Open(job, options);
  result.status = dataset.status();
  if (!dataset.ok()) return result;
  auto reader = (*dataset)->OpenReader(split, WorkerRank(rank), workers, Step(start));
  result.status = reader.status();
  while (result.status.ok()) {
    auto batch = (*reader)->Next();
    result.status = batch.status();
    result.bad_rows = (*reader)->progress().bad_lines;
    if (!batch.ok() || *batch == nullptr) break;
    result.batches += Print(**batch);
    result.rows += (*batch)->size;
  }
  return result;
}

TEST_F(ParquetDataTest, GivesTheBatchesOfTheSameValuesAsText) {
  constexpr int kRows = 500;
  const uint64_t seed = 20261122;
  const Table table(kRows, seed);
  folder_.Write("all.csv", table.Csv(0, kRows));
  std::filesystem::create_directory(Path("csv"));
  folder_.Write("csv/a.csv.gz", Gzip(table.Csv(0, 130)));
  folder_.Write("csv/b.csv.zst", Zstd(table.Csv(130, kRows)));
  ParquetTestOptions small;
  small.row_group_rows = 37;
  small.page_bytes = 200;
  table.WriteParquet(Path("all.parquet"), 0, kRows, {});
  std::filesystem::create_directory(Path("parquet"));
  table.WriteParquet(Path("parquet/a.parquet"), 0, 130, small);
  small.dictionary = false;
  table.WriteParquet(Path("parquet/b.parquet"), 130, 131, small);
  table.WriteParquet(Path("parquet/c.parquet"), 131, kRows, small, /*reversed=*/true);

  const std::string label = " label { column: \"label\" } ";
  for (const std::string& rest :
       {std::string("split { last_share: 0.3 }"),
        std::string("split { last_share: 0.3 } shuffle { block_rows: 90 } parser_threads: 3"),
        std::string("split { column: 'time' test_from: '2026-11-20 12:30:00' }"),
        std::string("split { column: 'day' test_from: '2026-11-20' } shuffle { block_rows: 64 }"),
        std::string("split { column: 'item' test_from: '50' } max_bad_lines: 500"),
        std::string("split { column: 'hex' test_from: 'a' } weight: 'score' max_bad_lines: 500")}) {
    const auto job_of = [&](const std::string& path, const std::string& format) {
      return MakeJob(absl::StrCat("train { path: '", Path(path), "' ", format, " } ", label, rest));
    };
    const Job csv = job_of("all.csv", "csv { header: true }");
    for (const Split split : {Split::kTrain, Split::kTest}) {
      const ReadResult text = ReadAll(csv, split);
      ASSERT_TRUE(text.status.ok()) << text.status;
      ASSERT_GT(text.rows, 50);
      for (const Job& job :
           {job_of("csv", "csv { header: true }"), job_of("all.parquet", "parquet {}"),
            job_of("parquet", "parquet {}")}) {
        const ReadResult read = ReadAll(job, split);
        EXPECT_TRUE(read.status.ok()) << read.status;
        EXPECT_EQ(read.batches, text.batches) << rest;
        EXPECT_EQ(read.bad_rows, text.bad_rows);
      }
    }
    const Job parquet = job_of("parquet", "parquet {}");
    for (const int start : {1, 5, 13}) {
      EXPECT_EQ(ReadAll(parquet, Split::kTrain, 1, 3, start).batches,
                ReadAll(csv, Split::kTrain, 1, 3, start).batches)
          << start << " " << rest;
    }
  }
}

// The first column's page, which "x" reads, is damaged in the first of two row groups.
TEST_F(ParquetDataTest, WhatIsSkippedIsReadInTheColumnThatSplitsItAlone) {
  std::vector<std::string> numbers, splits, labels;
  for (int i = 0; i < 200; ++i) {
    numbers.push_back(absl::StrCat(i));
    splits.push_back(absl::StrCat(i % 4 == 3 ? 7 : 3));
    labels.push_back(absl::StrCat(i % 2));
  }
  const auto json = [](const std::vector<std::string>& values) {
    return absl::StrCat("[", absl::StrJoin(values, ","), "]");
  };
  ParquetTestOptions options;
  options.row_group_rows = 100;
  const std::string path = Path("a.parquet");
  WriteTestParquet(
      path,
      {{"x", "int64", json(numbers)}, {"s", "int64", json(splits)}, {"y", "int64", json(labels)}},
      options);
  const Job job = MakeJob(absl::StrCat("train { path: '", path,
                                       "' parquet {} } label { column: 'y' }"
                                       " split { column: 's' test_from: '5' }"),
                          "feature { column: 'x' categorical { id: INTEGER } }");
  const std::string whole = ReadAll(job, Split::kTrain, 0, 1, 2).batches;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(4);  // After "PAR1" the header of the first page.
  file << std::string(16, '\xff');
  file.close();
  EXPECT_EQ(ReadAll(job, Split::kTrain).status.code(), absl::StatusCode::kDataLoss);
  auto dataset = Dataset::Open(job, DatasetOptions());
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  // 150 rows of the split in 32s; its first 75 are in the first row group.
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(3));
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)->features[0].keys[0], 128u);  // Row 96 of the split.
  EXPECT_THAT(whole, HasSubstr(Print(**batch)));
}

TEST_F(ParquetDataTest, FilesOfHeldOutRowsAndPositiveLabels) {
  const Table table(90, 7);
  folder_.Write("train.csv", table.Csv(0, 60));
  folder_.Write("test.csv", table.Csv(60, 90));
  table.WriteParquet(Path("train.parquet"), 0, 60, {});
  table.WriteParquet(Path("test.parquet"), 60, 90, {});
  const auto job_of = [&](const std::string& name, const std::string& format) {
    return MakeJob(absl::StrCat("train { path: '", Path("train." + name), "' ", format,
                                " } test { path: '", Path("test." + name),
                                "' } label { column: 'device' positive: ['d 1', 'd 2'] }"),
                   "feature { column: 'user' }");
  };
  const Job csv = job_of("csv", "csv { header: true }");
  const Job parquet = job_of("parquet", "parquet {}");
  for (const Split split : {Split::kTrain, Split::kTest}) {
    const ReadResult text = ReadAll(csv, split);
    ASSERT_TRUE(text.status.ok()) << text.status;
    EXPECT_EQ(ReadAll(parquet, split).batches, text.batches);
  }
  EXPECT_EQ(ReadAll(parquet, Split::kTest).rows, 30);
}

TEST_F(ParquetDataTest, TheLabelIsTheColumnThatTheTaskLearns) {
  folder_.Write("rows.csv", "click,buy,id\n1,0,5\n1,1,6\n0,0,7\n1,0,8\n");
  folder_.Write("bought.csv", "buy,id\n1,5\n0,6\n");
  WriteTestParquet(Path("rows.parquet"), {{"click", "int8", "[1, 1, 0, 1]"},
                                          {"buy", "bool", "[false, true, false, false]"},
                                          {"id", "int64", "[5, 6, 7, 8]"}});
  WriteTestParquet(Path("bought.parquet"), {{"buy", "int32", "[1, 0]"}, {"id", "int64", "[5, 6]"}});
  const auto labels = [&](const std::string& file, const std::string& label, bool needs_labels) {
    const bool is_csv = absl::EndsWith(file, "csv");
    Job job =
        MakeJob(absl::StrCat("train { path: '", Path(file), "' ",
                             is_csv ? "csv { header: true }" : "parquet {}",
                             " } split { last_share: 0 } ", "label { column: ['click', 'buy'] }"),
                "feature { column: 'id' }");
    if (!label.empty()) {
      if (job.task_size() == 0) job.add_task();
      job.mutable_task(0)->set_label(label);
    }
    DatasetOptions options;
    options.needs_labels = needs_labels;
    auto dataset = Dataset::Open(job, options);
    if (!dataset.ok()) return std::string(dataset.status().message());
    auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
    CHECK(reader.ok());
    auto batch = (*reader)->Next();
    CHECK(batch.ok());
    return absl::StrJoin((*batch)->labels, " ");
  };
  for (const std::string form : {"csv", "parquet"}) {
    EXPECT_EQ(labels("rows." + form, "", true), "1 1 0 1");
    EXPECT_EQ(labels("rows." + form, "click", true), "1 1 0 1");
    EXPECT_EQ(labels("rows." + form, "buy", true), "0 1 0 0");
    // Rows to be scored may lack the others, and the label as well.
    EXPECT_THAT(labels("bought." + form, "buy", true), HasSubstr("names the column 'click'"));
    EXPECT_EQ(labels("bought." + form, "buy", false), "1 0");
    EXPECT_EQ(labels("bought." + form, "click", false), "nan nan");
  }
}

TEST_F(ParquetDataTest, LabelsOfSeveralTasksMayBeNull) {
  folder_.Write("rows.csv", "click,buy,id,w\n1,0,5,2\n1,,6,2\n0,1,7,0.5\n,1,8,2\n");
  WriteTestParquet(Path("rows.parquet"), {{"click", "float", "[1, 1, 0, NaN]"},
                                          {"buy", "bool", "[false, null, true, true]"},
                                          {"id", "int64", "[5, 6, 7, 8]"},
                                          {"w", "double", "[2, 2, 0.5, 2]"}});
  WriteTestParquet(Path("none.parquet"), {{"click", "int8", "[1, null]"},
                                          {"buy", "int8", "[1, null]"},
                                          {"id", "int64", "[5, 6]"},
                                          {"w", "double", "[2, 2]"}});
  const auto read = [&](const std::string& file, const std::string& format) {
    Job job = MakeJob(absl::StrCat("train { path: '", Path(file), "' ", format,
                                   " } split { last_share: 0 } label { column: ['click', 'buy'] "
                                   "may_be_missing: true } weight: 'w'"),
                      "feature { column: 'id' }");
    job.clear_task();
    for (const char* label : {"buy", "click"}) job.add_task()->set_label(label);
    const auto dataset = Dataset::Open(job);
    CHECK(dataset.ok());
    auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
    CHECK(reader.ok());
    auto batch = (*reader)->Next();
    if (!batch.ok()) return std::string(batch.status().message());
    return absl::StrCat(absl::StrJoin((*batch)->labels, " "), " *",
                        absl::StrJoin((*batch)->weights, " "));
  };
  EXPECT_EQ(read("rows.csv", "csv { header: true }"), "0 1 0 1 1 0 1 0 *2 2 0 2 0.5 0.5 2 0");
  EXPECT_EQ(read("rows.parquet", "parquet {}"), "0 1 0 1 1 0 1 0 *2 2 0 2 0.5 0.5 2 0");
  EXPECT_THAT(read("none.parquet", "parquet {}"), HasSubstr("no label is there (click, buy)"));
}

// Reads rows to be scored: without the label, grouped, and with columns that go along.
TEST_F(ParquetDataTest, RowsToBeScoredNeedNoLabel) {
  const Table table(100, 11);
  folder_.Write("rows.csv", table.Csv(0, 100));
  table.WriteParquet(Path("rows.parquet"), 0, 100, {});
  DatasetOptions options;
  options.needs_labels = false;
  options.carried_columns = {"user", "time", "score"};
  const auto read = [&](const std::string& name, const std::string& format) {
    return ReadAll(MakeJob(absl::StrCat("train { path: '", Path(name), "' ", format,
                                        " } label { column: 'clicks' } group: 'device'"),
                           "feature { column: 'user' }"),
                   Split::kTrain, 0, 1, 0, options);
  };
  const ReadResult text = read("rows.csv", "csv { header: true }");
  ASSERT_TRUE(text.status.ok()) << text.status;
  EXPECT_THAT(text.batches, HasSubstr("nan: of "));
  EXPECT_EQ(read("rows.parquet", "parquet {}").batches, text.batches);
}

// Ids and floats as they stand in npy files, as text and as Parquet columns.
TEST_F(ParquetDataTest, GivesTheBatchesOfTheSameValuesAsNpy) {
  constexpr int kRows = 100;
  std::mt19937_64 random(3);
  std::string csv = "y,x,a,b\n";
  std::vector<std::string> labels, numbers, a, b;
  std::vector<float> dense;
  std::vector<int64_t> sparse;
  std::vector<int32_t> npy_labels;
  for (int i = 0; i < kRows; ++i) {
    npy_labels.push_back(static_cast<int32_t>(random() % 2));
    dense.push_back(static_cast<float>(random() % 1000) / 10);
    sparse.push_back(static_cast<int64_t>(random()));
    sparse.push_back(static_cast<int64_t>(random() % 9));
    labels.push_back(absl::StrCat(npy_labels.back()));
    numbers.push_back(absl::StrCat(dense.back()));
    a.push_back(absl::StrCat(sparse[sparse.size() - 2]));
    b.push_back(absl::StrCat(sparse.back()));
    absl::StrAppend(&csv, labels[i], ",", numbers[i], ",", a[i], ",", b[i], "\n");
  }
  const auto write_npy = [&](const std::string& name, const std::string& dtype,
                             std::vector<int64_t> shape, const auto& values) {
    auto writer = NpyWriter::Create(Path("npy/" + name), dtype, shape);
    ASSERT_TRUE(writer.ok());
    ASSERT_TRUE((*writer)->Append(values.data(), kRows).ok());
    ASSERT_TRUE((*writer)->Finish().ok());
  };
  std::filesystem::create_directory(Path("npy"));
  write_npy("train_dense.npy", "<f4", {1}, dense);
  write_npy("train_sparse.npy", "<i8", {2}, sparse);
  write_npy("train_labels.npy", "<i4", {}, npy_labels);
  folder_.Write("t.csv", csv);
  const auto json = [](const std::vector<std::string>& values) {
    return absl::StrCat("[", absl::StrJoin(values, ","), "]");
  };
  WriteTestParquet(
      Path("t.parquet"),
      {{"y", "bool", absl::StrReplaceAll(json(labels), {{"0", "false"}, {"1", "true"}})},
       {"x", "float", json(numbers)},
       {"a", "int64", json(a)},
       {"b", "uint8", json(b)}});
  const auto described = [&](const std::string& files) {
    return MakeJob(absl::StrCat("train { ", files,
                                " } label { column: 'y' }"
                                " split { last_share: 0.2 }"),
                   "feature { column: ['a', 'b'] categorical { id: INTEGER } }"
                   "feature { column: 'x' numeric {} }");
  };
  const Job npy = MakeJob(
      absl::StrCat("format: DLRM_NPY path: '", Path("npy"), "' test_share: 0.2 num_dense: 1"),
      "feature { name: 'a' } feature { name: 'b' }");
  const ReadResult wanted = ReadAll(npy, Split::kTrain);
  ASSERT_TRUE(wanted.status.ok()) << wanted.status;
  EXPECT_EQ(wanted.rows, 160);
  EXPECT_EQ(ReadAll(described(absl::StrCat("path: '", Path("t.csv"), "' csv { header: true }")),
                    Split::kTrain)
                .batches,
            wanted.batches);
  EXPECT_EQ(
      ReadAll(described(absl::StrCat("path: '", Path("t.parquet"), "' parquet {}")), Split::kTrain)
          .batches,
      wanted.batches);
}

// Keys of folders are the columns that they would be in the files, also in several workers, from
// any step on, and as what splits the rows.
TEST_F(ParquetDataTest, KeysOfFoldersAreColumns) {
  std::vector<std::string> flat;
  int row = 0;
  for (const char* day : {"2026-11-20", "2026-11-21", "2026-11-22"}) {
    for (const char* shard : {"3", "__HIVE_DEFAULT_PARTITION__"}) {
      const std::string at = absl::StrCat("t/day=", day, "/shard=", shard);
      std::filesystem::create_directories(Path(at));
      std::vector<std::string> labels, users;
      for (int i = 0; i < 7; ++i, ++row) {
        labels.push_back(absl::StrCat(row % 2));
        users.push_back(absl::StrCat(row));
        flat.push_back(absl::StrCat(row % 2, ",", row, ",", day, ",",
                                    absl::string_view(shard) == "3" ? "3" : ""));
      }
      ParquetTestOptions options;
      options.row_group_rows = 3;
      WriteTestParquet(Path(at + "/a.parquet"),
                       {{"y", "int64", absl::StrCat("[", absl::StrJoin(labels, ","), "]")},
                        {"user", "int64", absl::StrCat("[", absl::StrJoin(users, ","), "]")}},
                       options);
    }
  }
  folder_.Write("t.csv", "y,user,day,shard\n" + absl::StrJoin(flat, "\n") + "\n");
  const std::string features =
      "feature { column: 'user' categorical { id: INTEGER } } feature { column: 'day' }"
      "feature { column: 'shard' categorical { id: INTEGER } }";
  for (const char* split :
       {"split { last_share: 0.3 }", "split { column: 'day' test_from: '2026-11-22' }"}) {
    const auto job_of = [&](const std::string& files) {
      return MakeJob(absl::StrCat("train { ", files, " } label { column: 'y' } ", split), features);
    };
    const Job text = job_of(absl::StrCat("path: '", Path("t.csv"), "' csv { header: true }"));
    const Job parquet = job_of(absl::StrCat("path: '", Path("t"), "' parquet {}"));
    for (const Split part : {Split::kTrain, Split::kTest}) {
      const ReadResult wanted = ReadAll(text, part);
      ASSERT_TRUE(wanted.status.ok() && wanted.rows > 0) << wanted.status;
      const ReadResult read = ReadAll(parquet, part);
      EXPECT_TRUE(read.status.ok()) << read.status;
      EXPECT_EQ(read.batches, wanted.batches) << split;
    }
    EXPECT_EQ(ReadAll(parquet, Split::kTrain, 1, 3, 1).batches,
              ReadAll(text, Split::kTrain, 1, 3, 1).batches);
  }
}

// ---- errors

class ParquetErrorTest : public ParquetDataTest {
 protected:
  // Reads with a job that has these features over data/*.parquet.
  ReadResult Read(const std::string& features, const std::string& more = "") const {
    return ReadAll(MakeJob(absl::StrCat("train { path: '", Path("data"),
                                        "' parquet {} } label { column: 'y' } ", more),
                           features),
                   Split::kTrain);
  }
  void SetUp() override {
    ParquetDataTest::SetUp();
    std::filesystem::create_directory(Path("data"));
  }
};

TEST_F(ParquetErrorTest, ColumnsThatAreNotThereOrOfNoUse) {
  const std::string path = Path("data/a.parquet");
  WriteTestParquet(path, {{"y", "int64", "[0, 1]"},
                          {"user_id", "int64", "[1, 2]"},
                          {"cost", "decimal", R"(["1.00", "2.00"])"},
                          {"tags", "list of int64", "[[1], [2]]"},
                          {"at", "timestamp[s]", "[0, 1]"},
                          {"vector", "two of float", "[[0.5, 1], [2, 3]]"}});
  const auto error = [&](const std::string& features, const std::string& more = "") {
    const absl::Status status = Read(features, more).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error("feature { column: 'user_ids' }"),
            absl::StrCat("feature 'user_ids' names the column 'user_ids', but ", path,
                         " has no such column (did you mean 'user_id'?)"));
  EXPECT_EQ(error("feature { column: 'cost' numeric {} }"),
            absl::StrCat(path,
                         ": the column 'cost' is of type Decimal(precision=10, scale=2), "
                         "which can't be read; cast it to a number, a string or a "
                         "timestamp"));
  EXPECT_EQ(error("feature { column: 'tags' numeric {} }"),
            absl::StrCat("feature 'tags' is numeric, but the column 'tags' of ", path,
                         " is of type list of int64"));
  EXPECT_EQ(error("feature { column: 'vector' numeric {} }"),
            absl::StrCat("feature 'vector' is numeric, but the column 'vector' of ", path,
                         " is of type list of float32"));
  EXPECT_EQ(error("feature { column: 'vector' }"),
            absl::StrCat("feature 'vector' is made of ids or texts (give each number of a list a "
                         "column of its own, as a numeric feature), but the column 'vector' of ",
                         path, " is of type list of float32"));
  EXPECT_EQ(error("feature { column: 'at' categorical { id: INTEGER } }"),
            absl::StrCat("feature 'at' is made of numbers, but the column 'at' of ", path,
                         " is of type timestamp[ms]"));
  EXPECT_EQ(error("feature { column: ['tags', 'user_id'] }"
                  "feature { name: 'x' cross { of: ['tags', 'user_id'] } }"),
            absl::StrCat("feature 'x' crosses single values, but the column 'tags' of ", path,
                         " is of type list of int64"));
  EXPECT_EQ(error("feature { column: 'user_id' }", "split { column: 'tags' test_from: '1' }"),
            absl::StrCat("data.split.column is one value a row, but the column 'tags' of ", path,
                         " is of type list of int64"));
  EXPECT_THAT(error("feature { column: 'user_id' }", "split { column: 'at' test_from: '17' }"),
              HasSubstr("data.split.test_from is '17', but the column is one of dates or times"));
}

TEST_F(ParquetErrorTest, WeightsOfLists) {
  const std::string path = Path("data/a.parquet");
  const auto error = [&](const std::string& weights, const std::string& more = "") {
    WriteTestParquet(path, {{"y", "int64", "[0, 1]"},
                            {"tags", "list of int64", "[[1, 2], []]"},
                            {"w", "list of double", weights},
                            {"one", "double", "[1, 2]"}});
    return Read(absl::StrCat("feature { column: 'tags' ", more, " categorical { weights: 'w' } }"))
        .status;
  };
  const std::string row = absl::StrCat(path, ": row group 0, row 0: column 'w': ");
  EXPECT_EQ(error("[[1, -2], []]"), absl::OkStatus());
  EXPECT_EQ(error("[[1], []]"),
            absl::InvalidArgumentError(absl::StrCat(row, "1 weight, but 'tags' has 2 values")));
  EXPECT_EQ(error("[[1, null], []]"),
            absl::InvalidArgumentError(absl::StrCat(row, "'' is not a weight: a finite number")));
  EXPECT_EQ(error("[[1, 1e39], []]"), absl::InvalidArgumentError(absl::StrCat(
                                          row, "'1e+39' is not a weight: a finite number")));
  EXPECT_EQ(error("[[1, -2], []]", "pooling: MEAN"),
            absl::InvalidArgumentError(
                absl::StrCat(row, "'-2' is below 0, and the feature's pooling is MEAN")));
  EXPECT_EQ(Read("feature { column: 'tags' categorical { weights: 'one' } }").status,
            absl::InvalidArgumentError(absl::StrCat(
                "the weights of feature 'tags' are a list of numbers, as its column is a list, but "
                "the column 'one' of ",
                path, " is of type float64")));
  EXPECT_EQ(Read("feature { column: 'tags' categorical { weights: 'v' } }").status,
            absl::InvalidArgumentError(
                absl::StrCat("categorical.weights of feature 'tags' names the column 'v', but ",
                             path, " has no such column")));
}

TEST_F(ParquetErrorTest, FilesThatDiffer) {
  const std::string a = Path("data/a.parquet"), b = Path("data/b.parquet");
  WriteTestParquet(a, {{"y", "int64", "[0]"}, {"u", "int64", "[1]"}, {"v", "int64", "[1]"}});
  WriteTestParquet(b, {{"y", "int64", "[0]"}, {"u", "string", "[\"1\"]"}});
  EXPECT_EQ(Read("feature { column: 'u' }").status,
            absl::InvalidArgumentError(
                absl::StrCat(b, ": the column 'u' is of type string, not int64 as in ", a)));
  EXPECT_EQ(Read("feature { column: 'v' }").status,
            absl::InvalidArgumentError(absl::StrCat(b, ": has no column 'v', as ", a, " has")));
}

TEST_F(ParquetErrorTest, AFileThatIsCutShort) {
  WriteTestParquet(Path("data/a.parquet"), {{"y", "int64", "[0]"}, {"u", "int64", "[1]"}});
  std::ifstream in(Path("data/a.parquet"), std::ios::binary);
  std::stringstream bytes;
  bytes << in.rdbuf();
  folder_.Write("data/b.parquet", bytes.str().substr(0, bytes.str().size() / 2));
  const absl::Status status = Read("feature { column: 'u' }").status;
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("data/b.parquet") + ": "));
}

TEST_F(ParquetErrorTest, MalformedRowsAreNamedAndMayBeSkipped) {
  const std::string path = Path("data/a.parquet");
  ParquetTestOptions options;
  options.row_group_rows = 2;
  WriteTestParquet(path,
                   {{"y", "int64", "[0, 1, 0, 2, 1]"},
                    {"u", "string", R"(["1", "2", "3", "4", "x"])"},
                    {"l", "list of int64", "[[1], [2], [1, null], [], [2]]"}},
                   options);
  const std::string features =
      "feature { column: 'u' categorical { id: INTEGER } } feature { column: 'l' }";
  const std::string all = "split { last_share: 0 } max_bad_lines: ";
  EXPECT_EQ(Read(features, all + "0").status,
            absl::InvalidArgumentError(
                path + ": row group 1, row 0: column 'l': an empty value among several; 2 more in "
                       "this batch are malformed, too"));
  EXPECT_THAT(std::string(Read(features, all + "1").status.message()),
              HasSubstr(path + ": row group 1, row 1: column 'y': '2' is not 0 or 1; "));
  EXPECT_THAT(std::string(Read(features, all + "2").status.message()),
              HasSubstr(path + ": row group 2, row 0: column 'u': 'x' is not an integer"));
  const ReadResult read = Read(features, all + "3");
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.rows, 2 * 2);
  EXPECT_EQ(read.bad_rows, 3u);
}

TEST_F(ParquetErrorTest, TooManyLookups) {
  const std::string path = Path("data/a.parquet");
  WriteTestParquet(path,
                   {{"y", "int64", "[0, 1, 0]"}, {"l", "list of int64", "[[1], [], [1, 2]]"}});
  DatasetOptions options;
  options.max_table_lookups = 3;
  const Job job = MakeJob(absl::StrCat("train { path: '", path,
                                       "' parquet {} } split { last_share: 0 } "
                                       "label { column: 'y' }"),
                          "feature { column: 'l' }");
  const absl::Status status = ReadAll(job, Split::kTrain, 0, 1, 0, options).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(path + ": row group 0, row 2: feature 'l' has 2 values here, with which "
                               "this worker's batch has 4 lookups of table 'l', and may have 3"));
}

}  // namespace
}  // namespace thermocline
