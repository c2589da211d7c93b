// One table's part of planning a cache (cache_planner.h). Different tables can be planned at the
// same time. The rows, which the tables of a group share, are the planner's.
#ifndef THERMOCLINE_WORKER_ROWS_CACHE_TABLE_H_
#define THERMOCLINE_WORKER_ROWS_CACHE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "worker/plan/batch_plan.h"
#include "worker/rows/cache_directory.h"
#include "worker/rows/cache_plan.h"

namespace thermocline {

// A step is planned by FindMisses, GiveRow for the misses that want one and Lose for the victims,
// then Fill.
//
// Not thread-safe.
class CacheTable {
 public:
  // keeps_rows: every miss wants a row, and its owner gives none back.
  CacheTable(TableId table, const ClusterMap& cluster_map, bool keeps_rows);

  // Enters the keys of `step` into the window. needed(): rows of its keys, for CacheRows::Need.
  void Admit(int32_t step, absl::Span<const Key> keys, TableCachePlan* to);
  absl::Span<const int32_t> needed() const { return needed_; }

  // Finds the keys that aren't in the cache.
  void FindMisses(int32_t step, const KeyShares& keys, TableCachePlan* to);
  // The misses that are worth loading, in staging order.
  int32_t num_wanted() const { return static_cast<int32_t>(wanted_.size()); }
  struct Wanted {
    int32_t u;
    int32_t entry;
    uint8_t frequency;
  };
  Wanted wanted(int32_t i) const { return wanted_[i]; }
  void GiveRow(int32_t i, int32_t row) { given_[i] = row; }  // kNoRow at first
  // The key of the entry loses its row to another key, maybe of another table.
  void Lose(int32_t entry, int32_t row) { victims_.push_back({entry, row}); }
  // How many misses find no row, once rows are given.
  int32_t num_bypassed() const;
  // Rows of keys with no later use in the window, for CacheRows::Release.
  absl::Span<const int32_t> released() const { return released_; }
  // The last push of any key that this step pulls and the directory knows; -1: none.
  int32_t last_push() const { return last_push_; }

  // The plan, with `first_staged` as the first row of staging; forgets entries without further use.
  void Fill(const KeyShares& keys, int32_t first_staged, TableCachePlan* to);

  const CacheDirectory& directory() const { return directory_; }

 private:
  struct Victim {
    int32_t entry;
    int32_t row;
  };

  void FindWanted(int32_t step, const TableCachePlan& to);
  void ListEvicted(CachedKeys* evicted);

  const uint64_t salt_;
  const bool keeps_rows_;
  const ClusterMap cluster_map_;
  CacheDirectory directory_;

  // What is known of the step at hand.
  UninitializedVector<int32_t> needed_;
  UninitializedVector<int32_t> misses_;  // u of each
  UninitializedVector<int32_t> released_;
  UninitializedVector<Wanted> wanted_;
  UninitializedVector<int32_t> given_;  // a row for each of wanted_
  std::vector<Victim> victims_;
  UninitializedVector<int32_t> dropped_;  // entries of keys with no row and no later use
  int32_t last_push_ = -1;

  // For ListEvicted.
  UninitializedVector<uint32_t> servers_;
  std::vector<int32_t> next_of_server_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHE_TABLE_H_
