// Decides, batch by batch and ahead of the compute, which embedding rows a worker keeps on its
// device: the cache's plan (docs/architecture.md, "The cache").
//
// Every table group has a slab: rows [0, capacity) are the cache's, those from `capacity` on are
// staging, for the rows of one step that bypass the cache. A plan names rows of the slab only, so
// whoever carries it out needs no directory; and it depends on the batches alone, so it may be made
// any number of steps before it is carried out. Plans are carried out in the order of the steps:
//
//   evicted rows leave their slab rows, loaded ones come into theirs, bypassed ones into staging;
//   then the step computes, reading rows[u] for its unique key u.
//
// The rule: a key that misses is loaded if a later step of the window uses it too (the step planned
// and `window_steps` later ones), into a row never held or in place of a victim (cache_rows.h),
// which has no use in the window; else it is bypassed.
#ifndef THERMOCLINE_WORKER_SPARSE_CACHE_PLANNER_H_
#define THERMOCLINE_WORKER_SPARSE_CACHE_PLANNER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/cluster_map.h"
#include "common/ids.h"
#include "common/uninitialized_vector.h"
#include "worker/sparse/batch_plan.h"

namespace thermocline {

// Some keys of a table and their rows of the slab, server by server.
struct CachedKeys {
  UninitializedVector<Key> keys;
  UninitializedVector<int32_t> rows;  // [keys] of the slab
  std::vector<int32_t> server_begin;  // [num_servers + 1]: server s has [s] .. [s + 1]

  int32_t size() const { return static_cast<int32_t>(keys.size()); }
};

struct TableCachePlan {
  UninitializedVector<int32_t> rows;  // [num_unique] in the batch plan's staging order
  CachedKeys evicted;   // leave the cache, for keys loaded of any table of the group; kOwned only
  CachedKeys loaded;    // are pulled into the cache, or once more where a copy has grown too old
  CachedKeys bypassed;  // are pulled into staging
  UninitializedVector<int32_t> bypassed_positions;  // [bypassed] u of each, ascending

  UninitializedVector<int32_t> entries;  // [num_unique] for the planner
};

// Of one step, in unique keys.
struct CacheCounts {
  int64_t hits = 0;  // read from the cache, nothing pulled
  int64_t loaded = 0;
  int64_t bypassed = 0;
  int64_t crowded_out = 0;  // of those bypassed: had a later use in the window, and found no room
  int64_t evicted = 0;      // in kCopies too, where nothing is carried out for them
  int64_t rows_held = 0;    // after the step
};

// Used again and again: its vectors keep their capacity.
struct CachePlan {
  std::vector<TableCachePlan> tables;  // As in the batch plan.
  // The pulled rows must have this worker's pushes through here in them: the last step before this
  // one whose push carries the gradient, or the written-back row, of a key pulled here. An upper
  // bound: step - window_steps - 1 where the plan knows of no later one; kNoStep where that is
  // before the first step admitted, and with kCopies.
  Step pushed_through = kNoStep;
  CacheCounts counts;
};

struct CachePlannerOptions {
  struct Group {
    std::vector<int32_t> tables;  // indices into BatchPlan::tables
    int32_t capacity = 0;         // rows of the cache; may be 0
  };
  std::vector<Group> groups;  // Every table is in one.
  int window_steps = 8;       // batches known beyond the one planned
  // kOwned: this is the only worker; rows in the cache are newer than the servers', and come back
  // to them when they are evicted. kCopies: there are others; a row pulled for step p may be read
  // up to step p + copy_steps, and every step pushes its gradients. A copy that has grown too old
  // is pulled again into its row; a key that misses is loaded if it is used again while it may be
  // read.
  enum class Mode { kOwned, kCopies };
  Mode mode = Mode::kOwned;
  int copy_steps = 0;
};

// Not thread-safe.
class CachePlanner {
 public:
  // REQUIRES: every one of `tables` is in one group.
  CachePlanner(CachePlannerOptions options, const ClusterMap& cluster_map,
               const std::vector<TableId>& tables);
  ~CachePlanner();

  // Batches enter the window one after the other: `plan` is that of step `step`, which follows the
  // one before; the first may be any.
  void Admit(Step step, const BatchPlan& plan, CachePlan* cache);

  // Plans the step that follows the one planned before, with the `plan` and `cache` of its Admit.
  // REQUIRES: the next window_steps batches have been admitted, or the data ends before.
  void Plan(Step step, const BatchPlan& plan, CachePlan* cache);

  // Keys remembered: at most the rows of the caches and the unique keys of the batches admitted and
  // not planned.
  size_t num_entries() const;

 private:
  struct Group;

  void PlanGroup(const BatchPlan& plan, Group* group, CachePlan* cache);
  void FindMisses(const TablePlan& table, Group* group, TableCachePlan* to);
  void PlanTable(const TablePlan& table, Group* group, TableCachePlan* to, CachePlan* cache);
  void GiveUpVictims(Group* group, CachePlan* cache);
  void SortByServer(int32_t table, CachedKeys* keys);

  const CachePlannerOptions options_;
  const ClusterMap cluster_map_;
  std::vector<uint64_t> salts_;  // [tables]
  std::vector<std::unique_ptr<Group>> groups_;
  int64_t first_step_ = -1;                // admitted; -1: none yet
  int64_t admitted_ = -1;                  // the last one
  int64_t step_ = -1;                      // planned now, or last
  UninitializedVector<uint32_t> servers_;  // [keys] scratch
  std::vector<int32_t> next_of_server_;
  CachedKeys unsorted_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_SPARSE_CACHE_PLANNER_H_
