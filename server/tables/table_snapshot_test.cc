#include "server/tables/table_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/tables/embedding_table.h"
#include "server/tables/partition_order.h"
#include "server/tables/testing/table_fixtures.h"
#include "tests/testing/key_of_hash.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

constexpr uint64_t kJobSeed = testing_tables::kJobSeed;
using testing_tables::AddFirstOrderWeight;
using testing_tables::Changer;
using testing_tables::CopyOf;
using testing_tables::MakeLayout;
using testing_tables::ReadAll;
using testing_tables::Rows;

struct SnapshotCase {
  OptimizerKind kind;
  uint32_t min_count = 0;
  uint64_t unused_steps = 0;
};

class SnapshotTest : public testing::TestWithParam<SnapshotCase> {};

TEST_P(SnapshotTest, IsTheTableAtTheCutWhateverChangesMeanwhile) {
  std::mt19937_64 random(Seed());
  TableLayout layout = MakeLayout(GetParam().kind, GetParam().kind == OptimizerKind::kSgd ? 16 : 5);
  layout.min_count = GetParam().min_count;
  layout.unused_steps = GetParam().unused_steps;
  if (GetParam().kind == OptimizerKind::kFtrl) AddFirstOrderWeight(&layout);
  EmbeddingTable table(layout, kJobSeed);
  Changer changer(&table, 20000, Seed());
  Step base = kNoStep;
  for (int round = 0; round < 12; ++round) {
    for (uint64_t steps = random() % 4; steps > 0; --steps) changer.RunStep();
    const Step cut = changer.step();
    const Step changed_after = random() % 3 == 0 ? kNoStep : base;
    const Rows expected = CopyOf(table, changed_after);
    auto snapshot = table.BeginSnapshot(cut, changed_after);
    std::atomic<bool> end{false};
    std::thread apply([&] {
      do {
        changer.RunStep();
      } while (!end.load());
    });
    if (random() % 4 == 0) {
      SnapshotRows some;
      EXPECT_TRUE(snapshot->Next(&some).ok());
    } else {
      const Rows got = ReadAll(snapshot.get(), layout);
      EXPECT_EQ(got.size(), expected.size());
      EXPECT_TRUE(got == expected);
      EXPECT_EQ(table.old_image_bytes(), 0u);  // Though the snapshot is there still.
      base = cut;
    }
    if (random() % 2 == 0) snapshot.reset();  // Beside an apply.
    end = true;
    apply.join();
    if (HasFailure()) return;
  }
}

TEST(TableSnapshotTest, OldImagesGoAsItIsRead) {
  const TableLayout layout = MakeLayout(OptimizerKind::kSgd, 4);
  EmbeddingTable table(layout, kJobSeed);
  constexpr size_t kRows = 50000;
  std::vector<Key> keys(kRows);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<uint32_t> counts(kRows, 1);
  const auto assign = [&](float value, Step step) {
    const std::vector<float> rows(kRows * layout.row_floats(), value);
    ASSERT_TRUE(table.AssignRows(keys, counts, rows, step).ok());
  };
  assign(1, Step(0));
  const auto snapshot = table.BeginSnapshot(Step(0), kNoStep);
  assign(2, Step(1));
  const uint64_t all_bytes = table.old_image_bytes();
  EXPECT_GE(all_bytes, kRows * layout.row_floats() * sizeof(float));
  const uint64_t memory_bytes = table.memory_bytes();
  SnapshotRows rows;
  size_t read = 0;
  while (*snapshot->Next(&rows)) {
    read += rows.keys.size();
    for (const float value : rows.rows) ASSERT_EQ(value, 1);
    // What was read less than an eighth ago may be there still.
    EXPECT_LE(table.old_image_bytes() / (all_bytes / kRows), kRows - read + kRows / 8);
    assign(3, Step(2));  // Saves nothing again.
    // But for the list of what is free: a pointer an image, in vectors that double.
    EXPECT_LE(table.memory_bytes(), memory_bytes + kRows * 2 * sizeof(float*));
  }
  EXPECT_EQ(read, kRows);
  EXPECT_EQ(table.old_image_bytes(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SnapshotTest,
                         testing::Values(SnapshotCase{OptimizerKind::kSgd},
                                         SnapshotCase{OptimizerKind::kAdam},
                                         SnapshotCase{OptimizerKind::kFtrl},
                                         SnapshotCase{OptimizerKind::kSgd, 3},
                                         SnapshotCase{OptimizerKind::kAdam, 0, 3},
                                         SnapshotCase{OptimizerKind::kAdagrad, 2, 9}),
                         [](const auto& info) {
                           return std::string(OptimizerKindName(info.param.kind)) +
                                  (info.param.min_count > 0 ? "_counted" : "") +
                                  (info.param.unused_steps > 0 ? "_forgetting" : "");
                         });

TEST(TableSnapshotTest, OfAnEmptyTableIsEmptyThoughRowsComeLater) {
  const TableLayout layout = MakeLayout(OptimizerKind::kSgd, 2);
  EmbeddingTable table(layout, kJobSeed);
  const auto snapshot = table.BeginSnapshot(kNoStep, kNoStep);
  Changer(&table, 100, Seed()).RunStep();
  EXPECT_TRUE(ReadAll(snapshot.get(), layout).empty());
}

TEST(TableSnapshotTest, LoadedRowsThatNoStepChangedAreInWholeSnapshotsOnly) {
  const TableLayout layout = MakeLayout(OptimizerKind::kSgd, 1);
  EmbeddingTable table(layout, kJobSeed);
  ASSERT_TRUE(table.LoadRows({4, 5}, {7, 8}, {0, 3}, {1.0f, 2.0f}).ok());
  EXPECT_EQ(ReadAll(table.BeginSnapshot(Step(2), kNoStep).get(), layout).size(), 2u);
  EXPECT_EQ(ReadAll(table.BeginSnapshot(Step(2), Step(1)).get(), layout).size(), 1u);
  EXPECT_EQ(ReadAll(table.BeginSnapshot(Step(2), Step(2)).get(), layout).size(), 0u);
}

TEST(PartitionOrderTest, SortsAndKeepsEachKeyOnce) {
  std::mt19937_64 random(Seed());
  const uint64_t salt = TableSalt(TableId(9));
  std::vector<UninitializedVector<Key>> groups(3);
  std::vector<Key> expected;
  for (int i = 0; i < 5000; ++i) {
    const Key key = random() % 4000;
    groups[random() % 2].push_back(key);
    expected.push_back(key);
  }
  std::sort(expected.begin(), expected.end(),
            [](Key a, Key b) { return InPartitionOrder(salt, a, b); });
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  const UninitializedVector<Key> sorted = SortByPartition(salt, std::move(groups));
  EXPECT_EQ(std::vector<Key>(sorted.begin(), sorted.end()), expected);
}

// Keys close together, some far from them, and doubles.
TEST(PartitionOrderTest, SortsAPartitionOfManyKeysHoweverTheyAreSpread) {
  std::mt19937_64 random(Seed());
  const uint64_t salt = TableSalt(TableId(9));
  const auto partition = static_cast<uint32_t>(random() % kNumPartitions);
  std::vector<Key> keys;
  for (Key key = 0; key < 4'000'000; ++key) {
    if (PartitionOfKey(salt, key) == partition) keys.push_back(key);
  }
  const size_t num_close = keys.size();
  ASSERT_GT(num_close, 20u);
  for (const size_t num_far : {0, 1, 100}) {
    keys.resize(num_close);
    while (keys.size() < num_close + num_far) {
      keys.push_back(KeyOfHash(salt, uint64_t{partition} << 48 | random() >> 16));
    }
    std::vector<Key> expected = keys;
    std::sort(expected.begin(), expected.end());
    std::vector<UninitializedVector<Key>> groups(1);
    for (int copy = 0; copy < 2; ++copy) {
      std::shuffle(keys.begin(), keys.end(), random);
      groups[0].insert(groups[0].end(), keys.begin(), keys.end());
    }
    const UninitializedVector<Key> sorted = SortByPartition(salt, std::move(groups));
    EXPECT_EQ(std::vector<Key>(sorted.begin(), sorted.end()), expected);
  }
}

}  // namespace
}  // namespace thermocline
