#include "worker/predict/row_cache.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "common/base/thread_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/checkpoints.h"
#include "tests/testing/simulated_disk.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;
constexpr char kDirectory[] = "/d";

class RowCacheTest : public testing::Test {
 protected:
  RowCacheTest() : random_(TestSeed()), threads_(2) {
    EXPECT_TRUE(CreateDirectories(&disk_, kDirectory).ok());
    AddRandomRows(500, 1, &random_, &rows_);
    manifest_ = WriteTestCheckpoint(&disk_, kDirectory, {1, Step(0)}, 2, rows_);
    auto lookup = RowLookup::Open(&disk_, kDirectory, manifest_, &threads_);
    EXPECT_TRUE(lookup.ok()) << lookup.status();
    lookup_ = *std::move(lookup);
    tables_ = TestTables();
    tables_.pop_back();  // The dense one.
  }

  // One in eight of the keys has a row.
  BatchPlan RandomPlan(int keys) {
    BatchPlan plan;
    for (const TableLayout& table : tables_) {
      TablePlan& of_table = plan.tables.emplace_back();
      of_table.id = table.id;
      std::set<Key> distinct;
      while (static_cast<int>(distinct.size()) < keys) distinct.insert(random_() % 4000);
      of_table.keys.assign(distinct.begin(), distinct.end());
    }
    return plan;
  }

  void ExpectRows(const RowCache& cache, const BatchPlan& plan) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      const TablePlan& of_table = plan.tables[t];
      const int dim = tables_[t].dim;
      std::vector<float> rows(of_table.keys.size() * dim), expected;
      cache.CopyRows(of_table, static_cast<int>(t), absl::MakeSpan(rows));
      for (const Key key : of_table.keys) {
        std::vector<float> row(tables_[t].row_floats());
        const auto saved = rows_.find(RowKeyOf(tables_[t].id, key));
        InitialRow(tables_[t], kSeed, key, absl::MakeSpan(row));
        if (saved != rows_.end()) row = saved->second.values;
        expected.insert(expected.end(), row.begin(), row.begin() + dim);
      }
      ASSERT_EQ(rows, expected);
    }
  }

  SimulatedDisk disk_;
  std::mt19937_64 random_;
  ThreadPool threads_;
  TestRows rows_;
  CheckpointManifest manifest_;
  std::unique_ptr<RowLookup> lookup_;
  std::vector<TableLayout> tables_;
};

TEST_F(RowCacheTest, GivesTheRowsOfTheCheckpointOrInitialOnes) {
  RowCache cache(lookup_.get(), tables_, kSeed, /*memory_bytes=*/30000);
  size_t blocks_of_several = 0;
  std::vector<BatchPlan> block;
  for (int i = 0; i < 60; ++i) {
    BatchPlan plan = RandomPlan(20 + static_cast<int>(random_() % 60));
    absl::StatusOr<bool> fits = cache.Want(plan);
    ASSERT_TRUE(fits.ok()) << fits.status();
    if (!*fits) {
      ASSERT_TRUE(cache.Load().ok());
      for (const BatchPlan& loaded : block) ExpectRows(cache, loaded);
      blocks_of_several += block.size() > 1;
      block.clear();
      cache.EndBlock();
      fits = cache.Want(plan);
      ASSERT_TRUE(fits.ok() && *fits) << fits.status();
    }
    block.push_back(std::move(plan));
  }
  EXPECT_GT(blocks_of_several, 3u);
}

TEST_F(RowCacheTest, RowsThatStayAreNotReadAgain) {
  RowCache cache(lookup_.get(), tables_, kSeed, 1 << 20);
  const BatchPlan plan = RandomPlan(300);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(*cache.Want(plan));
    ASSERT_TRUE(cache.Load().ok());
    ExpectRows(cache, plan);
    cache.EndBlock();
  }
  uint64_t saved = 0;
  for (const TablePlan& table : plan.tables) {
    for (const Key key : table.keys) saved += rows_.count(RowKeyOf(table.id, key));
  }
  EXPECT_EQ(cache.rows_read(), saved);
  EXPECT_GT(saved, 0u);
}

TEST_F(RowCacheTest, ABatchThatDoesNotFitSaysWhatItNeeds) {
  RowCache cache(lookup_.get(), tables_, kSeed, 2000);
  const absl::Status status = cache.Want(RandomPlan(100)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  // 100 keys: 40 bytes each, and 3 and 2 floats.
  EXPECT_THAT(std::string(status.message()), HasSubstr("take 10000 bytes"));
}

}  // namespace
}  // namespace thermocline
