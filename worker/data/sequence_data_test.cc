// Lists that are read step by step, from files on disk to batches: the same of text, Parquet and
// npy, with the same error for rows whose lists don't fit together.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/arrow/parquet.h"
#include "common/arrow/testing/test_parquet.h"
#include "common/base/check.h"
#include "common/disk/npy.h"
#include "common/job/job_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/kept_rows.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;

struct Row {
  int64_t item, year;
  std::vector<int64_t> items, years;
};

// Lists of 0 to 6 values.
std::vector<Row> Rows(int count) {
  std::vector<Row> rows;
  for (int64_t i = 0; i < count; ++i) {
    Row& row = rows.emplace_back();
    row.item = i;
    row.year = 1900 + i;
    for (int64_t k = 0; k < i * 5 % 7; ++k) {
      row.items.push_back(100 * i + k);
      row.years.push_back(1990 + k);
    }
  }
  return rows;
}

std::string Csv(const std::vector<Row>& rows) {
  std::string text = "y,item,year,items,years\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    absl::StrAppend(&text, i % 2, ",", rows[i].item, ",", rows[i].year, ",",
                    absl::StrJoin(rows[i].items, "|"), ",", absl::StrJoin(rows[i].years, "|"),
                    "\n");
  }
  return text;
}

void WriteParquet(const std::string& path, const std::vector<Row>& rows) {
  std::vector<ParquetTestColumn> columns = {{"y", "int8", "["},
                                            {"item", "int64", "["},
                                            {"year", "int32", "["},
                                            {"items", "list of int64", "["},
                                            {"years", "string", "["}};  // As in text.
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string values[] = {
        absl::StrCat(i % 2), absl::StrCat(rows[i].item), absl::StrCat(rows[i].year),
        absl::StrCat("[", absl::StrJoin(rows[i].items, ","), "]"),
        // Null and the empty text are the same.
        rows[i].years.empty() && i % 2 == 0
            ? "null"
            : absl::StrCat("\"", absl::StrJoin(rows[i].years, "|"), "\"")};
    for (size_t c = 0; c < columns.size(); ++c) {
      absl::StrAppend(&columns[c].json, i == 0 ? "" : ",", values[c]);
    }
  }
  for (ParquetTestColumn& column : columns) column.json += "]";
  WriteTestParquet(path, columns);
}

template <typename T>
void WriteNpy(const std::string& path, const std::string& dtype, const std::vector<int64_t>& values,
              int columns) {
  const std::vector<T> typed(values.begin(), values.end());
  auto writer = NpyWriter::Create(
      path, dtype, columns == 1 ? std::vector<int64_t>{} : std::vector<int64_t>{columns});
  CHECK(writer.ok());
  CHECK((*writer)->Append(typed.data(), static_cast<int64_t>(typed.size()) / columns).ok());
  CHECK((*writer)->Finish().ok());
}

struct List {
  std::vector<int64_t> values, offsets = {0};

  void Add(const std::vector<int64_t>& row) {
    values.insert(values.end(), row.begin(), row.end());
    offsets.push_back(static_cast<int64_t>(values.size()));
  }
};

void WriteNpyFiles(const std::string& folder, const std::vector<Row>& rows) {
  const std::string prefix = folder + "/train_";
  std::vector<int64_t> labels, sparse;
  List items, years;
  for (const Row& row : rows) {
    labels.push_back(static_cast<int64_t>(labels.size()) % 2);
    sparse.insert(sparse.end(), {row.item, row.year});
    items.Add(row.items);
    years.Add(row.years);
  }
  WriteNpy<int32_t>(prefix + "labels.npy", "<i4", labels, 1);
  WriteNpy<int64_t>(prefix + "sparse.npy", "<i8", sparse, 2);
  WriteNpy<uint64_t>(prefix + "items_values.npy", "<u8", items.values, 1);
  WriteNpy<int64_t>(prefix + "items_offsets.npy", "<i8", items.offsets, 1);
  WriteNpy<int32_t>(prefix + "years_values.npy", "<i4", years.values, 1);
  WriteNpy<int32_t>(prefix + "years_offsets.npy", "<i4", years.offsets, 1);
}

// data: the stanza's fields. categorical: of each feature. model: its layers.
Job MakeJob(const std::string& data, const std::string& categorical, const std::string& sequence,
            const std::string& model) {
  const auto job = ParseJob(absl::StrCat(R"(name: "j"
data { )",
                                         data, R"( }
feature { name: "item" )",
                                         categorical, R"( }
feature { name: "year" )",
                                         categorical, R"( }
feature { name: "items" table: "item" )",
                                         categorical, " sequence { ", sequence, R"( } }
feature { name: "years" table: "year" )",
                                         categorical, " sequence { ", sequence, R"( } }
sequence { name: "events" of: ["items", "years"] then: ["item", "year"] }
sequence { name: "alone" of: "items" }
train { batch_size: 4 learning_rate { base: 0.1 } })",
                                         model),
                            "j", {});
  if (!job.ok()) ADD_FAILURE() << job.status();
  return *job;
}

// The item is read pooled, years by step alone, and items in all ways.
constexpr char kModel[] = R"(
layer { name: "events_mean" input: "events" pool { mode: MEAN } }
layer { name: "alone_sum" input: "alone" pool { mode: SUM } }
layer { name: "top" input: ["item", "items", "events_mean", "alone_sum"] mlp { units: 4 } }
task { input: "top" })";

struct Read {
  std::vector<std::string> rows;  // The keys of each sample, feature by feature.
  absl::Status status;
  uint64_t bad_lines = 0;
};

std::string Print(const Batch& batch, int sample) {
  std::string text;
  for (const FeatureLookups& feature : batch.features) {
    const auto begin = feature.keys.begin() + feature.offsets[sample];
    const auto end = feature.keys.begin() + feature.offsets[sample + 1];
    absl::StrAppend(&text, text.empty() ? "" : " / ", absl::StrJoin(begin, end, ","));
  }
  return text;
}

void ReadRest(BatchReader* reader, Read* read) {
  for (;;) {
    auto batch = reader->Next();
    read->status = batch.status();
    read->bad_lines = reader->progress().bad_lines;
    if (!batch.ok() || *batch == nullptr) return;
    for (int i = 0; i < (*batch)->size; ++i) read->rows.push_back(Print(**batch, i));
    reader->Recycle(std::move(*batch));
  }
}

Read ReadJob(const Job& job, uint32_t rank = 0, uint32_t workers = 1, int start = 0) {
  Read read;
  auto dataset = Dataset::Open(job);
  read.status = dataset.status();
  if (!dataset.ok()) return read;
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(rank), workers, Step(start));
  read.status = reader.status();
  if (reader.ok()) ReadRest(reader->get(), &read);
  return read;
}

class SequenceDataTest : public testing::Test {
 protected:
  // The three forms of the same rows, as jobs. Parquet only where this build reads it.
  std::vector<Job> JobsOf(const std::vector<Row>& rows, const std::string& sequence,
                          const std::string& more = "") {
    const std::string split = " split { last_share: 0 } " + more;
    const std::string label = " label { column: 'y' }";
    const std::string integer = "categorical { id: INTEGER }";
    const std::string& folder = folder_.path();
    csv_ = folder_.Write("log.csv", Csv(rows));
    std::vector<Job> jobs;
    jobs.push_back(
        MakeJob(absl::StrCat("train { path: '", csv_, "' csv { header: true } }", label, split),
                integer, sequence, kModel));
    WriteNpyFiles(folder, rows);
    jobs.push_back(
        MakeJob(absl::StrCat("train { path: '", folder, "' npy {} } num_dense: 0", split), "",
                sequence, kModel));
    if (RequireArrow("this").ok()) {
      parquet_ = folder + "/log.parquet";
      WriteParquet(parquet_, rows);
      jobs.push_back(
          MakeJob(absl::StrCat("train { path: '", parquet_, "' parquet {} }", label, split),
                  integer, sequence, kModel));
    }
    return jobs;
  }

  TempFolder folder_;
  std::string csv_, parquet_;
};

// Features: item and items pooled; items and years of `events`; items of `alone`.
std::string Expected(const Row& row, size_t begin, size_t end) {
  const std::vector<int64_t> items(row.items.begin() + begin, row.items.begin() + end);
  const std::vector<int64_t> years(row.years.begin() + begin, row.years.begin() + end);
  const auto then = [](const std::vector<int64_t>& list, int64_t last) {
    return absl::StrCat(absl::StrJoin(list, ","), list.empty() ? "" : ",", last);
  };
  const std::string steps = absl::StrJoin(items, ",");
  return absl::StrCat(row.item, " / ", steps, " / ", then(items, row.item), " / ",
                      then(years, row.year), " / ", steps);
}

TEST_F(SequenceDataTest, EveryFormatGivesTheSameSteps) {
  const std::vector<Row> rows = Rows(22);
  std::vector<std::string> last, first;
  for (const Row& row : rows) {
    const size_t n = row.items.size(), kept = std::min<size_t>(n, 3);
    last.push_back(Expected(row, n - kept, n));
    first.push_back(Expected(row, 0, kept));
  }
  for (const Job& job : JobsOf(rows, "max_length: 3")) {
    EXPECT_EQ(ReadJob(job).rows, last);
    EXPECT_EQ(ReadJob(job, 0, 1, 3).rows, std::vector<std::string>(last.begin() + 12, last.end()));
    EXPECT_EQ(ReadJob(job, 1, 2).rows.size(), 11u);
  }
  for (const Job& job : JobsOf(rows, "max_length: 3 keep: FIRST")) {
    EXPECT_EQ(ReadJob(job).rows, first);
  }
}

TEST_F(SequenceDataTest, RowsWhoseListsDifferInLengthAreMalformed) {
  std::vector<Row> rows = Rows(8);
  rows[3].years.push_back(1);  // One value beside two: only before `max_length`.
  rows[5].items.clear();
  std::vector<std::string> good;
  for (const int i : {0, 1, 2, 4, 6, 7}) {
    const size_t n = rows[i].items.size(), kept = std::min<size_t>(n, 1);
    good.push_back(Expected(rows[i], n - kept, n));
  }
  std::vector<std::string> errors;
  for (const Job& job : JobsOf(rows, "max_length: 1")) {
    errors.emplace_back(ReadJob(job).status.message());
  }
  const std::string in_text =
      absl::StrCat(csv_,
                   ":5: column 4 ('items') has 1 value, but column 5 ('years') has 2; the sequence "
                   "'events' reads them together");
  const std::string in_npy =
      absl::StrCat(folder_.path(),
                   "/train_items_offsets.npy: row 3: 'items' has 1 value, but 'years' has 2; the "
                   "sequence 'events' reads them together");
  EXPECT_EQ(errors[0], in_text);
  EXPECT_EQ(errors[1], in_npy);
  if (errors.size() > 2) {
    EXPECT_THAT(errors[2],
                testing::HasSubstr("column 'items' has 1 value, but column 'years' has 2; "
                                   "the sequence 'events' reads them together"));
  }
  for (const Job& job : JobsOf(rows, "max_length: 1", "max_bad_lines: 2")) {
    const Read read = ReadJob(job);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.rows, good);
    EXPECT_EQ(read.bad_lines, 2u);
  }
}

// A list of Parquet's may have a null, or be one.
TEST_F(SequenceDataTest, NullsInParquetHaveNoKey) {
  if (!RequireArrow("this test").ok()) GTEST_SKIP() << RequireArrow("this test").message();
  Job job = JobsOf(Rows(1), "max_length: 3")[2];
  WriteTestParquet(parquet_, {{"y", "int8", "[0, 1, 0, 1, 0]"},
                              {"item", "int64", "[1, 2, 3, 4, 5]"},
                              {"year", "int32", "[1, 2, 3, 4, 5]"},
                              {"items", "list of int64", "[[6], [null, 6], [null], null, []]"},
                              {"years", "string", "[\"7\", \"7|7\", \"7\", null, \"\"]"}});
  EXPECT_THAT(ReadJob(job).status.message(),
              testing::HasSubstr("column 'items': an empty value among several"));
  job.mutable_data()->set_max_bad_lines(1);
  EXPECT_THAT(ReadJob(job).status.message(),
              testing::HasSubstr("column 'items': '' is missing and has no key, as each step of a "
                                 "sequence must"));
  job.mutable_data()->set_max_bad_lines(2);
  EXPECT_THAT(ReadJob(job).rows,
              ElementsAre("1 / 6 / 6,1 / 7,1 / 6", "4 /  / 4 / 4 / ", "5 /  / 5 / 5 / "));
}

// Batches that are kept have their lookups; no reader makes them of columns again.
TEST_F(SequenceDataTest, KeptRowsAreTheSame) {
  const std::vector<Job> jobs = JobsOf(Rows(9), "max_length: 3");
  const auto dataset = Dataset::Open(jobs[0]);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  const auto kept = KeptRows::Read(reader->get(), 100);
  ASSERT_TRUE(kept.ok()) << kept.status();
  const std::vector<std::string> rows = ReadJob(jobs[0]).rows;
  for (int round = 0; round < 2; ++round) {
    Read again;
    ReadRest(kept->OpenReader().get(), &again);
    EXPECT_EQ(again.rows, rows);
  }
}

TEST_F(SequenceDataTest, OffsetsOfNpyListsAreChecked) {
  const Job job = JobsOf(Rows(4), "max_length: 3")[1];
  const std::string path = folder_.path() + "/train_years_offsets.npy";
  const auto error_of = [&](const std::vector<int64_t>& offsets) {
    WriteNpy<int32_t>(path, "<i4", offsets, 1);
    return std::string(ReadJob(job).status.message());
  };  // 0, 5, 3 and 1 values
  WriteNpy<float>(path, "<f4", {0, 0, 5, 8, 9}, 1);
  EXPECT_EQ(ReadJob(job).status.message(),
            path + ": is float32 [5], wanted int32 or int64 [rows + 1]");
  EXPECT_EQ(error_of({0, 0, 5, 9}), path + ": has 4 offsets, wanted 5 for 4 rows");
  EXPECT_EQ(error_of({1, 0, 5, 8, 9}),
            absl::StrCat(path, ": goes from 1 to 9, wanted from 0 to 9, the values of ",
                         folder_.path(), "/train_years_values.npy"));
  EXPECT_EQ(error_of({0, 0, 5, 3, 9}),
            path +
                ": row 2: the list goes from 5 to 3, and there are 9 values; 1 more in this batch "
                "is malformed, too");
}

// A job of lists alone has neither "dense" nor "sparse".
TEST_F(SequenceDataTest, RowsThatAreScoredMayBeListsAlone) {
  const std::string prefix = folder_.path() + "/test_items_";
  WriteNpy<uint64_t>(prefix + "values.npy", "<u8", {7, 8, 9}, 1);
  WriteNpy<int64_t>(prefix + "offsets.npy", "<i8", {0, 1, 1, 3}, 1);
  const auto job = ParseJob(absl::StrCat(R"(name: "j" data { train { path: ")", folder_.path(),
                                         R"(" npy {} } num_dense: 0 split { last_share: 0 } }
feature { name: "items" sequence { max_length: 3 } }
sequence { name: "alone" of: "items" }
layer { name: "sum" input: "alone" pool { mode: SUM } }
task { input: "sum" }
train { batch_size: 4 learning_rate { base: 0.1 } })"),
                            "j", {});
  ASSERT_TRUE(job.ok()) << job.status();
  DatasetOptions options;
  options.needs_labels = false;
  auto dataset = Dataset::Open(*job, options);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto reader = (*dataset)->OpenReader(Split::kTest, WorkerRank(0), 1, Step(0));
  ASSERT_TRUE(reader.ok()) << reader.status();
  Read read;
  ReadRest(reader->get(), &read);
  EXPECT_THAT(read.rows, ElementsAre("7", "", "8,9"));
  WriteNpy<int64_t>(prefix + "offsets.npy", "<i8", {}, 1);
  EXPECT_EQ(Dataset::Open(*job, options).status().message(),
            prefix + "offsets.npy: has no offsets, wanted 1 more than rows");
}

}  // namespace
}  // namespace thermocline
