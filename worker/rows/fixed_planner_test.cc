#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/row_planner.h"
#include "worker/rows/testing/row_source_trace.h"

namespace thermocline {
namespace {

constexpr Key kStaticKeySpace = 20;

class StaticPlannerTest : public testing::Test {
 protected:
  void MakeStage(Random* random, bool servers_forget = false) {
    const int num_tables = random->Draw(1, 4);
    tables_ = JobTables();
    hot_set_ = HotSet();
    for (int t = 0; t < num_tables; ++t) {
      TableLayout& table = tables_.sparse.emplace_back();
      table.id = TableId(static_cast<uint32_t>(3 * t + 1));
      table.name = absl::StrCat("C", t);
      table.dim = random->OneIn(2) ? 4 : 8;
      std::vector<Key>& hot = hot_set_.tables.emplace_back();
      // Servers forget rows of the last table.
      if (servers_forget && t + 1 == num_tables) table.unused_steps = 5;
      for (Key key = 0; key < kStaticKeySpace && table.unused_steps == 0; ++key) {
        if (random->OneIn(3)) hot.push_back(key);
      }
    }
    hot_ = *HotRows::Make(tables_, hot_set_, 1 << 20, "cache.budget");
    options_ = RowSourceOptions();
    options_.num_servers = random->Draw(1, 3);
    options_.tables = tables_.sparse;
    options_.start_step = Step(random->Draw(0, 9));
    options_.layout = hot_->layout();
    options_.held = HeldSet::kStatic;
    options_.fixed_rows = hot_.get();
    options_.window_steps = random->Draw(1, 6);
    planner_ = MakeRowPlanner(options_, /*exchange=*/nullptr, &threads_);
    next_step_ = options_.start_step;
  }

  void PlanStep(Random* random) {
    std::vector<TableId> ids;
    std::vector<int32_t> feature_tables;
    for (const TableLayout& table : tables_.sparse) {
      feature_tables.push_back(static_cast<int32_t>(ids.size()));
      ids.push_back(table.id);
    }
    context_.batch = std::make_unique<Batch>();
    context_.batch->step = next_step_;
    next_step_ = next_step_ + 1;
    context_.batch->size = 1;
    for (size_t f = 0; f < ids.size(); ++f) {
      FeatureLookups& lookups = context_.batch->features.emplace_back();
      for (int i = random->Draw(0, 6); i > 0; --i) {
        lookups.keys.push_back(random->Draw(0, kStaticKeySpace - 1));
      }
      lookups.offsets = {0, static_cast<int32_t>(lookups.keys.size())};
    }
    BatchPlanner(ids, feature_tables, ClusterMap(options_.num_servers))
        .Plan(*context_.batch, &context_.plan);
    StepTasks tasks;
    bool goes_on = false;
    ASSERT_TRUE(planner_->Admit(true, &context_, &tasks, &goes_on).ok());
    ASSERT_TRUE(goes_on);
    const absl::Status planned = planner_->Plan(&context_, &tasks);
    ASSERT_TRUE(planned.ok()) << planned;
  }

  bool IsHot(size_t t, Key key) const {
    return std::binary_search(hot_set_.tables[t].begin(), hot_set_.tables[t].end(), key);
  }

  void CheckTable(size_t t, std::set<std::pair<int, int32_t>>* staged) {
    const TablePlan& keys = context_.plan.tables[t];
    const TableCachePlan& plan = context_.row_plan.cache.tables[t];
    EXPECT_EQ(plan.loaded.size() + plan.evicted.size(), 0);
    int32_t bypassed = 0;
    for (int32_t u = 0; u < keys.num_unique(); ++u) {
      if (IsHot(t, keys.keys[u])) {
        ASSERT_EQ(plan.rows[u], hot_->Find(t, keys.keys[u]));
        continue;
      }
      ASSERT_LT(bypassed, plan.bypassed.size());
      EXPECT_EQ(plan.bypassed.keys[bypassed], keys.keys[u]);
      EXPECT_EQ(plan.bypassed.rows[bypassed], plan.rows[u]);
      EXPECT_EQ(plan.bypassed_positions[bypassed], u);
      EXPECT_TRUE(staged->emplace(tables_.sparse[t].dim, plan.rows[u]).second);
      ++bypassed;
    }
    ASSERT_EQ(bypassed, plan.bypassed.size());
    for (uint32_t server = 0; server < options_.num_servers; ++server) {
      for (int32_t i = plan.bypassed.server_begin[server];
           i < plan.bypassed.server_begin[server + 1]; ++i) {
        const uint64_t hash = KeyHash(TableSalt(keys.id), plan.bypassed.keys[i]);
        EXPECT_EQ(ClusterMap(options_.num_servers).ServerOfHash(hash).value(), server);
      }
    }
  }

  void CheckPlan() {
    // Groups are of one dim here, unless servers forget rows.
    std::set<std::pair<int, int32_t>> staged;
    int64_t unique = 0;
    for (size_t t = 0; t < tables_.sparse.size(); ++t) {
      CheckTable(t, &staged);
      unique += context_.plan.tables[t].num_unique();
      const FeaturePlan& feature = context_.plan.features[t];
      for (size_t i = 0; i < feature.row_indices.size(); ++i) {
        const auto& keys = context_.plan.tables[t].keys;
        const auto u = std::find(keys.begin(), keys.end(), context_.batch->features[t].keys[i]);
        EXPECT_EQ(feature.row_indices[i], context_.row_plan.cache.tables[t].rows[u - keys.begin()]);
      }
    }
    const CacheCounts& counts = context_.row_plan.cache.counts;
    EXPECT_EQ(counts.bypassed, static_cast<int64_t>(staged.size()));
    EXPECT_EQ(counts.hits, unique - counts.bypassed);
    EXPECT_EQ(counts.rows_held, hot_set_.num_rows());
  }

  // Each bypassed key's last push is in the rows that the step pulls; and no wait is for a step
  // that neither is one nor lies before the window.
  void CheckPushedThrough() {
    const Step step = context_.step(), through = context_.row_plan.cache.pushed_through;
    const Step before_window = step - options_.window_steps - 1;
    Step last = before_window >= options_.start_step ? before_window : kNoStep;
    for (size_t t = 0; t < tables_.sparse.size(); ++t) {
      for (const Key key : context_.row_plan.cache.tables[t].bypassed.keys) {
        const auto pushed = pushed_.find({t, key});
        if (pushed != pushed_.end()) last = std::max(last, pushed->second);
        pushed_[{t, key}] = step;
      }
    }
    EXPECT_EQ(through, last) << "step " << step;
  }

  JobTables tables_;
  HotSet hot_set_;
  std::unique_ptr<HotRows> hot_;
  RowSourceOptions options_;
  ThreadPool threads_{2};
  std::unique_ptr<RowPlanner> planner_;
  StepContext context_;
  Step next_step_;
  std::map<std::pair<size_t, Key>, Step> pushed_;
};

TEST_F(StaticPlannerTest, HotKeysAreHitsAndOthersAreBypassed) {
  const uint64_t seed = TestSeed();
  for (int i = 0; i < RandomRuns(60) && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("THERMOCLINE_TEST_SEED=", seed + i));
    Random random(seed + i);
    MakeStage(&random);
    pushed_.clear();
    for (int step = 0; step < 20 && !HasFailure(); ++step) {
      PlanStep(&random);
      CheckPlan();
      CheckPushedThrough();
    }
  }
}

TEST_F(StaticPlannerTest, WhereServersForgetRowsEveryPullWaitsForThePushBefore) {
  Random random(TestSeed());
  MakeStage(&random, /*servers_forget=*/true);
  PlanStep(&random);
  EXPECT_EQ(context_.row_plan.cache.pushed_through, kNoStep);
  PlanStep(&random);
  EXPECT_EQ(context_.row_plan.cache.pushed_through, options_.start_step);
  EXPECT_TRUE(hot_set_.tables.back().empty());
}

}  // namespace
}  // namespace thermocline
