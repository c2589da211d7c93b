// The changes that a step makes to the slabs of rows on a worker's device: a CachePlanner makes the
// plan, RowSlabs (row_slabs.h) carries it out.
#ifndef THERMOCLINE_WORKER_ROWS_CACHE_PLAN_H_
#define THERMOCLINE_WORKER_ROWS_CACHE_PLAN_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

inline constexpr int32_t kNoRow = -1;

// Some keys of a table and their rows of the slab, server by server.
struct CachedKeys {
  UninitializedVector<Key> keys;
  UninitializedVector<int32_t> rows;     // [keys] of the slab
  UninitializedVector<uint32_t> counts;  // [keys] lookups, where the keys are pushed
  std::vector<int32_t> server_begin;     // [num_servers + 1]: server s has [s] .. [s + 1]

  int32_t size() const { return static_cast<int32_t>(keys.size()); }
};

struct TableCachePlan {
  UninitializedVector<int32_t> rows;  // [num_unique] in the batch plan's staging order
  CachedKeys evicted;                 // leave the cache, for keys that any table of the group loads
  CachedKeys loaded;                  // are pulled into the cache
  CachedKeys bypassed;                // are pulled into staging
  UninitializedVector<int32_t> bypassed_positions;  // [bypassed] u of each, ascending

  UninitializedVector<int32_t> entries;  // [num_unique] for the planner
};

// What a step counts, in distinct keys.
struct CacheCounts {
  int64_t hits = 0;  // read from the cache, nothing pulled
  int64_t loaded = 0;
  int64_t bypassed = 0;
  int64_t rejected_no_room = 0;  // bypassed for lack of room, though used again in the window
  int64_t evicted = 0;
  int64_t written_ahead = 0;  // rows held and written back early; RowSlabs counts them
  int64_t rows_held = 0;      // after the step
  int64_t rows_kept = 0;      // held rows of groups that keep their rows
};

// Used again and again: its vectors keep their capacity.
struct CachePlan {
  std::vector<TableCachePlan> tables;  // in the order of the batch plan's
  // The pulled rows must have this worker's pushes through here in them: the last step before this
  // one whose push carries the gradient, or the written-back row, of a key pulled here. An upper
  // bound: step - window_steps - 1 where the plan knows of no later one; kNoStep where that is
  // before the first step admitted.
  Step pushed_through = kNoStep;
  CacheCounts counts;
  // A group that keeps its rows had no room for a key of `table`, so that the plan can't be carried
  // out; the group would have to hold so many rows. table -1: there was room.
  struct NoRoom {
    int32_t table = -1;
    int64_t rows = 0;
  };
  NoRoom no_room_to_keep;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHE_PLAN_H_
