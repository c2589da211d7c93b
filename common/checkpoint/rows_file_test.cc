#include "common/checkpoint/rows_file.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/disk/disk.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/sst_files.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr char kPath[] = "step-000000009/generation-1-server-0.rows";
constexpr char kSstPath[] = "step-000000009/generation-1-server-0.sst";

// Rows of three tables, of 1 to 3 floats. A third of table 2's are candidates.
TestRows RandomRows(int count, std::mt19937_64* random) {
  TestRows rows;
  for (int i = 0; i < count; ++i) {
    const TableId table(static_cast<uint32_t>((*random)() % 3));
    TestRow row{static_cast<uint32_t>((*random)()), static_cast<uint32_t>((*random)()), {}};
    const bool is_candidate = table == TableId(2) && (*random)() % 3 == 0;
    for (uint32_t f = 0; f <= table.value() && !is_candidate; ++f) {
      row.values.push_back(static_cast<float>((*random)() % 100));
    }
    rows[RowKeyOf(table, (*random)())] = row;
  }
  return rows;
}

absl::StatusOr<std::optional<CheckpointFile>> Write(Disk* disk, const std::string& directory,
                                                    const TestRows& rows) {
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

// Also checks all bytes.
absl::StatusOr<TestRows> Read(Disk* disk, const std::string& directory,
                              const CheckpointFile& file) {
  auto reader = RowsFileReader::Open(disk, directory, file);
  if (!reader.ok()) return reader.status();
  TestRows rows;
  for (SavedRow row;;) {
    const auto found = (*reader)->Next(&row);
    if (!found.ok()) return found.status();
    if (!*found) break;
    EXPECT_TRUE(rows.empty() || rows.rbegin()->first < row.key);
    rows[row.key] = {row.lookups, row.changed, {row.values.begin(), row.values.end()}};
  }
  const auto again = (*reader)->Next(nullptr);
  EXPECT_TRUE(again.ok() && !*again);
  const absl::Status checked = (*reader)->CheckBytes();
  if (!checked.ok()) return checked;
  return rows;
}

class RowsFileTest : public testing::Test {
 protected:
  RowsFileTest() : random_(TestSeed()) { EXPECT_TRUE(CreateDirectories(&disk_, "/d").ok()); }
  std::string Content(const std::string& path = kPath) const {
    return disk_.Content(absl::StrCat("/d/", path));
  }
  void SetContent(const std::string& bytes, const std::string& path = kPath) {
    disk_.SetContent(absl::StrCat("/d/", path), bytes);
  }
  void ExpectDamaged(const CheckpointFile& file, const char* message = "") {
    const absl::Status status = Read(&disk_, "/d", file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(file.path()));
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
};

// Reading files of either format: SST or not.
class RowsFormatsTest : public RowsFileTest, public testing::WithParamInterface<bool> {
 protected:
  std::string Path() const { return GetParam() ? kSstPath : kPath; }
  CheckpointFile WriteRows(const TestRows& rows) {
    if (!GetParam()) return **Write(&disk_, "/d", rows);
    if (disk_.Open(absl::StrCat("/d/", kSstPath)).ok()) {
      EXPECT_TRUE(disk_.Remove(absl::StrCat("/d/", kSstPath)).ok());
    }
    return WriteSstFile(&disk_, "/d", kSstPath, rows);
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, RowsFormatsTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Sst" : "Columns"; });

TEST_P(RowsFormatsTest, GivesTheRowsBack) {
  for (const int count : {1, 5, 20000}) {
    const TestRows rows = RandomRows(count, &random_);
    const CheckpointFile file = WriteRows(rows);
    EXPECT_EQ(file.path(), Path());
    EXPECT_EQ(file.rows(), rows.size());
    EXPECT_EQ(file.bytes(), Content(Path()).size());
    EXPECT_EQ(file.crc32c(), Crc32c(Content(Path()).data(), file.bytes()));
    const auto again = Read(&disk_, "/d", file);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, rows);
  }
}

TEST_P(RowsFormatsTest, SeeksForwardsAndBack) {
  const TestRows rows = RandomRows(20000, &random_);
  const CheckpointFile file = WriteRows(rows);
  const auto scanning = *RowsFileReader::Open(&disk_, "/d", file);
  const auto single = *RowsFileReader::Open(&disk_, "/d", file, RowsFileUse::kSingleRows);
  const auto shared = single->Share();
  SavedRow row;
  for (int i = 0; i < 600; ++i) {
    RowKey key;
    key.table = TableId(static_cast<uint32_t>(random_() % 4));
    key.partition = static_cast<uint32_t>(random_() % kNumPartitions);
    if (random_() % 2 == 0) {  // One that is there.
      const auto there = rows.lower_bound(key);
      if (there != rows.end()) key = there->first;
    }
    RowsFileReader* const reader = i % 3 == 0   ? scanning.get()
                                   : i % 3 == 1 ? single.get()
                                                : shared.get();
    reader->Seek(key);
    auto expected = rows.lower_bound(key);
    for (int n = 0; n < 3; ++n) {
      const auto found = reader->Next(&row);
      ASSERT_TRUE(found.ok()) << found.status();
      ASSERT_EQ(*found, expected != rows.end());
      if (!*found) break;
      EXPECT_TRUE(row.key == expected->first);
      const TestRow got = {row.lookups, row.changed, {row.values.begin(), row.values.end()}};
      EXPECT_EQ(got, expected->second);
      ++expected;
    }
  }
  EXPECT_TRUE(scanning->CheckBytes().ok());
  EXPECT_TRUE(shared->CheckBytes().ok());
}

TEST_P(RowsFormatsTest, EveryFlippedBitIsFound) {
  // A block or two; several.
  for (const int count : {20, 6000}) {
    const CheckpointFile file = WriteRows(RandomRows(count, &random_));
    const std::string good = Content(Path());
    const size_t stride = !GetParam() && count == 20 ? 1 : 1 + good.size() / 1000;
    for (size_t byte = 0; byte < good.size(); byte += stride) {
      std::string bad = good;
      bad[byte] = static_cast<char>(bad[byte] ^ (1 << random_() % 8));
      SetContent(bad, Path());
      ExpectDamaged(file);
      if (HasFailure()) FAIL() << "byte " << byte;
    }
  }
}

TEST_P(RowsFormatsTest, CutAndForeignFilesAreNamed) {
  const CheckpointFile file = WriteRows(RandomRows(20, &random_));
  const std::string good = Content(Path());
  for (size_t bytes = 0; bytes < good.size(); bytes += GetParam() ? 1 + bytes / 50 : 1) {
    SetContent(good.substr(0, bytes), Path());
    ExpectDamaged(file);
    // Also where the manifest has the same wrong size.
    CheckpointFile shorter = file;
    shorter.set_bytes(bytes);
    ExpectDamaged(shorter);
  }
  SetContent(good, Path());
  CheckpointFile more_rows = file;
  more_rows.set_rows(file.rows() + 1);
  ExpectDamaged(more_rows, "rows, the manifest says");
  ASSERT_TRUE(disk_.Remove(absl::StrCat("/d/", Path())).ok());
  const absl::Status missing = Read(&disk_, "/d", file).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(missing.message(), absl::StrCat("'/d/", Path(), "' is missing"));
}

TEST_F(RowsFileTest, AnSstRowUnderAnotherPartitionIsDamage) {
  RowKey key = RowKeyOf(TableId(1), 77);
  key.partition ^= 1;
  ExpectDamaged(WriteSstFile(&disk_, "/d", kSstPath, {{key, {1, 1, {1.0f}}}}),
                "key 77 of table 1 is not of partition");
}

TEST_F(RowsFileTest, OnARealDiskToo) {
  std::string directory = testing::TempDir() + "/rows-XXXXXX";
  ASSERT_NE(mkdtemp(&directory[0]), nullptr);
  PosixDisk disk;
  const TestRows rows = RandomRows(20000, &random_);
  const auto file = Write(&disk, directory, rows);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto again = Read(&disk, directory, **file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, rows);
}

TEST_F(RowsFileTest, TablesOfAnyWidthAndNumberStandInOneFile) {
  TestRows rows;
  for (uint32_t table = 0; table < 300; ++table) {
    const size_t floats = table < 3 ? 40000 : 1 + table % 7;  // Some rows exceed a block.
    for (Key key = 0; key < 1 + table % 3; ++key) {
      TestRow row{1, table, std::vector<float>(floats, static_cast<float>(table))};
      if (table % 5 == 4 && key != 1) row.values.clear();  // Tables of candidates alone, too.
      rows[RowKeyOf(TableId(table), key)] = row;
    }
  }
  const auto file = Write(&disk_, "/d", rows);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto again = Read(&disk_, "/d", **file);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, rows);
}

TEST_F(RowsFileTest, WithoutRowsThereIsNoFile) {
  const auto file = Write(&disk_, "/d", {});
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->has_value());
  EXPECT_THAT(*disk_.List("/d/step-000000009"), IsEmpty());
}

TEST_F(RowsFileTest, WhatIsNotFinishedIsRemovedAndWhatADeadProcessLeftReplaced) {
  const TestRows rows = RandomRows(10, &random_);
  {
    const auto writer = *RowsFileWriter::Create(&disk_, "/d", kPath);
    ASSERT_TRUE(writer->Add(TableId(1), 5, 1, 1, {1.0f}).ok());
    EXPECT_THAT(*disk_.List("/d/step-000000009"), ElementsAre("generation-1-server-0.rows"));
  }
  EXPECT_THAT(*disk_.List("/d/step-000000009"), IsEmpty());
  auto dying = *RowsFileWriter::Create(&disk_, "/d", kPath);
  disk_.CrashProcess();
  const auto file = Write(&disk_, "/d", rows);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*Read(&disk_, "/d", **file), rows);
}

TEST_F(RowsFileTest, ErrorsOfTheDiskStayWhatTheyAre) {
  const TestRows rows = RandomRows(30000, &random_);
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
    const TestRows rows = RandomRows(500, &random_);
    const auto file = Write(&disk_, "/d", rows);
    ASSERT_TRUE(file.ok()) << file.status();
    disk_.CrashHost(&random_);
    EXPECT_EQ(*Read(&disk_, "/d", **file), rows);
  }
}

// Tables with a first-order weight or not, some of them of candidates alone.
TEST_F(RowsFileTest, ItsIndexCountsTheRowsOfEachTable) {
  TestRows rows;
  for (Key key = 0; key < 20000; ++key) {
    rows[RowKeyOf(TableId(1), key)] = {1, 1, {1.0f, 2.0f}};
    if (key < 3000) rows[RowKeyOf(TableId(2), key)] = {1, 1, {}};
    if (key < 10000) rows[RowKeyOf(TableId(7), key)] = {1, 1, std::vector<float>(key % 2, 1.0f)};
  }
  const auto file = Write(&disk_, "/d", rows);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto reader = RowsFileReader::Open(&disk_, "/d", **file);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_THAT(
      (*reader)->CountRows(0, kNumPartitions),
      UnorderedElementsAre(Pair(TableId(1), 20000), Pair(TableId(2), 0), Pair(TableId(7), 5000)));
  const auto half = (*reader)->CountRows(kNumPartitions / 2, kNumPartitions);
  EXPECT_NEAR(half.at(TableId(1)), 10000, 3000);  // A block has some 2,700 rows.
}

// The columns of rows [begin, end) of one table; the floats of candidates are anything.
struct Columns {
  std::vector<Key> keys;
  std::vector<uint32_t> lookups, changed;
  std::vector<char> has_row;
  std::vector<float> floats;

  RowColumns Slice(size_t begin, size_t end, size_t row_floats) const {
    return {absl::MakeConstSpan(keys).subspan(begin, end - begin),
            absl::MakeConstSpan(lookups).subspan(begin, end - begin),
            absl::MakeConstSpan(changed).subspan(begin, end - begin),
            absl::MakeConstSpan(has_row).subspan(begin, end - begin),
            absl::MakeConstSpan(floats).subspan(begin * row_floats, (end - begin) * row_floats)};
  }
};

// Runs of rows and of candidates, short ones and longer ones than a block; rows of all widths, also
// larger than a block.
TEST_F(RowsFileTest, RowsAddedAtOnceAreTheBytesOfSingleOnes) {
  for (const size_t row_floats : {0, 1, 3, 32, 20'000}) {
    std::vector<Key> keys = {0, 1, UINT64_MAX - 1, UINT64_MAX};
    while (keys.size() < (row_floats > 1000 ? 12 : 9000)) keys.push_back(random_());
    std::sort(keys.begin(), keys.end(),
              [](Key a, Key b) { return RowKeyOf(TableId(3), a) < RowKeyOf(TableId(3), b); });
    Columns columns;
    TestRows single;
    for (const Key key : keys) {
      const bool longer = columns.keys.size() < keys.size() / 2;
      const bool switches = random_() % (longer ? 3000 : 2) == 0;
      const bool before = !columns.has_row.empty() && columns.has_row.back() != 0;
      columns.has_row.push_back(switches != before && row_floats > 0 ? 1 : 0);
      columns.keys.push_back(key);
      columns.lookups.push_back(static_cast<uint32_t>(random_()));
      columns.changed.push_back(static_cast<uint32_t>(random_()));
      TestRow row{columns.lookups.back(), columns.changed.back(), {}};
      for (size_t f = 0; f < row_floats; ++f) {
        columns.floats.push_back(static_cast<float>(random_() % 100));
        if (columns.has_row.back()) row.values.push_back(columns.floats.back());
      }
      single[RowKeyOf(TableId(3), key)] = row;
    }
    const auto expected = Write(&disk_, "/d", single);
    ASSERT_TRUE(expected.ok()) << expected.status();
    const std::string bytes = Content();
    const auto writer = *RowsFileWriter::Create(&disk_, "/d", kPath);
    for (size_t begin = 0, end = 0; begin < keys.size(); begin = end) {
      end = std::min(keys.size(), begin + random_() % 4000);
      ASSERT_TRUE(
          writer->AddRows(TableId(3), row_floats, columns.Slice(begin, end, row_floats)).ok());
    }
    const auto file = writer->Finish();
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_TRUE(Content() == bytes) << row_floats;
    EXPECT_EQ((*file)->crc32c(), (*expected)->crc32c());
    EXPECT_EQ(*Read(&disk_, "/d", **file), single);
  }
}

TEST_F(RowsFileTest, TheOrderIsTheWritersDuty) {
  const auto writer = *RowsFileWriter::Create(&disk_, "/d", kPath);
  ASSERT_TRUE(writer->Add(TableId(2), 1, 1, 1, {1.0f}).ok());
  EXPECT_DEATH(writer->Add(TableId(2), 1, 1, 1, {1.0f}).IgnoreError(), "last_key_ < key");
  EXPECT_DEATH(writer->Add(TableId(1), 1, 1, 1, {1.0f}).IgnoreError(), "last_key_ < key");
}

// Files that are not what a writer makes, with the right checksums
// ------------------------------------------------------------------------------------------------

// A file of two blocks of table 1, whose index and footer may be changed.
struct Parts {
  std::string blocks;
  std::vector<RowsBlock> index;
  std::string index_bytes;  // Where it is not empty, in place of `index`.
  RowsFooter footer;        // Its checksums are computed.
};

class DamagedRowsFileTest : public RowsFileTest {
 protected:
  DamagedRowsFileTest() {
    for (size_t i = 0; i < keys_.size(); ++i) keys_[i] = i + 1;
    std::sort(keys_.begin(), keys_.end(),
              [](Key a, Key b) { return RowKeyOf(TableId(1), a) < RowKeyOf(TableId(1), b); });
    AddBlock({keys_.begin(), keys_.begin() + 4}, "");
    AddBlock({keys_.begin() + 4, keys_.end()}, {kKindRow, kKindCandidate, kKindRow, kKindRow});
    good_.footer.rows = 8;
    good_.footer.blocks = 2;
  }

  void AddBlock(const std::vector<Key>& keys, std::string kinds) {
    RowsBlock block;
    block.table = TableId(1);
    block.rows = static_cast<uint32_t>(keys.size());
    block.candidates = static_cast<uint32_t>(std::count(kinds.begin(), kinds.end(), 1));
    block.floats = 2;
    block.first_key = keys[0];
    std::string bytes(block.bytes(), '\0');
    std::copy_n(reinterpret_cast<const char*>(keys.data()), 8 * keys.size(), &bytes[0]);
    std::copy(kinds.begin(), kinds.end(), &bytes[block.kinds_at()]);
    block.crc32c = Crc32c(bytes.data(), bytes.size());
    good_.blocks += bytes;
    good_.index.push_back(block);
  }

  CheckpointFile WriteParts(const std::function<void(Parts*)>& change) {
    Parts parts = good_;
    change(&parts);
    const auto header = EncodeRowsHeader();
    std::string bytes(header.data(), header.size());
    bytes += parts.blocks;
    if (parts.index_bytes.empty()) {
      for (const RowsBlock& block : parts.index) AppendRowsBlockEntry(block, &parts.index_bytes);
    }
    bytes += parts.index_bytes;
    parts.footer.index_crc32c = Crc32c(parts.index_bytes.data(), parts.index_bytes.size());
    parts.footer.crc32c = Crc32c(bytes.data(), bytes.size());
    const auto footer = EncodeRowsFooter(parts.footer);
    bytes.append(footer.data(), footer.size());
    return List(bytes);
  }

  // As WriteParts; then the second block has the right checksum.
  CheckpointFile WriteSecondBlock(const std::function<void(Parts*)>& change) {
    return WriteParts([&](Parts* p) {
      change(p);
      const size_t second = good_.index[0].bytes();
      p->index[1].crc32c = Crc32c(&p->blocks[second], p->blocks.size() - second);
    });
  }

  // Makes `bytes` the file's, and returns the manifest's entry for it.
  CheckpointFile List(const std::string& bytes) {
    if (disk_.Open(absl::StrCat("/d/", kPath)).ok()) {
      EXPECT_TRUE(disk_.Remove(absl::StrCat("/d/", kPath)).ok());
    }
    EXPECT_TRUE(CreateDirectories(&disk_, FolderOf(absl::StrCat("/d/", kPath))).ok());
    EXPECT_TRUE((*disk_.Create(absl::StrCat("/d/", kPath)))->Append({bytes}).ok());
    CheckpointFile file;
    file.set_path(kPath);
    file.set_bytes(bytes.size());
    file.set_crc32c(Crc32c(bytes.data(), bytes.size()));
    file.set_rows(8);
    return file;
  }

  std::vector<Key> keys_ = std::vector<Key>(8);  // In the order of RowKey.
  Parts good_;
};

TEST_F(DamagedRowsFileTest, AnIndexThatIsWrongIsNamedThoughItsChecksumIsRight) {
  const auto rows = Read(&disk_, "/d", WriteParts([](Parts*) {}));
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(rows->size(), 8u);
  // What no writer can make, as bytes of the second entry: `value` at `at`.
  const auto entry = [this](size_t at, uint32_t value) {
    return [this, at, value](Parts* p) {
      for (const RowsBlock& block : good_.index) AppendRowsBlockEntry(block, &p->index_bytes);
      std::copy_n(reinterpret_cast<const char*>(&value), 4,
                  &p->index_bytes[kRowsBlockEntryBytes + at]);
    };
  };
  const struct {
    std::function<void(Parts*)> change;
    const char* message;
  } cases[] = {
      {[](Parts* p) { p->footer.blocks = uint64_t{1} << 60; }, "it has no room for"},
      {[](Parts* p) { p->footer.blocks = UINT64_MAX; }, "it has no room for"},
      {[](Parts* p) { p->footer.blocks = 1; }, "the CRC-32C of its index"},
      {[](Parts* p) { p->footer.rows = uint64_t{1} << 60; }, "rows, the manifest says 8"},
      {entry(12, UINT32_MAX), "entry 1 of its index can't be of a block"},
      {entry(12, 0), "entry 1 of its index can't be of a block"},
      {entry(16, 5), "entry 1 of its index can't be of a block"},
      {entry(20, UINT32_MAX), "entry 1 of its index can't be of a block"},
      {entry(20, 0), "entry 1 of its index can't be of a block"},
      {[](Parts* p) { p->index[1].floats = 100; }, "entry 1 of its index goes beyond the blocks"},
      {[](Parts* p) { p->index[1] = {TableId(1), 1, 0, UINT32_MAX, p->index[1].first_key, 0}; },
       "entry 1 of its index goes beyond the blocks"},
      {[](Parts* p) { std::swap(p->index[0], p->index[1]); },
       "entry 1 of its index is not behind the one before it"},
      {[](Parts* p) { p->index[1].table = TableId(0); },
       "entry 1 of its index is not behind the one before it"},
      {[](Parts* p) {
         p->index.pop_back();
         p->footer.blocks = 1;
       },
       "its index does not have all of its blocks"},
      {[](Parts* p) { p->index[1].floats = 1; }, "its index does not have all of its blocks"},
      {[](Parts* p) {
         p->blocks.resize(p->blocks.size() + 40);
         p->index[1].rows += 1;
         p->index[1].candidates += 1;
         p->index[1].floats = 4;
       },
       "rows, its last bytes say 8"},
  };
  for (const auto& c : cases) ExpectDamaged(WriteParts(c.change), c.message);
}

TEST_F(DamagedRowsFileTest, ABlockThatIsNotWhatTheIndexSaysIsNamed) {
  const size_t second = good_.index[0].bytes();
  const auto expect_damaged = [&](const std::function<void(Parts*)>& change, const char* message) {
    ExpectDamaged(WriteSecondBlock(change), message);
  };
  const std::string place = absl::StrCat("the block at byte ", kRowsHeaderBytes + second);
  expect_damaged([&](Parts* p) { p->blocks[second] ^= 1; },
                 "does not begin with the key that the index says");
  expect_damaged([&](Parts* p) { p->blocks.replace(second + 8, 8, p->blocks, second, 8); },
                 "which is not behind the one before it");
  expect_damaged([&](Parts* p) { p->blocks[second + p->index[1].kinds_at() + 1] = kKindRow; },
                 "has 0 candidates, the index says 1");
  expect_damaged([&](Parts* p) { p->blocks[second + p->index[1].kinds_at()] = kKindCandidate; },
                 "has 2 candidates, the index says 1");
  expect_damaged([&](Parts* p) { p->blocks[second + p->index[1].kinds_at() + 1] = 7; },
                 "has a row of an unknown kind");
  const CheckpointFile file = WriteParts([&](Parts* p) { p->blocks[second] ^= 1; });
  ExpectDamaged(file, place.c_str());
  ExpectDamaged(file, "has the CRC-32C");
}

// The last row's values would lie behind the block.
TEST_F(DamagedRowsFileTest, ARowThatIsSoughtBehindWrongKindsIsNotRead) {
  const CheckpointFile file = WriteSecondBlock([this](Parts* p) {
    RowsBlock& block = p->index[1];
    block.candidates = 2;
    block.floats = 3;
    ASSERT_EQ(block.bytes(), good_.index[1].bytes());
    p->blocks[good_.index[0].bytes() + block.kinds_at() + 1] = kKindRow;
  });
  for (const RowsFileUse use : {RowsFileUse::kScan, RowsFileUse::kSingleRows}) {
    const auto reader = RowsFileReader::Open(&disk_, "/d", file, use);
    ASSERT_TRUE(reader.ok()) << reader.status();
    (*reader)->Seek(RowKeyOf(TableId(1), keys_.back()));
    SavedRow row;
    const absl::Status status = (*reader)->Next(&row).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("has 0 candidates, the index says 2"));
  }
}

TEST_F(DamagedRowsFileTest, AFileOfALaterFormatIsNotCalledDamaged) {
  WriteParts([](Parts*) {});
  std::string bytes = Content();
  bytes[8] = 2;
  const uint32_t crc = Crc32c(bytes.data(), 12);
  std::copy_n(reinterpret_cast<const char*>(&crc), 4, &bytes[12]);
  const absl::Status status = Read(&disk_, "/d", List(bytes)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(),
            absl::StrCat("'/d/", kPath, "': format version 2; this program knows version 1"));
}

TEST_F(DamagedRowsFileTest, AnotherFileOfTheSameSizeIsNotTheManifests) {
  const CheckpointFile file = WriteParts([](Parts*) {});
  WriteParts([](Parts* p) {
    p->footer.index_crc32c = 0;
    p->index[0].crc32c ^= 1;
  });
  const auto reader = RowsFileReader::Open(&disk_, "/d", file);
  EXPECT_EQ(reader.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(reader.status().message()), HasSubstr("the manifest says"));
}

// docs/formats.md shows these bytes.
TEST_F(RowsFileTest, GoldenBytes) {
  TestRows rows;
  rows[RowKeyOf(TableId(4), 0x1122334455667788)] = {7, 1000, {0.5f, -2}};
  rows[RowKeyOf(TableId(4), 9)] = {2, 1001, {}};
  const auto file = Write(&disk_, "/d", rows);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(absl::BytesToHexString(Content()),
            "54636c6e526f7773"  // Header.
            "01000000951b2df2"
            "88776655443322110900000000000000"  // The block: keys,
            "0700000002000000"                  // lookups,
            "e8030000e9030000"                  // steps + 1,
            "0001000000000000"                  // kinds,
            "0000003f000000c0"                  // values.
            "887766554433221104000000"          // The index.
            "0200000001000000020000000d3f2e7000000000"
            "02000000000000000100000000000000"  // The footer.
            "22cf9c725b566d0f000000003aac227d");
}

}  // namespace
}  // namespace thermocline
