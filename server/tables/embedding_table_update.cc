// Changing rows: one optimizer update, or exact bytes from elsewhere.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/math/row_update.h"
#include "common/math/table_spec.h"
#include "server/tables/embedding_table_impl.h"
#include "server/tables/prefetch.h"

namespace thermocline {
namespace {

void MarkChanged(RowMeta* meta, uint32_t changed) {
  meta->changed = std::max(meta->changed, changed);
}

}  // namespace

RowRef EmbeddingTable::Impl::FindForChange(const TableStripe& stripe, const Entry& entry) const {
  const uint32_t row = stripe.index.Find(entry.key, entry.place);
  if (row == 0) return {nullptr, 0};
  float* weights = storage.Weights(row);
  PrefetchRange(weights, layout.dim * sizeof(float));
  PrefetchRange(storage.State(row), layout.state_floats() * sizeof(float));
  __builtin_prefetch(storage.Meta(row));
  if (store != nullptr) __builtin_prefetch(storage.Flags(row));
  return {weights, row};
}

RowRef EmbeddingTable::Impl::Create(TableStripe& stripe, Key key, uint32_t place,
                                    uint32_t changed) {
  uint32_t row;
  if (!stripe.free_rows.empty()) {
    row = stripe.free_rows.back();
    stripe.free_rows.pop_back();
  } else {
    if (stripe.next_row == stripe.end_row) {
      stripe.next_row = storage.AllocateBlock();
      stripe.end_row = stripe.next_row + storage.rows_per_block();
    }
    row = stripe.next_row++;
  }
  stripe.index.Insert(key, place, row);
  *storage.Meta(row) = {0, changed};
  if (store != nullptr) storage.Flags(row)->store(kFresh, std::memory_order_relaxed);
  return {storage.Weights(row), row};
}

void EmbeddingTable::Impl::Initialize(Key key, RowRef ref) {
  InitialWeights(seed, layout.id, key, layout.distribution, layout.init_scale,
                 absl::MakeSpan(ref.weights, layout.dim));
  InitState(layout.optimizer, absl::MakeSpan(storage.State(ref.row), layout.state_floats()));
}

template <OptimizerKind kKind, int kDim>
void EmbeddingTable::Impl::Apply(const KeyBatch& batch, const uint32_t* counts,
                                 const float* gradients, const UpdateScalars& scalars,
                                 uint32_t changed, Misses* misses) {
  const int dim = kDim > 0 ? kDim : layout.dim;
  const bool spilled = store != nullptr;
  const bool counts_first = layout.min_count > 0;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    TableStripe& stripe = stripes[s];
    const size_t old_misses = misses->size();
    absl::MutexLock lock(&stripe.mutex);
    stripes.Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          PrefetchRange(gradients + size_t{entry.position} * dim, dim * sizeof(float));
          RowRef ref = FindForChange(stripe, entry);
          if (ref.row != 0) return ref;
          if (spilled && (!counts_first || !stripe.candidates.contains(entry.key))) {
            misses->push_back({entry.key, entry.place, s, entry.position});
            return ref;
          }
          const std::optional<uint32_t> count =
              admission.Admit(stripe, entry.key, counts[entry.position], changed);
          if (!count.has_value()) return ref;
          if (spilled) rows_created.fetch_add(1, std::memory_order_relaxed);
          ref = Create(stripe, entry.key, entry.place, changed);
          storage.Meta(ref.row)->count = *count;
          Initialize(entry.key, ref);
          return ref;
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          if (ABSL_PREDICT_FALSE(ref.row == 0)) return;
          SaveForSnapshot(stripe, entry.key, ref.row);
          UpdateRow<kKind>(scalars, gradients + size_t{entry.position} * dim, ref.weights,
                           storage.State(ref.row), dim);
          RowMeta* meta = storage.Meta(ref.row);
          meta->AddCount(counts[entry.position]);
          MarkChanged(meta, changed);
          if (spilled) storage.MarkDirty(ref.row);
        });
    if (spilled) Pin(stripe, absl::MakeConstSpan(*misses).subspan(old_misses));
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

template <typename ChangedOf, typename SetRow>
void EmbeddingTable::Impl::OverwriteBatch(const KeyBatch& batch, size_t first, ChangedOf changed_of,
                                          SetRow set_row, Misses* misses) {
  const bool spilled = store != nullptr;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    TableStripe& stripe = stripes[s];
    const size_t old_misses = misses->size();
    absl::MutexLock lock(&stripe.mutex);
    stripes.Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          const RowRef ref = FindForChange(stripe, entry);
          if (ref.row != 0) return ref;
          const size_t position = first + entry.position;
          if (!spilled) {
            const uint32_t count = admission.TakeCandidate(stripe, entry.key);
            const RowRef created = Create(stripe, entry.key, entry.place, changed_of(position));
            storage.Meta(created.row)->count = count;
            return created;
          }
          misses->push_back({entry.key, entry.place, s, position});
          return ref;
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          if (ABSL_PREDICT_FALSE(ref.row == 0)) return;
          SaveForSnapshot(stripe, entry.key, ref.row);
          set_row(first + entry.position, ref.row);
          if (spilled) storage.MarkDirty(ref.row);
        });
    if (spilled) Pin(stripe, absl::MakeConstSpan(*misses).subspan(old_misses));
  }
}

template <typename ChangedOf, typename SetRow>
absl::Status EmbeddingTable::Impl::Overwrite(absl::Span<const Key> keys, ChangedOf changed_of,
                                             SetRow set_row) {
  Misses misses;
  stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    OverwriteBatch(batch, first, changed_of, set_row, &misses);
  });
  if (misses.empty()) return absl::OkStatus();
  return ChangeMissed(misses, {}, 0,
                      [&](const Miss& miss, uint32_t row, bool) { set_row(miss.position, row); });
}

void EmbeddingTable::Impl::CopyRow(const float* from, uint32_t row) {
  std::copy_n(from, layout.dim, storage.Weights(row));
  std::copy_n(from + layout.dim, layout.state_floats(), storage.State(row));
}

absl::Status EmbeddingTable::ApplyGradients(absl::Span<const Key> keys,
                                            absl::Span<const uint32_t> counts,
                                            absl::Span<const float> gradients,
                                            const UpdateScalars& scalars, Step step) {
  Impl& table = *impl_;
  const size_t dim = table.layout.dim;
  const uint32_t changed = ChangedAt(step);
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(gradients.size(), keys.size() * dim);
  Impl::Misses misses;
  table.stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    const size_t old_misses = misses.size();
    (table.*table.apply)(batch, counts.data() + first, gradients.data() + first * dim, scalars,
                         changed, &misses);
    for (size_t i = old_misses; i < misses.size(); ++i) misses[i].position += first;
    // Candidates that got their rows are no misses.
    if (table.store != nullptr && table.layout.min_count > 0) {
      table.KeepBudget(table.MostStripeRows());
    }
  });
  if (misses.empty()) return absl::OkStatus();
  const auto change = [&](const Impl::Miss& miss, uint32_t row, bool is_new) {
    float* weights = table.storage.Weights(row);
    if (is_new) table.Initialize(miss.key, {weights, row});
    table.update(scalars, gradients.data() + miss.position * dim, weights, table.storage.State(row),
                 static_cast<int>(dim));
    RowMeta* meta = table.storage.Meta(row);
    meta->AddCount(counts[miss.position]);
    MarkChanged(meta, changed);
  };
  return table.ChangeMissed(misses, counts, changed, change);
}

absl::Status EmbeddingTable::AssignRows(absl::Span<const Key> keys,
                                        absl::Span<const uint32_t> counts,
                                        absl::Span<const float> rows, Step step) {
  Impl& table = *impl_;
  const size_t row_floats = table.layout.row_floats();
  const uint32_t changed = ChangedAt(step);
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  return table.Overwrite(
      keys, [=](size_t) { return changed; },
      [&](size_t i, uint32_t row) {
        table.CopyRow(rows.data() + i * row_floats, row);
        RowMeta* meta = table.storage.Meta(row);
        meta->AddCount(counts[i]);
        MarkChanged(meta, changed);
      });
}

absl::Status EmbeddingTable::LoadRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                      absl::Span<const uint32_t> changed,
                                      absl::Span<const float> rows) {
  Impl& table = *impl_;
  const size_t row_floats = table.layout.row_floats();
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(changed.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  CHECK(!table.snapshot.exists.load());
  return table.Overwrite(
      keys, [&](size_t i) { return changed[i]; },
      [&](size_t i, uint32_t row) {
        table.CopyRow(rows.data() + i * row_floats, row);
        *table.storage.Meta(row) = {counts[i], changed[i]};
      });
}

void EmbeddingTable::LoadCandidates(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                    absl::Span<const uint32_t> changed) {
  Impl& table = *impl_;
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(changed.size(), keys.size());
  CHECK(!table.snapshot.exists.load());
  table.stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    for (uint32_t s = 0; s < kNumStripes; ++s) {
      TableStripe& stripe = table.stripes[s];
      absl::MutexLock lock(&stripe.mutex);
      for (uint32_t at = batch.begin(s); at < batch.begin(s + 1); ++at) {
        const Impl::Entry& entry = batch.entries()[at];
        const size_t i = first + entry.position;
        stripe.candidates[entry.key] = {counts[i], changed[i]};
      }
    }
  });
}

void EmbeddingTable::Forget(Step step, uint32_t oldest_kept) {
  Impl& table = *impl_;
  oldest_kept = std::max(oldest_kept, table.layout.OldestKept(step));
  if (oldest_kept <= table.admission.oldest_kept()) return;
  // Rows on their way to the store would come there as if they were not forgotten.
  absl::MutexLockMaybe no_rounds(table.store != nullptr ? table.spiller->round_mutex() : nullptr);
  // From here on, what is read from the store doesn't come to memory if it is forgotten.
  table.admission.SetOldestKept(oldest_kept);
  for (uint32_t s = 0; s < kNumStripes; ++s) table.ForgetStripe(table.stripes[s]);
  if (table.store != nullptr) table.spiller->Wake();
}

// Nobody else changes rows now, so what is found while others read stays as it is.
void EmbeddingTable::Impl::ForgetStripe(TableStripe& stripe) {
  std::vector<std::pair<Key, uint32_t>> unused;
  {
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripe.index.ForEach([&](Key key, uint32_t row) {
      if (!admission.IsKept(*storage.Meta(row))) unused.emplace_back(key, row);
    });
  }
  const uint64_t salt = TableSalt(layout.id);
  absl::MutexLock lock(&stripe.mutex);
  for (const auto& [key, row] : unused) {
    SaveForSnapshot(stripe, key, row);
    EraseRow(stripe, KeyIndex::PlaceOfHash(KeyHash(salt, key)), key, row);
  }
  admission.ForgetOthers(stripe, unused.size());
}

RowsByGroup EmbeddingTable::CountRows(Step step) {
  Impl& table = *impl_;
  CHECK_GT(table.layout.max_rows, 0u);
  RowsByGroup counts;
  absl::flat_hash_map<uint32_t, uint64_t> in_memory;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    TableStripe& stripe = table.stripes[s];
    absl::MutexLock lock(&stripe.mutex);  // Rows move between memory and the store.
    stripe.index.ForEach([&](Key, uint32_t row) {
      ++in_memory[GroupOfChange(table.layout, table.storage.Meta(row)->changed, step)];
    });
    table.admission.AddStored(stripe, step, &counts);
  }
  for (const auto& [group, rows] : in_memory) counts[group] += rows;
  return counts;
}

uint32_t EmbeddingTable::oldest_kept() const { return impl_->admission.oldest_kept(); }

}  // namespace thermocline
