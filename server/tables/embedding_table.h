// The rows of one table on one server: in memory, or as many there as its budget allows and the
// others in a store on disk. Where a row lies never shows in what it is.
//
// Where the layout has a min_count, a key whose lookups are fewer is a candidate: the table knows
// its count alone, always in memory. Where it has unused_steps or max_rows, Forget forgets rows and
// candidates.
//
// A batch machine: one call handles all the keys of a request, grouped by lock stripe; each stripe
// is locked once; memory is prefetched in two stages (bucket, then row); nothing is allocated per
// key.
//
// Thread-safe. The keys of one call are distinct. Errors are those of the store: kUnavailable (it
// can't be read), kDataLoss (what it has is damaged). A table without one has none. After an error
// a part of the rows may be changed, so a server must not go on.
#ifndef THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_
#define THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/math/row_limit.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "server/storage/row_store.h"
#include "server/tables/table_snapshot.h"

namespace thermocline {

struct TableSpill {
  std::unique_ptr<RowStore> store;  // Empty.
  // Rows can't be written to the store any more, for another reason than a full disk: the process
  // should end. On a thread of the table, or one that changes rows.
  std::function<void(const absl::Status&)> on_broken;
};

class EmbeddingTable {
 public:
  // All rows stay in memory.
  EmbeddingTable(const TableLayout& layout, uint64_t job_seed);
  // Up to layout.memory_budget_bytes do, index included; a request may go beyond it for a moment.
  EmbeddingTable(const TableLayout& layout, uint64_t job_seed, TableSpill spill);
  ~EmbeddingTable();

  const TableLayout& layout() const;

  // What becomes of rows that a read finds in the store.
  enum class ReadBack {
    kKeep,   // They move to memory, as far as there is room: they are about to be changed.
    kLeave,  // They stay where they are.
  };

  // Writes the weights of `keys`, packed, in key order. A key without a row reads as its initial
  // row; reading never creates it.
  //   weights: [n, dim] float32, any alignment
  absl::Status GatherWeights(absl::Span<const Key> keys, uint8_t* weights,
                             ReadBack read_back = ReadBack::kKeep) const;

  // The same for whole rows: weights, then optimizer state. rows: [n, row_floats] float32, any
  // alignment
  absl::Status GatherRows(absl::Span<const Key> keys, uint8_t* rows,
                          ReadBack read_back = ReadBack::kKeep) const;

  // One optimizer update a key; rows that don't exist are created from their initial row first,
  // once their lookups are as many as the layout wants. Until then those are counted, and the
  // gradient is dropped. `step`: the one being applied, which the rows remember as that of their
  // last change.
  //   counts: [n] lookups per key, added to the row's count; gradients: [n, dim]
  absl::Status ApplyGradients(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                              absl::Span<const float> gradients, const UpdateScalars& scalars,
                              Step step);

  // Overwrites (or creates) rows with exact bytes: weights, then optimizer state. rows: [n,
  // row_floats]
  absl::Status AssignRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                          absl::Span<const float> rows, Step step);

  // Overwrites (or creates) rows with what a checkpoint holds. Thread-safe.
  //   counts: [n], exact; changed: [n] steps of the last change, plus 1; rows: [n, row_floats]
  absl::Status LoadRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                        absl::Span<const uint32_t> changed, absl::Span<const float> rows);

  // The same for candidates. REQUIRES: none of them has a row.
  void LoadCandidates(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                      absl::Span<const uint32_t> changed);

  // To be called once all changes of `step` are done, or it is loaded: forgets what is unused (see
  // TableLayout::OldestKept), and what was changed before `oldest_kept` (RowMeta::changed), which
  // follows from CountRows. Looks at all rows in memory at some steps, and at others does nothing.
  void Forget(Step step, uint32_t oldest_kept = 0);
  uint32_t oldest_kept() const;  // Of all calls, the most.
  // The rows by GroupOfChange, once all changes of `step` are done; no candidates. Looks at all
  // rows in memory. REQUIRES: the layout has max_rows.
  RowsByGroup CountRows(Step step);

  // Begins a snapshot of the rows as they are now, that is between two changes, as far as they
  // changed after step `changed_after`. Takes microseconds, whatever the number of rows; from then
  // on, and until the snapshot is read or destroyed, the first change of a row keeps its old image.
  // One at a time. REQUIRES: steps up to `cut` are applied, and none beyond it.
  std::unique_ptr<TableSnapshot> BeginSnapshot(Step cut, Step changed_after);

  // Calls `visit` for every row and candidate, in no particular order, stripe by stripe under the
  // stripe's lock. row: [row_floats], or empty for a candidate; valid during the call. `changed`:
  // the step that last changed it.
  using RowVisitor =
      std::function<void(Key key, absl::Span<const float> row, uint32_t count, Step changed)>;
  // REQUIRES: where rows may be in a store, none are changed meanwhile.
  absl::Status VisitRows(const RowVisitor& visit) const;

  // Sum of the digests of rows and candidates. REQUIRES: as VisitRows.
  absl::StatusOr<Digest> ComputeDigest() const;

  // kResourceExhausted: the store's disk is full, and too many rows are in memory to take more.
  absl::Status CheckRoom() const;

  uint64_t num_rows() const;
  uint64_t memory_bytes() const;  // rows, index and slack
  uint64_t rows_created() const;
  uint64_t num_candidates() const;
  uint64_t gradients_dropped() const;  // Of candidates.
  uint64_t rows_forgotten() const;
  // Memory of the old images that the snapshot there is still needs. They go as it is read, in
  // steps. What memory_bytes() has is more: their room is kept until the snapshot's end.
  uint64_t old_image_bytes() const;

  struct SpillStats {
    uint64_t rows_in_memory = 0;
    uint64_t bytes_spilled = 0;   // In the store.
    uint64_t rows_read_back = 0;  // From the store.
    uint64_t rows_spilled = 0;    // Written to the store.
  };
  // nullopt: all rows stay in memory.
  std::optional<SpillStats> spill_stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_
