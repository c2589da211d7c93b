// What an EmbeddingTable is made of. Reading is in embedding_table_gather.cc, changing in
// embedding_table_update.cc: both are chosen by dim and optimizer when the table is made.
// Snapshots are in embedding_table_snapshot.cc, and what concerns rows that are not in memory is in
// embedding_table_spill.cc.
#ifndef THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_IMPL_H_
#define THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/row_update.h"
#include "common/math/sparse_optimizer.h"
#include "server/tables/embedding_table.h"
#include "server/tables/spiller.h"
#include "server/tables/table_admission.h"
#include "server/tables/table_miss.h"
#include "server/tables/table_stripes.h"

namespace thermocline {

struct EmbeddingTable::Impl {
  using Entry = KeyBatch::Entry;
  using Miss = TableMiss;
  using Misses = std::vector<Miss>;
  using GatherFunction = void (Impl::*)(const KeyBatch&, uint8_t*, Misses*) const;
  using ApplyFunction = void (Impl::*)(const KeyBatch&, const uint32_t*, const float*,
                                       const UpdateScalars&, uint32_t, Misses*);

  Impl(const TableLayout& table_layout, uint64_t job_seed, TableSpill spill);

  // Reading, in embedding_table_gather.cc. Misses are appended where the table has a store, else
  // they read as initial rows; their positions are those of the batch. kDim: the dim, or 0.
  template <int kDim, bool kSpilled>
  void Gather(const KeyBatch& batch, uint8_t* weights, Misses* misses) const;
  void GatherInitial(Key key, uint8_t* weights) const;
  template <bool kSpilled>
  static GatherFunction SelectGather(int dim);
  void GatherWhole(const KeyBatch& batch, uint8_t* rows, Misses* misses) const;
  void GatherInitialRow(Key key, uint8_t* row) const;
  // Runs gather_batch(batch, its rows, misses) over all keys, then answers what is in the store.
  template <typename GatherBatch>
  absl::Status GatherAll(absl::Span<const Key> keys, uint8_t* rows, size_t row_floats,
                         ReadBack read_back, GatherBatch gather_batch);

  // Changing, in embedding_table_update.cc.
  // Finds a row and starts fetching all that a change touches. 0 in `row`: it isn't in memory.
  RowRef FindForChange(const TableStripe& stripe, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // A new row, uninitialized but for its meta data.
  RowRef Create(TableStripe& stripe, Key key, uint32_t place, uint32_t changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  void Initialize(Key key, RowRef ref);

  // To be called before a row is changed and marked dirty. Does nothing, in most cases.
  void SaveForSnapshot(TableStripe& stripe, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
    if (ABSL_PREDICT_FALSE(stripe.cut.Contains(*storage.Meta(row)))) SaveImage(stripe, key, row);
  }
  void SaveImage(TableStripe& stripe, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);

  void ForgetStripe(TableStripe& stripe);  // After TableAdmission::SetOldestKept.
  // Rows that are not in memory are created where the table has no store, else appended to
  // `misses`, and not changed.
  template <OptimizerKind kKind, int kDim>
  void Apply(const KeyBatch& batch, const uint32_t* counts, const float* gradients,
             const UpdateScalars& scalars, uint32_t changed, Misses* misses);
  template <OptimizerKind kKind>
  static ApplyFunction SelectApplyOf(int dim);
  static ApplyFunction SelectApply(const TableLayout& layout);
  // set_row(position, row, is_new) overwrites a row; changed_of(position): what a new row's meta
  // data begin with.
  template <typename ChangedOf, typename SetRow>
  absl::Status Overwrite(absl::Span<const Key> keys, ChangedOf changed_of, SetRow set_row);
  template <typename ChangedOf, typename SetRow>
  void OverwriteBatch(const KeyBatch& batch, size_t first, ChangedOf changed_of, SetRow set_row,
                      Misses* misses);
  void CopyRow(const float* from, uint32_t row);

  // The store, in embedding_table_spill.cc. For tables that have one.
  // To be called before the stripe's lock is given back, with the misses found under it.
  void Pin(const TableStripe& stripe, absl::Span<const Miss> misses) const
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex);
  void Unpin(absl::Span<const Miss> misses) const;
  // Runs use(some, what is stored of them) for all pinned misses. It, or an error, unpins them.
  template <typename Use>
  absl::Status ReadMissed(absl::Span<const Miss> misses, Use use) const;
  // Moves a row to memory, as it is in the store.
  uint32_t Install(TableStripe& stripe, const Miss& miss, const uint8_t* stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Answers pinned misses of a read, and unpins them. rows: [n, row_floats] of the whole request.
  absl::Status GatherMissed(const Misses& misses, uint8_t* rows, size_t row_floats,
                            ReadBack read_back);
  bool IsStored(const StoredRows& stored, size_t i) const;  // And not forgotten.
  // Runs change(miss, row, is_new) for pinned misses, with the row in memory and its stripe locked,
  // and unpins them. A new row is uninitialized but for its count. counts: lookups, by the misses'
  // positions, for keys that must be admitted; or none.
  using ChangeMiss = absl::FunctionRef<void(const Miss&, uint32_t row, bool is_new)>;
  absl::Status ChangeMissed(const Misses& misses, absl::Span<const uint32_t> counts,
                            uint32_t changed, ChangeMiss change);
  // Has rows spilled where there are too many; here, if there are far too many.
  void KeepBudget(size_t most_stripe_rows) const;
  struct SpillBatch;
  absl::Status SpillRound();
  size_t SweepStripe(uint32_t stripe, SpillBatch* batch);
  void AddToBatch(Key key, uint32_t row, SpillBatch* batch) const;
  void EraseRow(TableStripe& stripe, uint32_t place, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  void FinishBatch(const SpillBatch& batch, bool written);
  using VisitRow = absl::FunctionRef<void(Key, absl::Span<const float> row, const RowMeta&)>;
  absl::Status VisitAll(VisitRow visit);
  void VisitMemory(VisitRow visit) const;
  uint64_t RowsInMemory() const;
  size_t MostStripeRows() const;  // In memory.
  // Rows that are not in memory. REQUIRES: none moves meanwhile.
  absl::Status VisitStored(VisitRow visit) const;
  class Snapshot;  // embedding_table_snapshot.cc

  const TableLayout layout;
  const uint64_t seed;
  const std::unique_ptr<RowStore> store;  // Null: all rows stay in memory.
  RowStorage storage;
  const GatherFunction gather;
  const ApplyFunction apply;
  const RowUpdate update;  // As `apply` does it.
  TableStripes stripes;
  SnapshotProgress snapshot;
  TableAdmission admission;
  // Of a table with a store.
  const size_t stored_row_bytes;
  const size_t max_stripe_rows;  // That the budget has room for, in one stripe.
  std::atomic<uint64_t> rows_created{0};
  mutable std::atomic<uint64_t> rows_read_back{0};
  std::atomic<uint64_t> rows_spilled{0};
  // No row moves to memory: somebody visits all. Changes while the stripes' locks are held.
  std::atomic<bool> frozen{false};
  std::unique_ptr<Spiller> spiller;  // Last: its thread uses the others.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_IMPL_H_
