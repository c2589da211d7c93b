// Described text from files on disk to batches: several files, headers, splits and shuffling.
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/dataset.h"
#include "worker/data/testing/test_files.h"
#include "worker/data/text/text_source.h"

namespace thermocline {
namespace {

// `data`: the fields of the stanza.
Job MakeJob(const std::string& data, const std::vector<std::string>& overrides = {}) {
  const auto job = ParseJob(absl::StrCat(R"(name: "j" seed: 5
data { )",
                                         data, R"( label { column: "y" } }
feature { column: "id" categorical { id: INTEGER } }
feature { column: "x" numeric { missing: 0 } }
dlrm { bottom: 8 top: 8 }
train { batch_size: 4 eval_batch_size: 4 learning_rate { base: 0.1 } })"),
                            "j", overrides);
  if (!job.ok()) ADD_FAILURE() << job.status();
  return *job;
}

std::string Csv(const std::string& path, const std::string& more = "") {
  return absl::StrCat("train { path: '", path, "' csv { header: true ", more, " } } ");
}

// Rows first .. first + count - 1, each with its number as id and x, behind a header.
std::string Rows(int first, int count, const std::string& line_end = "\n") {
  std::string text = "y,id,x" + line_end;
  for (int i = first; i < first + count; ++i) {
    absl::StrAppend(&text, i % 2, ",", i, ",", i, line_end);
  }
  return text;
}

struct Read {
  std::vector<std::vector<Key>> batches;
  absl::Status status;
  uint64_t bad_lines = 0;

  std::vector<Key> all() const {
    std::vector<Key> keys;
    for (const auto& batch : batches) keys.insert(keys.end(), batch.begin(), batch.end());
    return keys;
  }
};

Read ReadJob(const Job& job, Split split, uint32_t rank = 0, uint32_t workers = 1, int start = 0,
             const TextIndexOptions& index = {}) {
  Read read;
  auto dataset = Dataset::Open(job, {}, index);
  read.status = dataset.status();
  if (!dataset.ok()) return read;
  auto reader = (*dataset)->OpenReader(split, WorkerRank(rank), workers, Step(start));
  read.status = reader.status();
  while (read.status.ok()) {
    auto batch = (*reader)->Next();
    read.status = batch.status();
    read.bad_lines = (*reader)->progress().bad_lines;
    if (!batch.ok() || *batch == nullptr) break;
    const auto& keys = (*batch)->features[0].keys;
    read.batches.emplace_back(keys.begin(), keys.end());
    for (int i = 0; i < (*batch)->size; ++i) {
      EXPECT_EQ((*batch)->labels[i], keys[i] % 2);
      EXPECT_EQ((*batch)->dense_row(i)[0], static_cast<float>(keys[i]));
    }
  }
  return read;
}

std::vector<Key> Range(Key first, Key count) {
  std::vector<Key> keys;
  for (Key i = first; i < first + count; ++i) keys.push_back(i);
  return keys;
}

// Plain, gzip and zstd, with both line ends, by folder, pattern and list: as one file.
TEST(DescribedData, SeveralFilesAreTheirConcatenation) {
  TempFolder folder;
  folder.Write("day-10.csv", Rows(0, 3));
  folder.Write("day-2.csv.gz", Gzip(Rows(3, 6, "\r\n")));
  folder.Write("day-3.csv.zst", Zstd(Rows(9, 1)));
  folder.Write("_SUCCESS", "");
  folder.Write(".hidden", "x");
  const std::string& path = folder.path();
  const std::string list = absl::StrCat("train { path: ['", path, "/day-10.csv', '", path,
                                        "/day-[23].*'] csv { header: true } } ");
  for (const std::string& data : {Csv(path), Csv(path + "/day-*"), list}) {
    for (const double share : {0.0, 0.3}) {
      const Job job = MakeJob(absl::StrCat(data, "split { last_share: ", share, " }"));
      const Key cut = share == 0 ? 10 : 7;
      const Read train = ReadJob(job, Split::kTrain);
      EXPECT_TRUE(train.status.ok()) << train.status;
      EXPECT_EQ(train.all(), Range(0, cut));
      EXPECT_EQ(train.batches[0].size(), 4u);
      EXPECT_EQ(ReadJob(job, Split::kTest).all(), Range(cut, 10 - cut));
      EXPECT_EQ(ReadJob(job, Split::kTrain, 0, 1, 1).all(), Range(4, cut - 4));
    }
  }
  const Read none = ReadJob(MakeJob(Csv(path + "/night-*")), Split::kTrain);
  EXPECT_EQ(none.status, absl::NotFoundError(path + "/night-*: no file matches the pattern"));
}

TEST(DescribedData, ErrorsNameFileLineAndColumn) {
  TempFolder folder;
  const std::string a = folder.Write("a.csv", Rows(0, 3) + "\"1\",\"7\n\",2\n0,4,4\n");
  const std::string b = folder.Write("b.csv", Rows(5, 1) + "1,y,2\n");
  const std::string data = Csv(folder.path()) + "split { last_share: 0 } max_bad_lines: ";
  Read read = ReadJob(MakeJob(data + "0"), Split::kTrain);
  EXPECT_EQ(read.status, absl::InvalidArgumentError(
                             a + ":5: column 2 ('id'): '7\\n' is not an integer of 64 bits"));
  read = ReadJob(MakeJob(data + "1"), Split::kTrain);
  EXPECT_EQ(read.status,
            absl::InvalidArgumentError(absl::StrCat(
                b,
                ":3: column 2 ('id'): 'y' is not an integer of 64 bits; data.max_bad_lines "
                "allows each worker 1 such line, but worker 0 has met 2; the first was ",
                a, ":5: column 2 ('id'): '7\\n' is not an integer of 64 bits")));
  read = ReadJob(MakeJob(data + "2"), Split::kTrain);
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.all(), (std::vector<Key>{0, 1, 2, 4, 5}));
  EXPECT_EQ(read.bad_lines, 2u);
}

TEST(DescribedData, DoubtsAreOfTheFirstRows) {
  TempFolder folder;
  std::string lists = "click\titems\n";
  for (int i = 0; i < 2000; ++i) absl::StrAppend(&lists, i % 2, "\t", i, i < 10 ? "" : ",7", "\n");
  const std::string path = folder.Write("lists.tsv", lists);
  const auto job = ParseJob(absl::StrCat(R"(name: "j" data { train { path: ")", path,
                                         R"(" csv { separator: "\t" header: true } }
      label { column: "click" } } feature { column: "items" sequence { max_length: 2 } }
      dlrm { top: 8 } train { batch_size: 4 learning_rate { base: 0.1 } })"),
                            "j", {});
  ASSERT_TRUE(job.ok()) << job.status();
  const auto dataset = Dataset::Open(*job);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const std::vector<std::string> doubts = (*dataset)->Doubts();
  ASSERT_EQ(doubts.size(), 1u);
  EXPECT_THAT(doubts[0], testing::HasSubstr("none of the first 1000 rows has several values in "
                                            "'items'"));
  EXPECT_THAT(doubts[0], testing::HasSubstr("990 rows have ','"));
}

TEST(DescribedData, HeadersAreChecked) {
  TempFolder folder;
  const std::string a = folder.Write("a.csv", "y,idd,x\n1,1,1\n");
  const auto status = [](const Job& job) { return ReadJob(job, Split::kTrain).status; };
  EXPECT_EQ(status(MakeJob(Csv(a))),
            absl::InvalidArgumentError("feature 'id' names the column 'id', but the header of " +
                                       a + " has no such column (did you mean 'idd'?)"));
  folder.Write("a.csv", Rows(0, 2));
  const std::string b = folder.Write("b.csv", "y,x,id\n1,2,1\n");
  const Job both = MakeJob(Csv(folder.path()) + "split { last_share: 0 }");
  EXPECT_EQ(status(both), absl::InvalidArgumentError(
                              b + ":1: column 2 of the header is 'x', not 'id' as in " + a));
  folder.Write("b.csv", "y,id\n");
  EXPECT_EQ(status(both),
            absl::InvalidArgumentError(b + ":1: the header has 2 columns, not 3 as that of " + a));
  folder.Write("b.csv", "");
  EXPECT_EQ(status(both),
            absl::InvalidArgumentError(b + ": the file is empty; a header is wanted"));
  EXPECT_EQ(status(MakeJob(Csv(folder.Write("c", "y,id,y\n")))).message(),
            folder.path() + "/c:1: column 3 of the header is 'y', as is column 1");
}

TEST(DescribedData, RowsAreHeldOutByFileAndByValue) {
  TempFolder folder;
  const std::string a = folder.Write("a.csv", Rows(0, 9));
  const std::string b = folder.Write("b.csv", Rows(20, 5));
  const Job by_file = MakeJob(Csv(a) + "test { path: '" + b + "' }");
  EXPECT_EQ(ReadJob(by_file, Split::kTrain).all(), Range(0, 9));
  EXPECT_EQ(ReadJob(by_file, Split::kTest).all(), Range(20, 5));

  // Wherever they stand.
  const std::string mixed = folder.Write("c.csv", Rows(6, 6) + "0,0,0\n1,99,99\n0,2,2\n");
  const Job by_value = MakeJob(Csv(mixed) + "split { column: 'id' test_from: '10' }");
  EXPECT_EQ(ReadJob(by_value, Split::kTrain).batches,
            (std::vector<std::vector<Key>>{{6, 7, 8, 9}, {0, 2}}));
  EXPECT_EQ(ReadJob(by_value, Split::kTest).all(), (std::vector<Key>{10, 11, 99}));
  EXPECT_EQ(ReadJob(by_value, Split::kTrain, 0, 1, 1).all(), (std::vector<Key>{0, 2}));
}

TEST(DescribedData, ShufflingIsOfBlocksPassesAndTheSeed) {
  TempFolder folder;
  folder.Write("a.csv", Rows(0, 13));
  folder.Write("b.csv", Rows(13, 10));
  const std::string data =
      Csv(folder.path()) + "split { last_share: 0 } shuffle { block_rows: 10 }";
  const std::vector<std::string> two_passes = {"train.passes=2"};
  const std::vector<Key> all = ReadJob(MakeJob(data, two_passes), Split::kTrain).all();
  ASSERT_EQ(all.size(), 46u);
  const auto sorted = [&](size_t begin, size_t count) {
    std::vector<Key> part(all.begin() + begin, all.begin() + begin + count);
    EXPECT_FALSE(std::is_sorted(part.begin(), part.end()));
    std::sort(part.begin(), part.end());
    return part;
  };
  for (const size_t pass : {0, 1}) {
    EXPECT_EQ(sorted(23 * pass, 10), Range(0, 10));
    EXPECT_EQ(sorted(23 * pass + 10, 10), Range(10, 10));
    EXPECT_EQ(sorted(23 * pass + 20, 3), Range(20, 3));
  }
  EXPECT_NE(std::vector<Key>(all.begin(), all.begin() + 23),
            std::vector<Key>(all.begin() + 23, all.end()));
  EXPECT_NE(ReadJob(MakeJob(data, {"seed=6", "train.passes=2"}), Split::kTrain).all(), all);

  // A reader that begins later, in any pass, and several readers see the same batches.
  const Job job = MakeJob(data, two_passes);
  const auto batches = ReadJob(job, Split::kTrain).batches;
  for (int start = 0; start < static_cast<int>(batches.size()); ++start) {
    const std::vector<std::vector<Key>> rest(batches.begin() + start, batches.end());
    EXPECT_EQ(ReadJob(job, Split::kTrain, 0, 1, start).batches, rest) << start;
  }
  const auto first = ReadJob(job, Split::kTrain, 0, 2).batches;
  const auto second = ReadJob(job, Split::kTrain, 1, 2).batches;
  ASSERT_EQ(first.size(), batches.size());
  for (size_t i = 0; i < batches.size(); ++i) {
    std::vector<Key> both = first[i];
    both.insert(both.end(), second[i].begin(), second[i].end());
    EXPECT_EQ(both, batches[i]);
  }
}

// Wherever they begin, whichever rows are held out, and with shuffling.
TEST(DescribedData, ReadersWithAnIndexSeeTheSameBatches) {
  TempFolder folder;
  folder.Write("a.csv.gz", Gzip(Rows(0, 700)));
  folder.Write("b.csv", Rows(700, 400, "\r\n"));
  TextIndexOptions index;
  index.folder = folder.path() + "/index";
  index.writes = true;
  index.row_bytes = 200;
  index.point_bytes = 1000;
  for (const std::string more :
       {"split { last_share: 0.3 }", "split { column: 'id' test_from: '650' }",
        "split { last_share: 0.1 } shuffle { block_rows: 30 }"}) {
    const Job job = MakeJob(Csv(folder.path() + "/?.csv*") + more, {"train.passes=2"});
    for (const Split split : {Split::kTrain, Split::kTest}) {
      const auto batches = ReadJob(job, split).batches;
      EXPECT_EQ(ReadJob(job, split, 0, 1, 0, index).batches, batches);  // Makes the index.
      EXPECT_GT(batches.size(), 25u);
      const int starts = split == Split::kTrain ? static_cast<int>(batches.size()) : 1;
      for (int start = 0; start < starts; start += 13) {
        const std::vector<std::vector<Key>> rest(batches.begin() + start, batches.end());
        EXPECT_EQ(ReadJob(job, split, 0, 1, start, index).batches, rest) << more << start;
      }
    }
  }
}

// The second time the rows are counted, no byte is read for it.
TEST(DescribedData, CountsComeFromTheIndex) {
  TempFolder folder;
  const Job job =
      MakeJob(Csv(folder.Write("a.csv", Rows(0, 50'000))) + "split { last_share: 0.1 }");
  TextIndexOptions index;
  index.folder = folder.path() + "/index";
  index.writes = true;
  for (const bool again : {false, true}) {
    int64_t scanned_bytes = 0;
    const auto dataset = Dataset::Open(
        job,
        [&](absl::string_view what, const ScanProgress& progress) {
          if (what == "counting lines" && !progress.is_over) scanned_bytes = progress.done_bytes;
        },
        index);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ((*dataset)->rows(Split::kTrain), 45'000);
    EXPECT_EQ(scanned_bytes > 0, !again);
  }
}

TEST(DescribedData, TheOrderOfABlockIsFixed) {
  EXPECT_EQ(ShuffledOrder(1, 0, 0, 8), (std::vector<int32_t>{6, 2, 1, 4, 7, 5, 0, 3}));
}

// Files that were joined by cat, each with its header: it is no row, nor a malformed one, and keeps
// its place, so that batches are those of the same lines.
TEST(DescribedData, AHeaderThatStandsAgainIsLeftOutAndCounted) {
  TempFolder folder;
  const std::string path =
      folder.Write("joined.csv", Rows(0, 3) + Rows(3, 2) + "\"y\",\"id\",\"x\"\r\n" +
                                     "\xef\xbb\xbf" + Rows(5, 2));
  const Job job = MakeJob(Csv(path) + "split { last_share: 0 } ");
  const auto dataset = Dataset::Open(job);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  std::vector<std::vector<Key>> batches;
  std::vector<std::vector<int64_t>> left_out;
  for (;;) {
    const auto batch = (*reader)->Next();
    ASSERT_TRUE(batch.ok()) << batch.status();
    if (*batch == nullptr) break;
    const auto& keys = (*batch)->features[0].keys;
    batches.emplace_back(keys.begin(), keys.end());
    left_out.push_back((*batch)->left_out);
  }
  EXPECT_EQ(batches, (std::vector<std::vector<Key>>{{0, 1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(left_out, (std::vector<std::vector<int64_t>>{{3}, {2, 3}, {}}));
  EXPECT_EQ((*reader)->progress().repeated_headers, 3u);
  EXPECT_EQ((*reader)->progress().bad_lines, 0u);
  // Nearly a header is a malformed line.
  folder.Write("joined.csv", Rows(0, 3) + "y,id,X\n");
  EXPECT_EQ(ReadJob(job, Split::kTrain).status.code(), absl::StatusCode::kInvalidArgument);
}

// ---- folders named by keys

// The ids are the keys "shard" of the folders, which no file has; x is a column of the files.
TEST(DescribedData, KeysOfFoldersAreColumns) {
  TempFolder folder;
  const std::string path = folder.path();
  const auto write = [&](const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(path + "/" + name).parent_path());
    folder.Write(name, text);
  };
  write("t/day=2026-11-20/shard=2/a.csv", "y,x\n0,2\n0,2\n");
  write("t/day=2026-11-20/shard=3/a.csv.gz", Gzip("y,x\n1,3\n"));
  write("t/day=2026-11-21/shard=5/b.csv", "y,x\n1,5\n1,5,5\n");
  write("t/day=2026-11-21/shard=6/b.csv", "y,x\n0,6\n");
  const auto job_of = [&](const std::string& split, const std::string& more = "") {
    const auto job = ParseJob(
        absl::StrCat("name: 'j' seed: 5 data { train { path: '", path,
                     "/t' csv { header: true } } split { ", split, " } label { column: 'y' } ",
                     "max_bad_lines: 1 ", more,
                     " } feature { column: 'shard' categorical { id: "
                     "INTEGER } } feature { column: 'x' numeric { missing: 0 } } dlrm { bottom: 8 "
                     "top: 8 } train { batch_size: 2 eval_batch_size: 4 learning_rate { base: 0.1 "
                     "} }"),
        "j", {});
    if (!job.ok()) ADD_FAILURE() << job.status();
    return *job;
  };
  const Job all = job_of("last_share: 0");
  const Read read = ReadJob(all, Split::kTrain);
  EXPECT_TRUE(read.status.ok()) << read.status;
  EXPECT_EQ(read.all(), (std::vector<Key>{2, 2, 3, 5, 6}));
  EXPECT_EQ(read.bad_lines, 1u);
  // Slices of two workers, and the rest after a step.
  EXPECT_EQ(ReadJob(all, Split::kTrain, 0, 2).all(), (std::vector<Key>{2, 3}));
  EXPECT_EQ(ReadJob(all, Split::kTrain, 1, 2).all(), (std::vector<Key>{2, 5, 6}));
  EXPECT_EQ(ReadJob(all, Split::kTrain, 0, 1, 1).all(), (std::vector<Key>{3, 5, 6}));
  // Held out by a key, also by one of numbers; shuffled.
  for (const std::string& split : {std::string("column: 'day' test_from: '2026-11-21'"),
                                   std::string("column: 'shard' test_from: '4'")}) {
    EXPECT_EQ(ReadJob(job_of(split), Split::kTrain).all(), (std::vector<Key>{2, 2, 3}));
    EXPECT_EQ(ReadJob(job_of(split), Split::kTest).all(), (std::vector<Key>{5, 6}));
  }
  std::vector<Key> shuffled =
      ReadJob(job_of("last_share: 0", "shuffle { block_rows: 100 }"), Split::kTrain).all();
  std::sort(shuffled.begin(), shuffled.end());
  EXPECT_EQ(shuffled, read.all());
  // A malformed line has the same error as without keys.
  EXPECT_EQ(ReadJob(job_of("last_share: 0", "group: 'day'"), Split::kTrain).bad_lines, 1u);
  write("t/day=2026-11-21/shard=6/c.csv", "y,x\n0,6,6\n");
  EXPECT_NE(std::string(ReadJob(all, Split::kTrain).status.message())
                .find("/t/day=2026-11-21/shard=6/c.csv:2: 3 columns, not 2 (the header of "),
            std::string::npos);
}

TEST(DescribedData, AFilesOwnColumnAndFoldersThatDiffer) {
  TempFolder folder;
  const std::string path = folder.path();
  std::filesystem::create_directories(path + "/t/id=7");
  folder.Write("t/id=7/a.csv", "y,id,x\n0,2,2\n");
  EXPECT_EQ(ReadJob(MakeJob(Csv(path + "/t") + "split { last_share: 0 }"), Split::kTrain).all(),
            (std::vector<Key>{2}));
  // A missing key.
  std::filesystem::create_directories(path + "/m/id=__HIVE_DEFAULT_PARTITION__");
  folder.Write("m/id=__HIVE_DEFAULT_PARTITION__/a.csv", "y,x\n1,18446744073709551615\n");
  EXPECT_EQ(ReadJob(MakeJob(Csv(path + "/m") + "split { last_share: 0 }"), Split::kTrain).all(),
            (std::vector<Key>{kEmptyCategoryKey}));
  // Folders of other keys leave none.
  std::filesystem::create_directories(path + "/m/other=1");
  folder.Write("m/other=1/b.csv", "y,x\n1,1\n");
  const absl::Status status = ReadJob(MakeJob(Csv(path + "/m")), Split::kTrain).status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("has other keys than that of"), std::string::npos)
      << status;
}

// ---- more lookups than can be numbered

// Two features of one table, which may have six lookups in a worker's batch.
TEST(DescribedData, TooManyLookupsAreAnErrorThatNamesRowAndFeature) {
  TempFolder folder;
  const std::string path = folder.Write("a.csv",
                                        "y,id,tags\n0,1,1|2\n1,1,3|4\n0,1,x\n1,1,5|6\n"
                                        "0,1,1|2|3|4|5|6\n");
  const auto job_of = [&](int batch_size) {
    const auto job = ParseJob(
        absl::StrCat("name: 'j' data { train { path: '", path,
                     "' csv { header: true } } split { last_share: 0 } label { column: 'y' } "
                     "max_bad_lines: 1 } table { name: 't' } "
                     "feature { column: 'id' table: 't' categorical { id: INTEGER } } "
                     "feature { column: 'tags' table: 't' "
                     "categorical { id: INTEGER separator: '|' } } dlrm { top: 8 } train { "
                     "eval_batch_size: 1 learning_rate { base: 0.1 } batch_size: ",
                     batch_size, " }"),
        "j", {});
    if (!job.ok()) ADD_FAILURE() << job.status();
    return *job;
  };
  const auto error_of = [](const Job& job, uint32_t rank, uint32_t workers) {
    DatasetOptions options;
    options.max_table_lookups = 6;
    const auto dataset = Dataset::Open(job, options);
    const auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(rank), workers, Step(0));
    for (;;) {
      const auto batch = (*reader)->Next();
      if (!batch.ok() || *batch == nullptr) return batch.status();
    }
  };
  // The third row is malformed, and has none.
  EXPECT_EQ(error_of(job_of(4), 0, 1),
            absl::InvalidArgumentError(absl::StrCat(
                path,
                ":5: feature 'id' has 1 value here, with which this worker's batch has 7 "
                "lookups of table 't', and may have 6; make train.batch_size (in an evaluation "
                "train.eval_batch_size) smaller, or the lists shorter (sequence.max_length)")));
  EXPECT_TRUE(error_of(job_of(4), 0, 2).ok());
  EXPECT_EQ(error_of(job_of(1), 0, 1),
            absl::InvalidArgumentError(absl::StrCat(
                path,
                ":6: feature 'tags' has 6 values here, with which this worker's batch has 7 "
                "lookups of table 't', and may have 6; make train.batch_size (in an evaluation "
                "train.eval_batch_size) smaller, or the lists shorter (sequence.max_length)")));
}

TEST(KeyBufferTest, KeepsOneKeyMoreThanABatchMayHave) {
  UninitializedVector<Key> keys(3);
  UninitializedVector<float> weights;
  KeyBuffer buffer(&keys, &weights, /*most=*/100);
  for (Key key = 0; key < 1000; ++key) buffer.Add(key);
  EXPECT_EQ(buffer.size, 101u);
  EXPECT_EQ(keys.size(), 101u);
  EXPECT_EQ(keys[99], 99u);
}

}  // namespace
}  // namespace thermocline
