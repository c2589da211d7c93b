#include "common/checkpoint/row_lookup.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
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

// A full checkpoint and two increments, of three servers. An earlier program wrote one of the
// files.
class RowLookupTest : public testing::Test {
 protected:
  RowLookupTest() : random_(TestSeed()) {
    EXPECT_TRUE(CreateDirectories(&disk_, kDirectory).ok());
    for (int64_t step = 0; step < 3; ++step) {
      TestRows changed;
      AddRandomRows(step == 0 ? 3000 : 400, static_cast<uint32_t>(step) + 1, &random_, &changed);
      for (const auto& [key, row] : changed) rows_[key] = row;
      const CheckpointManifest base = manifest_;
      manifest_ = WriteTestCheckpoint(&disk_, kDirectory, {1, Step(step)}, 3, changed,
                                      step == 0 ? nullptr : &base);
    }
    ReplaceBySstFile(&disk_, kDirectory, manifest_.mutable_shards(2)->mutable_files(0));
  }

  SimulatedDisk disk_;
  std::mt19937_64 random_;
  CheckpointManifest manifest_;
  TestRows rows_;
};

TEST_F(RowLookupTest, FindsTheNewestOfEachRowAndNoOther) {
  for (const int num_threads : {1, 3}) {
    ThreadPool threads(num_threads);
    auto lookup = RowLookup::Open(&disk_, kDirectory, manifest_, &threads);
    ASSERT_TRUE(lookup.ok()) << lookup.status();
    // All rows, or a few; before, between and behind them keys without one.
    for (const uint64_t share : {1, 50}) {
      TestRows wanted;  // By key; of those without a row no values.
      for (const auto& [key, row] : rows_) {
        if (random_() % share == 0) wanted[key] = row;
        const Key other = random_();
        if (rows_.count(RowKeyOf(key.table, other)) == 0) wanted[RowKeyOf(key.table, other)] = {};
      }
      wanted[RowKeyOf(TableId(0), 5)] = wanted[RowKeyOf(TableId(77), 5)] = {};
      std::vector<RowKey> keys;
      for (const auto& [key, row] : wanted) keys.push_back(key);
      std::vector<TestRow> found(keys.size());
      const absl::Status read = (*lookup)->Read(keys, [&](size_t i, const SavedRow& row) {
        EXPECT_EQ(row.key, keys[i]);
        EXPECT_TRUE(found[i].values.empty());
        found[i] = {row.lookups, row.changed, {row.values.begin(), row.values.end()}};
      });
      ASSERT_TRUE(read.ok()) << read;
      for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(found[i], wanted[keys[i]]) << i;
    }
  }
}

// Descriptors and the indexes of files do not grow with the number of threads.
TEST_F(RowLookupTest, ThreadsShareFiles) {
  class CountingDisk : public SimulatedDisk {
   public:
    explicit CountingDisk(const SimulatedDisk& disk) : SimulatedDisk(disk) {}
    absl::StatusOr<std::unique_ptr<ReadFile>> Open(const std::string& path) override {
      ++opened;
      return SimulatedDisk::Open(path);
    }
    std::atomic<int> opened{0};
  } disk(disk_);
  std::vector<RowKey> keys;
  for (const auto& [key, row] : rows_) keys.push_back(key);
  std::vector<int> opened;
  for (const int num_threads : {1, 4}) {
    disk.opened = 0;
    ThreadPool threads(num_threads);
    auto lookup = RowLookup::Open(&disk, kDirectory, manifest_, &threads);
    ASSERT_TRUE(lookup.ok()) << lookup.status();
    std::atomic<size_t> found{0};
    ASSERT_TRUE((*lookup)->Read(keys, [&](size_t, const SavedRow&) { ++found; }).ok());
    EXPECT_EQ(found, keys.size());
    opened.push_back(disk.opened);
  }
  EXPECT_EQ(opened[0], opened[1]);
}

// Older files still have rows that are forgotten by now, or whose keys are counted anew.
TEST_F(RowLookupTest, ForgottenRowsAndCandidatesAreNone) {
  const CheckpointManifest base = manifest_;
  TestRows candidates;
  for (const auto& [key, row] : rows_) {
    if (key.table == TableId(1) && random_() % 4 == 0) candidates[key] = {1, 4, {}};
  }
  manifest_ = WriteTestCheckpoint(&disk_, kDirectory, {1, Step(3)}, 3, candidates, &base);
  manifest_.mutable_tables(0)->set_min_count(2);
  const bool limited = random_() % 2 == 0;
  if (!limited) manifest_.mutable_tables(1)->set_unused_steps(1);
  for (CheckpointShard& shard : *manifest_.mutable_shards()) {
    if (!limited) break;
    RowLimit* limit = shard.add_row_limits();
    limit->set_table(2);
    limit->set_oldest_kept(4);
  }
  const uint32_t oldest = TablesOf(manifest_)[1].OldestKept(Step(3));
  ASSERT_GT(oldest, 1u);
  std::vector<RowKey> keys, expected, found_keys;
  for (const auto& [key, row] : rows_) {
    keys.push_back(key);
    const bool is_forgotten = key.table == TableId(2) && row.changed < oldest;
    if (candidates.count(key) == 0 && !is_forgotten) expected.push_back(key);
  }
  ThreadPool threads(1);
  auto lookup = RowLookup::Open(&disk_, kDirectory, manifest_, &threads);
  ASSERT_TRUE(lookup.ok()) << lookup.status();
  const absl::Status read =
      (*lookup)->Read(keys, [&](size_t i, const SavedRow&) { found_keys.push_back(keys[i]); });
  ASSERT_TRUE(read.ok()) << read;
  std::sort(found_keys.begin(), found_keys.end());
  EXPECT_TRUE(found_keys == expected);
  EXPECT_LT(expected.size(), rows_.size() - candidates.size());
}

TEST_F(RowLookupTest, DamageIsFoundWhereItIsRead) {
  const std::string path = std::string(kDirectory) + "/" + manifest_.shards(1).files(0).path();
  std::string bytes = disk_.Content(path);
  bytes[100] ^= 1;
  disk_.SetContent(path, bytes);
  ThreadPool threads(1);
  auto lookup = RowLookup::Open(&disk_, kDirectory, manifest_, &threads);
  ASSERT_TRUE(lookup.ok()) << lookup.status();  // The damage is in the first block alone.
  std::vector<RowKey> keys;
  for (const auto& [key, row] : rows_) keys.push_back(key);
  const absl::Status read = (*lookup)->Read(keys, [](size_t, const SavedRow&) {});
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()), HasSubstr(path));
}

}  // namespace
}  // namespace thermocline
