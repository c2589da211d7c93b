#include "common/checkpoint/rows_file.h"

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/disk/disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPath[] = "step-000000009/generation-1-server-0.sst";

struct Row {
  uint32_t lookups, changed;
  std::vector<float> values;
  friend bool operator==(const Row& a, const Row& b) {
    return a.lookups == b.lookups && a.changed == b.changed && a.values == b.values;
  }
};
using Rows = std::map<RowKey, Row>;

Rows RandomRows(int count, std::mt19937_64* random) {
  Rows rows;
  for (int i = 0; i < count; ++i) {
    const TableId table(static_cast<uint32_t>((*random)() % 3));
    Row row{static_cast<uint32_t>((*random)()), static_cast<uint32_t>((*random)()), {}};
    for (uint32_t f = 0; f <= table.value(); ++f) {
      row.values.push_back(static_cast<float>((*random)() % 100));
    }
    rows[RowKeyOf(table, (*random)())] = row;
  }
  return rows;
}

absl::StatusOr<std::optional<CheckpointFile>> Write(Disk* disk, const std::string& directory,
                                                    const Rows& rows) {
  auto writer = RowsFileWriter::Create(disk, directory, kPath);
  if (!writer.ok()) return writer.status();
  for (const auto& [key, row] : rows) {
    const absl::Status status =
        (*writer)->Add(key.table, key.key, row.lookups, row.changed, row.values);
    if (!status.ok()) return status;
  }
  EXPECT_EQ((*writer)->rows(), rows.size());
  return (*writer)->Finish();
}

absl::StatusOr<Rows> Read(Disk* disk, const std::string& directory, const CheckpointFile& file) {
  auto reader = RowsFileReader::Open(disk, directory, file);
  if (!reader.ok()) return reader.status();
  Rows rows;
  for (SavedRow row;;) {
    const auto found = (*reader)->Next(&row);
    if (!found.ok()) return found.status();
    if (!*found) break;
    rows[row.key] = {row.lookups, row.changed, {row.values.begin(), row.values.end()}};
  }
  const auto again = (*reader)->Next(nullptr);
  EXPECT_TRUE(again.ok() && !*again);
  return rows;
}

class RowsFileTest : public testing::Test {
 protected:
  RowsFileTest() : random_(TestSeed()) { EXPECT_TRUE(CreateDirectories(&disk_, "/d").ok()); }
  std::string Content() const { return disk_.Content(absl::StrCat("/d/", kPath)); }
  void SetContent(const std::string& bytes) { disk_.SetContent(absl::StrCat("/d/", kPath), bytes); }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
};

TEST_F(RowsFileTest, GivesTheRowsBack) {
  for (const int count : {1, 5, 20000}) {
    const Rows rows = RandomRows(count, &random_);
    const auto file = Write(&disk_, "/d", rows);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ((*file)->path(), kPath);
    EXPECT_EQ((*file)->rows(), rows.size());
    EXPECT_EQ((*file)->bytes(), Content().size());
    EXPECT_EQ((*file)->crc32c(), Crc32c(Content().data(), Content().size()));
    const std::string tail = Content().substr((*file)->bytes() - (*file)->tail_bytes());
    EXPECT_EQ((*file)->tail_crc32c(), Crc32c(tail.data(), tail.size()));
    EXPECT_LT((*file)->tail_bytes(), 200u << 10);
    const auto again = Read(&disk_, "/d", **file);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, rows);
  }
}

TEST_F(RowsFileTest, OnARealDiskToo) {
  std::string directory = testing::TempDir() + "/rows-XXXXXX";
  ASSERT_NE(mkdtemp(&directory[0]), nullptr);
  PosixDisk disk;
  const Rows rows = RandomRows(20000, &random_);
  const auto file = Write(&disk, directory, rows);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto again = Read(&disk, directory, **file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, rows);
}

TEST_F(RowsFileTest, SeeksForwardsAndBack) {
  const Rows rows = RandomRows(5000, &random_);
  const auto file = Write(&disk_, "/d", rows);
  const auto reader = *RowsFileReader::Open(&disk_, "/d", **file);
  SavedRow row;
  for (int i = 0; i < 200; ++i) {
    RowKey key;
    key.table = TableId(static_cast<uint32_t>(random_() % 4));
    key.partition = static_cast<uint32_t>(random_() % kNumPartitions);
    reader->Seek(key);
    auto expected = rows.lower_bound(key);
    for (int n = 0; n < 3; ++n) {
      const auto found = reader->Next(&row);
      ASSERT_TRUE(found.ok()) << found.status();
      ASSERT_EQ(*found, expected != rows.end());
      if (!*found) break;
      EXPECT_TRUE(row.key == expected->first);
      ++expected;
    }
  }
}

TEST_F(RowsFileTest, WithoutRowsThereIsNoFile) {
  const auto file = Write(&disk_, "/d", {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->has_value());
  EXPECT_THAT(*disk_.List("/d/step-000000009"), IsEmpty());
}

TEST_F(RowsFileTest, WhatIsNotFinishedIsRemovedAndWhatADeadProcessLeftReplaced) {
  const Rows rows = RandomRows(10, &random_);
  {
    const auto writer = *RowsFileWriter::Create(&disk_, "/d", kPath);
    ASSERT_TRUE(writer->Add(TableId(1), 5, 1, 1, {1.0f}).ok());
    EXPECT_THAT(*disk_.List("/d/step-000000009"), ElementsAre("generation-1-server-0.sst"));
  }
  EXPECT_THAT(*disk_.List("/d/step-000000009"), IsEmpty());
  auto dying = *RowsFileWriter::Create(&disk_, "/d", kPath);
  disk_.CrashProcess();
  const auto file = Write(&disk_, "/d", rows);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*Read(&disk_, "/d", **file), rows);
}

TEST_F(RowsFileTest, ErrorsOfTheDiskStayWhatTheyAre) {
  const Rows rows = RandomRows(30000, &random_);
  disk_.SetFreeBytes(100000);
  const absl::Status full = Write(&disk_, "/d", rows).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(kPath));
  EXPECT_THAT(*disk_.List("/d/step-000000009"), IsEmpty());
  disk_.SetFreeBytes(UINT64_MAX);
  for (int operations = 0;; ++operations) {
    disk_.FailAfter(operations);
    const auto file = Write(&disk_, "/d", rows);
    disk_.FailAfter(-1);
    if (file.ok()) {
      EXPECT_GT(operations, 2);
      break;
    }
    EXPECT_EQ(file.status().code(), absl::StatusCode::kUnavailable) << file.status();
  }
}

TEST_F(RowsFileTest, WhatFinishReturnedSurvivesACrash) {
  for (int round = 0; round < 20; ++round) {
    const Rows rows = RandomRows(500, &random_);
    const auto file = Write(&disk_, "/d", rows);
    ASSERT_TRUE(file.ok()) << file.status();
    disk_.CrashHost(&random_);
    EXPECT_EQ(*Read(&disk_, "/d", **file), rows);
  }
}

TEST_F(RowsFileTest, EveryFlippedBitIsFound) {
  for (const int count : {20, 6000}) {  // All in the tail; several blocks of rows before it.
    const CheckpointFile file = **Write(&disk_, "/d", RandomRows(count, &random_));
    const std::string good = Content();
    for (size_t byte = 0; byte < good.size(); byte += 1 + good.size() / 1000) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << random_() % 8));
      SetContent(bad);
      const absl::Status status = Read(&disk_, "/d", file).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << byte << " " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(kPath));
    }
  }
}

TEST_F(RowsFileTest, CutAndForeignFilesAreNamed) {
  const Rows rows = RandomRows(200, &random_);
  const CheckpointFile file = **Write(&disk_, "/d", rows);
  const std::string good = Content();
  const auto expect_damaged = [&](const std::string& bytes, CheckpointFile listed) {
    SetContent(bytes);
    const absl::Status status = Read(&disk_, "/d", listed).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(kPath));
  };
  for (size_t bytes = 0; bytes < good.size(); bytes += 1 + bytes / 50) {
    expect_damaged(good.substr(0, bytes), file);
    // Also where the manifest has the same wrong size.
    CheckpointFile shorter = file;
    shorter.set_bytes(bytes);
    expect_damaged(good.substr(0, bytes), shorter);
  }
  CheckpointFile more_rows = file;
  more_rows.set_rows(201);
  expect_damaged(good, more_rows);
  ASSERT_TRUE(disk_.Remove(absl::StrCat("/d/", kPath)).ok());
  const absl::Status missing = Read(&disk_, "/d", file).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(missing.message(), absl::StrCat("'/d/", kPath, "' is missing"));
}

TEST_F(RowsFileTest, ARowUnderAnotherPartitionIsDamage) {
  const auto writer = *RowsFileWriter::Create(&disk_, "/d", kPath);
  RowKey key = RowKeyOf(TableId(1), 77);
  key.partition ^= 1;
  ASSERT_TRUE(writer->Add(key, 1, 1, {1.0f}).ok());
  const absl::Status status = Read(&disk_, "/d", **writer->Finish()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("key 77 of table 1 is not of partition"));
}

TEST_F(RowsFileTest, TheOrderIsTheWritersDuty) {
  const auto writer = *RowsFileWriter::Create(&disk_, "/d", kPath);
  ASSERT_TRUE(writer->Add(TableId(2), 1, 1, 1, {1.0f}).ok());
  EXPECT_DEATH(writer->Add(TableId(2), 1, 1, 1, {1.0f}).IgnoreError(), "last_key < key");
  EXPECT_DEATH(writer->Add(TableId(1), 1, 1, 1, {1.0f}).IgnoreError(), "last_key < key");
}

}  // namespace
}  // namespace thermocline
