// The hot rows of a job (worker/plan/hot_set.h) in the slabs of a worker that holds all of them.
// The rows of a table stand one after the other in its group's slab, in the order of the hot set;
// so workers name a row by its number there.
#ifndef THERMOCLINE_WORKER_ROWS_HOT_ROWS_H_
#define THERMOCLINE_WORKER_ROWS_HOT_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/job/cache_layout.h"
#include "common/job/resolved_job.h"
#include "worker/plan/hot_set.h"
#include "worker/rows/cache_plan.h"

namespace thermocline {

// Immutable and thread-safe.
class HotRows {
 public:
  // `hot_set` outlives it. field: what the job calls the budget, for errors. Errors:
  // kInvalidArgument (the rows do not fit: says how many bytes they take, table group by table
  // group; servers decide which keys of a table with hot rows have a row: names the table).
  static absl::StatusOr<std::unique_ptr<HotRows>> Make(const JobTables& tables,
                                                       const HotSet& hot_set, uint64_t budget_bytes,
                                                       const std::string& field);

  // Each group's capacity is the number of its hot rows, with their optimizer state. There is no
  // staging.
  const CacheLayout& layout() const { return layout_; }
  const std::vector<TableLayout>& tables() const { return tables_; }

  // Ascending; hot row i of table t is row first_row(t) + i of its group's slab.
  const std::vector<Key>& keys(size_t t) const { return hot_set_.tables[t]; }
  int32_t first_row(size_t t) const { return places_[t].first_row; }
  // The row of the slab; kNoRow: the key is not hot.
  int32_t Find(size_t t, Key key) const;
  // The same for many; returns how many of `keys` are hot.
  size_t FindAll(size_t t, absl::Span<const Key> keys, absl::Span<int32_t> rows) const;

  // A write-back may bring all rows to the servers in one push, beside `dense_bytes` of dense
  // parameters. Errors: kInvalidArgument (a server has no room for its share of that: names
  // `field`, the server, the bytes that it is to take, and its room_bytes,
  // cluster.max_pending_size).
  absl::Status CheckWriteBack(const ClusterMap& servers, uint64_t room_bytes, uint64_t dense_bytes,
                              const std::string& field) const;

 private:
  struct Place {
    int32_t first_row = 0;
    uint64_t salt = 0;
    // Number of the hot row + 1, or 0, by the key's hash. Linear probing, at most half full.
    std::vector<uint32_t> buckets;
    uint64_t mask = 0;
  };

  HotRows(const JobTables& tables, const HotSet& hot_set);
  absl::Status CheckBudget(const std::string& field) const;
  void Index(size_t t);
  int32_t FindHashed(size_t t, Key key, uint64_t hash) const;

  const std::vector<TableLayout> tables_;
  const HotSet& hot_set_;
  CacheLayout layout_;
  std::vector<Place> places_;  // [tables]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_HOT_ROWS_H_
