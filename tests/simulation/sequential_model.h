// The rows that the servers must hold, computed in the simplest way: one map per table, one step
// after the other, gradients added in rank order. Keeps every state of a row, so that a pull can be
// checked against the step that it claims, and a server's rows against the step that it has
// applied.
#ifndef THERMOCLINE_TESTS_SIMULATION_SEQUENTIAL_MODEL_H_
#define THERMOCLINE_TESTS_SIMULATION_SEQUENTIAL_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/table_spec.h"
#include "common/wire/messages.h"

namespace thermocline {

// One key of a push.
struct ModelUpdate {
  TableId table;
  wire::PushKind kind = wire::PushKind::kGradient;
  Key key = 0;
  uint32_t count = 0;
  std::vector<float> values;  // [dim], [row_floats], or none where there is no gradient
};

// Takes the place of an evaluation's metric: a number in [0, 1) that depends on every bit of the
// added weights, but not on their order.
class ModelScore {
 public:
  void Add(TableId table, Key key, absl::Span<const float> weights);
  double value() const;

 private:
  uint64_t sum_ = 0;
};

struct ModelPush {
  Step step;
  float learning_rate = 0;
  std::vector<ModelUpdate> updates;
};

class SequentialModel {
 public:
  SequentialModel(std::vector<TableLayout> layouts, uint64_t seed, uint32_t num_workers);

  // Adds a worker's next push and applies every step that it completes.
  void AddPush(WorkerRank rank, ModelPush push);
  Step complete_through() const { return next_step_ - 1; }

  // Whether `weights` are those of the row after some step in [from, to].
  bool HadWeights(TableId table, Key key, absl::Span<const float> weights, Step from,
                  Step to) const;

  struct Row {
    std::vector<float> floats;  // [row_floats]; empty: the key is a candidate, and has no row yet
    uint32_t count = 0;
    Step changed;
  };
  using Rows = std::map<TableId, std::map<Key, Row>>;
  // Rows and candidates that some push has touched, and that are not forgotten, as they were after
  // a step; kNoStep: before the first.
  const Rows& RowsAfter(Step step) const { return *after_.at(step); }
  bool HasRowsAfter(Step step) const { return after_.count(step) > 0; }

  // The rows after every step from kNoStep on. Trained twice, a step may have two results, each on
  // a line of its own.
  using Line = std::map<Step, std::shared_ptr<const Rows>>;
  Line LineThrough(Step step) const { return {after_.begin(), after_.upper_bound(step)}; }
  // Whether the last step of `line` is one that the present rows come from.
  bool Follows(const Line& line) const;
  // The rows are again those at the end of `line`; the workers, of another number perhaps, push
  // what comes after it anew.
  void GoBack(Line line, uint32_t num_workers);

  // Scores the first `num_keys` keys of every table: Mix64(0) and so on.
  double ScoreAfter(Step step, uint64_t num_keys) const;
  std::vector<float> InitialWeights(TableId table, Key key) const;
  const TableLayout& layout(TableId table) const;

 private:
  void ApplyNext();
  // gradient: empty where no worker has one
  void ApplyGradient(TableId table, Key key, uint32_t count, absl::Span<const float> gradient,
                     float learning_rate);
  // For each table whose rows are counted before the next step: rows that were changed last in this
  // step or before are beyond max_rows.
  std::map<TableId, Step> BeyondLimits() const;
  void Forget(const std::map<TableId, Step>& beyond_limits);
  Row* RowOf(TableId table, Key key);

  const std::vector<TableLayout> layouts_;
  const uint64_t seed_;
  std::vector<std::deque<ModelPush>> queues_;  // [num_workers]
  std::vector<Step> pushed_through_;           // [num_workers]
  Step next_step_{0};
  Rows rows_;
  Line after_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_TESTS_SIMULATION_SEQUENTIAL_MODEL_H_
