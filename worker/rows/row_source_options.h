// The options of the rows that a worker reads, and of those that it holds on its device.
#ifndef THERMOCLINE_WORKER_ROWS_ROW_SOURCE_OPTIONS_H_
#define THERMOCLINE_WORKER_ROWS_ROW_SOURCE_OPTIONS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/job/cache_layout.h"
#include "common/math/table_spec.h"
#include "worker/plan/requested_keys.h"

namespace thermocline {

class HotRows;

enum class HeldSet {
  kNone,         // every step pulls its rows, and pushes their gradients
  kCache,        // rows come and go with a lookahead plan; of one worker
  kSharedCache,  // the same of several: every row has one of them as its owner, who alone holds it
  kStatic,       // options.fixed_rows from the first step to the last; of one worker
  kHot,          // options.fixed_rows in hot steps, at every worker; none in cold steps
};

struct RowSourceOptions {
  uint32_t num_servers = 1;
  uint32_t num_workers = 1;
  uint32_t staleness_steps = 0;
  std::vector<TableLayout> tables;  // the plan's
  Step start_step{0};

  HeldSet held = HeldSet::kNone;
  CacheLayout layout;                   // of the rows held
  const HotRows* fixed_rows = nullptr;  // outlive the source and its planner
  int window_steps = 0;                 // known beyond the step that is planned
  int prefetch_steps = 0;               // less than window_steps, but for both 0
  // After each step, held rows that are newer than their server's take at most so many bytes a
  // server, over all workers, as evenly as keys are spread. It bounds the push of a checkpoint, far
  // below what a server takes of one push.
  uint64_t max_unwritten_bytes = std::numeric_limits<uint64_t>::max();
  // The rows of a write-back, and fixed ones when they are loaded, are on the host in pieces of
  // about so many bytes, a few at a time.
  uint64_t piece_bytes = uint64_t{32} << 20;
  // How an owner adds the gradients of all ranks: MergeRequested, unless a test plants a fault.
  std::function<void(const RequestedKeys& requested,
                     absl::Span<const absl::Span<const float>> gradients, int dim,
                     absl::Span<float> merged)>
      merge = MergeRequested;

  // Whether servers may forget rows of a table, in any step.
  bool servers_forget_rows() const {
    return std::any_of(tables.begin(), tables.end(), [](const TableLayout& table) {
      return table.unused_steps > 0 || table.max_rows > 0;
    });
  }
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_ROW_SOURCE_OPTIONS_H_
