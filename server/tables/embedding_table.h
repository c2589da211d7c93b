// The rows of one table on one server, in memory.
//
// A batch machine: one call handles all the keys of a request, grouped by lock stripe; each stripe
// is locked once; memory is prefetched in two stages (bucket, then row); nothing is allocated per
// key.
//
// Thread-safe. The keys of one call are distinct.
#ifndef THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_
#define THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/hash.h"
#include "common/ids.h"
#include "common/sparse_optimizer.h"
#include "common/table_spec.h"
#include "server/tables/table_snapshot.h"

namespace thermocline {

class EmbeddingTable {
 public:
  EmbeddingTable(const TableLayout& layout, uint64_t job_seed);
  ~EmbeddingTable();

  const TableLayout& layout() const;

  // Writes the weights of `keys`, packed, in key order. A key without a row reads as its initial
  // row; reading never creates it.
  //   weights: [n, dim] float32, any alignment
  void GatherWeights(absl::Span<const Key> keys, uint8_t* weights) const;

  // The same for whole rows: weights, then slots. rows: [n, row_floats] float32, any alignment
  absl::Status GatherRows(absl::Span<const Key> keys, uint8_t* rows) const;

  // One optimizer update a key; rows that don't exist are created from their initial row first.
  // `step`: the one being applied, which the rows remember as that of their last change.
  //   counts: [n] lookups per key, added to the row's count; gradients: [n, dim]
  void ApplyGradients(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                      absl::Span<const float> gradients, const UpdateScalars& scalars, Step step);

  // Overwrites (or creates) rows with exact bytes: weights, then slots. rows: [n, row_floats]
  void AssignRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                  absl::Span<const float> rows, Step step);

  // Overwrites (or creates) rows with what a checkpoint holds.
  //   counts: [n], exact; changed: [n] steps of the last change, plus 1; rows: [n, row_floats]
  absl::Status LoadRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                        absl::Span<const uint32_t> changed, absl::Span<const float> rows);

  // Begins a snapshot of the rows as they are now, that is between two changes, as far as they
  // changed after step `changed_after`. Takes microseconds, whatever the number of rows; from then
  // on, and until the snapshot is read or destroyed, the first change of a row keeps its old image.
  // One at a time. REQUIRES: steps up to `cut` are applied, and none beyond it.
  std::unique_ptr<TableSnapshot> BeginSnapshot(Step cut, Step changed_after);

  // Calls `visit` for every row, in no particular order, stripe by stripe under the stripe's lock.
  // row: [row_floats], valid during the call. `changed`: the step that last changed it.
  using RowVisitor =
      std::function<void(Key key, absl::Span<const float> row, uint32_t count, Step changed)>;
  void VisitRows(const RowVisitor& visit) const;

  // Sum of the rows' digests.
  Digest ComputeDigest() const;

  uint64_t num_rows() const;
  uint64_t memory_bytes() const;  // rows, index and slack
  uint64_t rows_created() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_
