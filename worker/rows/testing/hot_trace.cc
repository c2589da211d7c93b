#include "worker/rows/testing/hot_trace.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/hash.h"
#include "common/math/gradient_merge.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/testing/random_optimizers.h"

namespace thermocline {
namespace {

void DrawHotTables(Random* random, HotTrace* trace) {
  std::vector<TableLayout> layouts(2);
  for (TableLayout& layout : layouts) {
    layout.dim = std::vector<int>{1, 2, 3, 4, 8, 16}[random->Draw(0, 5)];
    DrawRowOptimizers([&](int n) { return random->Draw(0, n - 1); }, &layout);
    layout.init_scale = 0.5f;
  }
  for (int t = 0; t < random->Draw(1, 3); ++t) {
    TableLayout& table = trace->tables.sparse.emplace_back(layouts[random->Draw(0, 1)]);
    table.id = TableId(static_cast<uint32_t>(10 * random->Draw(0, 7) + t));
    table.name = absl::StrCat("C", t);
    for (int features = random->Draw(1, 2); features > 0; --features) {
      FeatureSpec& feature = trace->tables.features.emplace_back();
      feature.table_index = t;
    }
    std::vector<Key>& hot = trace->hot_set.tables.emplace_back();
    const int one_in = random->Draw(1, 4);
    for (Key key = 0; key < kHotKeySpace && one_in < 4; ++key) {
      if (random->OneIn(one_in)) hot.push_back(key);
    }
  }
}

Lookups DrawBatch(const HotTrace& trace, bool is_hot, Random* random) {
  Lookups batch;
  const int samples = random->OneIn(4) ? 0 : random->Draw(0, 6);
  for (const FeatureSpec& feature : trace.tables.features) {
    std::vector<std::vector<Key>>& bags = batch.emplace_back(samples);
    const std::vector<Key>& hot = trace.hot_set.tables[feature.table_index];
    for (std::vector<Key>& bag : bags) {
      for (int lookups = random->Draw(0, 2); lookups > 0 && !(is_hot && hot.empty()); --lookups) {
        bag.push_back(is_hot ? hot[random->Draw(0, static_cast<int>(hot.size()) - 1)]
                             : random->Draw(0, kHotKeySpace - 1));
      }
    }
  }
  return batch;
}

}  // namespace

HotTrace DrawHotTrace(uint32_t num_ranks, Random* random) {
  HotTrace trace;
  trace.num_ranks = num_ranks;
  trace.num_servers = random->Draw(1, 3);
  trace.start_step = Step(random->OneIn(2) ? 0 : random->Draw(1, 50));
  DrawHotTables(random, &trace);
  for (int i = random->Draw(1, 6); i > 0; --i) {
    std::vector<PlannedStep>& stretch = trace.stretches.emplace_back(random->Draw(1, 6));
    const bool is_hot = random->OneIn(2);
    const int one_checkpoint_in = random->Draw(1, 5);
    for (PlannedStep& step : stretch) {
      step.is_hot = is_hot;
      step.writes_back = &step == &stretch.back() || random->OneIn(one_checkpoint_in);
      for (uint32_t rank = 0; rank < num_ranks; ++rank) {
        step.batches.push_back(DrawBatch(trace, is_hot, random));
      }
    }
  }
  RowSourceOptions& options = trace.options;
  options.num_servers = trace.num_servers;
  options.num_workers = num_ranks;
  options.held = HeldSet::kHot;
  options.tables = trace.tables.sparse;
  options.start_step = trace.start_step;
  options.piece_bytes = random->OneIn(3) ? 1 << 20 : random->Draw(1, 300);
  trace.max_chunk_bytes = random->OneIn(2)
                              ? 512 << 10
                              : kMaxHeaderBytes + 2 * kMaxSliceHeaderBytes + random->Draw(50, 400);
  trace.most_delay_us = random->OneIn(2) ? 0 : random->Draw(1, 300);
  return trace;
}

std::set<TableKey> KeysOf(const HotTrace& trace, const PlannedStep& step) {
  std::set<TableKey> keys;
  for (const Lookups& batch : step.batches) {
    for (size_t f = 0; f < batch.size(); ++f) {
      const uint32_t id = trace.layout(trace.tables.features[f].table_index).id.value();
      for (const auto& bag : batch[f]) {
        for (const Key key : bag) keys.emplace(id, key);
      }
    }
  }
  return keys;
}

float HotGradientOf(uint32_t rank, Step step, const TableKey& key, int i) {
  const uint64_t bits =
      Mix64(Mix64(key.second * 64 + i) + key.first * 8 + rank + step.value() * 99);
  const auto mantissa = static_cast<float>(static_cast<int64_t>(bits >> 40) - (1 << 23));
  return std::ldexp(mantissa, -24 - static_cast<int>(bits % 12));
}

HotModel::HotModel(const HotTrace& trace) : trace_(trace) {
  Step step = trace.start_step - 1;
  Rows rows;
  states_[step] = rows;
  for (const auto& stretch : trace.stretches) {
    for (const PlannedStep& planned : stretch) {
      step = step + 1;
      Apply(step, planned, &rows);
      states_[step] = rows;
    }
  }
}

ServerRow HotModel::RowOf(Step through, size_t t, Key key) const {
  const Rows& rows = states_.at(through);
  const auto found = rows.find({trace_.layout(t).id.value(), key});
  return found != rows.end() ? found->second : NewRow(t, key);
}

ServerRow HotModel::NewRow(size_t t, Key key) const {
  ServerRow row;
  row.values.resize(trace_.layout(t).row_floats());
  InitialRow(trace_.layout(t), kInitSeed, key, absl::MakeSpan(row.values));
  return row;
}

void HotModel::Apply(Step step, const PlannedStep& planned, Rows* rows) const {
  for (size_t t = 0; t < trace_.tables.sparse.size(); ++t) {
    const TableLayout& layout = trace_.layout(t);
    std::map<Key, ServerRow> sums;
    for (uint32_t rank = 0; rank < trace_.num_ranks; ++rank) {
      std::map<Key, uint32_t> counts;
      for (size_t f = 0; f < trace_.tables.features.size(); ++f) {
        if (trace_.tables.features[f].table_index != static_cast<int>(t)) continue;
        for (const auto& bag : planned.batches[rank][f]) {
          for (const Key key : bag) ++counts[key];
        }
      }
      for (const auto& [key, count] : counts) {
        Floats gradient(layout.dim);
        for (int i = 0; i < layout.dim; ++i) {
          gradient[i] = HotGradientOf(rank, step, {layout.id.value(), key}, i);
        }
        ServerRow& sum = sums[key];
        const bool is_first = sum.values.empty();
        sum.values.resize(layout.dim);
        MergeGradient(is_first, gradient.data(), layout.dim, sum.values.data());
        sum.lookups += count;
      }
    }
    for (const auto& [key, sum] : sums) {
      ServerRow& row = rows->try_emplace({layout.id.value(), key}, NewRow(t, key)).first->second;
      UpdateRow(ScalarsForStep(layout.row_optimizer(), LearningRateOf(step), step),
                sum.values.data(), sum.lookups, row.values.data(), row.values.data() + layout.dim,
                layout.dim);
      row.lookups += sum.lookups;
    }
  }
}

}  // namespace thermocline
