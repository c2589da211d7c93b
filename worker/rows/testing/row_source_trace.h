// What the randomized tests of a RowSource are drawn from: tables, a cache, a network, steps.
#ifndef THERMOCLINE_WORKER_ROWS_TESTING_ROW_SOURCE_TRACE_H_
#define THERMOCLINE_WORKER_ROWS_TESTING_ROW_SOURCE_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "worker/rows/row_source.h"

namespace thermocline {

inline constexpr uint64_t kInitSeed = 17;
inline constexpr uint32_t kDenseTable = 90;

using TableKey = std::pair<uint32_t, Key>;  // the table's id
using Floats = std::vector<float>;

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  int Draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  bool OneIn(int n) { return Draw(1, n) == 1; }
  float Float() { return std::uniform_real_distribution<float>(-1, 1)(engine_); }
  void Fill(absl::Span<float> values) {
    for (float& value : values) value = Float();
  }

 private:
  std::mt19937_64 engine_;
};

struct ServerRow {
  Floats values;  // weights, then optimizer state
  uint64_t lookups = 0;
};
using Rows = std::map<TableKey, ServerRow>;

struct RowTrace {
  RowSourceOptions options;
  std::map<uint32_t, TableLayout> layouts;  // by id, the dense one too
  std::vector<int32_t> feature_tables;
  int num_steps = 0;
  int key_space = 0;
  int most_samples = 0;
  bool pipelines_steps = false;  // A step's push comes after the next step's update, where it may.
  int one_cut_in = 1;
  // The network's.
  int most_delay_us = 0;
  int one_failure_in = 0;  // 0: none
  size_t max_chunk_bytes = 0;
  int max_calls_in_flight = 1;

  bool holds_rows() const { return options.held != HeldSet::kNone; }
  Step last_step() const { return options.start_step + (num_steps - 1); }
  uint32_t ServerOf(const TableKey& key) const {
    const uint64_t hash = KeyHash(TableSalt(TableId(key.first)), key.second);
    return ClusterMap(options.num_servers).ServerOfHash(hash).value();
  }
  ServerRow NewRow(const TableKey& key) const {
    const TableLayout& layout = layouts.at(key.first);
    ServerRow row;
    row.values.resize(layout.row_floats());
    InitialRow(layout, kInitSeed, key.second, absl::MakeSpan(row.values));
    return row;
  }
  ServerRow& RowOf(const TableKey& key, Rows* rows) const {
    const auto found = rows->find(key);
    return found != rows->end() ? found->second : rows->emplace(key, NewRow(key)).first->second;
  }
  void Descend(const TableKey& key, float learning_rate, Step step, const float* gradient,
               Floats* row) const {
    const TableLayout& layout = layouts.at(key.first);
    UpdateRow(ScalarsForStep(layout.row_optimizer(), learning_rate, step), gradient,
              /*lookups=*/0, row->data(), row->data() + layout.dim, layout.dim);
  }
};

inline float LearningRateOf(Step step) { return 0.1f / static_cast<float>(1 + step.value() % 3); }

RowTrace DrawTrace(uint32_t num_workers, Random* random);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_TESTING_ROW_SOURCE_TRACE_H_
