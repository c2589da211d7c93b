#include "tests/simulation/sim_model.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/job/job_loader.h"
#include "kernels/cpu/cpu_device.h"
#include "worker/train/run_options.h"

namespace thermocline {
namespace {

constexpr int kMaxSamples = 3;
constexpr int kMaxSteps = 4;

constexpr char kJob[] = R"(
    name: "simulated" data { train { path: "x" csv { header: true } } label { column: "label" } }
    feature { column: "history" table: "T0" categorical {} sequence { max_length: 4 } }
    feature { column: "item" table: "T0" categorical {} }
    sequence { name: "events" of: "history" then: "item" }
    layer { name: "interest" input: "events"
            attention { query: "item" units: 3 softmax: true without_last: true } }
    layer { name: "deep" input: ["interest", "categorical"] mlp { units: 4 dropout: 0.2 } }
    task { label: "label" input: "deep" }
    train { batch_size: 4 learning_rate { base: 0.1 } })";

// The rows of the dense tensors' tables, in the order of the arena.
std::vector<std::pair<TableId, Key>> BlocksOf(const std::vector<DenseTable>& dense) {
  std::vector<std::pair<TableId, Key>> blocks;
  for (const DenseTable& tensor : dense) {
    for (int64_t block = 0; block < tensor.num_blocks(); ++block) {
      blocks.emplace_back(tensor.layout.id, static_cast<Key>(block));
    }
  }
  return blocks;
}

}  // namespace

SimModel MakeSimModel(const std::vector<TableLayout>& sparse, const OptimizerConfig& dense) {
  std::string text = kJob;
  for (size_t t = 0; t < sparse.size(); ++t) {
    absl::StrAppend(&text, "table { name: 'T", t, "' settings { dim: ", sparse[t].dim, " } }");
    if (t > 0) absl::StrAppend(&text, "feature { column: 'T", t, "' categorical {} }");
  }
  const auto job = ParseJob(text, "simulated", {});
  CHECK(job.ok());
  SimModel model{*job, ResolveTables(*job)};
  CHECK_EQ(model.tables.sparse.size(), sparse.size());
  model.tables.sparse = sparse;
  uint32_t id = 0;
  for (const TableLayout& table : sparse) id = std::max(id, table.id.value() + 1);
  for (DenseTable& tensor : model.tables.dense) {
    tensor.layout.id = TableId(id++);
    tensor.layout.optimizer = dense;
  }
  return model;
}

std::unique_ptr<Batch> SimModel::MakeBatch(Step step, WorkerRank rank, uint64_t num_keys,
                                           SimRandom* random) const {
  auto batch = std::make_unique<Batch>();
  batch->step = step;
  batch->size = static_cast<int>(random->Below(kMaxSamples + 1));
  batch->slice_begin = int64_t{kMaxSamples} * rank.value();
  batch->features.resize(tables.features.size());
  for (FeatureLookups& lookups : batch->features) lookups.offsets.push_back(0);
  for (int b = 0; b < batch->size; ++b) {
    batch->labels.push_back(static_cast<float>(random->Below(2)));
    std::vector<std::vector<Key>> values(1 + tables.sparse.size());  // The history first.
    values[0].resize(random->Below(kMaxSteps + 1));
    for (size_t i = 1; i < values.size(); ++i) values[i].resize(1);
    for (std::vector<Key>& keys : values) {
      for (Key& key : keys) key = Mix64(random->Below(num_keys));
    }
    for (size_t f = 0; f < tables.features.size(); ++f) {
      const FeatureSpec& feature = tables.features[f];
      FeatureLookups& lookups = batch->features[f];
      for (const Key key : values[feature.source]) lookups.keys.push_back(key);
      if (feature.then >= 0) lookups.keys.push_back(values[feature.then][0]);
      lookups.offsets.push_back(static_cast<int32_t>(lookups.keys.size()));
    }
  }
  return batch;
}

std::vector<Key> SimModel::KeysOf(const Batch& batch, TableId table) const {
  std::set<Key> keys;
  for (size_t f = 0; f < tables.features.size(); ++f) {
    if (tables.sparse[tables.features[f].table_index].id != table) continue;
    keys.insert(batch.features[f].keys.begin(), batch.features[f].keys.end());
  }
  return {keys.begin(), keys.end()};
}

std::unique_ptr<DeviceModelStep> SimModel::MakeStep(Device* device) const {
  return std::make_unique<DeviceModelStep>(job, tables, device,
                                           BatchRoom{kMaxSamples, kMaxSamples});
}

SimModelReference::SimModelReference(const SimModel* model)
    : model_(*model),
      device_(MakeCpuDevice({/*num_threads=*/1})),
      step_(model->MakeStep(device_.get())),
      planner_(MakePlanner(model->tables, /*num_servers=*/1, step_->vector_places())) {}

std::vector<ModelUpdate> SimModelReference::UpdatesOf(std::unique_ptr<Batch> batch,
                                                      const std::vector<RowsOfTable>& rows) {
  std::map<std::pair<TableId, Key>, const float*> by_key;
  for (const RowsOfTable& of_table : rows) {
    const size_t dim = of_table.keys.empty() ? 0 : of_table.values.size() / of_table.keys.size();
    for (size_t i = 0; i < of_table.keys.size(); ++i) {
      by_key[{of_table.table, of_table.keys[i]}] = of_table.values.data() + i * dim;
    }
  }
  std::vector<ModelUpdate> updates;
  StepContext context;
  planner_.Plan(*batch, &context.plan);
  context.batch = std::move(batch);
  context.Begin(std::make_unique<StepTransfers>(device_.get()));
  std::vector<std::vector<float>> staged(context.plan.tables.size()), gradients(staged.size());
  for (size_t t = 0; t < staged.size(); ++t) {
    const TablePlan& plan = context.plan.tables[t];
    const int dim = model_.tables.sparse[t].dim;
    for (int32_t u = 0; u < plan.num_unique(); ++u) {
      const float* const row = by_key.at({plan.id, plan.keys[u]});
      staged[t].insert(staged[t].end(), row, row + dim);
    }
    gradients[t].resize(staged[t].size());
    context.tables.push_back({FloatMatrix(staged[t].data(), plan.num_unique(), dim),
                              FloatMatrix(gradients[t].data(), plan.num_unique(), dim),
                              {}});
  }
  const std::vector<std::pair<TableId, Key>> blocks = BlocksOf(model_.tables.dense);
  float* weights = step_->dense().weights.data;
  for (const auto& block : blocks) {
    weights = std::copy_n(by_key.at(block), kDenseBlockFloats, weights);
  }
  CHECK(step_->Forward(&context).ok());
  CHECK(step_->BackwardToRows(&context).ok());
  step_->BackwardDense();
  for (size_t t = 0; t < staged.size(); ++t) {
    const TablePlan& plan = context.plan.tables[t];
    const int dim = model_.tables.sparse[t].dim;
    for (int32_t u = 0; u < plan.num_unique(); ++u) {
      const auto gradient = gradients[t].begin() + u * dim;
      updates.push_back({plan.id,
                         wire::PushKind::kGradient,
                         plan.keys[u],
                         plan.counts[u],
                         {gradient, gradient + dim}});
    }
  }
  const float* gradient = step_->dense().gradients.data;
  for (const auto& [table, key] : blocks) {
    const float* const end = gradient + kDenseBlockFloats;
    updates.push_back({table, wire::PushKind::kGradient, key, 0, {gradient, end}});
    gradient = end;
  }
  return updates;
}

}  // namespace thermocline
