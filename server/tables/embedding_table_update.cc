// Changing rows: one optimizer update, or exact bytes from elsewhere.
#include <algorithm>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/row_init.h"
#include "common/row_update.h"
#include "server/tables/embedding_table_impl.h"
#include "server/tables/prefetch.h"

namespace thermocline {
namespace {

void MarkChanged(RowMeta* meta, uint32_t changed) {
  meta->changed = std::max(meta->changed, changed);
}

}  // namespace

EmbeddingTable::Impl::RowRef EmbeddingTable::Impl::FindForChange(const TableStripe& stripe,
                                                                 const Entry& entry) const {
  const uint32_t row = stripe.index.Find(entry.key, entry.place);
  if (row == 0) return {nullptr, 0};
  float* weights = storage.Weights(row);
  PrefetchRange(weights, layout.dim * sizeof(float));
  PrefetchRange(storage.Slots(row), layout.slot_floats() * sizeof(float));
  __builtin_prefetch(storage.Meta(row));
  return {weights, row};
}

EmbeddingTable::Impl::RowRef EmbeddingTable::Impl::Create(TableStripe& stripe, const Entry& entry,
                                                          uint32_t changed) {
  if (stripe.next_row == stripe.end_row) {
    stripe.next_row = storage.AllocateBlock();
    stripe.end_row = stripe.next_row + storage.rows_per_block();
  }
  const uint32_t row = stripe.next_row++;
  stripe.index.Insert(entry.key, entry.place, row);
  *storage.Meta(row) = {0, changed};
  return {storage.Weights(row), row};
}

void EmbeddingTable::Impl::Initialize(Key key, RowRef ref) {
  InitialWeights(seed, layout.id, key, layout.init_scale, absl::MakeSpan(ref.weights, layout.dim));
  InitSlots(layout.optimizer, absl::MakeSpan(storage.Slots(ref.row), layout.slot_floats()));
}

template <OptimizerKind kKind, int kDim>
void EmbeddingTable::Impl::Apply(const KeyBatch& batch, const uint32_t* counts,
                                 const float* gradients, const UpdateScalars& scalars, Step step) {
  const int dim = kDim > 0 ? kDim : layout.dim;
  const uint32_t changed = ChangedAt(step);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    TableStripe& stripe = stripes[s];
    absl::MutexLock lock(&stripe.mutex);
    stripes.Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          PrefetchRange(gradients + size_t{entry.position} * dim, dim * sizeof(float));
          RowRef ref = FindForChange(stripe, entry);
          if (ref.row == 0) {
            ref = Create(stripe, entry, changed);
            Initialize(entry.key, ref);
          }
          return ref;
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          SaveForSnapshot(stripe, entry.key, ref.row);
          UpdateRow<kKind>(scalars, gradients + size_t{entry.position} * dim, ref.weights,
                           storage.Slots(ref.row), dim);
          RowMeta* meta = storage.Meta(ref.row);
          meta->AddCount(counts[entry.position]);
          MarkChanged(meta, changed);
        });
  }
}

template <OptimizerKind kKind>
EmbeddingTable::Impl::ApplyFunction EmbeddingTable::Impl::SelectApplyOf(int dim) {
  switch (dim) {
    case 16:
      return &Impl::Apply<kKind, 16>;
    case 32:
      return &Impl::Apply<kKind, 32>;
    case 64:
      return &Impl::Apply<kKind, 64>;
    case 128:
      return &Impl::Apply<kKind, 128>;
    default:
      return &Impl::Apply<kKind, 0>;
  }
}

EmbeddingTable::Impl::ApplyFunction EmbeddingTable::Impl::SelectApply(const TableLayout& layout) {
  switch (layout.optimizer.kind) {
    case OptimizerKind::kSgd:
      return SelectApplyOf<OptimizerKind::kSgd>(layout.dim);
    case OptimizerKind::kAdagrad:
      return SelectApplyOf<OptimizerKind::kAdagrad>(layout.dim);
    case OptimizerKind::kRowWiseAdagrad:
      return SelectApplyOf<OptimizerKind::kRowWiseAdagrad>(layout.dim);
    case OptimizerKind::kAdam:
      return SelectApplyOf<OptimizerKind::kAdam>(layout.dim);
  }
  CHECK(false);
}

template <typename ChangedOf, typename SetMeta>
void EmbeddingTable::Impl::Overwrite(const KeyBatch& batch, const float* rows, ChangedOf changed_of,
                                     SetMeta set_meta) {
  const size_t row_floats = layout.row_floats();
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    TableStripe& stripe = stripes[s];
    absl::MutexLock lock(&stripe.mutex);
    stripes.Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          const RowRef ref = FindForChange(stripe, entry);
          return ref.row != 0 ? ref : Create(stripe, entry, changed_of(entry.position));
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          SaveForSnapshot(stripe, entry.key, ref.row);
          const float* from = rows + entry.position * row_floats;
          std::copy_n(from, layout.dim, ref.weights);
          std::copy_n(from + layout.dim, row_floats - layout.dim, storage.Slots(ref.row));
          set_meta(entry.position, storage.Meta(ref.row));
        });
  }
}

void EmbeddingTable::ApplyGradients(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                    absl::Span<const float> gradients, const UpdateScalars& scalars,
                                    Step step) {
  const size_t dim = impl_->layout.dim;
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(gradients.size(), keys.size() * dim);
  impl_->stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    (impl_.get()->*impl_->apply)(batch, counts.data() + first, gradients.data() + first * dim,
                                 scalars, step);
  });
}

void EmbeddingTable::AssignRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                absl::Span<const float> rows, Step step) {
  const size_t row_floats = impl_->layout.row_floats();
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  const uint32_t changed = ChangedAt(step);
  impl_->stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    impl_->Overwrite(
        batch, rows.data() + first * row_floats, [&](size_t) { return changed; },
        [&](size_t i, RowMeta* meta) {
          meta->AddCount(counts[first + i]);
          MarkChanged(meta, changed);
        });
  });
}

absl::Status EmbeddingTable::LoadRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                      absl::Span<const uint32_t> changed,
                                      absl::Span<const float> rows) {
  const size_t row_floats = impl_->layout.row_floats();
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(changed.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  CHECK(!impl_->in_snapshot.load());
  impl_->stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    const uint32_t* batch_changed = changed.data() + first;
    impl_->Overwrite(
        batch, rows.data() + first * row_floats, [=](size_t i) { return batch_changed[i]; },
        [&](size_t i, RowMeta* meta) {
          *meta = {counts[first + i], batch_changed[i]};
        });
  });
  return absl::OkStatus();
}

}  // namespace thermocline
