// Decides, step by step and ahead of the compute, which embedding rows a worker keeps on its
// device: the cache's plan (docs/rows.md, "Rows beside the compute"). It knows of a step
// the distinct keys alone: those of the worker's batch, or those that all workers ask it for
// (worker/plan/requested_keys.h). No other worker changes the rows of these keys; those in the
// cache are newer than the servers', and come back to them when they are evicted.
//
// Every table group has a slab: rows [0, capacity) are the cache's, those from `capacity` on are
// staging, for the rows of one step that bypass the cache. A plan names rows of the slab only, so
// RowSlabs, which carries it out, needs no directory. It depends on the keys alone, so it
// can be made any number of steps ahead. Plans are carried out in the order of the steps:
//
//   evicted rows leave their slab rows, loaded ones come into theirs, bypassed ones into staging;
//   then the step computes, reading rows[u] for its unique key u.
//
// The rule: a key that misses is loaded if a later step of the window uses it too (the step planned
// and `window_steps` later ones), into a row never held or in place of a victim (cache_rows.h),
// which has no use in the window; else it is bypassed. Where a group keeps its rows, a key that
// misses is always loaded, into a row never held.
#ifndef THERMOCLINE_WORKER_ROWS_CACHE_PLANNER_H_
#define THERMOCLINE_WORKER_ROWS_CACHE_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/thread_pool.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/cache_plan.h"
#include "worker/rows/cache_table.h"

namespace thermocline {

struct CachePlannerOptions {
  struct Group {
    std::vector<int32_t> tables;  // indices into the step's tables
    int32_t capacity = 0;         // rows of the cache; may be 0
    // Every key is loaded when it misses, and its row is never a victim.
    bool keeps_rows = false;
  };
  std::vector<Group> groups;  // Every table is in one.
  int window_steps = 8;       // steps known beyond the one planned
  // Rows may change in steps that don't push them, where servers forget them: every pull waits for
  // the push before it.
  bool follows_every_push = false;
  // Keys of a table that can be remembered.
  size_t max_entries = CacheDirectory::kMaxKeys;
};

// Entries count steps in 32 bits.
inline constexpr Step kLastCachedStep{std::numeric_limits<int32_t>::max() - 1};

// Not thread-safe.
class CachePlanner {
 public:
  // Tables are planned side by side on `threads`, which outlive the planner; the plans don't depend
  // on their number. REQUIRES: every one of `tables` is in one group.
  CachePlanner(CachePlannerOptions options, const ClusterMap& cluster_map,
               const std::vector<TableId>& tables, ThreadPool* threads);
  ~CachePlanner();

  // Steps enter the window one after the other: `tables` has the keys of `step`, which follows the
  // one before; the first may be any. Errors: kOutOfRange (a step beyond kLastCachedStep),
  // kResourceExhausted (more keys of a table than options.max_entries would have to be remembered:
  // says of which). After an error nothing may be planned.
  absl::Status Admit(Step step, absl::Span<const KeyShares> tables, CachePlan* cache);

  // Plans the step that follows the one planned before, with the `tables` and `cache` of its Admit.
  // Where cache->no_room_to_keep is set, no later step may be planned.
  // REQUIRES: the next window_steps steps have been admitted, or the data ends before.
  void Plan(Step step, absl::Span<const KeyShares> tables, CachePlan* cache);

  // Keys remembered: at most the rows of the caches and the distinct keys of the steps admitted and
  // not planned.
  size_t num_entries() const;

 private:
  struct Group;

  void PlanGroup(Group* group, CachePlan* cache);
  void GiveRows(int32_t table, Group* group, CachePlan* cache);
  void FindNoRoom(const Group& group, CachePlan* cache) const;

  const CachePlannerOptions options_;
  ThreadPool* const threads_;
  std::vector<std::unique_ptr<CacheTable>> tables_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<int32_t> first_staged_;  // [tables] of the step at hand
  int64_t first_step_ = -1;            // admitted; -1: none yet
  int64_t admitted_ = -1;              // the last one
  int64_t step_ = -1;                  // planned now, or last
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHE_PLANNER_H_
