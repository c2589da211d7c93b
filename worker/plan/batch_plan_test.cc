#include "worker/plan/batch_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "common/base/hash.h"
#include "gtest/gtest.h"
#include "tests/testing/test_seed.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {
namespace {

void AddBag(const std::vector<Key>& bag, FeatureLookups* feature) {
  if (feature->offsets.empty()) feature->offsets.push_back(0);
  for (Key key : bag) feature->keys.push_back(key);
  feature->offsets.push_back(static_cast<int32_t>(feature->keys.size()));
}

// Everything about a table, the slow and obvious way.
struct Expected {
  std::vector<Key> keys;
  std::map<Key, std::vector<int32_t>> bags;
  std::vector<int32_t> server_begin;
};

Expected PlanNaively(const Batch& batch, TableId id, const std::vector<int>& features,
                     const ClusterMap& cluster) {
  std::vector<std::vector<Key>> by_server(cluster.num_servers());
  const auto places = PlacesSideBySide(static_cast<int32_t>(batch.features.size()), /*leading=*/0);
  Expected expected;
  for (int sample = 0; sample < batch.size; ++sample) {
    for (int f : features) {
      const FeatureLookups& lookups = batch.features[f];
      for (int i = lookups.offsets[sample]; i < lookups.offsets[sample + 1]; ++i) {
        const Key key = lookups.keys[i];
        if (expected.bags.count(key) == 0) {
          by_server[cluster.ServerOfHash(KeyHash(TableSalt(id), key)).value()].push_back(key);
        }
        expected.bags[key].push_back(places[f].RowOf(sample));
      }
    }
  }
  for (const std::vector<Key>& keys : by_server) {
    expected.server_begin.push_back(static_cast<int32_t>(expected.keys.size()));
    expected.keys.insert(expected.keys.end(), keys.begin(), keys.end());
  }
  expected.server_begin.push_back(static_cast<int32_t>(expected.keys.size()));
  return expected;
}

void ExpectEqualsNaive(const Batch& batch, const std::vector<TableId>& tables,
                       const std::vector<int32_t>& feature_tables, const ClusterMap& cluster,
                       const BatchPlan& plan) {
  ASSERT_EQ(plan.tables.size(), tables.size());
  ASSERT_EQ(plan.features.size(), feature_tables.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    std::vector<int> features;
    for (size_t f = 0; f < feature_tables.size(); ++f) {
      if (feature_tables[f] == static_cast<int32_t>(t)) features.push_back(static_cast<int>(f));
    }
    const Expected expected = PlanNaively(batch, tables[t], features, cluster);
    const TablePlan& table = plan.tables[t];
    ASSERT_EQ(table.id, tables[t]);
    ASSERT_EQ(std::vector<Key>(table.keys.begin(), table.keys.end()), expected.keys);
    ASSERT_EQ(table.server_begin, expected.server_begin);
    ASSERT_EQ(table.counts.size(), expected.keys.size());
    ASSERT_EQ(table.segment_offsets.size(), expected.keys.size() + 1);
    ASSERT_EQ(table.segment_offsets[0], 0);
    for (size_t u = 0; u < expected.keys.size(); ++u) {
      const std::vector<int32_t>& bags = expected.bags.at(expected.keys[u]);
      ASSERT_EQ(table.counts[u], bags.size());
      ASSERT_EQ(std::vector<int32_t>(table.segment_bags.begin() + table.segment_offsets[u],
                                     table.segment_bags.begin() + table.segment_offsets[u + 1]),
                bags);
    }
    ASSERT_EQ(table.segment_bags.size(), table.segment_offsets[expected.keys.size()]);
    for (int f : features) {
      ASSERT_EQ(plan.features[f].table, static_cast<int32_t>(t));
      ASSERT_EQ(plan.features[f].row_indices.size(), batch.features[f].keys.size());
      for (size_t i = 0; i < batch.features[f].keys.size(); ++i) {
        ASSERT_EQ(table.keys[plan.features[f].row_indices[i]], batch.features[f].keys[i]);
      }
    }
  }
}

TEST(BatchPlan, SmallExample) {
  Batch batch;
  batch.size = 3;
  batch.features.resize(2);
  for (const std::vector<Key>& bag : {std::vector<Key>{7, 9}, {}, {7, 7}}) {
    AddBag(bag, &batch.features[0]);
  }
  for (Key key : {9, 5, 7}) AddBag({key}, &batch.features[1]);
  BatchPlanner planner({TableId(4)}, {0, 0}, ClusterMap(1), PlacesSideBySide(2, /*leading=*/1));
  BatchPlan plan;
  planner.Plan(batch, &plan);

  const TablePlan& table = plan.tables[0];
  EXPECT_EQ(std::vector<Key>(table.keys.begin(), table.keys.end()), (std::vector<Key>{7, 9, 5}));
  EXPECT_EQ(std::vector<uint32_t>(table.counts.begin(), table.counts.end()),
            (std::vector<uint32_t>{4, 2, 1}));
  EXPECT_EQ(std::vector<int32_t>(table.segment_offsets.begin(), table.segment_offsets.end()),
            (std::vector<int32_t>{0, 4, 6, 7}));
  // Key 7: sample 0 feature 0, sample 2 feature 0 twice, sample 2 feature 1. Key 9: sample 0, both.
  EXPECT_EQ(std::vector<int32_t>(table.segment_bags.begin(), table.segment_bags.end()),
            (std::vector<int32_t>{1, 7, 7, 8, 1, 2, 5}));
  EXPECT_FALSE(plan.features[0].single);
  EXPECT_TRUE(plan.features[1].single);
  EXPECT_TRUE(table.segment_weights.empty());

  // Weights go with their lookups, whose features come in turn; those without count 1.
  batch.features[0].weights = {0.5f, 2, 3, 4};
  planner.Plan(batch, &plan);
  EXPECT_EQ(std::vector<float>(table.segment_weights.begin(), table.segment_weights.end()),
            (std::vector<float>{0.5f, 3, 4, 1, 2, 1, 1}));
  EXPECT_EQ(table.segment_bags.size(), 7u);
  batch.features[1].weights = {5, 6, 7};
  planner.Plan(batch, &plan);
  EXPECT_EQ(std::vector<float>(table.segment_weights.begin(), table.segment_weights.end()),
            (std::vector<float>{0.5f, 3, 4, 7, 2, 5, 6}));
  EXPECT_FALSE(plan.features[1].single);
  EXPECT_EQ(table.KeysOf(ServerIndex(0)).size(), 3u);
}

// A list of items that are read step by step, in the table of the sample's item: each step is a
// bag.
TEST(BatchPlan, StepsAreBagsOfTheirOwn) {
  Batch batch;
  batch.size = 3;
  batch.features.resize(2);
  for (Key key : {7, 8, 7}) AddBag({key}, &batch.features[0]);
  for (const std::vector<Key>& bag : {std::vector<Key>{9, 7}, {}, {7}}) {
    AddBag(bag, &batch.features[1]);
  }
  const std::vector<VectorPlace> places = {{0, 1}, {100, 2, /*is_by_step=*/true}};
  BatchPlan plan;
  BatchPlanner shared({TableId(4)}, {0, 0}, ClusterMap(1), places);
  shared.Plan(batch, &plan);
  const auto bags_of = [&plan](int t, Key key) {
    const TablePlan& table = plan.tables[t];
    const size_t u = std::find(table.keys.begin(), table.keys.end(), key) - table.keys.begin();
    return std::vector<int32_t>(table.segment_bags.begin() + table.segment_offsets[u],
                                table.segment_bags.begin() + table.segment_offsets[u + 1]);
  };
  EXPECT_EQ(bags_of(0, 7), (std::vector<int32_t>{0, 102, 2, 104}));
  EXPECT_EQ(bags_of(0, 8), (std::vector<int32_t>{1}));
  EXPECT_EQ(bags_of(0, 9), (std::vector<int32_t>{100}));
  EXPECT_TRUE(plan.features[1].single);  // No offsets are needed.

  // Another sequence's steps lie behind them, at a row that depends on how many there are.
  batch.features.push_back(batch.features[1]);
  const std::vector<VectorPlace> behind = {places[0], places[1], {50, 3, true, /*behind=*/1}};
  BatchPlanner two({TableId(4)}, {0, 0, 0}, ClusterMap(1), behind);
  two.Plan(batch, &plan);
  const int32_t first = 50 + kStepRows * 2;
  EXPECT_EQ(bags_of(0, 9), (std::vector<int32_t>{100, first}));
  EXPECT_EQ(bags_of(0, 7), (std::vector<int32_t>{0, 102, first + 3, 2, 104, first + 6}));
  batch.features.pop_back();

  for (const uint32_t servers : {1, 3}) {  // A table of their own.
    BatchPlanner apart({TableId(4), TableId(5)}, {0, 1}, ClusterMap(servers), places);
    apart.Plan(batch, &plan);
    EXPECT_EQ(bags_of(1, 9), (std::vector<int32_t>{100}));
    EXPECT_EQ(bags_of(1, 7), (std::vector<int32_t>{102, 104}));
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(plan.tables[1].keys[plan.features[1].row_indices[i]], batch.features[1].keys[i]);
    }
  }
}

TEST(BatchPlan, EmptyBatchHasNoKeys) {
  Batch batch;
  batch.features.resize(1);
  batch.features[0].offsets.push_back(0);
  BatchPlanner planner({TableId(0)}, {0}, ClusterMap(3));
  BatchPlan plan;
  planner.Plan(batch, &plan);
  EXPECT_EQ(plan.tables[0].num_unique(), 0);
  EXPECT_EQ(plan.tables[0].server_begin, (std::vector<int32_t>{0, 0, 0, 0}));
  EXPECT_EQ(plan.tables[0].segment_offsets.size(), 1u);
  EXPECT_EQ(plan.tables[0].segment_offsets[0], 0);
}

// As many singles as samples, but not one for each: offsets are needed.
TEST(BatchPlan, AsManyLookupsAsSamplesIsNotSingle) {
  Batch batch;
  batch.size = 2;
  batch.features.resize(1);
  AddBag({1, 2}, &batch.features[0]);
  AddBag({}, &batch.features[0]);
  BatchPlanner planner({TableId(0)}, {0}, ClusterMap(1));
  BatchPlan plan;
  planner.Plan(batch, &plan);
  EXPECT_FALSE(plan.features[0].single);
}

// One planner and one plan over batches of changing sizes and shapes, against the naive plan.
TEST(BatchPlan, RandomBatchesEqualNaivePlan) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 12; ++round) {
    const uint32_t servers = 1 + random() % 4;
    const int num_tables = 1 + random() % 4;
    const int num_features = num_tables + random() % 3;
    std::vector<TableId> tables;
    for (int t = 0; t < num_tables; ++t)
      tables.push_back(TableId(static_cast<uint32_t>(2 * t + 1)));
    std::vector<int32_t> feature_tables;
    for (int f = 0; f < num_features; ++f) {
      feature_tables.push_back(f < num_tables ? f : random() % num_tables);
    }
    const ClusterMap cluster(servers);
    BatchPlanner planner(tables, feature_tables, cluster);
    BatchPlan plan;
    for (int step = 0; step < 6; ++step) {
      Batch batch;
      batch.size = random() % 400;
      batch.features.resize(num_features);
      for (FeatureLookups& feature : batch.features) {
        feature.offsets.push_back(0);
        const uint64_t key_range = uint64_t{1} << (random() % 12);
        const int max_bag = random() % 2 == 0 ? 1 : 4;
        const bool wide_keys = random() % 2 == 0;
        for (int sample = 0; sample < batch.size; ++sample) {
          std::vector<Key> bag(max_bag == 1 ? 1 : random() % (max_bag + 1));
          for (Key& key : bag) key = (random() % key_range) * (wide_keys ? 0x9E3779B97F4A7C15 : 1);
          AddBag(bag, &feature);
        }
      }
      planner.Plan(batch, &plan);
      ExpectEqualsNaive(batch, tables, feature_tables, cluster, plan);
      if (HasFatalFailure()) return;
    }
  }
}

// Tables planned by different planners, in any order, give the same plan.
TEST(BatchPlan, TablesMayBePlannedApart) {
  std::mt19937_64 random(TestSeed());
  Batch batch;
  batch.size = 100;
  batch.features.resize(3);
  for (FeatureLookups& feature : batch.features) {
    for (int sample = 0; sample < batch.size; ++sample) AddBag({random() % 50}, &feature);
  }
  const std::vector<TableId> tables = {TableId(0), TableId(1)};
  const std::vector<int32_t> feature_tables = {0, 1, 1};
  const ClusterMap cluster(2);
  BatchPlanner first(tables, feature_tables, cluster);
  BatchPlanner second(tables, feature_tables, cluster);
  BatchPlan plan;
  first.Prepare(batch, &plan);
  first.PlanTable(batch, 1, &plan);
  second.PlanTable(batch, 0, &plan);
  ExpectEqualsNaive(batch, tables, feature_tables, cluster, plan);
}

}  // namespace
}  // namespace thermocline
