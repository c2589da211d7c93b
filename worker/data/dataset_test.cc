// The data of a job, from files on disk to batches: splits, slices, and what bad input is answered
// with.
#include "worker/data/dataset.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/disk/npy.h"
#include "common/job/job_source.h"
#include "gtest/gtest.h"
#include "proto/job.pb.h"
#include "worker/data/testing/test_files.h"

namespace thermocline {
namespace {

// Two dense columns, the features "A" and "B".
Job MakeJob(Data::Format format, const std::string& path) {
  Job job;
  job.mutable_data()->set_format(format);
  job.mutable_data()->set_path(path);
  job.mutable_data()->set_num_dense(2);
  job.mutable_data()->set_read_ahead_batches(2);
  for (const char* name : {"A", "B"}) {
    Feature* const feature = job.add_feature();
    feature->set_name(name);
    feature->set_columns(1);
  }
  job.mutable_train()->set_batch_size(3);
  job.mutable_train()->set_eval_batch_size(4);
  job.mutable_train()->set_passes(1);
  return job;
}

// Text without held-out rows, unless the job says so.
Job Resolved(Job job) {
  if (job.data().format() != Data::CRITEO_TSV) return job;
  if (!job.data().has_test_share()) job.mutable_data()->set_test_share(0);
  ResolveJob(&job);
  return job;
}

absl::StatusOr<std::unique_ptr<Dataset>> OpenDataset(const Job& job, OnDatasetScan on_scan = {}) {
  return Dataset::Open(Resolved(job), std::move(on_scan));
}

absl::StatusOr<std::unique_ptr<BatchReader>> OpenJobReader(const Job& job, Split split,
                                                           WorkerRank rank, uint32_t num_workers) {
  return OpenReader(Resolved(job), split, rank, num_workers);
}

// Row i has label i % 2, dense i and i + 1, keys i and 1000 + i.
std::string TsvRows(int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, i % 2, "\t", i, "\t", i + 1, "\t", absl::Hex(i), "\t",
                    absl::Hex(1000 + i), "\n");
  }
  return text;
}

template <typename T>
void WriteNpy(const std::string& path, const std::string& dtype, int64_t columns,
              const std::vector<T>& values) {
  auto writer =
      NpyWriter::Create(path, dtype, columns == 0 ? std::vector<int64_t>{} : std::vector{columns});
  CHECK(writer.ok());
  CHECK((*writer)->Append(values.data(), values.size() / std::max<int64_t>(columns, 1)).ok());
  CHECK((*writer)->Finish().ok());
}

// The same rows as TsvRows, first .. first + rows - 1.
void WriteNpyRows(const std::string& prefix, int first, int rows) {
  std::vector<float> dense;
  std::vector<int32_t> sparse, labels;
  for (int i = first; i < first + rows; ++i) {
    dense.push_back(static_cast<float>(std::log1p(i)));
    dense.push_back(static_cast<float>(std::log1p(i + 1)));
    sparse.push_back(i);
    sparse.push_back(1000 + i);
    labels.push_back(i % 2);
  }
  WriteNpy(prefix + "_dense.npy", "<f4", 2, dense);
  WriteNpy(prefix + "_sparse.npy", "<i4", 2, sparse);
  WriteNpy(prefix + "_labels.npy", "<i4", 1, labels);
}

struct Read {
  std::vector<std::vector<Key>> keys;  // of feature A, for each batch
  absl::Status status;
  uint64_t bad_lines = 0;
};

// Reads a split; checks that every row is as TsvRows made it.
Read ReadSplit(const Job& job, Split split, uint32_t rank = 0, uint32_t num_workers = 1) {
  Read read;
  auto reader = OpenJobReader(job, split, WorkerRank(rank), num_workers);
  read.status = reader.status();
  if (!reader.ok()) return read;
  for (;;) {
    auto batch = (*reader)->Next();
    read.status = batch.status();
    read.bad_lines = (*reader)->progress().bad_lines;
    if (!batch.ok() || *batch == nullptr) return read;
    read.keys.emplace_back();
    for (int i = 0; i < (*batch)->size; ++i) {
      const Key key = (*batch)->features[0].keys[i];
      read.keys.back().push_back(key);
      EXPECT_EQ((*batch)->features[0].offsets[i], i);
      EXPECT_EQ((*batch)->features[1].keys[i], 1000 + key);
      EXPECT_EQ((*batch)->labels[i], key % 2);
      EXPECT_EQ((*batch)->dense_row(i)[0], static_cast<float>(std::log1p(key)));
      EXPECT_EQ((*batch)->dense_row(i)[1], static_cast<float>(std::log1p(key + 1)));
      for (int c = 2; c < 8; ++c) EXPECT_EQ((*batch)->dense[8 * i + c], 0);
    }
    (*reader)->Recycle(*std::move(batch));
  }
}

using Keys = std::vector<std::vector<Key>>;

TEST(DatasetTsv, LastShareIsHeldOut) {
  TempFolder folder;
  for (bool gzip : {false, true}) {
    const std::string text = TsvRows(10) + "\n";
    Job job = MakeJob(Data::CRITEO_TSV, folder.Write("all", gzip ? Gzip(text) : text));
    job.mutable_data()->set_test_share(0.25);  // cut = int(10 * 0.75)
    const Read train = ReadSplit(job, Split::kTrain);
    EXPECT_TRUE(train.status.ok()) << train.status;
    EXPECT_EQ(train.keys, (Keys{{0, 1, 2}, {3, 4, 5}, {6}}));
    EXPECT_EQ(ReadSplit(job, Split::kTest).keys, (Keys{{7, 8, 9}}));
    auto dataset = OpenDataset(job);
    EXPECT_EQ((*dataset)->rows(Split::kTrain), 7);
    EXPECT_EQ((*dataset)->rows(Split::kTest), 3);
  }
}

TEST(DatasetTsv, TestFileAndPasses) {
  TempFolder folder;
  Job job = MakeJob(Data::CRITEO_TSV, folder.Write("train.tsv", TsvRows(4)));
  job.mutable_data()->set_test_path(folder.Write("test.tsv", TsvRows(5)));
  job.mutable_data()->set_test_share(0);
  job.mutable_train()->set_passes(2);
  EXPECT_EQ(ReadSplit(job, Split::kTrain).keys, (Keys{{0, 1, 2}, {3}, {0, 1, 2}, {3}}));
  EXPECT_EQ(ReadSplit(job, Split::kTest).keys, (Keys{{0, 1, 2, 3}, {4}}));
  EXPECT_EQ((*OpenDataset(job))->rows(Split::kTrain), -1);  // Not counted.
}

TEST(DatasetTsv, ScansAreNamed) {
  TempFolder folder;
  Job job = MakeJob(Data::CRITEO_TSV, folder.Write("all", TsvRows(10)));
  job.mutable_data()->set_test_share(0.25);
  std::vector<std::string> ended;
  auto dataset = OpenDataset(job, [&](absl::string_view what, const ScanProgress& progress) {
    EXPECT_GT(progress.done_bytes, 0);
    if (progress.is_over) ended.emplace_back(what);
  });
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_EQ(ended, std::vector<std::string>({"counting lines"}));
  const auto read_first = [&](Split split, Step start) {
    auto reader = (*dataset)->OpenReader(split, WorkerRank(0), 1, start);
    ASSERT_TRUE(reader.ok());
    ASSERT_TRUE((*reader)->Next().ok());
  };
  read_first(Split::kTrain, Step(0));
  EXPECT_EQ(ended.size(), 1u);
  read_first(Split::kTrain, Step(2));
  read_first(Split::kTest, Step(0));
  EXPECT_EQ(ended, std::vector<std::string>(
                       {"counting lines", "skipping to step 2", "skipping to the held-out rows"}));
}

// With a counted file, one that is not, and npy files: every start gives the keys of the run from
// step 0.
TEST(Dataset, AStartAmidTheDataContinuesTheSameOrder) {
  TempFolder folder;
  WriteNpyRows(folder.path() + "/train", 0, 8);
  WriteNpyRows(folder.path() + "/test", 0, 1);
  std::vector<Job> jobs = {
      MakeJob(Data::CRITEO_TSV, folder.Write("a.tsv", TsvRows(8))),
      MakeJob(Data::CRITEO_TSV, folder.Write("b.tsv.gz", Gzip(TsvRows(11)))),
      MakeJob(Data::DLRM_NPY, folder.path()),
  };
  jobs[1].mutable_data()->set_test_share(0.25);  // int(11 * 0.75) = 8 rows
  for (Job& job : jobs) {
    job.mutable_train()->set_passes(2);
    auto dataset = OpenDataset(job);
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    const Keys whole = {{0, 1, 2}, {3, 4, 5}, {6, 7}, {0, 1, 2}, {3, 4, 5}, {6, 7}};
    for (size_t start = 0; start <= whole.size(); ++start) {
      auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(start));
      ASSERT_TRUE(reader.ok());
      Keys keys;
      while (true) {
        auto batch = (*reader)->Next();
        ASSERT_TRUE(batch.ok()) << batch.status();
        if (*batch == nullptr) break;
        EXPECT_EQ((*batch)->step, Step(start + keys.size()));
        const auto& feature = (*batch)->features[0].keys;
        keys.emplace_back(feature.begin(), feature.end());
      }
      EXPECT_EQ(keys, Keys(whole.begin() + start, whole.end())) << job.data().path() << start;
      EXPECT_EQ((*reader)->skipped().global_samples,
                std::vector<uint64_t>({0, 3, 6, 8, 11, 14, 16})[start]);
    }
  }
}

// A line number in an error is the file's, also after skipped lines.
TEST(DatasetTsv, MalformedLineIsNamedAfterAStart) {
  TempFolder folder;
  const std::string path = folder.Write("train.tsv", TsvRows(7) + "1\t2\n");
  auto dataset = OpenDataset(MakeJob(Data::CRITEO_TSV, path));
  ASSERT_TRUE(dataset.ok());
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(2));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ(
      (*reader)->Next().status(),
      absl::InvalidArgumentError(path + ":8: 2 columns, not 5"
                                        " (1 label + data.num_dense=2 + data.num_categorical=2)"));
}

TEST(DatasetTsv, WorkersShareEveryBatch) {
  TempFolder folder;
  Job job = MakeJob(Data::CRITEO_TSV, folder.Write("a.tsv", TsvRows(7)));
  job.mutable_train()->set_batch_size(4);
  EXPECT_EQ(ReadSplit(job, Split::kTrain, 0, 2).keys, (Keys{{0, 1}, {4}}));
  EXPECT_EQ(ReadSplit(job, Split::kTrain, 1, 2).keys, (Keys{{2, 3}, {5, 6}}));
}

// Whether few are read ahead, and with bad lines.
TEST(DatasetTsv, BatchesAreTheSameForAnyNumberOfParsers) {
  TempFolder folder;
  Job job = MakeJob(Data::CRITEO_TSV, folder.Write("a.tsv", TsvRows(200) + "1\t2\n" + TsvRows(99)));
  job.mutable_data()->set_max_bad_lines(1);
  job.mutable_data()->set_read_ahead_batches(1);
  job.mutable_data()->set_parser_threads(1);
  const Read one = ReadSplit(job, Split::kTrain);
  EXPECT_EQ(one.bad_lines, 1u);
  EXPECT_EQ(one.keys.size(), 100u);
  for (const uint32_t threads : {2, 5, 8}) {
    job.mutable_data()->set_parser_threads(threads);
    const Read read = ReadSplit(job, Split::kTrain);
    EXPECT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.keys, one.keys);
    EXPECT_EQ(read.bad_lines, 1u);
  }
}

TEST(DatasetTsv, NothingHeldOutIsNoBatch) {
  TempFolder folder;
  const Job job = MakeJob(Data::CRITEO_TSV, folder.Write("a.tsv", TsvRows(7)));
  const Read test = ReadSplit(job, Split::kTest);
  EXPECT_TRUE(test.status.ok());
  EXPECT_TRUE(test.keys.empty());
}

TEST(DatasetTsv, MalformedLineIsNamed) {
  TempFolder folder;
  const std::string path =
      folder.Write("train.tsv", TsvRows(4) + "1\t1\t2\txyz\t5\n" + TsvRows(4) + "1\t2\n");
  Job job = MakeJob(Data::CRITEO_TSV, path);
  const Read strict = ReadSplit(job, Split::kTrain);
  EXPECT_EQ(strict.keys, (Keys{{0, 1, 2}}));
  EXPECT_EQ(strict.status, absl::InvalidArgumentError(
                               path + ":5: column 4 ('C1'): 'xyz' is not a hexadecimal number"));

  job.mutable_data()->set_max_bad_lines(1);
  EXPECT_EQ(ReadSplit(job, Split::kTrain).status,
            absl::InvalidArgumentError(
                path +
                ":10: 2 columns, not 5 (1 label + data.num_dense=2 + data.num_categorical=2); "
                "data.max_bad_lines allows each worker 1 such line, but worker 0 has met 2; the "
                "first was " +
                path + ":5: column 4 ('C1'): 'xyz' is not a hexadecimal number"));

  job.mutable_data()->set_max_bad_lines(2);
  const Read lenient = ReadSplit(job, Split::kTrain);
  EXPECT_TRUE(lenient.status.ok()) << lenient.status;
  EXPECT_EQ(lenient.bad_lines, 2u);
  EXPECT_EQ(lenient.keys, (Keys{{0, 1, 2}, {3, 0}, {1, 2, 3}, {}}));
}

// However many malformed lines may be skipped, with and without a share that is held out.
TEST(DatasetTsv, AnNpyFileIsNamed) {
  TempFolder folder;
  WriteNpyRows(folder.path() + "/train", 0, 30);
  Job job = MakeJob(Data::CRITEO_TSV, folder.path() + "/train_dense.npy");
  job.mutable_data()->set_max_bad_lines(1000);
  const absl::Status named =
      absl::InvalidArgumentError(job.data().path() +
                                 ": the file is a NumPy array (.npy); data.format: DLRM_NPY reads "
                                 "those, and data.path is then "
                                 "their folder");
  EXPECT_EQ(ReadSplit(job, Split::kTrain).status, named);
  job.mutable_data()->set_test_share(0.5);
  EXPECT_EQ(OpenDataset(job).status(), named);
}

// Malformed lines count as rows for the cut, and line numbers are the file's in both parts.
TEST(DatasetTsv, MalformedLineInTheHeldOutPart) {
  TempFolder folder;
  const std::string path = folder.Write("a.tsv", TsvRows(8) + "\n1\t1\t2\t1\n");
  Job job = MakeJob(Data::CRITEO_TSV, path);
  job.mutable_data()->set_test_share(0.5);
  EXPECT_EQ(ReadSplit(job, Split::kTrain).keys, (Keys{{0, 1, 2}, {3, 4}}));
  EXPECT_EQ(ReadSplit(job, Split::kTest).status,
            absl::InvalidArgumentError(path + ":9: the line is empty"));
}

TEST(DatasetTsv, MissingAndTruncatedFiles) {
  TempFolder folder;
  const std::string missing = folder.path() + "/no.tsv";
  const absl::Status not_found =
      absl::NotFoundError(missing + ": cannot open: No such file or directory");
  Job job = MakeJob(Data::CRITEO_TSV, missing);
  EXPECT_EQ(OpenDataset(job).status(), not_found);
  job.mutable_data()->set_test_share(0.1);
  EXPECT_EQ(OpenDataset(job).status(), not_found);
  job = MakeJob(Data::CRITEO_TSV, folder.Write("train.tsv", TsvRows(7)));
  job.mutable_data()->set_test_path(missing);
  EXPECT_EQ(OpenDataset(job).status(), not_found);

  const std::string whole = Gzip(TsvRows(20000));
  const std::string cut = folder.Write("cut.tsv.gz", whole.substr(0, whole.size() / 2));
  const absl::Status data_loss = absl::DataLossError(absl::StrCat(
      cut, ": gzip data is cut off at byte ", whole.size() / 2, ", the end of the file"));
  job = MakeJob(Data::CRITEO_TSV, cut);
  const Read read = ReadSplit(job, Split::kTrain);  // Streamed: it shows when it is reached.
  EXPECT_EQ(read.status, data_loss);
  EXPECT_GT(read.keys.size(), 1000u);
  job.mutable_data()->set_test_share(0.1);
  EXPECT_EQ(OpenDataset(job).status(), data_loss);
}

TEST(DatasetTsv, FileThatChangedSinceItWasCounted) {
  TempFolder folder;
  const std::string path = folder.Write("a.tsv", TsvRows(10));
  Job job = MakeJob(Data::CRITEO_TSV, path);
  job.mutable_data()->set_test_share(0.2);
  auto dataset = OpenDataset(job);
  ASSERT_TRUE(dataset.ok());
  folder.Write("a.tsv", TsvRows(5));
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  const absl::Status changed = (*reader)->Next().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(changed)) << changed;
  EXPECT_TRUE(absl::StartsWith(changed.message(), path + " was changed while the job read it: "))
      << changed;
}

TEST(DatasetNpy, TrainAndTestFiles) {
  TempFolder folder;
  WriteNpyRows(folder.path() + "/train", 0, 7);
  WriteNpyRows(folder.path() + "/test", 50, 2);
  Job job = MakeJob(Data::DLRM_NPY, folder.path());
  EXPECT_EQ(ReadSplit(job, Split::kTrain).keys, (Keys{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(ReadSplit(job, Split::kTest).keys, (Keys{{50, 51}}));
  EXPECT_EQ((*OpenDataset(job))->rows(Split::kTrain), 7);
}

TEST(DatasetNpy, ShareWhereTestFilesAreAbsent) {
  TempFolder folder;
  WriteNpyRows(folder.path() + "/train", 0, 10);
  Job job = MakeJob(Data::DLRM_NPY, folder.path());
  EXPECT_TRUE(ReadSplit(job, Split::kTest).keys.empty());
  job.mutable_data()->set_test_share(0.25);
  EXPECT_EQ(ReadSplit(job, Split::kTrain).keys, (Keys{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(ReadSplit(job, Split::kTest).keys, (Keys{{7, 8, 9}}));
}

TEST(DatasetNpy, BagsOfSeveralColumnsSkipPadding) {
  TempFolder folder;
  const std::string train = folder.path() + "/train";
  WriteNpy<float>(train + "_dense.npy", "<f4", 2, {1, 2, 3, 4});
  WriteNpy<int64_t>(train + "_sparse.npy", "<i8", 4, {5, -1, 6, 7, -1, -1, -1, int64_t{1} << 40});
  WriteNpy<float>(train + "_labels.npy", "<f4", 0, {1, 0});
  Job job = MakeJob(Data::DLRM_NPY, folder.path());
  job.mutable_feature(0)->set_columns(3);
  auto reader = OpenJobReader(job, Split::kTrain, WorkerRank(0), 1);
  ASSERT_TRUE(reader.ok()) << reader.status();
  auto batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok());
  const std::vector<FeatureLookups>& features = (*batch)->features;
  EXPECT_EQ(std::vector<Key>(features[0].keys.begin(), features[0].keys.end()),
            (std::vector<Key>{5, 6}));
  EXPECT_EQ(std::vector<int32_t>(features[0].offsets.begin(), features[0].offsets.end()),
            (std::vector<int32_t>{0, 2, 2}));
  EXPECT_EQ(std::vector<Key>(features[1].keys.begin(), features[1].keys.end()),
            (std::vector<Key>{7, Key{1} << 40}));
  EXPECT_EQ((*batch)->labels[0], 1);
  EXPECT_EQ((*batch)->dense_row(1)[1], 4);
}

// One batch of four rows of the sparse columns `ids`, the first feature's `columns`, the
// second's 1.
template <typename T>
std::unique_ptr<Batch> ReadIds(Job job, const std::string& dtype, uint32_t columns,
                               const std::vector<T>& ids, int64_t* padding_ids) {
  const std::string train = job.data().path() + "/train";
  const int64_t rows = static_cast<int64_t>(ids.size()) / (columns + 1);
  WriteNpy<float>(train + "_dense.npy", "<f4", 2, std::vector<float>(2 * rows));
  WriteNpy<T>(train + "_sparse.npy", dtype, columns + 1, ids);
  WriteNpy<float>(train + "_labels.npy", "<f4", 0, std::vector<float>(rows));
  job.mutable_feature(0)->set_columns(columns);
  auto reader = OpenJobReader(job, Split::kTrain, WorkerRank(0), 1);
  CHECK(reader.ok());
  auto batch = (*reader)->Next();
  CHECK(batch.ok());
  *padding_ids = (*reader)->progress().padding_ids;
  return *std::move(batch);
}

std::vector<Key> KeysOf(const Batch& batch, int feature) {
  const auto& keys = batch.features[feature].keys;
  return {keys.begin(), keys.end()};
}

std::vector<int32_t> OffsetsOf(const Batch& batch, int feature) {
  const auto& offsets = batch.features[feature].offsets;
  return {offsets.begin(), offsets.end()};
}

constexpr Key kTopBit = Key{1} << 63;

// Half of all 64-bit hashes are negative.
TEST(DatasetNpy, EveryIdOfOneColumnIsAKey) {
  TempFolder folder;
  const Job job = MakeJob(Data::DLRM_NPY, folder.path());
  int64_t padding = -1;
  auto batch = ReadIds<int64_t>(job, "<i8", 1, {-1, 5, INT64_MIN, -7, 3, 0}, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{~Key{0}, kTopBit, 3}));
  EXPECT_EQ(OffsetsOf(*batch, 0), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(KeysOf(*batch, 1), (std::vector<Key>{5, ~Key{6}, 0}));
  EXPECT_EQ(padding, 0);
  batch = ReadIds<uint64_t>(job, "<u8", 1, {~uint64_t{0}, 5, kTopBit, kTopBit + 1}, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{~Key{0}, kTopBit}));
  EXPECT_EQ(KeysOf(*batch, 1), (std::vector<Key>{5, kTopBit + 1}));
  EXPECT_EQ(padding, 0);
  batch = ReadIds<int32_t>(job, "<i4", 1, {-1, 5, INT32_MIN, 6}, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{~Key{0}, Key{0} - (Key{1} << 31)}));
  EXPECT_EQ(padding, 0);
}

TEST(DatasetNpy, PaddingIsWhatTheJobSays) {
  TempFolder folder;
  Job job = MakeJob(Data::DLRM_NPY, folder.path());
  int64_t padding = -1;
  const std::vector<int64_t> ids = {0, -1, -1, -2, 0, 0, -2, 9, 8};
  // With several columns every negative id is padding if the job says nothing.
  auto batch = ReadIds<int64_t>(job, "<i8", 2, ids, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{0, 0, 9}));
  EXPECT_EQ(OffsetsOf(*batch, 0), (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(padding, 3);
  // In an unsigned file no id is.
  std::vector<uint64_t> unsigned_ids(ids.begin(), ids.end());
  batch = ReadIds<uint64_t>(job, "<u8", 2, unsigned_ids, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{0, ~Key{0}, ~Key{1}, 0, ~Key{1}, 9}));
  EXPECT_EQ(padding, 0);

  job.mutable_feature(0)->set_padding_id(0);
  batch = ReadIds<int64_t>(job, "<i8", 2, ids, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{~Key{0}, ~Key{1}, ~Key{1}, 9}));
  EXPECT_EQ(OffsetsOf(*batch, 0), (std::vector<int32_t>{0, 1, 2, 4}));
  EXPECT_EQ(padding, 2);
  // With one column an id can be padding, too; it is compared by its 64 bits.
  job.mutable_feature(1)->set_padding_id(-1);
  batch = ReadIds<uint64_t>(job, "<u8", 2, unsigned_ids, &padding);
  EXPECT_EQ(KeysOf(*batch, 1), (std::vector<Key>{0, 8}));
  EXPECT_EQ(OffsetsOf(*batch, 1), (std::vector<int32_t>{0, 0, 1, 2}));
  EXPECT_EQ(padding, 3);
  job.mutable_feature(0)->set_padding_id(-2);
  const std::vector<int32_t> narrow_ids(ids.begin(), ids.end());
  batch = ReadIds<int32_t>(job, "<i4", 2, narrow_ids, &padding);
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{0, ~Key{0}, 0, 9}));
  EXPECT_EQ(padding, 3);
}

// Columns that the job says there are none of need no file.
TEST(DatasetNpy, OnlyDenseAndOnlySparseColumns) {
  TempFolder folder;
  const std::string train = folder.path() + "/train";
  Job job = MakeJob(Data::DLRM_NPY, folder.path());
  const auto read = [&](const Job& of) {
    auto reader = OpenJobReader(of, Split::kTrain, WorkerRank(0), 1);
    CHECK(reader.ok());
    return std::move(*(*reader)->Next());
  };
  WriteNpyRows(train, 0, 3);
  std::filesystem::remove(train + "_dense.npy");
  job.mutable_data()->set_num_dense(0);
  std::unique_ptr<Batch> batch = read(job);
  EXPECT_EQ(batch->size, 3);
  EXPECT_EQ(batch->num_dense, 0);
  EXPECT_TRUE(batch->dense.empty());
  EXPECT_EQ(KeysOf(*batch, 0), (std::vector<Key>{0, 1, 2}));

  WriteNpyRows(train, 0, 3);
  std::filesystem::remove(train + "_sparse.npy");
  job.mutable_data()->set_num_dense(2);
  job.clear_feature();
  batch = read(job);
  EXPECT_EQ(batch->size, 3);
  EXPECT_EQ(batch->num_dense, 2);
  EXPECT_TRUE(batch->features.empty());
}

TEST(DatasetTsv, OnlyDenseAndOnlySparseColumns) {
  TempFolder folder;
  Job job = MakeJob(Data::CRITEO_TSV, folder.Write("sparse.tsv", "1\ta\tb\n0\t\tc\n1\td\n"));
  job.mutable_data()->set_num_dense(0);
  auto reader = OpenJobReader(job, Split::kTrain, WorkerRank(0), 1);
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->Next().status(),
            absl::InvalidArgumentError(
                job.data().path() +
                ":3: 2 columns, not 3 (1 label + data.num_dense=0 + data.num_categorical=2)"));
  job.mutable_data()->set_max_bad_lines(1);
  reader = OpenJobReader(job, Split::kTrain, WorkerRank(0), 1);
  ASSERT_TRUE(reader.ok());
  auto batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)->size, 2);
  EXPECT_TRUE((*batch)->dense.empty());
  EXPECT_EQ(KeysOf(**batch, 0), (std::vector<Key>{0xa, kEmptyCategoryKey}));

  job = MakeJob(Data::CRITEO_TSV, folder.Write("dense.tsv", "1\t2\t3\r\n0\t\t5\n1\t\t6\t7\n"));
  job.clear_feature();
  job.mutable_data()->set_num_categorical(0);
  job.mutable_data()->set_max_bad_lines(1);
  reader = OpenJobReader(job, Split::kTrain, WorkerRank(0), 1);
  ASSERT_TRUE(reader.ok());
  batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)->size, 2);
  EXPECT_EQ((*batch)->labels[1], 0);
  EXPECT_EQ((*batch)->dense_row(1)[0], 0);
  EXPECT_TRUE((*batch)->features.empty());
}

TEST(DatasetNpy, WrongFilesAreNamed) {
  TempFolder folder;
  const std::string train = folder.path() + "/train";
  const Job job = MakeJob(Data::DLRM_NPY, folder.path());
  const auto invalid = [&](const std::string& file, const std::string& message) {
    EXPECT_EQ(OpenDataset(job).status(), absl::InvalidArgumentError(train + file + ": " + message));
    WriteNpyRows(train, 0, 4);
  };
  WriteNpyRows(train, 0, 4);

  WriteNpy<double>(train + "_dense.npy", "<f8", 2, std::vector<double>(8));
  invalid("_dense.npy", "is float64 [4, 2], wanted float32 [rows, 2]");
  WriteNpy<float>(train + "_dense.npy", "<f4", 3, std::vector<float>(12));
  invalid("_dense.npy", "is float32 [4, 3], wanted float32 [rows, 2]");
  WriteNpy<float>(train + "_sparse.npy", "<f4", 2, std::vector<float>(8));
  invalid("_sparse.npy", "is float32 [4, 2], wanted int32 or int64 or uint64 [rows, 2]");
  WriteNpy<int32_t>(train + "_sparse.npy", "<i4", 0, std::vector<int32_t>(8));
  invalid("_sparse.npy", "is int32 [8], wanted int32 or int64 or uint64 [rows, 2]");
  WriteNpy<int32_t>(train + "_labels.npy", "<i4", 2, std::vector<int32_t>(8));
  invalid("_labels.npy", "is int32 [4, 2], wanted int32 or int64 or float32 [rows, 1]");
  WriteNpy<int32_t>(train + "_labels.npy", "<i4", 1, std::vector<int32_t>(3));
  invalid("_dense.npy", "has 4 rows, but " + train + "_labels.npy has 3");

  const std::string sparse = train + "_sparse.npy";
  std::filesystem::resize_file(sparse, std::filesystem::file_size(sparse) - 1);
  EXPECT_EQ(OpenDataset(job).status(),
            absl::DataLossError(sparse +
                                ": the file is cut off: 31 bytes of data, int32 [4, 2] needs 32"));
  std::filesystem::remove(sparse);
  EXPECT_EQ(OpenDataset(job).status(),
            absl::NotFoundError(sparse + ": cannot open: No such file or directory"));
  // Half a test split is no test split left out.
  WriteNpyRows(train, 0, 4);
  WriteNpy<int32_t>(folder.path() + "/test_labels.npy", "<i4", 1, {1});
  EXPECT_EQ(OpenDataset(job).status().code(), absl::StatusCode::kNotFound);
}

TEST(DatasetNpy, ValuesThatAreNoneAreNamed) {
  TempFolder folder;
  const std::string train = folder.path() + "/train";
  Job job = MakeJob(Data::DLRM_NPY, folder.path());
  WriteNpyRows(train, 0, 4);
  WriteNpy<int32_t>(train + "_labels.npy", "<i4", 1, {0, 1, 0, 2});
  EXPECT_EQ(ReadSplit(job, Split::kTrain).status,
            absl::InvalidArgumentError(train + "_labels.npy: row 3: label 2 is not 0 or 1"));
  WriteNpyRows(train, 0, 4);
  WriteNpy<float>(train + "_dense.npy", "<f4", 2, {1, 2, 3, INFINITY, 5, 6, 7, 8});
  EXPECT_EQ(ReadSplit(job, Split::kTrain).status,
            absl::InvalidArgumentError(train + "_dense.npy: row 1, column 1: inf is not finite"));
  job.mutable_data()->set_max_bad_lines(1);
  auto reader = OpenJobReader(job, Split::kTrain, WorkerRank(0), 1);
  auto batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)->size, 2);
  EXPECT_EQ((*batch)->features[0].keys[1], 2u);
  EXPECT_EQ((*batch)->dense_row(1)[0], 5);
}

TEST(Dataset, JobsWithoutWhatIsNeeded) {
  const auto error = [](const Job& job) { return OpenDataset(job).status(); };
  Job job = MakeJob(Data::CRITEO_TSV, "");
  EXPECT_EQ(error(job), absl::InvalidArgumentError("data.path is not set"));
  job = MakeJob(Data::FORMAT_UNSPECIFIED, "a");
  EXPECT_EQ(error(job), absl::InvalidArgumentError("data.format is not set"));
  job.mutable_train()->set_batch_size(0);
  EXPECT_EQ(error(job), absl::InvalidArgumentError("train.batch_size is not set"));
  job.clear_feature();
  job.mutable_data()->set_num_dense(0);
  EXPECT_EQ(error(job),
            absl::InvalidArgumentError("no feature is listed, and data.num_dense is 0"));
  EXPECT_EQ(error(MakeJob(Data::DLRM_NPY, "/no/such/folder")),
            absl::NotFoundError("/no/such/folder: No such file or directory"));
  TempFolder folder;
  const std::string file = folder.Write("file", "x");
  EXPECT_EQ(error(MakeJob(Data::DLRM_NPY, file)),
            absl::InvalidArgumentError(file + ": is not a folder of .npy files"));
}

// ---- rows without labels

absl::StatusOr<std::unique_ptr<Dataset>> OpenToScore(const Job& job,
                                                     std::vector<std::string> columns = {}) {
  DatasetOptions options;
  options.needs_labels = false;
  options.carried_columns = std::move(columns);
  return Dataset::Open(Resolved(job), options);
}

std::unique_ptr<Batch> FirstBatch(Dataset* dataset, Split split) {
  auto reader = dataset->OpenReader(split, WorkerRank(0), 1, Step(0));
  EXPECT_TRUE(reader.ok()) << reader.status();
  auto batch = (*reader)->Next();
  EXPECT_TRUE(batch.ok()) << batch.status();
  return *std::move(batch);
}

TEST(DatasetWithoutLabels, TextMayLackThemOrHaveOthers) {
  const TempFolder folder;
  const std::string without = folder.Write("without", "1\t2\ta\tb\n3\t4\tc\td\n");
  const std::string with = folder.Write("with", "1\t1\t2\ta\tb\n?\t3\t4\tc\td\n");
  Job job = MakeJob(Data::CRITEO_TSV, without);
  auto dataset = OpenToScore(job, {"C2"});
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_FALSE((*dataset)->has_labels(Split::kTrain));
  auto batch = FirstBatch(dataset->get(), Split::kTrain);
  ASSERT_EQ(batch->size, 2);
  EXPECT_EQ(batch->dense_row(1)[0], static_cast<float>(std::log1p(3.0)));
  EXPECT_EQ(batch->carried, (std::vector<std::vector<std::string>>{{"b", "d"}}));
  EXPECT_TRUE(std::isnan(batch->labels[0]));

  job.mutable_data()->set_path(with);
  dataset = OpenToScore(job);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  EXPECT_TRUE((*dataset)->has_labels(Split::kTrain));
  batch = FirstBatch(dataset->get(), Split::kTrain);
  ASSERT_EQ(batch->size, 2);
  EXPECT_EQ(batch->labels[0], 1);
  EXPECT_TRUE(std::isnan(batch->labels[1]));

  const absl::Status no_column = OpenToScore(job, {"C3"}).status();
  EXPECT_EQ(no_column.code(), absl::StatusCode::kInvalidArgument);
  // Who trains needs them.
  job.mutable_data()->set_path(without);
  dataset = OpenDataset(job);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  ASSERT_TRUE(reader.ok());
  EXPECT_EQ((*reader)->Next().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DatasetWithoutLabels, MalformedRowsLeaveTheirNumbers) {
  const TempFolder folder;
  Job job =
      MakeJob(Data::CRITEO_TSV, folder.Write("f",
                                             "1\t1\t2\ta\tb\nbad\n1\t1\t2\ta\tb\n1\tx\t2\ta\tb\n"
                                             "0\t1\t2\ta\tb\n"));
  job.mutable_data()->set_max_bad_lines(2);
  job.mutable_train()->set_batch_size(4);
  auto dataset = OpenToScore(job);
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  auto reader = (*dataset)->OpenReader(Split::kTrain, WorkerRank(0), 1, Step(0));
  ASSERT_TRUE(reader.ok());
  auto batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)->first_row, 0);
  EXPECT_EQ((*batch)->left_out, (std::vector<int64_t>{1, 3}));
  batch = (*reader)->Next();
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_EQ((*batch)->first_row, 4);
  EXPECT_TRUE((*batch)->left_out.empty());
}

}  // namespace
}  // namespace thermocline
