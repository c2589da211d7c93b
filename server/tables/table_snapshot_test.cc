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

#include "absl/container/flat_hash_set.h"
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

// Adds each key to an order as often as it is there, with a row of RowOf or none, and returns what
// leaves.
constexpr uint32_t RowOf(Key key) { return 1 + static_cast<uint32_t>(key % 1000); }

std::vector<Key> InOrder(uint64_t salt, const std::vector<Key>& keys, size_t announced) {
  PartitionOrder order(salt, announced);
  absl::flat_hash_set<Key> added;
  for (Key key : keys) order.Add(key, added.insert(key).second ? RowOf(key) : 0);
  std::vector<Key> left;
  for (; const PlacedKey* key = order.Front(); order.Pop()) {
    EXPECT_EQ(key->row, RowOf(key->key));
    EXPECT_EQ(key->upper_hash, KeyHash(salt, key->key) >> 32);
    left.push_back(key->key);
  }
  EXPECT_EQ(order.Front(), nullptr);
  return left;
}

std::vector<Key> Sorted(uint64_t salt, std::vector<Key> keys) {
  std::sort(keys.begin(), keys.end(), [&](Key a, Key b) { return InPartitionOrder(salt, a, b); });
  keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
  return keys;
}

TEST(PartitionOrderTest, FewKeysAndTheLeastAndGreatestOfThem) {
  const uint64_t salt = TableSalt(TableId(9));
  EXPECT_TRUE(InOrder(salt, {}, 0).empty());
  for (const std::vector<Key>& keys :
       {std::vector<Key>{7}, {UINT64_MAX, 0}, {0, UINT64_MAX, 1, 1, 0, UINT64_MAX - 1}}) {
    EXPECT_EQ(InOrder(salt, keys, keys.size()), Sorted(salt, keys));
  }
}

// More and fewer keys than were announced; of all partitions, or of the few that a server has.
TEST(PartitionOrderTest, SortsAndKeepsEachKeyOnce) {
  std::mt19937_64 random(Seed());
  const uint64_t salt = TableSalt(TableId(9));
  for (const uint32_t servers : {1, 300}) {
    for (const size_t announced : {0, 50'000, 5'000'000}) {
      std::vector<Key> keys;
      while (keys.size() < 50'000) {
        const Key key = random() % 4 == 0 ? random() : random() % 40'000;
        if (ClusterMap(servers).ServerOfHash(KeyHash(salt, key)) == ServerIndex(0)) {
          keys.push_back(key);
        }
      }
      EXPECT_EQ(InOrder(salt, keys, announced), Sorted(salt, keys)) << servers;
    }
  }
}

// Keys close together, some far from them, the least and the greatest ones there are, and doubles.
TEST(PartitionOrderTest, SortsPartitionsOfManyKeysHoweverTheyAreSpread) {
  std::mt19937_64 random(Seed());
  const uint64_t salt = TableSalt(TableId(9));
  const std::vector<uint32_t> partitions = {PartitionOfKey(salt, 0),
                                            PartitionOfKey(salt, UINT64_MAX),
                                            static_cast<uint32_t>(random() % kNumPartitions)};
  std::vector<Key> close = {0, UINT64_MAX};
  for (Key key = 1; key < 4'000'000; ++key) {
    const uint32_t partition = PartitionOfKey(salt, key);
    if (std::count(partitions.begin(), partitions.end(), partition) > 0) close.push_back(key);
  }
  ASSERT_GT(close.size(), 100u);
  for (const size_t num_far : {0, 1, 100}) {
    std::vector<Key> keys = close;
    for (const uint32_t partition : partitions) {
      for (size_t i = 0; i < num_far; ++i) {
        keys.push_back(KeyOfHash(salt, uint64_t{partition} << 48 | random() >> 16));
      }
    }
    const std::vector<Key> expected = Sorted(salt, keys);
    keys.insert(keys.end(), expected.begin(), expected.end());
    std::shuffle(keys.begin(), keys.end(), random);
    EXPECT_EQ(InOrder(salt, keys, keys.size()), expected);
  }
}

}  // namespace
}  // namespace thermocline
