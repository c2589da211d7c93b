#include "worker/fae/pack.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/fae/pack_source.h"
#include "worker/fae/testing/test_packs.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRows = 30;

bool IsHot(int row) { return row % 3 == 1; }

class PackTest : public testing::Test {
 protected:
  PackTest() : data_(folder_.Write("log.csv", TestLog(kRows))), job_(MakeJob()) {}

  Job MakeJob(const std::vector<std::string>& overrides = {}) const {
    return TestJob(data_, Packs(), overrides);
  }
  std::string Packs() const { return folder_.path() + "/hot"; }

  std::shared_ptr<const Pack> OpenPack() const {
    auto pack = Pack::Open(job_);
    EXPECT_TRUE(pack.ok()) << pack.status();
    return *pack;
  }
  // Changes one byte of the pack's file, at `offset`; a negative one counts from the end.
  void Damage(int64_t offset) const {
    std::fstream file(PackPath(job_), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(offset, offset < 0 ? std::ios::end : std::ios::beg);
    const std::streampos place = file.tellg();
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(place);
    file.put(byte);
  }

  const TempFolder folder_;
  const std::string data_;
  const Job job_;
};

// A sample in words.
std::string Describe(const Batch& batch, int row) {
  std::string text = absl::StrCat(batch.labels[row], " w", batch.weights[row], " g",
                                  batch.groups[row], " x", batch.dense_row(row)[0]);
  for (const FeatureLookups& feature : batch.features) {
    absl::StrAppend(&text, " :");
    for (int32_t i = feature.offsets[row]; i < feature.offsets[row + 1]; ++i) {
      absl::StrAppend(&text, " ", feature.keys[i]);
      if (!feature.weights.empty()) absl::StrAppend(&text, "*", feature.weights[i]);
    }
  }
  return text;
}

std::vector<std::string> RowsOf(const Batch& rows, bool hot) {
  std::vector<std::string> found;
  for (int i = 0; i < rows.size; ++i) {
    if (IsHot(i) == hot) found.push_back(Describe(rows, i));
  }
  return found;
}

TEST_F(PackTest, GivesEveryRowOnceInTheDatasOrder) {
  WritePack(job_, IsHot);
  const std::shared_ptr<const Pack> pack = OpenPack();
  EXPECT_EQ(pack->counts().rows[0], 20);
  EXPECT_EQ(pack->counts().rows[1], 10);
  EXPECT_EQ(pack->counts().batches[0], 5);
  EXPECT_EQ(pack->counts().batches[1], 3);  // 4, 4 and 2 rows
  EXPECT_THAT(pack->hot_set().tables[1], ElementsAre(110, 120));
  EXPECT_EQ(pack->report(), R"({"threshold":7})");
  const std::unique_ptr<Batch> rows = ReadRows(job_);
  for (const bool hot : {false, true}) {
    PackStretch stretch;
    stretch.is_hot = hot;
    stretch.num_batches = pack->counts().batches[hot];
    auto reader = pack->OpenReader(job_, stretch, {}, WorkerRank(0), 1);
    std::vector<std::string> found;
    for (int64_t step = 0;; ++step) {
      auto batch = reader->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      if (*batch == nullptr) break;
      EXPECT_EQ((*batch)->step, Step(step));
      EXPECT_EQ((*batch)->num_dense, 1);
      EXPECT_EQ((*batch)->dense_stride, 8);
      EXPECT_EQ((*batch)->begins_pass, false);
      EXPECT_EQ((*batch)->features.size(), 2u);
      for (int i = 0; i < (*batch)->size; ++i) {
        found.push_back(Describe(**batch, i));
        for (int c = 1; c < 8; ++c) EXPECT_EQ((*batch)->dense[i * 8 + c], 0);
      }
      reader->Recycle(*std::move(batch));
    }
    EXPECT_EQ(found, RowsOf(*rows, hot));
  }
}

TEST_F(PackTest, WorkersSliceTheSameBatches) {
  WritePack(job_, IsHot);
  const std::unique_ptr<Batch> rows = ReadRows(job_);
  PackStretch stretch;
  stretch.is_hot = true;
  stretch.first_batch = 1;
  stretch.num_batches = 2;
  std::vector<std::string> found[2];  // of batch 1, then 2
  for (uint32_t rank : {0, 1, 2}) {
    auto reader = OpenPack()->OpenReader(job_, stretch, {}, WorkerRank(rank), 3);
    for (int b : {0, 1}) {
      auto batch = reader->Next();
      ASSERT_TRUE(batch.ok()) << batch.status();
      EXPECT_EQ((*batch)->global_samples, b == 0 ? 4 : 2);
      for (int i = 0; i < (*batch)->size; ++i) found[b].push_back(Describe(**batch, i));
      for (const FeatureLookups& feature : (*batch)->features) {
        EXPECT_EQ(feature.offsets.size(), (*batch)->size + 1u);
        EXPECT_EQ(feature.offsets.front(), 0);
        EXPECT_EQ(static_cast<size_t>(feature.offsets.back()), feature.keys.size());
      }
    }
    auto end = reader->Next();
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, nullptr);
  }
  std::vector<std::string> all = RowsOf(*rows, true);
  EXPECT_EQ(found[0], std::vector<std::string>(all.begin() + 4, all.begin() + 8));
  EXPECT_EQ(found[1], std::vector<std::string>(all.begin() + 8, all.end()));
}

TEST_F(PackTest, AStretchCountsFromItsPlace) {
  WritePack(job_, IsHot);
  PackStretch stretch;
  stretch.first_batch = 2;
  stretch.num_batches = 2;
  stretch.first_step = Step(17);
  stretch.pass = 2;
  stretch.begins_pass = true;
  stretch.progress_before = 0.25;
  stretch.progress_through = 0.75;
  auto reader = OpenPack()->OpenReader(job_, stretch, {17, 30, 60}, WorkerRank(0), 1);
  auto batch = reader->Next();
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ((*batch)->step, Step(17));
  EXPECT_EQ((*batch)->pass, 2u);
  EXPECT_TRUE((*batch)->begins_pass);
  EXPECT_DOUBLE_EQ((*batch)->progress, 0.5);
  EXPECT_EQ(reader->skipped().samples, 30u);
  batch = reader->Next();
  ASSERT_TRUE(batch.ok());
  EXPECT_FALSE((*batch)->begins_pass);
  EXPECT_DOUBLE_EQ((*batch)->progress, 0.75);
}

TEST_F(PackTest, AnEmptyStretchEndsAtOnce) {
  WritePack(job_, IsHot);
  auto reader = OpenPack()->OpenReader(job_, PackStretch(), {}, WorkerRank(0), 1);
  auto batch = reader->Next();
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(*batch, nullptr);
}

TEST_F(PackTest, AReaderOutlivesThePack) {
  WritePack(job_, IsHot);
  PackStretch stretch;
  stretch.num_batches = 5;
  auto reader = OpenPack()->OpenReader(job_, stretch, {}, WorkerRank(0), 1);
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(reader->Next().ok());
}

// ---- what is found, and what is not

TEST_F(PackTest, NoneIsNotFound) {
  const auto pack = Pack::Open(job_);
  EXPECT_EQ(pack.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(pack.status().message(), HasSubstr(Packs()));
}

TEST_F(PackTest, OfAnotherJob) {
  WritePack(job_, IsHot);
  auto pack = Pack::Open(MakeJob({"fae.budget=\"128KiB\""}));
  EXPECT_EQ(pack.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(pack.status().message(), HasSubstr("was made for another job: fae.budget is "
                                                 "\"128KiB\", was \"64KiB\""));
  pack = Pack::Open(MakeJob({"train.batch_size=5"}));
  EXPECT_THAT(pack.status().message(), HasSubstr("train.batch_size is 5, was 4"));
  pack = Pack::Open(MakeJob({"default_table.dim=8"}));
  EXPECT_THAT(pack.status().message(), HasSubstr("table 0 is id, 64 bytes a row, was id, 32"));
}

// What is looked up follows from the sequences, and from whether a layer reads their lists pooled.
TEST(PackIdentity, KnowsWhatSequencesLookUp) {
  const auto make = [](const std::string& lists, const std::string& inputs) {
    const auto job = ParseJob(absl::StrCat(R"(name: "packed"
        data { train { path: "x" csv { header: true } } label { column: "y" } }
        feature { column: ["a", "b"] sequence { max_length: 3 } }
        sequence { name: "past" of: )",
                                           lists, R"( }
        layer { name: "p" input: "past" pool {} }
        task { input: )",
                                           inputs, R"( }
        train { batch_size: 4 learning_rate { base: 0.01 } } fae { budget: "64KiB" })"),
                              "test", {});
    EXPECT_TRUE(job.ok()) << job.status();
    return IdentifyJob(*job);
  };
  const std::string first = make("['a', 'b']", "'p'");
  EXPECT_NE(make("['b', 'a']", "'p'"), first);
  EXPECT_NE(make("['a', 'b']", "['p', 'b']"), first);
  EXPECT_EQ(make("['a', 'b']", "['p', 'p']"), first);
}

TEST_F(PackTest, WhatLeavesThePackAsItIsMayDiffer) {
  WritePack(job_, IsHot);
  const auto pack = Pack::Open(
      MakeJob({"train.passes=3", "train.learning_rate.base=1", "dlrm.top=[16]", "seed=7",
               "cluster.workers=2", "fae.schedule.rate=10", "data.read_ahead_batches=9"}));
  EXPECT_TRUE(pack.ok()) << pack.status();
}

// The sample is another then.
TEST_F(PackTest, TheSeedCountsWhereASampleIsRead) {
  EXPECT_EQ(PackPath(MakeJob({"seed=7"})), PackPath(job_));
  EXPECT_NE(PackPath(MakeJob({"seed=7", "calibration.sample_share=0.5"})),
            PackPath(MakeJob({"calibration.sample_share=0.5"})));
}

TEST_F(PackTest, OfOtherData) {
  WritePack(job_, IsHot);
  folder_.Write("log.csv", TestLog(kRows + 1));
  const auto pack = Pack::Open(job_);
  EXPECT_EQ(pack.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(pack.status().message(), HasSubstr("was made of other data: " + data_ + " is "));
}

TEST_F(PackTest, SeveralPacksLieInOneFolder) {
  const Job other = MakeJob({"train.batch_size=6"});
  WritePack(job_, IsHot);
  WritePack(other, IsHot);
  EXPECT_EQ(OpenPack()->counts().batches[0], 5);
  auto pack = Pack::Open(other);
  ASSERT_TRUE(pack.ok()) << pack.status();
  EXPECT_EQ((*pack)->counts().batches[0], 4);
}

// ---- damage

TEST_F(PackTest, ADamagedBatchSurfacesInItsPlace) {
  WritePack(job_, IsHot);
  PackStretch stretch;
  stretch.num_batches = 5;
  const auto file_bytes = static_cast<int64_t>(OpenPack()->file_bytes());
  // Somewhere in the middle of the batches: which one it is, the error says.
  Damage(file_bytes / 2);
  absl::Status status;
  std::string place;
  for (const bool hot : {false, true}) {
    stretch.is_hot = hot;
    stretch.num_batches = hot ? 3 : 5;
    auto reader = OpenPack()->OpenReader(job_, stretch, {}, WorkerRank(0), 1);
    for (int i = 0; i < stretch.num_batches; ++i) {
      auto batch = reader->Next();
      if (batch.ok()) continue;
      status = batch.status();
      place = absl::StrCat("' is damaged in ", hot ? "hot" : "cold", " batch ", i,
                           "; remove the file: the next start makes it anew");
      break;
    }
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), absl::StrCat("'", PackPath(job_), place));
}

TEST_F(PackTest, ADamagedHeaderOrTail) {
  WritePack(job_, IsHot);
  const auto file_bytes = static_cast<int64_t>(OpenPack()->file_bytes());
  const auto expect_damage = [&](int64_t offset) {
    Damage(offset);
    const auto pack = Pack::Open(job_);
    EXPECT_EQ(pack.status().code(), absl::StatusCode::kDataLoss) << offset;
    EXPECT_THAT(pack.status().message(), HasSubstr(PackPath(job_)));
    Damage(offset);
    EXPECT_TRUE(Pack::Open(job_).ok());
  };
  for (const int64_t offset : {0, 13, 17, 40, -1, -5, -20, -32, -40, -100}) expect_damage(offset);
  std::filesystem::resize_file(PackPath(job_), file_bytes - 10);
  EXPECT_EQ(Pack::Open(job_).status().code(), absl::StatusCode::kDataLoss);
  std::filesystem::resize_file(PackPath(job_), 10);
  EXPECT_EQ(Pack::Open(job_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(PackTest, AnotherVersion) {
  WritePack(job_, IsHot);
  Damage(8);
  const auto pack = Pack::Open(job_);
  EXPECT_EQ(pack.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(pack.status().message(), HasSubstr("is a pack of version 17"));
}

// ---- writing

TEST_F(PackTest, AnUnfinishedPackLeavesNoFile) {
  PosixDisk disk;
  std::filesystem::create_directory(Packs());
  const std::unique_ptr<Batch> rows = ReadRows(job_);
  {
    auto writer = PackWriter::Create(&disk, PackPath(job_), {}, 4, LookupLimitOf(job_));
    ASSERT_TRUE(writer.ok());
    for (int i = 0; i < 8; ++i) ASSERT_TRUE((*writer)->Add(*rows, i, true).ok());
    EXPECT_EQ((*writer)->counts().batches[1], 2);
    EXPECT_THAT(*disk.List(Packs()), ElementsAre(HasSubstr(".pack.tmp")));
    EXPECT_TRUE(IsUnfinishedPack((*disk.List(Packs()))[0]));
  }
  EXPECT_THAT(*disk.List(Packs()), IsEmpty());
}

TEST_F(PackTest, MoreValuesThanABatchCanNumberAreAnError) {
  PosixDisk disk;
  std::filesystem::create_directory(Packs());
  const std::unique_ptr<Batch> rows = ReadRows(job_);
  LookupLimit limit = LookupLimitOf(job_);
  limit.most = 5;
  auto writer = PackWriter::Create(&disk, PackPath(job_), {}, 4, limit);
  ASSERT_TRUE(writer.ok());
  // Row i has i % 4 values, and an empty list has none.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*writer)->Add(*rows, i, true).ok());
  const absl::Status status = (*writer)->Add(*rows, 3, true);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("feature 'list' has 6 values in a batch with it"));
}

// A pack whose checksums are right, with another number of features than the job that it names.
TEST_F(PackTest, BatchesOfAnotherShapeAreDataLoss) {
  WritePack(job_, IsHot);
  const auto file = PackFile::Open(std::make_unique<PosixDisk>().get(), PackPath(job_));
  ASSERT_TRUE(file.ok());
  for (const PackShape shape :
       {PackShape{3, 1}, PackShape{2, 0}, PackShape{2, 1, 2}, PackShape{2, 1}}) {
    BatchReaderOptions options;
    options.batch_size = 4;
    BatchReader reader(std::make_unique<PackSource>(*file, shape, /*is_hot=*/true, 0, 1), options);
    const bool fits = shape == PackShape{2, 1};
    EXPECT_EQ(reader.Next().status().code(),
              fits ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
  }
}

TEST(PackFormat, GoldenBytes) {
  PackTail tail;
  tail.batch_size = 4;
  tail.hot_set.tables = {{1}, {}};
  tail.hot_set.digest = DigestOf(tail.hot_set.tables);
  const std::string header = EncodePackHeader({"a: 1\n", "b: 2\n", ""});
  EXPECT_EQ(header.size(), 42u);
  EXPECT_EQ(header.substr(0, 8), "TclnPack");
  EXPECT_EQ(Crc32c(header.data(), header.size()), 914942117u);
  const std::string bytes = EncodePackTail(tail, header.size());
  EXPECT_EQ(bytes.size(), 80u + 16 + 8 + 32);
  EXPECT_EQ(Crc32c(bytes.data(), bytes.size()), 820780462u);
  Batch batch;
  batch.size = 2;
  batch.num_dense = 1;
  batch.dense_stride = 8;
  batch.dense.assign(16, 0);
  batch.dense[8] = 2.5f;
  batch.labels = {1, 0};
  batch.features.resize(2);
  batch.features[0].keys = {7, 9};
  batch.features[0].offsets = {0, 1, 2};
  batch.features[1].keys = {5};
  batch.features[1].offsets = {0, 0, 1};
  batch.features[1].weights = {0.5f};
  const std::string chunk = EncodeChunk({true, 3}, batch);
  EXPECT_EQ(chunk.size(), 48u + 32 + 24 + 12 + 4 + 8 + 8);
  EXPECT_EQ(Crc32c(chunk.data(), chunk.size()), 2891371268u);
  Batch back;
  ASSERT_TRUE(DecodeChunk(chunk, {true, 3}, 2, 1, 2, &back).ok());
  EXPECT_EQ(back.size, 1);
  EXPECT_EQ(back.dense[0], 2.5f);
  EXPECT_THAT(back.features[0].keys, ElementsAre(9));
  EXPECT_THAT(back.features[1].keys, ElementsAre(5));
  EXPECT_THAT(back.features[1].weights, ElementsAre(0.5f));
  EXPECT_THAT(back.features[1].offsets, ElementsAre(0, 1));
  // A sample has as many labels as the model has tasks.
  batch.num_tasks = 3;
  batch.labels = {1, 0, 0, 0, 1, 1};
  batch.weights = {1, 1, 0, 2, 2, 2};
  ASSERT_TRUE(DecodeChunk(EncodeChunk({true, 3}, batch), {true, 3}, 2, 1, 2, &back).ok());
  EXPECT_EQ(back.num_tasks, 3);
  EXPECT_THAT(back.labels, ElementsAre(0, 1, 1));
  EXPECT_THAT(back.weights, ElementsAre(2, 2, 2));
  Batch row;
  AppendRow(batch, 0, &row);
  EXPECT_EQ(row.num_tasks, 3);
  EXPECT_THAT(row.labels, ElementsAre(1, 0, 0));
  EXPECT_THAT(row.weights, ElementsAre(1, 1, 0));
  // Another batch's chunk is not this one's.
  EXPECT_EQ(DecodeChunk(chunk, {true, 2}, 2, 0, 2, &back).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeChunk(chunk, {false, 3}, 2, 0, 2, &back).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(DecodeChunk(chunk, {true, 3}, 3, 0, 2, &back).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace thermocline
