// What the randomized tests of a RowSource are drawn from: tables, hot rows, a network, hot and
// cold steps; and the rows that they must give.
#ifndef THERMOCLINE_WORKER_ROWS_TESTING_HOT_TRACE_H_
#define THERMOCLINE_WORKER_ROWS_TESTING_HOT_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "common/base/ids.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "worker/rows/row_source.h"
#include "worker/rows/testing/row_source_trace.h"

namespace thermocline {

using Lookups = std::vector<std::vector<std::vector<Key>>>;  // [features][samples][lookups]

struct PlannedStep {
  bool is_hot = false;
  bool writes_back = false;
  std::vector<Lookups> batches;  // [ranks]
};

// What a run is drawn from.
struct HotTrace {
  uint32_t num_ranks = 1, num_servers = 1;
  Step start_step{0};
  JobTables tables;
  HotSet hot_set;
  std::vector<std::vector<PlannedStep>> stretches;
  RowSourceOptions options;
  size_t max_chunk_bytes = 0;
  int64_t most_delay_us = 0;

  int64_t num_steps() const {
    int64_t steps = 0;
    for (const auto& stretch : stretches) steps += static_cast<int64_t>(stretch.size());
    return steps;
  }
  const TableLayout& layout(size_t t) const { return tables.sparse[t]; }
};

inline constexpr int kHotKeySpace = 30;

HotTrace DrawHotTrace(uint32_t num_ranks, Random* random);

// Keys that any rank looks up.
std::set<TableKey> KeysOf(const HotTrace& trace, const PlannedStep& step);

// Gradients have many sizes, so that sums in another order have other bits.
float HotGradientOf(uint32_t rank, Step step, const TableKey& key, int i);

// The rows after each step, as one map that all ranks' gradients come to.
class HotModel {
 public:
  // `trace` outlives it.
  explicit HotModel(const HotTrace& trace);

  ServerRow RowOf(Step through, size_t t, Key key) const;

 private:
  ServerRow NewRow(size_t t, Key key) const;
  void Apply(Step step, const PlannedStep& planned, Rows* rows) const;

  const HotTrace& trace_;
  std::map<Step, Rows> states_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_TESTING_HOT_TRACE_H_
