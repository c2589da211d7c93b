#include "common/job/resolved_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/job/job_loader.h"

namespace thermocline {
namespace {

using ::testing::ElementsAre;

Job Parse(absl::string_view text) {
  auto job = ParseJob(text, "job.textproto", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return *job;
}

constexpr char kKaggle[] = R"(name: "kaggle"
data { format: CRITEO_TSV path: "log.tsv" }
dlrm { bottom: [512, 256, 64] top: [512, 256] }
train { batch_size: 16 learning_rate { base: 0.1 } }
)";

TEST(ResolveTables, DenseTensorsFollowTheSparseTables) {
  const JobTables tables = ResolveTables(Parse(kKaggle));
  ASSERT_EQ(tables.sparse.size(), 26u);
  ASSERT_EQ(tables.dense.size(), 14u);
  std::vector<std::string> names;
  for (const DenseTable& tensor : tables.dense) names.push_back(tensor.layout.name);
  EXPECT_THAT(names, ElementsAre("bottom.0.weight", "bottom.0.bias", "bottom.1.weight",
                                 "bottom.1.bias", "bottom.2.weight", "bottom.2.bias",
                                 "bottom.3.weight", "bottom.3.bias", "top.0.weight", "top.0.bias",
                                 "top.1.weight", "top.1.bias", "top.2.weight", "top.2.bias"));
  const std::vector<TableLayout> all = tables.AllLayouts();
  ASSERT_EQ(all.size(), 40u);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i].id, TableId(i)) << all[i].name;

  const DenseTable& weight = tables.dense[0];
  EXPECT_EQ(weight.rows, 13);
  EXPECT_EQ(weight.cols, 512);
  EXPECT_EQ(weight.num_blocks(), 26);
  EXPECT_EQ(weight.layout.dim, kDenseBlockFloats);
  EXPECT_EQ(weight.layout.role, TableRole::kDense);
  EXPECT_FLOAT_EQ(weight.layout.init_scale, 1 / std::sqrt(13.0f));
  const DenseTable& bias = tables.dense[3];  // bottom.1.bias: fan_in 512
  EXPECT_EQ(bias.rows, 1);
  EXPECT_EQ(bias.cols, 256);
  EXPECT_FLOAT_EQ(bias.layout.init_scale, 1 / std::sqrt(512.0f));
  const DenseTable& last = tables.dense[13];
  EXPECT_EQ(last.num_floats(), 1);
  EXPECT_EQ(last.num_blocks(), 1);  // padded
}

TEST(ResolveTables, TheStateOfAScriptFollowsTheSparseTables) {
  EXPECT_FALSE(ResolveTables(Parse(kKaggle)).script_state.has_value());
  const JobTables tables = ResolveTables(Parse(R"(name: "own"
data { format: CRITEO_TSV path: "log.tsv" num_categorical: 2 }
worker { command: ["python3", "train.py"] }
train { batch_size: 16 learning_rate { base: 0.1 } }
)"));
  EXPECT_THAT(tables.dense, testing::IsEmpty());
  ASSERT_TRUE(tables.script_state.has_value());
  const TableLayout& state = *tables.script_state;
  EXPECT_EQ(state.id, TableId(2));
  EXPECT_EQ(state.name, "script.state");
  EXPECT_EQ(state.dim, kDenseBlockFloats);
  EXPECT_EQ(state.state_floats(), 0);
  EXPECT_EQ(state.role, TableRole::kDense);
  const std::vector<TableLayout> all = tables.AllLayouts();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[2].name, "script.state");
}

TEST(ResolveTables, SharedTablesAreOneInTheOrderOfTheFeatures) {
  const JobTables tables = ResolveTables(Parse(R"(name: "shared"
data { format: DLRM_NPY path: "d" num_dense: 4 }
default_table { dim: 8 optimizer { sgd {} } }
table { name: "users" settings { optimizer { adam {} } init_scale: 0.5 } }
feature { name: "place" columns: 3 pooling: MEAN }
feature { name: "viewer" table: "users" }
feature { name: "author" table: "users" }
dense_optimizer { row_wise_adagrad {} }
dlrm {}
train { batch_size: 16 learning_rate { base: 0.1 } }
)"));
  ASSERT_EQ(tables.sparse.size(), 2u);
  EXPECT_EQ(tables.sparse[0].name, "place");
  EXPECT_EQ(tables.sparse[0].optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(tables.sparse[1].name, "users");
  EXPECT_EQ(tables.sparse[1].optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(tables.sparse[1].init_scale, 0.5f);
  EXPECT_EQ(tables.sparse[1].dim, 8);
  ASSERT_EQ(tables.features.size(), 3u);
  EXPECT_EQ(tables.features[0].columns, 3);
  EXPECT_EQ(tables.features[0].pooling, MEAN);
  EXPECT_EQ(tables.features[1].table_index, 1);
  EXPECT_EQ(tables.features[2].table_index, 1);
  // bottom 4-8, top (8 + 6)-1
  ASSERT_EQ(tables.dense.size(), 4u);
  EXPECT_EQ(tables.dense[2].rows, 14);
  EXPECT_EQ(tables.dense[2].cols, 1);
  EXPECT_EQ(tables.dense[0].layout.optimizer.kind, OptimizerKind::kRowWiseAdagrad);
}

// Pooled: user, item and genres. The years are read by step alone, and so is the year that follows
// them.
TEST(ResolveTables, StepsFollowTheFeaturesThatAreReadPooled) {
  const Job job = Parse(R"(name: "steps"
data { train { path: "x" csv { header: true } } label { column: "y" } }
feature { column: "hist_year" table: "year" sequence { max_length: 5 } }
feature { column: "user" categorical {} }
feature { column: "genres" pooling: MEAN sequence { max_length: 5 } }
feature { column: "year" categorical {} }
feature { column: "item" table: "item" categorical {} }
feature { column: "hist_item" table: "item" sequence { max_length: 5 } }
feature { column: "hist_shop" sequence { max_length: 5 } }
sequence { name: "past" of: ["hist_item", "hist_year"] then: ["item", "year"] }
sequence { name: "more" of: ["genres", "hist_shop"] }
layer { name: "own" input: ["item", "user"] concat {} }
layer { name: "a" input: "past" attention { query: "own" } }
layer { name: "b" input: "more" pool {} }
layer { name: "top" input: ["a", "b", "genres"] mlp { units: 4 } }
task { input: "top" }
train { batch_size: 16 learning_rate { base: 0.1 } }
)");
  const JobTables tables = ResolveTables(job);
  std::vector<std::string> names, of_tables;
  std::vector<std::vector<int>> numbers;
  for (const FeatureSpec& feature : tables.features) {
    names.push_back(feature.name);
    of_tables.push_back(tables.sparse[feature.table_index].name);
    numbers.push_back({feature.source, feature.sequence, feature.then});
  }
  EXPECT_THAT(names, ElementsAre("user", "genres", "item", "past.hist_item", "past.hist_year",
                                 "more.genres", "more.hist_shop"));
  EXPECT_THAT(of_tables,
              ElementsAre("user", "genres", "item", "item", "year", "genres", "hist_shop"));
  EXPECT_THAT(numbers,
              ElementsAre(ElementsAre(1, -1, -1), ElementsAre(2, -1, -1), ElementsAre(4, -1, -1),
                          ElementsAre(5, 0, 4), ElementsAre(0, 0, 3), ElementsAre(2, 1, -1),
                          ElementsAre(6, 1, -1)));
  EXPECT_EQ(tables.features[1].pooling, MEAN);
  EXPECT_EQ(tables.features[5].pooling, SUM);  // Each step is one lookup.
  std::vector<std::string> ids;
  for (const TableLayout& table : tables.sparse) ids.push_back(table.name);
  EXPECT_THAT(ids, ElementsAre("user", "genres", "item", "year", "hist_shop"));
}

void ExpectInitial(const TableLayout& layout, InitialDistribution distribution, float scale) {
  EXPECT_EQ(layout.distribution, distribution) << layout.name;
  EXPECT_FLOAT_EQ(layout.init_scale, scale) << layout.name;
}

// One table takes the default's initializer, one has its own, and one a scale of its own.
TEST(ResolveTables, InitializersAreTheTablesOwnOrTheDefault) {
  const char kJob[] = R"(name: "initializers"
data { format: DLRM_NPY path: "d" num_dense: 4 num_categorical: 3 }
default_table { dim: 8 initializer { truncated_normal { std: 0.25 } } }
table { name: "C2" settings { initializer { by_rows { rows: 16 } } } }
table { name: "C3" settings { init_scale: 0.5 } }
dlrm {}
train { batch_size: 16 learning_rate { base: 0.1 } }
)";
  const Job job = Parse(kJob);
  const JobTables tables = ResolveTables(job);
  ASSERT_EQ(tables.sparse.size(), 3u);
  ExpectInitial(tables.sparse[0], InitialDistribution::kTruncatedNormal, 0.25f);
  ExpectInitial(tables.sparse[1], InitialDistribution::kUniform, 0.25f);
  ExpectInitial(tables.sparse[2], InitialDistribution::kUniform, 0.5f);
  // What was resolved, and is read again, is the same job.
  const Job again = Parse(JobToText(job));
  EXPECT_EQ(JobToText(again), JobToText(job));
}

TEST(ResolveTables, AdmissionAndEvictionAreTheTablesOwnTheFeaturesOrTheDefault) {
  const char kJob[] = R"(name: "admission"
data {
  train { path: "d" csv { header: true } }
  label { column: "y" }
}
default_table { dim: 8 min_count: 5 eviction { unused_steps: 100 } }
table { name: "own" settings { min_count: 1 eviction { unused_steps: 7 max_rows: 9 } } }
table { name: "silent" }
feature { name: "own" categorical {} }
feature { name: "a" table: "silent" categorical { min_count: 3 } }
feature { name: "b" table: "silent" categorical { min_count: 3 } }
feature { name: "c" categorical { min_count: 4 } }
feature { name: "d" categorical {} }
dlrm {}
train { batch_size: 16 learning_rate { base: 0.1 } }
)";
  const Job job = Parse(kJob);
  const JobTables tables = ResolveTables(job);
  ASSERT_EQ(tables.sparse.size(), 4u);
  EXPECT_EQ(tables.sparse[0].min_count, 0u);  // 1: at once.
  EXPECT_EQ(tables.sparse[0].unused_steps, 7u);
  EXPECT_EQ(tables.sparse[0].max_rows, 9u);
  EXPECT_EQ(tables.sparse[1].name, "silent");
  EXPECT_EQ(tables.sparse[1].min_count, 3u);
  EXPECT_EQ(tables.sparse[1].unused_steps, 100u);
  EXPECT_EQ(tables.sparse[2].min_count, 4u);
  EXPECT_EQ(tables.sparse[3].min_count, 5u);
  EXPECT_EQ(JobToText(Parse(JobToText(job))), JobToText(job));
}

TEST(ResolveTables, APlacementIsTheTablesOwnOrTheDefault) {
  const Job job = Parse(R"(name: "placements"
data {
  train { path: "d" csv { header: true } }
  label { column: "y" }
}
default_table { placement: REMOTE }
table { name: "own" settings { placement: DEVICE } }
table { name: "cached" settings { placement: CACHED } }
feature { name: "own" categorical {} }
feature { name: "cached" categorical {} }
feature { name: "silent" categorical {} }
dlrm {}
cache { budget: "1MiB" }
train { batch_size: 16 learning_rate { base: 0.1 } }
)");
  const JobTables tables = ResolveTables(job);
  EXPECT_EQ(tables.placements,
            (std::vector<TableSettings::Placement>{TableSettings::DEVICE, TableSettings::CACHED,
                                                   TableSettings::REMOTE}));
  EXPECT_EQ(tables.PlacementOf(0), TableSettings::DEVICE);
  EXPECT_EQ(tables.PlacementOf(3), TableSettings::CACHED);
  EXPECT_EQ(JobToText(Parse(JobToText(job))), JobToText(job));
}

TEST(ResolveTables, LayersBeginAsTheJobSays) {
  const char kJob[] = R"(name: "layers"
data { format: DLRM_NPY path: "d" num_dense: 6 num_categorical: 1 }
default_table { dim: 18 }
train { batch_size: 16 learning_rate { base: 0.1 } }
)";
  const auto bottom = [&](const std::string& initializer) {  // Weight and bias, from 6 to 18.
    return ResolveTables(Parse(absl::StrCat(kJob, "dlrm { ", initializer, " }"))).dense;
  };
  std::vector<DenseTable> dense = bottom("");
  ExpectInitial(dense[0].layout, InitialDistribution::kUniform, 1 / std::sqrt(6.0f));
  ExpectInitial(dense[1].layout, InitialDistribution::kUniform, 1 / std::sqrt(6.0f));
  dense = bottom("initializer { glorot_uniform {} }");
  ExpectInitial(dense[0].layout, InitialDistribution::kUniform, 0.5f);
  ExpectInitial(dense[1].layout, InitialDistribution::kConstant, 0);
  dense = bottom("initializer { reference {} }");
  ExpectInitial(dense[0].layout, InitialDistribution::kNormal, std::sqrt(2 / 24.0f));
  ExpectInitial(dense[1].layout, InitialDistribution::kNormal, 1 / std::sqrt(18.0f));
}

TEST(DensePushBytes, RowsOnceOrTheGradientsOfAllWorkers) {
  Job job = Parse(kKaggle);
  uint64_t blocks = 0;
  for (const DenseTable& tensor : ResolveTables(job).dense) blocks += tensor.num_blocks();
  // Key, lookups, weights; in rows Adagrad's state, too.
  EXPECT_EQ(DensePushBytes(job), blocks * (12 + 2 * 256 * 4));
  job.mutable_cluster()->set_workers(3);
  EXPECT_EQ(DensePushBytes(job), blocks * (12 + 2 * 256 * 4));
  job.mutable_train()->set_staleness_steps(1);
  EXPECT_EQ(DensePushBytes(job), 3 * blocks * (12 + 256 * 4));
  job.mutable_cluster()->set_servers(2);  // One has a little more than half.
  EXPECT_GE(DensePushBytes(job), 3 * blocks * (12 + 256 * 4) / 2);
  EXPECT_LT(DensePushBytes(job), 2 * blocks * (12 + 256 * 4));
}

TEST(ResolveTables, DenseOrSparseColumnsAlone) {
  const auto job_of = [](int num_dense, int num_categorical) {
    return Parse(absl::StrCat(R"(name: "j" data { format: DLRM_NPY path: "d" num_dense: )",
                              num_dense, " num_categorical: ", num_categorical, R"( }
default_table { dim: 8 }
dlrm { top: 4 }
train { batch_size: 16 learning_rate { base: 0.1 } })"));
  };
  const Job sparse = job_of(0, 3);
  EXPECT_EQ(InputsOf(sparse).numeric, 0);
  ASSERT_EQ(InputsOf(sparse).num_vectors(), 3);
  EXPECT_EQ(InputsOf(sparse).features[2].dim, 8);
  EXPECT_EQ(ResolveTables(sparse).sparse.size(), 3u);
  EXPECT_EQ(ResolveTables(sparse).dense.size(), 4u);
  const Job dense = job_of(5, 0);
  EXPECT_EQ(InputsOf(dense).numeric, 5);
  EXPECT_EQ(InputsOf(dense).num_vectors(), 0);
  EXPECT_EQ(InputsOf(dense).default_dim, 8);
  EXPECT_TRUE(ResolveTables(dense).sparse.empty());
  EXPECT_EQ(ResolveTables(dense).dense.size(), 6u);
}

}  // namespace
}  // namespace thermocline
