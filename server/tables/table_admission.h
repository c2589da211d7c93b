// Decides which keys of a table have a row. A key gets one once it was looked up often enough, and
// loses it when no push has reached it for too long, or too many other keys have one. The decisions
// follow from accepted pushes alone.
#ifndef THERMOCLINE_SERVER_TABLES_TABLE_ADMISSION_H_
#define THERMOCLINE_SERVER_TABLES_TABLE_ADMISSION_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/row_limit.h"
#include "common/math/table_spec.h"
#include "server/storage/row_store.h"
#include "server/tables/row_storage.h"
#include "server/tables/table_stripes.h"

namespace thermocline {

// How far the present snapshot of a table has been read.
struct SnapshotProgress {
  std::atomic<bool> exists{false};
  std::atomic<uint32_t> partitions_read{0};  // All partitions below have been read.
  std::atomic<uint64_t> old_images{0};       // Images that the stripes keep for it.
};

// Lookups of keys in a push, with or without gradients.
struct PushedLookups {
  absl::Span<const uint32_t> counts;  // [keys]
  uint32_t changed = 0;               // RowMeta::changed of the push's step
  bool have_gradients = false;
};

// Thread-safe, with the locks that the functions ask for.
class TableAdmission {
 public:
  // Borrows `snapshot`.
  TableAdmission(const TableLayout& layout, SnapshotProgress* snapshot);

  // Counts the lookups at `position` of a key without a row. If the key gets its row now, returns
  // the count that it had before; nullopt: it is still a candidate, and its gradient, if it has
  // one, is dropped.
  std::optional<uint32_t> Admit(TableStripe& stripe, Key key, const PushedLookups& lookups,
                                size_t position) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // The key gets a row: removes it from the candidates, and returns its count.
  uint32_t TakeCandidate(TableStripe& stripe, Key key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);

  // Rows and candidates with a smaller RowMeta::changed are forgotten.
  uint32_t oldest_kept() const { return oldest_kept_.load(); }
  bool IsKept(const RowMeta& meta) const { return meta.changed >= oldest_kept(); }
  // REQUIRES: `oldest_kept` > oldest_kept(), and a group ends before it (GroupOfChange).
  void SetOldestKept(uint32_t oldest_kept) { oldest_kept_.store(oldest_kept); }
  // After SetOldestKept: forgets candidates, and counts forgotten rows: those in the store alone,
  // and `rows` that were in memory.
  void ForgetOthers(TableStripe& stripe, uint64_t rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);

  // A row has left memory for the store (rows = 1), or come back (rows = -1).
  void CountStored(TableStripe& stripe, uint32_t changed, int64_t rows) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
    if (layout_.unused_steps == 0 && layout_.max_rows == 0) return;
    stripe.stored_rows[GroupOfChange(layout_, changed, stripe.grouped_at)] += rows;
  }
  // Adds the rows that are in the store alone, and not forgotten, in the groups of `now`.
  void AddStored(TableStripe& stripe, Step now, RowsByGroup* counts) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Looks at some thousand rows of the store and removes the forgotten ones. True: there are more
  // to look at. Does nothing where few are forgotten. `num_rows`: of the table. Errors: the
  // store's. REQUIRES: no other call runs, and nothing is written to the store meanwhile.
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
  // Rows forgotten in the store since the last removal began.
  std::atomic<uint64_t> stored_forgotten_{0};
  std::unique_ptr<RowCursor> removal_;  // Set while a removal is under way.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_TABLE_ADMISSION_H_
