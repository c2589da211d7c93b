// Where the rows of a step come from, and where the gradients of its keys go. Planners fill it
// (row_planner.h), RowSource carries it out (row_source.h). Each distinct key of a rank's batch is
//
//   pulled  from its server for this step alone; its gradient is pushed to the server
//   held    on this worker's device
//   asked   of the rank that owns it
//
// and the route says where the gradients of keys that are held or asked go.
#ifndef THERMOCLINE_WORKER_ROWS_STEP_PLAN_H_
#define THERMOCLINE_WORKER_ROWS_STEP_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "worker/plan/batch_plan.h"
#include "worker/plan/requested_keys.h"
#include "worker/rows/cache_plan.h"

namespace thermocline {

enum class GradientRoute {
  kServer,  // No key is held or asked.
  kLocal,   // The only worker updates the rows that it holds in their place.
  kOwner,   // A key's owner adds the gradients of all ranks in rank order, and updates the row.
  kAll,     // Every rank holds the rows; each adds all ranks' gradients and updates its own copy.
};
inline constexpr size_t kNumGradientRoutes = 4;

// Used again and again: its vectors keep their capacity.
struct StepPlan {
  struct Table {
    KeyShares pulled;                            // The keys lie elsewhere in the step's context.
    absl::Span<const int32_t> pulled_positions;  // [pulled] u of each, ascending; kServer: empty
    // The rows may lack no push before the step's own (where others than this worker change them).
    bool pulls_latest = false;

    // kOwner: the keys that `pulled` names, of which no owner holds one.
    CachedKeys unheld;
    UninitializedVector<int32_t> unheld_positions;
    // kOwner: u of the keys that owners hold, owner by owner, in the order in which their rows and
    // gradients travel; and [num_unique] the row that u reads, of the pulled and then the asked.
    UninitializedVector<int32_t> asked;
    std::vector<int32_t> owner_begin;  // [ranks + 1]: owner r has [r] .. [r + 1]
    UninitializedVector<int32_t> row_indices;
    // kOwner, as the owner: the keys that it holds and ranks ask for, and their rows of the slab.
    RequestedKeys requested;
    UninitializedVector<int32_t> held_rows;  // [requested]

    int32_t CountOf(uint32_t owner) const { return owner_begin[owner + 1] - owner_begin[owner]; }
    size_t num_staged() const { return pulled.keys.size() + asked.size(); }
  };

  GradientRoute route = GradientRoute::kServer;
  std::vector<Table> tables;  // in the order of the batch plan's
  CachePlan cache;            // what changes in this worker's slabs
  // The last push that must be in the pulled rows, where not pulls_latest.
  Step pushed_through = kNoStep;
  // The rows of the step wait for the push of this step: it is made before they are awaited.
  Step awaits_push_of = kNoStep;
  bool loads_set = false;  // All fixed rows are loaded before the step (set_loader.h).
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_STEP_PLAN_H_
