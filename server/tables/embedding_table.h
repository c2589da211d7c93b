// The rows of one table on one server. All of them are in memory, or as many as the table's budget
// allows and the others in a store on disk; results never depend on where a row is.
//
// Where the layout has a min_count, a key with fewer lookups is a candidate: the table keeps its
// count, always in memory, and no row. Where the layout has unused_steps or max_rows, Forget
// forgets rows and candidates.
//
// One call handles all the keys of a request, grouped by lock stripe. Each stripe is locked once,
// memory is prefetched in two stages (bucket, then row), and nothing is allocated per key.
//
// Thread-safe. The keys of one call are distinct. Errors are the store's: kUnavailable (it can't be
// read), kDataLoss (it is damaged). A table without a store has none. After an error a part of the
// rows may be changed, so the server must not go on.
#ifndef THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_
#define THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/math/row_limit.h"
#include "common/math/sparse_optimizer.h"
#include "common/math/table_spec.h"
#include "server/storage/row_store.h"
#include "server/tables/row_storage.h"
#include "server/tables/spiller.h"
#include "server/tables/table_admission.h"
#include "server/tables/table_snapshot.h"
#include "server/tables/table_stripes.h"

namespace thermocline {

class EmbeddingTable {
 public:
  // All rows stay in memory.
  EmbeddingTable(const TableLayout& layout, uint64_t job_seed);
  // Rows of up to layout.memory_budget_bytes stay in memory, index included. A request may exceed
  // that for a moment.
  EmbeddingTable(const TableLayout& layout, uint64_t job_seed, TableSpill spill);
  ~EmbeddingTable();

  const TableLayout& layout() const { return layout_; }

  // What a read does with rows that it finds in the store.
  enum class ReadBack {
    kKeep,   // It moves them to memory, as far as there is room: they are about to be changed.
    kLeave,  // It leaves them there.
  };

  // Writes the weights of `keys`, packed, in key order. A key without a row reads as its initial
  // row; reading never creates it.
  //   weights: [n, dim] float32, any alignment
  absl::Status GatherWeights(absl::Span<const Key> keys, uint8_t* weights,
                             ReadBack read_back = ReadBack::kKeep) const;

  // The same for whole rows: weights, then optimizer state.
  //   rows: [n, row_floats] float32, any alignment
  absl::Status GatherRows(absl::Span<const Key> keys, uint8_t* rows,
                          ReadBack read_back = ReadBack::kKeep) const;

  // Makes one optimizer update a key, as UpdateRow(scalars) does. A row that doesn't exist is
  // created from its initial row first, once the key has layout.min_count lookups; until then its
  // lookups are counted and the gradient is dropped. The rows remember `step`, which is being
  // applied, as their last change.
  //   counts: [n] lookups per key, added to the row's count; gradients: [n, dim];
  //   scalars: of the layout's optimizers
  absl::Status ApplyGradients(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                              absl::Span<const float> gradients, const RowScalars& scalars,
                              Step step);
  // The same for keys without a gradient: counts their lookups, and updates no row.
  absl::Status CountLookups(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                            Step step);

  // Overwrites (or creates) rows with exact bytes: weights, optimizer state. rows: [n, row_floats]
  absl::Status AssignRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                          absl::Span<const float> rows, Step step);

  // Makes room in the index for `rows` rows, about. Does nothing in a table with a store.
  void ReserveRows(uint64_t rows);
  // Overwrites (or creates) rows with what a checkpoint holds. Thread-safe.
  //   counts: [n], exact; changed: [n] steps of the last change, plus 1; rows: [n, row_floats]
  absl::Status LoadRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                        absl::Span<const uint32_t> changed, absl::Span<const float> rows);

  // The same for candidates. REQUIRES: no key has a row.
  void LoadCandidates(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                      absl::Span<const uint32_t> changed);

  // Forgets rows and candidates that are unused (see TableLayout::OldestKept), and those changed
  // before `oldest_kept` (a RowMeta::changed that follows from CountRows). Call it once all changes
  // of `step` are made, or it is loaded. Looks at all rows in memory, or does nothing at a step.
  void Forget(Step step, uint32_t oldest_kept = 0);
  uint32_t oldest_kept() const { return admission_.oldest_kept(); }  // The largest so far.
  // Counts the rows, without candidates, by GroupOfChange, once all changes of `step` are made.
  // Looks at all rows in memory. REQUIRES: the layout has max_rows.
  RowsByGroup CountRows(Step step);

  // Begins a snapshot of the rows that changed after step `changed_after`, as they are now. Takes
  // microseconds, whatever the number of rows. Until the snapshot is read or destroyed, the first
  // change of a row keeps its old image. There may be one snapshot at a time.
  // REQUIRES: all steps up to `cut` are applied, and none beyond it; no change is being made.
  std::unique_ptr<TableSnapshot> BeginSnapshot(Step cut, Step changed_after);

  // Gets every row and candidate, in no particular order, stripe by stripe under the stripe's lock.
  // row: [row_floats], or empty for a candidate; valid during the call. `changed`: the step that
  // last changed it. REQUIRES: where rows may be in a store, none are changed meanwhile.
  using RowVisitor =
      std::function<void(Key key, absl::Span<const float> row, uint32_t count, Step changed)>;
  absl::Status VisitRows(const RowVisitor& visit) const;

  // Sum of the digests of rows and candidates. REQUIRES: as VisitRows.
  absl::StatusOr<Digest> ComputeDigest() const;

  // kResourceExhausted: the store's disk is full, and too many rows are in memory to take more.
  absl::Status CheckRoom() const;

  uint64_t num_rows() const;
  uint64_t memory_bytes() const;  // Rows, index and slack.
  uint64_t rows_created() const { return num_rows() + rows_forgotten(); }
  uint64_t num_candidates() const;
  uint64_t gradients_dropped() const { return admission_.gradients_dropped(); }
  uint64_t rows_forgotten() const { return admission_.rows_forgotten(); }
  // Memory of old images that the snapshot still needs; memory_bytes() counts all it ever needed.
  uint64_t old_image_bytes() const;

  // nullopt: all rows stay in memory.
  std::optional<SpillStats> spill_stats() const;

 private:
  using Entry = KeyBatch::Entry;
  using Miss = TableMiss;
  using Misses = std::vector<Miss>;
  struct StoredRows;
  using GatherFunction = void (EmbeddingTable::*)(const KeyBatch&, uint8_t*, Misses*) const;
  using ApplyFunction = void (EmbeddingTable::*)(const KeyBatch&, const PushedLookups&,
                                                 const float*, const RowScalars&, Misses*);

  // Reads. In a table with a store, missing keys are appended to `misses`, with their positions in
  // the batch; else they read as initial rows. kDim: the dim, or 0 where only the layout knows it.
  template <int kDim, bool kSpilled>
  void Gather(const KeyBatch& batch, uint8_t* weights, Misses* misses) const;
  template <bool kSpilled>
  static GatherFunction SelectGather(int dim);
  void GatherWhole(const KeyBatch& batch, uint8_t* rows, Misses* misses) const;
  void GatherInitial(Key key, bool with_state, uint8_t* row) const;
  // Runs gather_batch(batch, its rows, misses) over all keys, then reads the misses.
  template <typename GatherBatch>
  absl::Status GatherAll(absl::Span<const Key> keys, uint8_t* rows, size_t row_floats,
                         ReadBack read_back, GatherBatch gather_batch) const;

  // Changes. Finds a row and prefetches all that a change touches.
  RowRef FindForChange(const TableStripe& stripe, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Makes a row in memory, of which only the meta data are initialized.
  RowRef Create(TableStripe& stripe, Key key, uint32_t place, uint32_t changed) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  void Initialize(Key key, RowRef ref);
  // Must be called before a row is changed and marked dirty. In most cases it does nothing.
  void SaveForSnapshot(TableStripe& stripe, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
    if (ABSL_PREDICT_FALSE(stripe.cut.Contains(*storage_.Meta(row)))) SaveImage(stripe, key, row);
  }
  void SaveImage(TableStripe& stripe, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Rows not in memory are created or, with a store, appended to `misses` unchanged. With NoUpdate
  // there are no gradients.
  template <OptimizerKind kKind, int kFixedDim>
  struct PlainUpdate;  // One optimizer for all weights, and gradients as they are.
  struct AnyUpdate;
  struct NoUpdate;
  template <typename Update>
  void Apply(const KeyBatch& batch, const PushedLookups& lookups, const float* gradients,
             const RowScalars& scalars, Misses* misses);
  absl::Status ApplyAll(absl::Span<const Key> keys, const PushedLookups& lookups,
                        const float* gradients, const RowScalars& scalars);
  static ApplyFunction SelectApply(const RowScalars& scalars, int dim);
  // set_row(position, row) overwrites a row; changed_of(position) is its meta data's first value.
  template <typename ChangedOf, typename SetRow>
  absl::Status Overwrite(absl::Span<const Key> keys, ChangedOf changed_of, SetRow set_row);
  template <typename ChangedOf, typename SetRow>
  void OverwriteBatch(const KeyBatch& batch, size_t first, ChangedOf changed_of, SetRow set_row,
                      Misses* misses);
  void ForgetStripe(TableStripe& stripe);  // After TableAdmission::SetOldestKept.

  // Rows that come from the store. Misses are pinned before their stripe's lock is given back.
  // Calls use(some misses, what is stored of them); `use` unpins them, as does an error.
  template <typename Use>
  absl::Status ReadMissed(absl::Span<const Miss> misses, Use use) const;
  // Moves a row to memory, as it is in the store.
  uint32_t Install(TableStripe& stripe, const Miss& miss, const uint8_t* stored) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // Reads pinned misses, and unpins them. rows: [n, row_floats] of the whole request.
  absl::Status GatherMissed(const Misses& misses, uint8_t* rows, size_t row_floats,
                            ReadBack read_back) const;
  bool IsStored(const StoredRows& stored, size_t i) const;  // And not forgotten.
  // Calls change(miss, row, is_new) for pinned misses, with the row in memory and its stripe
  // locked, and unpins them. Only the count of a new row is initialized. lookups: by the misses'
  // positions where keys must be admitted; or null.
  using ChangeMiss = absl::FunctionRef<void(const Miss&, uint32_t row, bool is_new)>;
  absl::Status ChangeMissed(const Misses& misses, const PushedLookups* lookups, ChangeMiss change);

  // Rows that leave for the store. Wakes the spiller where too many are in memory, and spills on
  // this thread where far too many are.
  void KeepBudget(size_t most_stripe_rows) const;
  struct SpillBatch;
  absl::Status SpillRound();
  size_t SweepStripe(uint32_t stripe, SpillBatch* batch);
  void AddToBatch(Key key, uint32_t row, SpillBatch* batch) const;
  void FinishBatch(const SpillBatch& batch, bool written);

  using VisitRow = absl::FunctionRef<void(Key, absl::Span<const float> row, const RowMeta&)>;
  absl::Status VisitAll(VisitRow visit) const;
  void VisitMemory(VisitRow visit) const;
  absl::Status VisitStored(VisitRow visit) const;  // REQUIRES: no row moves to or from memory.
  class Snapshot;

  const TableLayout layout_;
  const uint64_t seed_;
  const std::unique_ptr<RowStore> store_;  // Null: all rows stay in memory.
  mutable RowStorage storage_;             // A read may move rows to memory.
  const GatherFunction gather_;
  mutable TableStripes stripes_;
  SnapshotProgress snapshot_;
  TableAdmission admission_;
  // The rest is for a table with a store.
  const size_t stored_row_bytes_;
  const size_t max_stripe_rows_;  // The budget has room for so many in one stripe.
  std::atomic<uint64_t> rows_created_{0};
  mutable std::atomic<uint64_t> rows_read_back_{0};
  std::atomic<uint64_t> rows_spilled_{0};
  // While VisitAll runs, no row moves to memory. Changes while the stripes' locks are held.
  mutable std::atomic<bool> frozen_{false};
  std::unique_ptr<Spiller> spiller_;  // Last: its thread uses the others.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_H_
