// Applies the pushes of one step to the tables. Lookups without a gradient are counted; gradients
// are merged key by key in rank order, with one update a key; then written-back rows are assigned
// in rank order; then rows that were unused for too long, or are beyond a table's limit, are
// forgotten. The result depends neither on the number of threads nor on how the pushes were cut
// into chunks.
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
  // `tables` outlives the applier. steps_before: how many steps the optimizers made before step 0.
  StepApplier(TableSet* tables, int num_threads, int64_t steps_before = 0);

  // Applies the pushes of one step: at least one, at most one of each worker, in rank order. Rows
  // remember the step as their last change. REQUIRES: the pushes are valid, and have the same step
  // and learning rate. Errors: a table's; then a part of the step may be applied.
  absl::Status Apply(absl::Span<const AssembledPush> pushes);

  // How long Apply took, and how much of that was for merging several workers' gradients.
  const StageTimer& apply_timer() const { return apply_timer_; }
  const StageTimer& merge_timer() const { return merge_timer_; }

 private:
  // The part of one push that is for one table.
  struct Share {
    size_t push;  // Position in the span given to Apply.
    std::vector<GradientBlock> gradients;
    std::vector<GradientBlock> rows;  // Written back: [n, row_floats].
  };
  struct TableWork {
    std::vector<GradientBlock>
        counted;                // Keys that were looked up without a gradient, of all pushes.
    std::vector<Share> shares;  // In rank order; none is empty.
    std::vector<GradientBlock> blocks;  // The gradients of all shares where they must be merged.
    std::vector<GradientMerge> merges;  // One for each piece; kept for their memory.
  };
  // A piece of work for one thread on one table.
  struct Task {
    size_t position;
    const GradientBlock* block;  // Null: merges `piece`.
    MergePiece piece;
  };

  void Collect(absl::Span<const AssembledPush> pushes);
  Share* ShareOf(size_t position, size_t push);
  std::vector<Task> PlanGradients();
  absl::Status CountLookups(Step step);
  absl::Status ApplyGradients(float learning_rate, Step step);
  absl::Status AssignRows(Step step);
  // Runs task(i) for i < num_tasks on the threads; the first error of any.
  absl::Status RunTasks(size_t num_tasks, const std::function<absl::Status(size_t)>& task);

  TableSet* const tables_;
  ThreadPool threads_;
  const int64_t steps_before_;
  std::vector<TableWork> work_;        // [tables]
  std::vector<uint32_t> oldest_kept_;  // [tables] by the pushes' row limits, or 0
  bool any_counted_ = false;
  bool any_rows_ = false;
  StageTimer apply_timer_;
  StageTimer merge_timer_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_STEP_APPLIER_H_
