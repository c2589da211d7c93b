// The last stage of a StepPipeline: decides which rows a step pulls, which it finds on the device,
// and which other ranks send (step_plan.h), and maps the features' row indices from positions among
// the table's distinct keys to rows of what the source gives the step (TableOperands::rows).
//
// Where several workers share one cache, every key has one owner among the ranks
// (docs/rows.md, "Rows for several workers"). Each rank asks every owner for its batch's
// keys; an owner plans its cache over what all ranks ask for, and answers which of the keys it
// holds in that step. Held rows, and their gradients, go between ranks. The others stay with the
// servers: each rank pulls those that it uses, and pushes its gradients of them.
#ifndef THERMOCLINE_WORKER_ROWS_ROW_PLANNER_H_
#define THERMOCLINE_WORKER_ROWS_ROW_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/thread_pool.h"
#include "worker/exchange/exchange.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/cache_planner.h"
#include "worker/rows/row_source_options.h"
#include "worker/rows/step_context.h"
#include "worker/rows/step_tasks.h"

namespace thermocline {

// One thread calls it: Admit for each step and the end of the data, Plan for each step once those
// of its window are admitted, or the data have ended. A call is over when the tasks that it adds
// have run.
class RowPlanner {
 public:
  virtual ~RowPlanner() = default;

  // has_step: the reader's word on the next step, whose batch plan is in `context`; false: the data
  // end before it. *goes_on: the same, or what all workers make of it together. Both outlive the
  // tasks.
  virtual absl::Status Admit(const absl::StatusOr<bool>& has_step, StepContext* context,
                             StepTasks* tasks, bool* goes_on) {
    (void)context, (void)tasks;
    *goes_on = has_step.ok() && *has_step;
    return has_step.status();
  }
  // Fills context->row_plan.
  virtual absl::Status Plan(StepContext* context, StepTasks* tasks) = 0;
  // On any thread: a wait under way, and later ones, end.
  virtual void Cancel() {}
};

// The planner of options.held; where that is kHot, of hot steps. exchange: null unless it is
// kSharedCache. It and `threads` outlive the planner. Errors of Plan: as NoRoomToKeep
// (common/job/cache_layout.h); kDataLoss (a key of a hot step is not hot: names step, table and
// key). Of several workers' shared cache: of Admit: as Exchange::HasStep; of both: kInternal (a
// rank breaks the rules: names it), the exchange's.
std::unique_ptr<RowPlanner> MakeRowPlanner(const RowSourceOptions& options, Exchange* exchange,
                                           ThreadPool* threads);
// Plans steps that pull all their rows, and push all their gradients.
std::unique_ptr<RowPlanner> MakePullPlanner();

// The planners of rows that are fixed (HeldSet::kStatic, kHot): their keys are hits, all others are
// bypassed in every step (kStatic), or an error (kHot).
std::unique_ptr<RowPlanner> MakeFixedPlanner(const RowSourceOptions& options, ThreadPool* threads);

CachePlannerOptions PlannerOptionsOf(const RowSourceOptions& options);

// For planners: begins the plan of a step with this route. The tables pull nothing.
StepPlan* BeginPlan(GradientRoute route, StepContext* context);
// Takes what the cache's plan bypasses as what the step pulls, with the batch's lookups.
void PullBypassed(StepContext* context);
// Maps the lookups of every feature from positions among its table's keys to rows_of(table)
// [keys].
template <typename RowsOf>
void MapLookups(RowsOf rows_of, ThreadPool* threads, BatchPlan* plan) {
  threads->ParallelFor(plan->features.size(), [&](int64_t f, int) {
    FeaturePlan& feature = plan->features[f];
    const int32_t* const rows = rows_of(feature.table).data();
    for (int32_t& index : feature.row_indices) index = rows[index];
  });
}

// A rank has broken the rules: fails the exchange with what it says, and returns that. kInternal.
absl::Status RefuseBlock(BlockId id, uint32_t from, const std::string& why, Exchange* exchange);
// Checks that a block is as long as the step's keys say. Errors: as RefuseBlock.
absl::Status CheckSize(BlockId id, uint32_t from, size_t bytes, size_t expected_bytes,
                       Exchange* exchange);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_ROW_PLANNER_H_
