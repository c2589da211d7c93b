#include "server/tables/table_snapshot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/test_seed.h"
#include "server/tables/embedding_table.h"
#include "server/tables/slot_order.h"

namespace thermocline {
namespace {

constexpr uint64_t kJobSeed = 42;

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

TableLayout MakeLayout(OptimizerKind kind, int dim) {
  TableLayout layout;
  layout.id = TableId(3);
  layout.name = "C3";
  layout.dim = dim;
  layout.optimizer.kind = kind;
  layout.init_scale = 0.5f;
  return layout;
}

struct Row {
  uint32_t count;
  uint32_t changed;  // plus 1
  std::vector<float> floats;
};
// Bit by bit: there are NaNs among random slots.
bool operator==(const Row& a, const Row& b) {
  return a.count == b.count && a.changed == b.changed && a.floats.size() == b.floats.size() &&
         std::memcmp(a.floats.data(), b.floats.data(), a.floats.size() * sizeof(float)) == 0;
}
using Rows = std::map<Key, Row>;

// What a snapshot at this moment must hold.
Rows CopyOf(const EmbeddingTable& table, Step changed_after) {
  Rows rows;
  table.VisitRows([&](Key key, absl::Span<const float> row, uint32_t count, Step changed) {
    if (changed_after != kNoStep && changed <= changed_after) return;
    rows[key] = {count, static_cast<uint32_t>(changed.value() + 1), {row.begin(), row.end()}};
  });
  return rows;
}

// Adds what one call of Next gave, and checks its order.
void AddTo(const SnapshotRows& from, const TableLayout& layout, Rows* rows, Key* last) {
  const size_t row_floats = layout.row_floats();
  ASSERT_EQ(from.counts.size(), from.keys.size());
  ASSERT_EQ(from.changed.size(), from.keys.size());
  ASSERT_EQ(from.rows.size(), from.keys.size() * row_floats);
  for (size_t i = 0; i < from.keys.size(); ++i) {
    if (!rows->empty()) {
      ASSERT_TRUE(InSlotOrder(TableSalt(layout.id), *last, from.keys[i]));
    }
    *last = from.keys[i];
    const float* row = from.rows.data() + i * row_floats;
    (*rows)[*last] = {from.counts[i], from.changed[i], {row, row + row_floats}};
  }
}

Rows ReadAll(TableSnapshot* snapshot, const TableLayout& layout) {
  Rows rows;
  Key last = 0;
  SnapshotRows batch;
  while (true) {
    const absl::StatusOr<bool> more = snapshot->Next(&batch);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok() || !*more) break;
    EXPECT_FALSE(batch.keys.empty());
    AddTo(batch, layout, &rows, &last);
  }
  EXPECT_TRUE(batch.keys.empty());
  return rows;
}

// Changes random rows of a table, step by step: old and new ones, by gradients and by exact bytes.
class Changer {
 public:
  Changer(EmbeddingTable* table, uint64_t num_keys, uint64_t seed)
      : table_(table), num_keys_(num_keys), random_(seed) {}

  // Of the last step that was applied.
  Step step() const { return step_; }

  void RunStep() {
    step_ = step_ + 1;
    const TableLayout& layout = table_->layout();
    const std::vector<Key> keys = RandomKeys();
    const std::vector<uint32_t> counts(keys.size(), 1);
    table_->ApplyGradients(keys, counts, RandomFloats(keys.size() * layout.dim),
                           ScalarsForStep(layout.optimizer, 0.1f, step_), step_);
    if (random_() % 2 == 0) return;
    const std::vector<Key> written = RandomKeys();
    table_->AssignRows(written, std::vector<uint32_t>(written.size(), 1),
                       RandomFloats(written.size() * layout.row_floats()), step_);
  }

 private:
  std::vector<Key> RandomKeys() {
    // 0 is a key too.
    const uint64_t stride = 1 + random_() % 7;
    std::vector<Key> keys;
    for (Key key = random_() % num_keys_; key < num_keys_ && keys.size() < 6000; key += stride) {
      keys.push_back(key % 2 == 0 ? key : key << 40);
    }
    return keys;
  }
  std::vector<float> RandomFloats(size_t n) {
    std::vector<float> floats(n);
    for (float& f : floats) f = static_cast<float>(random_() % 1000) / 500.0f - 1.0f;
    return floats;
  }

  EmbeddingTable* const table_;
  const uint64_t num_keys_;
  std::mt19937_64 random_;
  Step step_ = kNoStep;
};

class SnapshotTest : public testing::TestWithParam<OptimizerKind> {};

TEST_P(SnapshotTest, IsTheTableAtTheCutWhateverChangesMeanwhile) {
  std::mt19937_64 random(Seed());
  const TableLayout layout = MakeLayout(GetParam(), GetParam() == OptimizerKind::kSgd ? 16 : 5);
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
      base = cut;
    }
    if (random() % 2 == 0) snapshot.reset();  // Beside an apply.
    end = true;
    apply.join();
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, SnapshotTest,
                         testing::Values(OptimizerKind::kSgd, OptimizerKind::kAdam),
                         [](const auto& info) {
                           return std::string(OptimizerKindName(info.param));
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

TEST(SlotOrderTest, SortsAndKeepsEachKeyOnce) {
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
            [salt](Key a, Key b) { return InSlotOrder(salt, a, b); });
  expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
  const UninitializedVector<Key> sorted = SortBySlot(salt, std::move(groups));
  EXPECT_EQ(std::vector<Key>(sorted.begin(), sorted.end()), expected);
}

}  // namespace
}  // namespace thermocline
