#include "worker/rows/hot_rows.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/hash.h"
#include "common/base/thread_pool.h"
#include "gtest/gtest.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/step_context.h"

namespace thermocline {
namespace {

class HotRowsTest : public testing::Test {
 protected:
  HotRowsTest() {
    for (const int t : {0, 1, 2}) {
      TableLayout& table = tables_.sparse.emplace_back();
      table.id = TableId(t);
      table.name = std::string(1, static_cast<char>('a' + t));
      table.dim = t == 1 ? 8 : 3;
      table.optimizer.kind = OptimizerKind::kSgd;
    }
    hot_set_.tables = {{2, 5, 900}, {7}, {1, 2}};
  }

  absl::StatusOr<std::unique_ptr<HotRows>> Make(uint64_t budget_bytes) const {
    return HotRows::Make(tables_, hot_set_, budget_bytes, "fae.budget");
  }

  JobTables tables_;  // Tables a and c are of one group.
  HotSet hot_set_;
};

TEST_F(HotRowsTest, EveryHotKeyHasARowOfItsGroupsSlab) {
  const auto rows = Make(112);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const CacheLayout& layout = (*rows)->layout();
  ASSERT_EQ(layout.groups.size(), 2u);
  EXPECT_EQ(layout.groups[0].capacity, 5);
  EXPECT_EQ(layout.groups[0].staging_rows, 0);
  EXPECT_EQ(layout.groups[1].capacity, 1);
  EXPECT_EQ(layout.capacity_bytes(), 5 * 16u + 32u);
  EXPECT_EQ((*rows)->first_row(0), 0);
  EXPECT_EQ((*rows)->first_row(2), 3);
  EXPECT_EQ((*rows)->Find(0, 900), 2);
  EXPECT_EQ((*rows)->Find(1, 7), 0);
  EXPECT_EQ((*rows)->Find(2, 2), 4);
  EXPECT_EQ((*rows)->Find(2, 5), kNoRow);
  std::vector<int32_t> found(3);
  EXPECT_EQ((*rows)->FindAll(0, {5, 2, 900}, absl::MakeSpan(found)), 3u);
  EXPECT_EQ(found, std::vector<int32_t>({1, 0, 2}));
  EXPECT_EQ((*rows)->FindAll(0, {6, 5, 7}, absl::MakeSpan(found)), 1u);
  EXPECT_EQ(found, std::vector<int32_t>({kNoRow, 1, kNoRow}));
}

TEST_F(HotRowsTest, ManyKeysAreFoundAndNoOthers) {
  for (Key key = 0; key < 10'000; ++key) hot_set_.tables[1].push_back(100 + 3 * key);
  const auto rows = Make(uint64_t{1} << 20);
  ASSERT_TRUE(rows.ok()) << rows.status();
  for (Key key = 0; key < 30'000; ++key) {
    const int32_t expected = key % 3 == 0 ? static_cast<int32_t>(1 + key / 3) : kNoRow;
    ASSERT_EQ((*rows)->Find(1, 100 + key), expected) << key;
  }
}

TEST_F(HotRowsTest, ABudgetThatIsTooSmallSaysWhatIsNeeded) {
  EXPECT_EQ(Make(111).status(),
            absl::InvalidArgumentError("fae.budget is 111 bytes; the 6 hot rows take 112: 5 rows "
                                       "of 16 bytes for 2 tables like 'a', 1 rows of 32 bytes for "
                                       "1 table like 'b'"));
}

TEST_F(HotRowsTest, TablesWhoseRowsTheServersChooseHaveNoHotRows) {
  tables_.sparse[2].min_count = 2;
  const absl::Status refused = Make(1000).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
  hot_set_.tables[2].clear();
  EXPECT_TRUE(Make(1000).ok());
}

TEST_F(HotRowsTest, AWriteBackMustFitIntoEveryServersRoom) {
  const auto rows = Make(1000);
  ASSERT_TRUE(rows.ok()) << rows.status();
  const uint64_t all_bytes = 5 * (8 + 4 + 12) + (8 + 4 + 32);
  EXPECT_TRUE((*rows)->CheckWriteBack(ClusterMap(1), all_bytes + 10, 10, "fae.budget").ok());
  EXPECT_EQ((*rows)->CheckWriteBack(ClusterMap(1), all_bytes + 9, 10, "fae.budget"),
            absl::InvalidArgumentError(
                "fae.budget: of the hot rows, server 0 gets 164 bytes when they are written back, "
                "and up to 10 of dense parameters; cluster.max_pending_size is 173. Raise it, use "
                "more servers, or give hot rows a smaller budget"));
  EXPECT_FALSE((*rows)->CheckWriteBack(ClusterMap(1), 5, 10, "fae.budget").ok());
  EXPECT_TRUE((*rows)->CheckWriteBack(ClusterMap(5), all_bytes, 10, "fae.budget").ok());
}

class HotPlannerTest : public HotRowsTest {
 protected:
  absl::Status Plan(const std::vector<std::vector<Key>>& keys_of_tables) {
    rows_ = *Make(1000);
    RowSourceOptions options;
    options.held = HeldSet::kHot;
    options.tables = tables_.sparse;
    options.fixed_rows = rows_.get();
    options.layout = rows_->layout();
    planner_ = MakeRowPlanner(options, /*exchange=*/nullptr, &threads_);
    context_.batch = std::make_unique<Batch>();
    context_.batch->step = Step(12);
    BatchPlanner planner({TableId(0), TableId(1), TableId(2)}, {0, 1, 2}, ClusterMap(1));
    for (const std::vector<Key>& keys : keys_of_tables) {
      FeatureLookups& lookups = context_.batch->features.emplace_back();
      lookups.keys.assign(keys.begin(), keys.end());
      lookups.offsets = {0, static_cast<int32_t>(keys.size())};
    }
    context_.batch->size = 1;
    planner.Plan(*context_.batch, &context_.plan);
    StepTasks tasks;
    bool goes_on = false;
    EXPECT_TRUE(planner_->Admit(true, &context_, &tasks, &goes_on).ok());
    EXPECT_TRUE(goes_on);
    EXPECT_TRUE(planner_->Admit(false, nullptr, &tasks, &goes_on).ok());
    EXPECT_FALSE(goes_on);
    return planner_->Plan(&context_, &tasks);
  }

  ThreadPool threads_{2};
  std::unique_ptr<HotRows> rows_;
  std::unique_ptr<RowPlanner> planner_;
  StepContext context_;
};

TEST_F(HotPlannerTest, MapsLookupsToRowsOfTheSlab) {
  ASSERT_TRUE(Plan({{900, 2, 900}, {}, {2}}).ok());
  const std::vector<FeaturePlan>& features = context_.plan.features;
  EXPECT_EQ(features[0].row_indices, UninitializedVector<int32_t>({2, 0, 2}));
  EXPECT_EQ(features[2].row_indices, UninitializedVector<int32_t>({4}));
  const CachePlan& plan = context_.row_plan.cache;
  EXPECT_EQ(plan.tables[0].rows.size(), 2u);
  EXPECT_EQ(plan.counts.hits, 3);
  EXPECT_EQ(plan.counts.loaded + plan.counts.bypassed + plan.counts.evicted, 0);
  EXPECT_EQ(plan.counts.rows_held, 6);
}

TEST_F(HotPlannerTest, AKeyThatIsNotHotIsAnError) {
  EXPECT_EQ(Plan({{2}, {7}, {1, 5}}),
            absl::DataLossError("step 12: table 'c', key 5 is in a hot batch, but it is not among "
                                "the hot rows that go with it"));
}

}  // namespace
}  // namespace thermocline
