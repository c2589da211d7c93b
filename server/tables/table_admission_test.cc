// Which keys have a row, against a plain map; and that snapshots, whole ones and increments,
// restore all of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/storage/testing/memory_row_store.h"
#include "server/tables/embedding_table.h"
#include "server/tables/testing/table_fixtures.h"
#include "tests/testing/test_seed.h"

namespace thermocline {
namespace {

using testing_tables::kJobSeed;
using testing_tables::MakeLayout;
using testing_tables::ReadAll;
using testing_tables::Row;
using testing_tables::Rows;

uint64_t Seed() {
  static const uint64_t seed = TestSeed();
  return seed;
}

std::unique_ptr<EmbeddingTable> MakeTable(const TableLayout& layout) {
  TableSpill spill;
  if (layout.memory_budget_bytes > 0) spill.store = std::make_unique<MemoryRowStore>(layout);
  return std::make_unique<EmbeddingTable>(layout, kJobSeed, std::move(spill));
}

// Rows and candidates, by the rules of proto/job.proto.
class Model {
 public:
  explicit Model(const TableLayout& layout) : layout_(layout) {}

  // gradient: null where the key has none
  void Apply(Key key, uint32_t count, const float* gradient, const UpdateScalars& scalars,
             Step step) {
    Row& row = rows_[key];
    row.count += count;
    row.changed = static_cast<uint32_t>(step.value() + 1);
    if (row.floats.empty() && row.count < layout_.min_count) {
      dropped_ += gradient != nullptr ? 1 : 0;
      return;
    }
    if (row.floats.empty()) row.floats = Initial(key);
    if (gradient == nullptr) return;
    UpdateRow(scalars, gradient, count, row.floats.data(), row.floats.data() + layout_.dim,
              layout_.dim);
  }
  // The rules in full. Of max_rows: what was changed last in the newest step whose rows are too
  // many, or before, is forgotten with the step after.
  uint32_t OldestKept() const {
    std::vector<uint32_t> changes;
    for (const auto& [key, row] : rows_) {
      if (!row.floats.empty()) changes.push_back(row.changed);
    }
    if (changes.size() <= layout_.max_rows) return 0;
    std::sort(changes.rbegin(), changes.rend());
    return changes[layout_.max_rows] + 1;
  }
  void ForgetBefore(uint32_t oldest_kept) {
    for (auto it = rows_.begin(); it != rows_.end();) {
      const auto row = it++;
      if (row->second.changed < oldest_kept) rows_.erase(row);
    }
  }
  // At every multiple of an eighth of unused_steps.
  void Forget(Step step) {
    const int64_t unused = static_cast<int64_t>(layout_.unused_steps);
    if (unused == 0 || (step.value() + 1) % std::max<int64_t>(1, unused / 8) != 0) return;
    for (auto it = rows_.begin(); it != rows_.end();) {
      const int64_t last = int64_t{it->second.changed} - 1;
      const auto row = it++;
      if (step.value() - last >= unused) rows_.erase(row);
    }
  }

  std::vector<float> Weights(Key key) const {
    const auto row = rows_.find(key);
    std::vector<float> weights =
        row == rows_.end() || row->second.floats.empty() ? Initial(key) : row->second.floats;
    weights.resize(layout_.dim);
    return weights;
  }
  const Rows& rows() const { return rows_; }
  uint64_t dropped() const { return dropped_; }

 private:
  std::vector<float> Initial(Key key) const {
    std::vector<float> row(layout_.row_floats());
    InitialRow(layout_, kJobSeed, key, absl::MakeSpan(row));
    return row;
  }

  const TableLayout layout_;
  Rows rows_;
  uint64_t dropped_ = 0;
};

struct AdmissionCase {
  const char* name;
  uint32_t min_count;
  uint64_t unused_steps;
  uint64_t memory_budget_bytes;  // 1: room for 128 rows.
  uint64_t max_rows = 0;
};

class AdmissionTest : public testing::TestWithParam<AdmissionCase> {
 protected:
  static constexpr Key kKeys = 1500;

  AdmissionTest() : layout_(MakeLayout(OptimizerKind::kAdagrad, 3)), random_(Seed()) {
    layout_.min_count = GetParam().min_count;
    layout_.unused_steps = GetParam().unused_steps;
    layout_.max_rows = GetParam().max_rows;
    layout_.memory_budget_bytes = GetParam().memory_budget_bytes;
    table_ = MakeTable(layout_);
    model_ = std::make_unique<Model>(layout_);
  }

  struct Lookups {
    uint32_t with_gradient = 0;
    uint32_t without = 0;  // in the push of another worker
  };

  // A few keys that come often, and many that come seldom.
  void RunStep() {
    step_ = step_ + 1;
    std::map<Key, Lookups> lookups;
    const auto look_up = [&](Key key) {
      ++(random_() % 3 == 0 ? lookups[key].without : lookups[key].with_gradient);
    };
    for (uint64_t n = random_() % 60; n > 0; --n) look_up(random_() % 40);
    for (uint64_t n = random_() % 60; n > 0; --n) look_up(random_() % kKeys);
    std::vector<Key> keys, keys_without;
    std::vector<uint32_t> counts, counts_without;
    std::vector<float> gradients;
    for (const auto& [key, count] : lookups) {
      if (count.without > 0) {
        keys_without.push_back(key);
        counts_without.push_back(count.without);
      }
      if (count.with_gradient == 0) continue;
      keys.push_back(key);
      counts.push_back(count.with_gradient);
      for (int i = 0; i < layout_.dim; ++i) {
        gradients.push_back(static_cast<float>(random_() % 1000) / 500.0f - 1.0f);
      }
    }
    uint32_t oldest_kept = 0;
    if (layout_.CountsAfter(step_ - 1)) {
      const RowsByGroup counted = table_->CountRows(step_ - 1);
      oldest_kept = OldestKeptOf(counted, layout_.max_rows);
      EXPECT_EQ(oldest_kept, model_->OldestKept()) << "before step " << step_.value();
    }
    const UpdateScalars scalars = ScalarsForStep(layout_.optimizer, 0.1f, step_);
    ASSERT_TRUE(table_->CountLookups(keys_without, counts_without, step_).ok());
    ASSERT_TRUE(table_->ApplyGradients(keys, counts, gradients, scalars, step_).ok());
    table_->Forget(step_, oldest_kept);
    size_t next = 0;
    for (const auto& [key, count] : lookups) {
      const float* const gradient =
          count.with_gradient > 0 ? &gradients[next++ * layout_.dim] : nullptr;
      model_->Apply(key, count.with_gradient + count.without, gradient, scalars, step_);
    }
    model_->Forget(step_);
    model_->ForgetBefore(oldest_kept);
  }

  // A pull of any keys: it must change nothing.
  void ExpectSameWeights() {
    std::vector<Key> keys;
    for (Key key = random_() % 7; key < kKeys + 20; key += 1 + random_() % 9) keys.push_back(key);
    std::vector<float> weights(keys.size() * layout_.dim);
    ASSERT_TRUE(table_->GatherWeights(keys, reinterpret_cast<uint8_t*>(weights.data())).ok());
    for (size_t i = 0; i < keys.size(); ++i) {
      const std::vector<float> expected = model_->Weights(keys[i]);
      ASSERT_EQ(std::memcmp(&weights[i * layout_.dim], expected.data(), layout_.dim * 4), 0)
          << "key " << keys[i] << " after step " << step_.value();
    }
  }

  void ExpectSame(const EmbeddingTable& table) {
    const Rows rows = testing_tables::CopyOf(table, kNoStep);
    EXPECT_TRUE(rows == model_->rows()) << "after step " << step_.value();
    uint64_t with_row = 0;
    Digest digest;
    for (const auto& [key, row] : model_->rows()) {
      with_row += row.floats.empty() ? 0 : 1;
      digest.Add(row.floats.empty() ? CandidateDigest(layout_.id, key, row.count)
                                    : RowDigest(layout_.id, key, row.floats));
    }
    EXPECT_EQ(*table.ComputeDigest(), digest);
    EXPECT_EQ(table.num_rows(), with_row);
    EXPECT_EQ(table.num_candidates(), model_->rows().size() - with_row);
  }

  // As a server loads a checkpoint of `cut`, whose files were merged.
  std::unique_ptr<EmbeddingTable> Restore(const Rows& saved, Step cut, uint32_t oldest_kept) const {
    std::unique_ptr<EmbeddingTable> table = MakeTable(layout_);
    for (const auto& [key, row] : saved) {
      if (row.changed < oldest_kept) continue;
      if (row.floats.empty()) {
        table->LoadCandidates({key}, {row.count}, {row.changed});
      } else {
        EXPECT_TRUE(table->LoadRows({key}, {row.count}, {row.changed}, row.floats).ok());
      }
    }
    table->Forget(cut, oldest_kept);
    return table;
  }

  TableLayout layout_;
  std::mt19937_64 random_;
  std::unique_ptr<EmbeddingTable> table_;
  std::unique_ptr<Model> model_;
  Step step_ = kNoStep;
};

TEST_P(AdmissionTest, IsThatOfAPlainMap) {
  for (int i = 0; i < 150 && !HasFailure(); ++i) {
    RunStep();
    ExpectSameWeights();
    if (i % 10 == 0) ExpectSame(*table_);
  }
  ExpectSame(*table_);
  EXPECT_EQ(table_->gradients_dropped(), model_->dropped());
  EXPECT_EQ(table_->gradients_dropped() > 0, layout_.min_count > 1);
  EXPECT_EQ(table_->rows_created() - table_->rows_forgotten(), table_->num_rows());
  EXPECT_EQ(table_->rows_forgotten() > 0, layout_.unused_steps > 0 || layout_.max_rows > 0);
}

// A chain of snapshots, while later steps change what they hold; each restores the table as it was,
// which then goes on as if nothing had been.
TEST_P(AdmissionTest, SnapshotsRestoreIt) {
  Rows chain;
  Step base = kNoStep;
  for (int i = 0; i < 25 && !HasFailure(); ++i) {
    for (uint64_t steps = random_() % 8; steps > 0; --steps) RunStep();
    const bool whole = i % 6 == 0;
    if (whole) chain.clear();
    auto snapshot = table_->BeginSnapshot(step_, whole ? kNoStep : base);
    const std::unique_ptr<Model> at_cut = std::make_unique<Model>(*model_);
    const Step cut = step_;
    const uint32_t oldest_kept = table_->oldest_kept();
    for (uint64_t steps = random_() % 4; steps > 0; --steps) RunStep();
    for (auto& [key, row] : ReadAll(snapshot.get(), layout_)) chain[key] = row;
    snapshot.reset();
    base = cut;
    const std::unique_ptr<EmbeddingTable> restored = Restore(chain, cut, oldest_kept);
    EXPECT_TRUE(testing_tables::CopyOf(*restored, kNoStep) == at_cut->rows()) << cut.value();
    // It goes on from there.
    if (cut == step_ && random_() % 2 == 0) table_ = Restore(chain, cut, oldest_kept);
  }
  ExpectSame(*table_);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AdmissionTest,
    testing::Values(AdmissionCase{"NoRule", 0, 0, 0}, AdmissionCase{"Counted", 3, 0, 0},
                    AdmissionCase{"Forgetting", 0, 5, 0}, AdmissionCase{"Both", 2, 40, 0},
                    AdmissionCase{"CountedAndSpilled", 3, 0, 1},
                    AdmissionCase{"ForgettingAndSpilled", 0, 20, 1},
                    AdmissionCase{"BothAndSpilled", 2, 17, 1},
                    AdmissionCase{"Limited", 0, 0, 0, 300}, AdmissionCase{"AllRules", 2, 40, 0, 50},
                    AdmissionCase{"LimitedAndSpilled", 0, 0, 1, 300},
                    AdmissionCase{"AllRulesAndSpilled", 2, 17, 1, 50}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace thermocline
