// Random changes of a table, and what it or a snapshot of it holds, for the tests of this folder.
#ifndef THERMOCLINE_SERVER_TABLES_TESTING_TABLE_FIXTURES_H_
#define THERMOCLINE_SERVER_TABLES_TESTING_TABLE_FIXTURES_H_

#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/tables/embedding_table.h"
#include "server/tables/partition_order.h"

namespace thermocline::testing_tables {

inline constexpr uint64_t kJobSeed = 42;

inline TableLayout MakeLayout(OptimizerKind kind, int dim) {
  TableLayout layout;
  layout.id = TableId(3);
  layout.name = "C3";
  layout.dim = dim;
  layout.optimizer.kind = kind;
  layout.init_scale = 0.5f;
  return layout;
}

// Another optimizer for the last weight of each row, and what needs counts.
inline void AddFirstOrderWeight(TableLayout* layout) {
  layout->optimizer.cow_clip_ratio = 0.05f;
  FirstOrderWeight& weight = layout->first_order.emplace();
  weight.optimizer.kind = OptimizerKind::kAdam;
  weight.optimizer.weight_decay = 0.125f;
  weight.distribution = InitialDistribution::kNormal;
  weight.init_scale = 0.25f;
}

struct Row {
  uint32_t count;
  uint32_t changed;           // plus 1
  std::vector<float> floats;  // None: a candidate.
};
// Bit by bit: there are NaNs among random state.
inline bool operator==(const Row& a, const Row& b) {
  return a.count == b.count && a.changed == b.changed && a.floats.size() == b.floats.size() &&
         (a.floats.empty() ||
          std::memcmp(a.floats.data(), b.floats.data(), a.floats.size() * sizeof(float)) == 0);
}
using Rows = std::map<Key, Row>;

// What a snapshot at this moment must hold.
inline Rows CopyOf(const EmbeddingTable& table, Step changed_after) {
  Rows rows;
  EXPECT_TRUE(
      table
          .VisitRows([&](Key key, absl::Span<const float> row, uint32_t count, Step changed) {
            if (changed_after != kNoStep && changed <= changed_after) return;
            rows[key] = {
                count, static_cast<uint32_t>(changed.value() + 1), {row.begin(), row.end()}};
          })
          .ok());
  return rows;
}

// Adds what one call of Next gave, and checks its order.
inline void AddTo(const SnapshotRows& from, const TableLayout& layout, Rows* rows, Key* last) {
  const size_t row_floats = layout.row_floats();
  ASSERT_EQ(from.counts.size(), from.keys.size());
  ASSERT_EQ(from.changed.size(), from.keys.size());
  ASSERT_EQ(from.has_row.size(), from.keys.size());
  ASSERT_EQ(from.rows.size(), from.keys.size() * row_floats);
  for (size_t i = 0; i < from.keys.size(); ++i) {
    if (!rows->empty()) {
      ASSERT_TRUE(InPartitionOrder(TableSalt(layout.id), *last, from.keys[i]));
    }
    *last = from.keys[i];
    const float* row = from.rows.data() + i * row_floats;
    (*rows)[*last] = {from.counts[i], from.changed[i], {row, row + row_floats * from.has_row[i]}};
  }
}

inline Rows ReadAll(TableSnapshot* snapshot, const TableLayout& layout) {
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

// Changes random rows of a table, step by step: old and new ones, by lookups alone, by gradients
// and by exact bytes.
class Changer {
 public:
  Changer(EmbeddingTable* table, uint64_t num_keys, uint64_t seed)
      : table_(table), num_keys_(num_keys), random_(seed) {}

  // The last step that was applied.
  Step step() const { return step_; }

  void RunStep() {
    step_ = step_ + 1;
    const TableLayout& layout = table_->layout();
    if (random_() % 2 == 0) {
      const std::vector<Key> looked_up = RandomKeys();
      EXPECT_TRUE(
          table_->CountLookups(looked_up, std::vector<uint32_t>(looked_up.size(), 1), step_).ok());
    }
    const std::vector<Key> keys = RandomKeys();
    const auto lookups = static_cast<uint32_t>(1 + step_.value() % 3);
    const std::vector<uint32_t> counts(keys.size(), lookups);
    EXPECT_TRUE(table_
                    ->ApplyGradients(keys, counts, RandomFloats(keys.size() * layout.dim),
                                     ScalarsForStep(layout.row_optimizer(), 0.1f, step_), step_)
                    .ok());
    if (random_() % 2 == 0) {
      const std::vector<Key> written = RandomKeys();
      EXPECT_TRUE(table_
                      ->AssignRows(written, std::vector<uint32_t>(written.size(), 1),
                                   RandomFloats(written.size() * layout.row_floats()), step_)
                      .ok());
    }
    table_->Forget(step_);
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

}  // namespace thermocline::testing_tables

#endif  // THERMOCLINE_SERVER_TABLES_TESTING_TABLE_FIXTURES_H_
