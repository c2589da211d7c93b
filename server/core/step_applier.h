// Applies the pushes of one step to the tables: gradients merged key by key in rank order, one
// update a key, then written-back rows in rank order; then what was unused for too long, or is
// beyond a table's limit, is forgotten. The result depends neither on the number of threads nor on
// how the pushes were cut into chunks.
//
// Not thread-safe: one step at a time.
#ifndef THERMOCLINE_SERVER_CORE_STEP_APPLIER_H_
#define THERMOCLINE_SERVER_CORE_STEP_APPLIER_H_

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/thread_pool.h"
#include "common/base/timing.h"
#include "common/math/gradient_merge.h"
#include "server/core/push_acceptance.h"
#include "server/tables/table_set.h"

namespace thermocline {

class StepApplier {
 public:
  // `tables` outlives the applier. steps_before: that the optimizers had made before step 0.
  StepApplier(TableSet* tables, int num_threads, int64_t steps_before = 0);

  // Applies the pushes of one step, at most one of a worker, in rank order. Rows remember the step
  // as that of their change. REQUIRES: there is one at least; they are valid, of the same step and
  // learning rate. Errors: a table's; a part of the step may be applied then.
  absl::Status Apply(absl::Span<const AssembledPush> pushes);

  // What Apply took, and of that the merging of gradients (with several workers).
  const StageTimer& apply_timer() const { return apply_timer_; }
  const StageTimer& merge_timer() const { return merge_timer_; }

 private:
  // What one push brings for one table.
  struct Share {
    size_t push;  // In the span given to Apply.
    std::vector<GradientBlock> gradients;
    std::vector<GradientBlock> rows;  // Written back: [n, row_floats].
  };
  struct TableWork {
    std::vector<Share> shares;          // In rank order; never empty ones.
    std::vector<GradientBlock> blocks;  // To be merged: those of all shares; or none.
    std::vector<GradientMerge> merges;  // Of one piece each; kept for their memory.
  };
  // What one thread does at a time for a table.
  struct Task {
    size_t position;
    const GradientBlock* block;  // Null: merge.
    MergePiece piece;
  };

  void Collect(absl::Span<const AssembledPush> pushes);
  Share* ShareOf(size_t position, size_t push);
  std::vector<Task> PlanGradients();
  absl::Status ApplyGradients(float learning_rate, Step step);
  absl::Status AssignRows(Step step);
  // Runs task(i) for i < num_tasks on the threads; the first error of any.
  absl::Status RunTasks(size_t num_tasks, const std::function<absl::Status(size_t)>& task);

  TableSet* const tables_;
  ThreadPool threads_;
  const int64_t steps_before_;
  std::vector<TableWork> work_;        // [tables]
  std::vector<uint32_t> oldest_kept_;  // [tables] That the pushes' row limits say; or 0.
  bool any_rows_ = false;
  StageTimer apply_timer_;
  StageTimer merge_timer_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_STEP_APPLIER_H_
