// Which keys of a table have a row: those that were looked up often enough, until no push reaches
// them for too long, or too many others have one. All follows from accepted pushes alone.
#ifndef THERMOCLINE_SERVER_TABLES_TABLE_ADMISSION_H_
#define THERMOCLINE_SERVER_TABLES_TABLE_ADMISSION_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/math/row_limit.h"
#include "common/math/table_spec.h"
#include "server/storage/row_store.h"
#include "server/tables/row_storage.h"
#include "server/tables/table_stripes.h"

namespace thermocline {

// How far the snapshot is read that there is, and what it keeps.
struct SnapshotProgress {
  std::atomic<bool> exists{false};
  std::atomic<uint32_t> partitions_read{0};  // Those below.
  std::atomic<uint64_t> old_images{0};       // That all stripes keep.
};

// Thread-safe, with the locks that the functions ask for.
class TableAdmission {
 public:
  // Borrows `snapshot`.
  TableAdmission(const TableLayout& layout, SnapshotProgress* snapshot);

  // Counts `lookups` of a key without a row. The count that it had before them, where it gets its
  // row now; nullopt: it is a candidate still, and its gradient is dropped.
  std::optional<uint32_t> Admit(TableStripe& stripe, Key key, uint32_t lookups, uint32_t changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // The key gets a row: it is no candidate any more, and its count was this.
  uint32_t TakeCandidate(TableStripe& stripe, Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);

  // RowMeta::changed of what is not forgotten, at least.
  uint32_t oldest_kept() const { return oldest_kept_.load(); }
  bool IsKept(const RowMeta& meta) const { return meta.changed >= oldest_kept(); }
  // REQUIRES: it is more than oldest_kept(), and a group ends before it (GroupOfChange).
  void SetOldestKept(uint32_t oldest_kept) { oldest_kept_.store(oldest_kept); }
  // After that: forgets candidates and rows in the store, and counts those and `rows` others.
  void ForgetOthers(TableStripe& stripe, uint64_t rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);

  // A row leaves memory (1), or comes there (-1): it is in the store alone, or no more.
  void CountStored(TableStripe& stripe, uint32_t changed, int64_t rows) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
    if (layout_.unused_steps == 0 && layout_.max_rows == 0) return;
    stripe.stored_rows[GroupOfChange(layout_, changed, stripe.grouped_at)] += rows;
  }
  // Adds the rows that are in the store alone, and not forgotten, in the groups of `now`.
  void AddStored(TableStripe& stripe, Step now, RowsByGroup* counts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Removes forgotten rows from some thousand rows of the store. True: there are more to look at.
  // Does nothing where there are few. No other call at the same time, and nothing is written to the
  // store meanwhile. `num_rows`: of the table. Errors: the store's.
  absl::StatusOr<bool> RemoveForgotten(RowStore* store, uint64_t num_rows);

  uint64_t gradients_dropped() const { return gradients_dropped_.load(); }
  uint64_t rows_forgotten() const { return rows_forgotten_.load(); }

 private:
  void Save(TableStripe& stripe, Key key, const RowMeta& meta)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  const TableLayout layout_;
  SnapshotProgress* const snapshot_;
  std::atomic<uint32_t> oldest_kept_{0};
  std::atomic<uint64_t> gradients_dropped_{0};
  std::atomic<uint64_t> rows_forgotten_{0};
  // Forgotten while they were in the store, since a removal of such rows began last.
  std::atomic<uint64_t> stored_forgotten_{0};
  std::unique_ptr<RowCursor> removal_;  // While one is under way.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_TABLE_ADMISSION_H_
