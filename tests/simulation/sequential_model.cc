#include "tests/simulation/sequential_model.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {
namespace {

bool SameBits(absl::Span<const float> a, absl::Span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

void ModelScore::Add(TableId table, Key key, absl::Span<const float> weights) {
  uint64_t hash = KeyHash(TableSalt(table), key);
  for (const float weight : weights) {
    uint32_t bits;
    std::memcpy(&bits, &weight, sizeof bits);
    hash = Mix64(hash ^ bits);
  }
  sum_ += hash;
}

double ModelScore::value() const { return static_cast<double>(Mix64(sum_) >> 11) * 0x1p-53; }

SequentialModel::SequentialModel(std::vector<TableLayout> layouts, uint64_t seed,
                                 uint32_t num_workers)
    : layouts_(std::move(layouts)),
      seed_(seed),
      queues_(num_workers),
      pushed_through_(num_workers, kNoStep) {
  for (const TableLayout& layout : layouts_) rows_[layout.id];
  after_[kNoStep] = std::make_shared<const Rows>(rows_);
}

bool SequentialModel::Follows(const Line& line) const {
  const auto& [step, rows] = *line.rbegin();
  const auto found = after_.find(step);
  return found != after_.end() && found->second == rows;
}

void SequentialModel::GoBack(Line line, uint32_t num_workers) {
  const Step step = line.rbegin()->first;
  after_ = std::move(line);
  queues_.assign(num_workers, {});
  pushed_through_.assign(num_workers, step);
  next_step_ = step + 1;
  rows_ = *after_.at(step);
}

void SequentialModel::AddPush(WorkerRank rank, ModelPush push) {
  CHECK_EQ(push.step, pushed_through_[rank.value()] + 1);
  pushed_through_[rank.value()] = push.step;
  queues_[rank.value()].push_back(std::move(push));
  while (*std::min_element(pushed_through_.begin(), pushed_through_.end()) >= next_step_) {
    ApplyNext();
  }
}

void SequentialModel::ApplyNext() {
  const std::map<TableId, Step> beyond_limits = BeyondLimits();
  struct Sum {
    uint32_t count = 0;
    std::vector<float> gradient;
  };
  std::map<std::pair<TableId, Key>, Sum> sums;
  std::vector<ModelPush> pushes;
  for (std::deque<ModelPush>& queue : queues_) {
    CHECK_EQ(queue.front().step, next_step_);
    pushes.push_back(std::move(queue.front()));
    queue.pop_front();
  }
  for (const ModelPush& push : pushes) {
    for (const ModelUpdate& update : push.updates) {
      if (update.kind == wire::PushKind::kAssign) continue;
      Sum& sum = sums[{update.table, update.key}];
      sum.count += update.count;
      if (update.kind == wire::PushKind::kCount) continue;
      if (sum.gradient.empty()) {
        sum.gradient = update.values;
        continue;
      }
      for (size_t i = 0; i < sum.gradient.size(); ++i) sum.gradient[i] += update.values[i];
    }
  }
  for (const auto& [id, sum] : sums) {
    ApplyGradient(id.first, id.second, sum.count, sum.gradient, pushes[0].learning_rate);
  }
  for (const ModelPush& push : pushes) {
    for (const ModelUpdate& update : push.updates) {
      if (update.kind != wire::PushKind::kAssign) continue;
      Row* row = RowOf(update.table, update.key);
      row->floats = update.values;
      row->count += update.count;
      row->changed = next_step_;
    }
  }
  Forget(beyond_limits);
  after_[next_step_] = std::make_shared<const Rows>(rows_);
  next_step_ = next_step_ + 1;
}

void SequentialModel::ApplyGradient(TableId table, Key key, uint32_t count,
                                    absl::Span<const float> gradient, float learning_rate) {
  const TableLayout& of_table = layout(table);
  Row* row = &rows_[table][key];
  row->count += count;
  row->changed = next_step_;
  if (row->floats.empty() && row->count < of_table.min_count) return;
  row = RowOf(table, key);
  if (gradient.empty()) return;
  UpdateRow(ScalarsForStep(of_table.row_optimizer(), learning_rate, next_step_), gradient.data(),
            count, row->floats.data(), row->floats.data() + of_table.dim, of_table.dim);
}

std::map<TableId, Step> SequentialModel::BeyondLimits() const {
  std::map<TableId, Step> beyond;
  for (const TableLayout& table : layouts_) {
    const int64_t steps = next_step_.value();
    if (table.max_rows == 0 || steps == 0 || steps % 4 != 0) continue;
    std::vector<Step> changes;
    for (const auto& [key, row] : rows_.at(table.id)) {
      if (!row.floats.empty()) changes.push_back(row.changed);
    }
    if (changes.size() <= table.max_rows) continue;
    std::sort(changes.rbegin(), changes.rend());
    beyond[table.id] = changes[table.max_rows];
  }
  return beyond;
}

void SequentialModel::Forget(const std::map<TableId, Step>& beyond_limits) {
  for (const auto& [table, step] : beyond_limits) {
    std::map<Key, Row>& rows = rows_[table];
    for (auto it = rows.begin(); it != rows.end();) {
      const auto row = it++;
      if (row->second.changed <= step) rows.erase(row);
    }
  }
  for (const TableLayout& table : layouts_) {
    const auto unused = static_cast<int64_t>(table.unused_steps);
    const int64_t steps = next_step_.value() + 1;
    if (unused == 0 || steps % std::max<int64_t>(1, unused / 8) != 0) continue;
    std::map<Key, Row>& rows = rows_[table.id];
    for (auto it = rows.begin(); it != rows.end();) {
      const auto row = it++;
      if (next_step_ - row->second.changed >= unused) rows.erase(row);
    }
  }
}

bool SequentialModel::HadWeights(TableId table, Key key, absl::Span<const float> weights, Step from,
                                 Step to) const {
  for (Step step = from; step <= to; step = step + 1) {
    // A faulty server may claim a step that its generation doesn't have.
    const auto tables = after_.find(step);
    if (tables == after_.end()) continue;
    const auto& rows = tables->second->at(table);
    const auto row = rows.find(key);
    if (row == rows.end() || row->second.floats.empty()) {
      if (SameBits(weights, InitialWeights(table, key))) return true;
    } else if (SameBits(weights, absl::MakeConstSpan(row->second.floats).first(weights.size()))) {
      return true;
    }
  }
  return false;
}

SequentialModel::Row* SequentialModel::RowOf(TableId table, Key key) {
  Row& row = rows_[table][key];
  if (row.floats.empty()) {
    row.floats.resize(layout(table).row_floats());
    InitialRow(layout(table), seed_, key, absl::MakeSpan(row.floats));
  }
  return &row;
}

double SequentialModel::ScoreAfter(Step step, uint64_t num_keys) const {
  ModelScore score;
  for (const auto& [table, rows] : RowsAfter(step)) {
    for (uint64_t i = 0; i < num_keys; ++i) {
      const Key key = Mix64(i);
      const auto row = rows.find(key);
      if (row == rows.end() || row->second.floats.empty()) {
        score.Add(table, key, InitialWeights(table, key));
      } else {
        score.Add(table, key, absl::MakeConstSpan(row->second.floats).first(layout(table).dim));
      }
    }
  }
  return score.value();
}

std::vector<float> SequentialModel::InitialWeights(TableId table, Key key) const {
  std::vector<float> row(layout(table).row_floats());
  InitialRow(layout(table), seed_, key, absl::MakeSpan(row));
  row.resize(layout(table).dim);
  return row;
}

const TableLayout& SequentialModel::layout(TableId table) const {
  for (const TableLayout& layout : layouts_) {
    if (layout.id == table) return layout;
  }
  CHECK(false);
}

}  // namespace thermocline
