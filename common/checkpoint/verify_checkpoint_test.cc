#include "common/checkpoint/verify_checkpoint.h"

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_store.h"
#include "common/checkpoint/merged_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/sst_files.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

constexpr char kDirectory[] = "/d";

// MANIFEST and epoch-1-step-1/server-0.sst, in base64, as a program wrote them whose push log had
// version 1: checkpoints outlive the programs that made them.
constexpr char kEarlierManifest[] =
    "VGNsbk1uZnQBAAAAlQAAACdXCBMIARIGdGVzdC0xGAEgAjABOAFKFAgBEgVzbWFsbBgDIgcKAC0AAIA/Sh4IAhIKd2l0"
    "aCBzbG90cxgCIgwSBRX/5tsuLQAAgD9KFggJEgVkZW5zZRgIIgcKAC0AAIA/MAFSMxABGi8KG2Vwb2NoLTEtc3RlcC0x"
    "L3NlcnZlci0wLnNzdBDkCB1ShK7+IAMo5Ag1UoSu/g==";
constexpr char kEarlierRows[] =
    "ABYUAAAAAVrmESIzRFVmd4gBAAAAAAAAAAEAAAABAAAAAACAPwAAAEAAAEBABBIU+zkAAAAAAAAABwEAAAAAAAAAAwAA"
    "AAIAAAAAAAA/AAAAwAAAgD4DExgCU8MAAAAAAAAACQEAAAAAAAAAAgAAAAIAAAAAAIBAAACgQAAAwEAAAOBAAAAAAAEA"
    "AAAAQp0LbgAOAAAAAlPDAAAAAAAAAAkAjAEAAAAAAQAAAAAqzz0TACQEcm9ja3NkYi5ibG9jay5iYXNlZC50YWJsZS5p"
    "bmRleC50eXBlAAAAABoQAXByZWZpeC5maWx0ZXJpbmcwGhMBd2hvbGUua2V5LmZpbHRlcmluZzEIEAVjb2x1bW4uZmFt"
    "aWx5Lmlk/////wcKCBptcGFyYXRvcmxldmVsZGIuQnl0ZXdpc2VDb21wYXJhdG9yDAcNcmVzc2lvbk5vQ29tcHJlc3Np"
    "b24TCJEBX29wdGlvbnN3aW5kb3dfYml0cz0tMTQ7IGxldmVsPTMyNzY3OyBzdHJhdGVneT0wOyBtYXhfZGljdF9ieXRl"
    "cz0wOyB6c3RkX21heF90cmFpbl9ieXRlcz0wOyBlbmFibGVkPTA7IG1heF9kaWN0X2J1ZmZlcl9ieXRlcz0wOyB1c2Vf"
    "enN0ZF9kaWN0X3RyYWluZXI9MTsgCRMKcmVhdGluZy5kYi5pZGVudGl0eVNTVCBXcml0ZXIRDQJob3N0LmlkZW50aXR5"
    "dm0REBRzZXNzaW9uLmlkZW50aXR5OFNUN1FFTlUzNURDT1JJVUlDNUwOBwFvbi50aW1lAAgJAmRhdGEuc2l6ZZEBCQsB"
    "ZWxldGVkLmtleXMACB4IZXh0ZXJuYWxfc3N0X2ZpbGUuZ2xvYmFsX3NlcW5vAAAAAAAAAAAaBwR2ZXJzaW9uAgAAAAgL"
    "AWZpbHRlci5zaXplAAoOAXhlZC5rZXkubGVuZ3RoAAkNAW9ybWF0LnZlcnNpb24ACBUBaW5kZXgua2V5LmlzLnVzZXIu"
    "a2V5AQ4EAXNpemUgDhYBdmFsdWUuaXMuZGVsdGEuZW5jb2RlZAEIDgFtZXJnZS5vcGVyYW5kcwATAwd0b3JudWxscHRy"
    "CA8BbnVtLmRhdGEuYmxvY2tzAQwHAWVudHJpZXMDDA4BZmlsdGVyX2VudHJpZXMADA8BcmFuZ2UtZGVsZXRpb25zAAgP"
    "AW9sZGVzdC5rZXkudGltZQAJEwFyaWdpbmFsLmZpbGUubnVtYmVyAQgVB3ByZWZpeC5leHRyYWN0b3IubmFtZW51bGxw"
    "dHIKEQJvcGVydHkuY29sbGVjdG9yc1tdCAwBcmF3LmtleS5zaXplQgwKAXZhbHVlLnNpemVAAAAAAAEAAAAAxICBXQAS"
    "BHJvY2tzZGIucHJvcGVydGllc7EB0wYAAAAAAQAAAAARqS8sBIkIIZEBGwAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAFAAAA98/0hbdB4og=";

// A full checkpoint, then increments, as servers write them.
class VerifyCheckpointTest : public testing::Test {
 protected:
  explicit VerifyCheckpointTest(uint32_t servers = 2) : random_(TestSeed()) {
    EXPECT_TRUE(CreateDirectories(&disk_, kDirectory).ok());
    for (int64_t step = 0; step < 3; ++step) {
      TestRows changed;
      AddRandomRows(step == 0 ? 300 : 60, static_cast<uint32_t>(step) + 1, &random_, &changed);
      for (const auto& [key, row] : changed) rows_[key] = row;
      const CheckpointManifest base = manifest_;
      manifest_ = WriteTestCheckpoint(&disk_, kDirectory, {1, Step(step)}, servers, changed,
                                      step == 0 ? nullptr : &base);
    }
  }

  // What `num_servers` servers would restore, or one of them would.
  absl::StatusOr<TestRows> Read(const RowRange& range, CheckpointManifest* manifest = nullptr,
                                const std::string& directory = kDirectory) {
    if (manifest == nullptr) manifest = &manifest_;
    TestRows rows;
    for (int shard = 0; shard < manifest->shards_size(); ++shard) {
      auto merged = MergedRows::Open(&disk_, directory, *manifest, shard, range);
      if (!merged.ok()) return merged.status();
      for (SavedRow row;;) {
        const auto found = (*merged)->Next(&row);
        if (!found.ok()) return found.status();
        if (!*found) break;
        EXPECT_TRUE(rows.empty() || shard > 0 || rows.rbegin()->first < row.key);
        EXPECT_TRUE(rows.count(row.key) == 0);
        rows[row.key] = {row.lookups, row.changed, {row.values.begin(), row.values.end()}};
      }
    }
    return rows;
  }
  Digest DigestOfRows() const {
    Digest digest;
    for (const auto& [key, row] : rows_) digest.Add(RowDigest(key.table, key.key, row.values));
    return digest;
  }

  std::mt19937_64 random_;
  SimulatedDisk disk_;
  TestRows rows_;
  CheckpointManifest manifest_;
};

TEST_F(VerifyCheckpointTest, ACheckpointOfAnEarlierProgramIsRead) {
  ASSERT_TRUE(CreateDirectories(&disk_, "/earlier/epoch-1-step-1").ok());
  for (const auto& [name, base64] :
       {std::pair<std::string, std::string>("MANIFEST", kEarlierManifest),
        {"server-0.sst", kEarlierRows}}) {
    std::string bytes;
    ASSERT_TRUE(absl::Base64Unescape(base64, &bytes));
    ASSERT_TRUE((*disk_.Create("/earlier/epoch-1-step-1/" + name))->Append({bytes}).ok());
  }
  auto manifest = CheckpointStore(&disk_, "/earlier").Load("epoch-1-step-1");
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const auto verified = VerifyCheckpoint(&disk_, "/earlier", *manifest);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_EQ(verified->rows.at(TableId(1)), 2u);
  EXPECT_EQ(verified->rows.at(TableId(2)), 1u);
  rows_.clear();
  rows_[RowKeyOf(TableId(1), 7)] = {3, 2, {0.5f, -2, 0.25f}};
  rows_[RowKeyOf(TableId(1), 0x1122334455667788)] = {1, 1, {1, 2, 3}};
  rows_[RowKeyOf(TableId(2), 9)] = {2, 2, {4, 5, 6, 7}};
  const auto rows = Read({}, &*manifest, "/earlier");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(*rows, rows_);
}

TEST_F(VerifyCheckpointTest, LaterFilesReplaceRowsOfEarlierOnes) {
  const auto rows = Read({});
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(*rows, rows_);
}

TEST_F(VerifyCheckpointTest, IncrementsBuildOnFilesOfEarlierPrograms) {
  for (int old_files = 1; old_files <= 3; ++old_files) {
    for (CheckpointShard& shard : *manifest_.mutable_shards()) {
      ReplaceBySstFile(&disk_, kDirectory, shard.mutable_files(old_files - 1));
    }
    ASSERT_TRUE(CheckManifest(manifest_).ok());
    const auto rows = Read({});
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(*rows, rows_);
    const auto verified = VerifyCheckpoint(&disk_, kDirectory, manifest_);
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_TRUE(verified->model_digest == DigestOfRows());
  }
}

TEST_F(VerifyCheckpointTest, AnyNumberOfServersFindsItsRows) {
  for (const uint32_t servers : {1u, 2u, 3u, 7u, 65536u}) {
    const ClusterMap map(servers);
    TestRows all;
    for (uint32_t s = 0; s < servers; s += 1 + servers / 8) {
      const auto partitions = map.PartitionRangeOf(ServerIndex(s));
      TestRows expected;
      for (const auto& [key, row] : rows_) {
        if (key.partition >= partitions.begin && key.partition < partitions.end)
          expected[key] = row;
      }
      RowRange range;
      range.begin_partition = partitions.begin;
      range.end_partition = partitions.end;
      const auto rows = Read(range);
      ASSERT_TRUE(rows.ok()) << rows.status();
      EXPECT_EQ(*rows, expected);
    }
  }
}

TEST_F(VerifyCheckpointTest, OneTableAlone) {
  for (const uint32_t table : {0u, 1u, 2u, 3u, 9u, 10u}) {
    TestRows expected;
    for (const auto& [key, row] : rows_) {
      if (key.table == TableId(table)) expected[key] = row;
    }
    EXPECT_EQ(expected.empty(), table != 1 && table != 2 && table != 9);
    RowRange range;
    range.table = TableId(table);
    EXPECT_EQ(*Read(range), expected) << table;
  }
}

TEST_F(VerifyCheckpointTest, SaysWhatTheCheckpointHolds) {
  const auto verified = VerifyCheckpoint(&disk_, kDirectory, manifest_);
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_TRUE(verified->model_digest == DigestOfRows());
  std::map<TableId, uint64_t> rows;
  for (const auto& [key, row] : rows_) ++rows[key.table];
  EXPECT_EQ(verified->rows, rows);
  EXPECT_EQ(verified->files, 6u);
}

TEST_F(VerifyCheckpointTest, EveryFlippedByteAndCutOfEveryFileIsFound) {
  for (const CheckpointShard& shard : manifest_.shards()) {
    for (const CheckpointFile& file : shard.files()) {
      const std::string path = absl::StrCat(kDirectory, "/", file.path());
      const std::string good = disk_.Content(path);
      const auto expect_damaged = [&](const std::string& bytes) {
        disk_.SetContent(path, bytes);
        const absl::Status status = VerifyCheckpoint(&disk_, kDirectory, manifest_).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(file.path()));
      };
      for (int i = 0; i < 60; ++i) {
        std::string bad = good;
        const size_t at = i < 20 ? bad.size() - 1 - static_cast<size_t>(i) : random_() % bad.size();
        bad[at] = static_cast<char>(bad[at] ^ (1 << random_() % 8));
        expect_damaged(bad);
        expect_damaged(good.substr(0, random_() % good.size()));
      }
      expect_damaged(good + "x");
      disk_.SetContent(path, good);
    }
  }
  EXPECT_TRUE(VerifyCheckpoint(&disk_, kDirectory, manifest_).ok());
}

// A disk that counts the bytes read.
class CountingDisk : public SimulatedDisk {
 public:
  std::atomic<uint64_t> bytes_read{0};

  absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override {
    auto file = SimulatedDisk::Open(path);
    if (!file.ok()) return file;
    return std::make_unique<File>(this, *std::move(file));
  }

 private:
  class File : public ReadFile {
   public:
    File(CountingDisk* disk, std::unique_ptr<ReadFile> file)
        : disk_(disk), file_(std::move(file)) {}
    uint64_t size() const override { return file_->size(); }
    absl::Status ReadAt(uint64_t offset, absl::Span<char> out) const override {
      disk_->bytes_read += out.size();
      return file_->ReadAt(offset, out);
    }

   private:
    CountingDisk* const disk_;
    const std::unique_ptr<ReadFile> file_;
  };
};

TEST_F(VerifyCheckpointTest, ReadsEveryByteOnceOnAnyNumberOfThreads) {
  CountingDisk disk;
  ASSERT_TRUE(CreateDirectories(&disk, kDirectory).ok());
  TestRows rows;
  AddRandomRows(60000, 1, &random_, &rows);
  const CheckpointManifest manifest =
      WriteTestCheckpoint(&disk, kDirectory, {1, Step(0)}, 3, rows, nullptr);
  std::vector<std::string> files;
  for (const CheckpointShard& shard : manifest.shards()) {
    files.push_back(absl::StrCat(kDirectory, "/", shard.files(0).path()));
  }
  std::optional<Digest> digest;
  for (const int threads : {1, 2, 8}) {
    disk.bytes_read = 0;
    const auto verified = VerifyCheckpoint(&disk, kDirectory, manifest, threads);
    ASSERT_TRUE(verified.ok()) << verified.status();
    EXPECT_EQ(disk.bytes_read.load(), verified->bytes);
    if (!digest.has_value()) digest = verified->model_digest;
    EXPECT_TRUE(verified->model_digest == *digest);
    EXPECT_EQ(verified->files, 3u);
  }
  // If several shards are damaged, the error names the first.
  for (const std::string& path : {files[1], files[2]}) {
    std::string bytes = disk.Content(path);
    bytes[bytes.size() / 2] ^= 1;
    disk.SetContent(path, bytes);
  }
  for (const int threads : {1, 8}) {
    const absl::Status status = VerifyCheckpoint(&disk, kDirectory, manifest, threads).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr(files[1]));
  }
}

TEST_F(VerifyCheckpointTest, RowsThatCannotBeOfTheShardAreNamed) {
  const auto expect_damaged = [&](CheckpointManifest manifest, const char* message) {
    const absl::Status status = VerifyCheckpoint(&disk_, kDirectory, manifest).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("server-"));
    EXPECT_EQ(Read({}, &manifest).status().code(), absl::StatusCode::kDataLoss);
  };
  CheckpointManifest changed = manifest_;
  changed.mutable_tables()->DeleteSubrange(1, 1);
  expect_damaged(changed, "of table 2, which the manifest doesn't know");
  changed = manifest_;
  changed.mutable_tables(0)->set_dim(5);
  expect_damaged(changed, "of table 1 has 3 floats, not 5");
  changed = manifest_;
  changed.mutable_shards(0)->mutable_files()->Swap(changed.mutable_shards(1)->mutable_files());
  expect_damaged(changed, "another server's");
  changed = manifest_;
  changed.set_step(manifest_.step() - 1);
  expect_damaged(changed, "was changed at step 2, behind the checkpoint's step 1");
}

}  // namespace
}  // namespace thermocline
