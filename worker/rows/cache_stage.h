// The last stage of a StepPipeline: plans which rows a step finds on the device, and maps the
// features' row indices from positions among the table's distinct keys to rows of what the source
// gives the step (TableOperands::rows).
//
// Where several workers share their rows, every key has one owner among the ranks
// (docs/architecture.md, "Rows for several workers"). Each rank asks every owner for its batch's
// keys; an owner plans its cache over what all ranks ask for, and answers which of the keys it
// holds in that step. Held rows, and their gradients, go between ranks. The others stay with the
// servers: each rank pulls those that it uses, and pushes its gradients of them.
#ifndef THERMOCLINE_WORKER_ROWS_CACHE_STAGE_H_
#define THERMOCLINE_WORKER_ROWS_CACHE_STAGE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/thread_pool.h"
#include "common/base/uninitialized_vector.h"
#include "worker/exchange/exchange.h"
#include "worker/plan/requested_keys.h"
#include "worker/rows/cache_plan.h"
#include "worker/rows/cache_planner.h"
#include "worker/rows/owned_rows.h"
#include "worker/rows/step_context.h"

namespace thermocline {

// One thread calls it: Admit for each step and the end of the data, Plan for each step once those
// of its window are admitted, or the data have ended.
class CacheStage {
 public:
  virtual ~CacheStage() = default;

  // has_step: the reader's word on the next step, whose plan is in `context`; false: the data end
  // before it. Returns the same, or what all workers make of it together.
  virtual absl::StatusOr<bool> Admit(absl::StatusOr<bool> has_step, StepContext* context) = 0;
  virtual absl::Status Plan(StepContext* context) = 0;
  // On any thread: a call under way, and later ones, don't wait.
  virtual void Cancel() {}
};

// For one worker, or several that share rows or copy them, as the options say. exchange: null
// unless options.shares_rows. It and `threads` outlive the stage. Errors of Plan: as NoRoomToKeep
// (common/job/cache_layout.h). Where rows are shared: of Admit: as Exchange::HasStep; of both:
// kInternal (a rank breaks the rules: names it), the exchange's.
std::unique_ptr<CacheStage> MakeCacheStage(const CachedSourceOptions& options, Exchange* exchange,
                                           ThreadPool* threads);

// For one worker whose cache holds the same rows from the first step to the last (Cache::STATIC):
// their keys are hits, all others are bypassed in every step. REQUIRES: options.static_rows is set.
// `threads` outlive it.
std::unique_ptr<CacheStage> MakeStaticStage(const CachedSourceOptions& options,
                                            ThreadPool* threads);

// Maps lookups of a feature from positions among the table's keys to `rows` [keys].
void MapLookups(absl::Span<const int32_t> rows, FeaturePlan* feature);

// What the stage of shared rows plans for a SharedSource, in StepContext::of_cache. As an owner,
// its cache plan is StepContext::cache_plan.
struct SharedPlan {
  // Keys that this rank pulls and pushes itself, server by server.
  struct Bypassed {
    UninitializedVector<Key> keys;
    UninitializedVector<uint32_t> counts;    // [keys] lookups of this rank
    UninitializedVector<int32_t> positions;  // [keys] u of each, ascending
    std::vector<int32_t> server_begin;       // [num_servers + 1]: server s has [s] .. [s + 1]

    int32_t size() const { return static_cast<int32_t>(keys.size()); }
  };
  // This rank's batch, of one table.
  struct Table {
    Bypassed bypassed;
    // u of the keys that owners hold, owner by owner, in the order in which their rows and
    // gradients travel.
    UninitializedVector<int32_t> asked;
    std::vector<int32_t> owner_begin;          // [ranks + 1]: owner r has [r] .. [r + 1]
    UninitializedVector<int32_t> row_indices;  // [num_unique] rows are the bypassed, then `asked`

    int32_t CountOf(uint32_t owner) const { return owner_begin[owner + 1] - owner_begin[owner]; }
  };
  std::vector<Table> tables;
  Step pushed_through;  // The last push that must be in the bypassed rows.

  // This rank as an owner, of each table: the keys that it holds in this step, and their rows of
  // the slab.
  std::vector<RequestedKeys> requested;
  std::vector<UninitializedVector<int32_t>> held_rows;  // [tables][its keys]
};

// A rank has broken the rules: fails the exchange with what it says, and returns that. kInternal.
absl::Status RefuseBlock(BlockId id, uint32_t from, const std::string& why, Exchange* exchange);
// Checks that a block is as long as the step's keys say. Errors: as RefuseBlock.
absl::Status CheckSize(BlockId id, uint32_t from, size_t bytes, size_t expected_bytes,
                       Exchange* exchange);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHE_STAGE_H_
