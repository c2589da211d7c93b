// What an EmbeddingTable is made of. Reading is in embedding_table_gather.cc, changing in
// embedding_table_update.cc: both are chosen by dim and optimizer when the table is made.
// Snapshots are in embedding_table_snapshot.cc.
#ifndef THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_IMPL_H_
#define THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/hash.h"
#include "common/ids.h"
#include "common/sparse_optimizer.h"
#include "common/table_spec.h"
#include "server/tables/embedding_table.h"
#include "server/tables/row_storage.h"
#include "server/tables/table_stripes.h"

namespace thermocline {

struct EmbeddingTable::Impl {
  using Entry = KeyBatch::Entry;
  using GatherFunction = void (Impl::*)(const KeyBatch&, uint8_t*) const;
  using ApplyFunction = void (Impl::*)(const KeyBatch&, const uint32_t*, const float*,
                                       const UpdateScalars&, Step);

  Impl(const TableLayout& table_layout, uint64_t job_seed)
      : layout(table_layout),
        seed(job_seed),
        storage(table_layout),
        gather(SelectGather(table_layout.dim)),
        apply(SelectApply(table_layout)),
        stripes(TableSalt(table_layout.id)) {}

  // kDim: the table's dim, or 0 where it is none of those specialized.
  template <int kDim>
  void Gather(const KeyBatch& batch, uint8_t* weights) const;
  void GatherMissing(Key key, uint8_t* weights) const;
  static GatherFunction SelectGather(int dim);
  void GatherWhole(const KeyBatch& batch, uint8_t* rows) const;
  void GatherMissingRow(Key key, uint8_t* row) const;

  // A row about to be changed.
  struct RowRef {
    float* weights;
    uint32_t row;
  };
  // Finds a row and starts fetching all that a change touches. 0 in `row`: it doesn't exist.
  RowRef FindForChange(const TableStripe& stripe, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // A new row, uninitialized but for its meta data.
  RowRef Create(TableStripe& stripe, const Entry& entry, uint32_t changed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  void Initialize(Key key, RowRef ref);

  // To be called before a row is changed. Does nothing, in most cases.
  void SaveForSnapshot(TableStripe& stripe, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
    if (ABSL_PREDICT_FALSE(stripe.cut.Contains(*storage.Meta(row)))) SaveImage(stripe, key, row);
  }
  void SaveImage(TableStripe& stripe, Key key, uint32_t row)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);

  template <OptimizerKind kKind, int kDim>
  void Apply(const KeyBatch& batch, const uint32_t* counts, const float* gradients,
             const UpdateScalars& scalars, Step step);
  template <OptimizerKind kKind>
  static ApplyFunction SelectApplyOf(int dim);
  static ApplyFunction SelectApply(const TableLayout& layout);

  // Copies rows [n, row_floats]; set_meta(position, RowMeta*) does the rest. changed_of(position):
  // what a new row's meta data begin with.
  template <typename ChangedOf, typename SetMeta>
  void Overwrite(const KeyBatch& batch, const float* rows, ChangedOf changed_of, SetMeta set_meta);

  // visit(Key, row, row number) for the rows of one stripe. row: [row_floats], in `scratch`
  template <typename Visit>
  void VisitStripe(const TableStripe& stripe, std::vector<float>* scratch, Visit visit) const
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex);

  class Snapshot;  // embedding_table_snapshot.cc

  const TableLayout layout;
  const uint64_t seed;
  RowStorage storage;
  const GatherFunction gather;
  const ApplyFunction apply;
  TableStripes stripes;
  // Of the snapshot there is: the slots below are read.
  std::atomic<bool> in_snapshot{false};
  std::atomic<uint32_t> snapshot_slots_read{0};
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_EMBEDDING_TABLE_IMPL_H_
