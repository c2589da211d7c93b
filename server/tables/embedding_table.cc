#include "server/tables/embedding_table.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/math/row_update.h"
#include "server/tables/prefetch.h"

namespace thermocline {
namespace {

// Bytes of the index for one key, a little more than it takes at its emptiest.
constexpr size_t kIndexBytesPerRow = 26;
// A small budget has room for so many rows of a stripe all the same.
constexpr size_t kMinStripeRows = 8;

size_t MaxStripeRows(uint64_t budget_bytes, size_t row_bytes) {
  const uint64_t rows = budget_bytes / (row_bytes + kIndexBytesPerRow) / kNumStripes;
  return std::max<size_t>(kMinStripeRows, rows);
}

// The optimizers whose updates are compiled once for each of the usual dims. The others take a call
// a row.
constexpr bool HasFixedDims(OptimizerKind kind) { return kind <= OptimizerKind::kAdam; }

void MarkChanged(RowMeta* meta, uint32_t changed) {
  meta->changed = std::max(meta->changed, changed);
}

}  // namespace

// Reading
// ------------------------------------------------------------------------------------------------

template <int kDim, bool kSpilled>
void EmbeddingTable::Gather(const KeyBatch& batch, uint8_t* weights, Misses* misses) const {
  const size_t bytes = sizeof(float) * (kDim > 0 ? kDim : layout_.dim);
  struct Found {
    const float* weights;
    uint32_t row;  // Only for a table with a store.
  };
  TableStripes::ForEachStripe(batch, [&](uint32_t s) {
    const TableStripe& stripe = stripes_[s];
    const size_t old_misses = kSpilled ? misses->size() : 0;
    absl::ReaderMutexLock lock(&stripe.mutex);
    const KeyIndex& index = stripe.index;
    stripes_.Pipeline<Found>(
        batch, s,
        [&](const Entry& entry) -> Found {
          const uint32_t row = index.Find(entry.key, entry.place);
          if (row == 0) return {nullptr, 0};
          const float* found = storage_.Weights(row);
          PrefetchRange(found, bytes);
          PrefetchForWrite(weights + entry.position * bytes, bytes);
          if (kSpilled) __builtin_prefetch(storage_.Flags(row));
          return {found, row};
        },
        [&](const Entry& entry, const Found& found) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
          uint8_t* out = weights + entry.position * bytes;
          if (__builtin_expect(found.weights != nullptr, true)) {
            std::memcpy(out, found.weights, bytes);
            if (kSpilled) storage_.MarkReferenced(found.row);
          } else if (kSpilled && !stripe.candidates.contains(entry.key)) {
            misses->push_back({entry.key, entry.place, s, entry.position});
          } else {
            GatherInitial(entry.key, /*with_state=*/false, out);
          }
        });
    if (kSpilled) stripe.Pin(absl::MakeConstSpan(*misses).subspan(old_misses));
  });
}

void EmbeddingTable::GatherInitial(Key key, bool with_state, uint8_t* row) const {
  thread_local std::vector<float> initial;  // `row` may be unaligned.
  initial.resize(with_state ? layout_.row_floats() : layout_.dim);
  if (with_state) {
    InitialRow(layout_, seed_, key, absl::MakeSpan(initial));
  } else {
    InitialRowWeights(layout_, seed_, key, absl::MakeSpan(initial));
  }
  std::memcpy(row, initial.data(), initial.size() * sizeof(float));
}

template <bool kSpilled>
EmbeddingTable::GatherFunction EmbeddingTable::SelectGather(int dim) {
  switch (dim) {
    case 16:
      return &EmbeddingTable::Gather<16, kSpilled>;
    case 32:
      return &EmbeddingTable::Gather<32, kSpilled>;
    case 64:
      return &EmbeddingTable::Gather<64, kSpilled>;
    case 128:
      return &EmbeddingTable::Gather<128, kSpilled>;
    default:
      return &EmbeddingTable::Gather<0, kSpilled>;
  }
}

void EmbeddingTable::GatherWhole(const KeyBatch& batch, uint8_t* rows, Misses* misses) const {
  const bool spilled = store_ != nullptr;
  const size_t weights_bytes = sizeof(float) * layout_.dim;
  const size_t state_bytes = sizeof(float) * layout_.state_floats();
  TableStripes::ForEachStripe(batch, [&](uint32_t s) {
    const TableStripe& stripe = stripes_[s];
    const size_t old_misses = misses->size();
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripes_.Pipeline<uint32_t>(
        batch, s,
        [&](const Entry& entry) {
          const uint32_t row = stripe.index.Find(entry.key, entry.place);
          if (row == 0) return row;
          PrefetchRange(storage_.Weights(row), weights_bytes);
          PrefetchRange(storage_.State(row), state_bytes);
          if (spilled) __builtin_prefetch(storage_.Flags(row));
          return row;
        },
        [&](const Entry& entry, uint32_t row) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
          uint8_t* out = rows + entry.position * (weights_bytes + state_bytes);
          if (row == 0) {
            if (!spilled || stripe.candidates.contains(entry.key)) {
              return GatherInitial(entry.key, /*with_state=*/true, out);
            }
            misses->push_back({entry.key, entry.place, s, entry.position});
            return;
          }
          storage_.CopyOut(row, out);
          if (spilled) storage_.MarkReferenced(row);
        });
    if (spilled) stripe.Pin(absl::MakeConstSpan(*misses).subspan(old_misses));
  });
}

template <typename GatherBatch>
absl::Status EmbeddingTable::GatherAll(absl::Span<const Key> keys, uint8_t* rows, size_t row_floats,
                                       ReadBack read_back, GatherBatch gather_batch) const {
  Misses misses;
  stripes_.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    const size_t old_misses = misses.size();
    gather_batch(batch, rows + first * row_floats * sizeof(float), &misses);
    for (size_t i = old_misses; i < misses.size(); ++i) misses[i].position += first;
  });
  if (misses.empty()) return absl::OkStatus();
  return GatherMissed(misses, rows, row_floats, read_back);
}

absl::Status EmbeddingTable::GatherWeights(absl::Span<const Key> keys, uint8_t* weights,
                                           ReadBack read_back) const {
  return GatherAll(keys, weights, layout_.dim, read_back,
                   [this](const KeyBatch& batch, uint8_t* out, Misses* misses) {
                     (this->*gather_)(batch, out, misses);
                   });
}

absl::Status EmbeddingTable::GatherRows(absl::Span<const Key> keys, uint8_t* rows,
                                        ReadBack read_back) const {
  return GatherAll(keys, rows, layout_.row_floats(), read_back,
                   [this](const KeyBatch& batch, uint8_t* out, Misses* misses) {
                     GatherWhole(batch, out, misses);
                   });
}

// Changing
// ------------------------------------------------------------------------------------------------

RowRef EmbeddingTable::FindForChange(const TableStripe& stripe, const Entry& entry) const {
  const uint32_t row = stripe.index.Find(entry.key, entry.place);
  if (row == 0) return {nullptr, 0};
  float* weights = storage_.Weights(row);
  PrefetchRange(weights, layout_.dim * sizeof(float));
  PrefetchRange(storage_.State(row), layout_.state_floats() * sizeof(float));
  __builtin_prefetch(storage_.Meta(row));
  if (store_ != nullptr) __builtin_prefetch(storage_.Flags(row));
  return {weights, row};
}

RowRef EmbeddingTable::Create(TableStripe& stripe, Key key, uint32_t place,
                              uint32_t changed) const {
  uint32_t row;
  if (!stripe.free_rows.empty()) {
    row = stripe.free_rows.back();
    stripe.free_rows.pop_back();
  } else {
    if (stripe.next_row == stripe.end_row) {
      stripe.next_row = storage_.AllocateBlock();
      stripe.end_row = stripe.next_row + storage_.rows_per_block();
    }
    row = stripe.next_row++;
  }
  stripe.index.Insert(key, place, row);
  *storage_.Meta(row) = {0, changed};
  if (store_ != nullptr) storage_.Flags(row)->store(kFresh, std::memory_order_relaxed);
  return {storage_.Weights(row), row};
}

void EmbeddingTable::Initialize(Key key, RowRef ref) {
  InitialRowWeights(layout_, seed_, key, absl::MakeSpan(ref.weights, layout_.dim));
  InitState(layout_.row_optimizer(), layout_.dim,
            absl::MakeSpan(storage_.State(ref.row), layout_.state_floats()));
}

// The updates that Apply is compiled with. kDim: the dim, or 0 where only the layout knows it.

template <OptimizerKind kKind, int kFixedDim>
struct EmbeddingTable::PlainUpdate {
  static constexpr int kDim = kFixedDim;
  explicit PlainUpdate(const RowScalars& scalars) : scalars(scalars.vector) {}
  void operator()(const float* gradient, uint32_t, float* weights, float* state, int dim) const {
    UpdateWeights<kKind>(scalars, gradient, 0, weights, state, dim);
  }
  const UpdateScalars& scalars;
};
struct EmbeddingTable::AnyUpdate {
  static constexpr int kDim = 0;
  explicit AnyUpdate(const RowScalars& scalars)
      : scalars(scalars), update(SelectRowUpdate(scalars)) {}
  void operator()(const float* gradient, uint32_t lookups, float* weights, float* state,
                  int dim) const {
    update(scalars, gradient, lookups, weights, state, dim);
  }
  const RowScalars& scalars;
  const RowUpdate update;
};
struct EmbeddingTable::NoUpdate {
  static constexpr int kDim = 0;
  explicit NoUpdate(const RowScalars&) {}
};

template <typename Update>
void EmbeddingTable::Apply(const KeyBatch& batch, const PushedLookups& lookups,
                           const float* gradients, const RowScalars& scalars, Misses* misses) {
  const Update update(scalars);
  constexpr bool kUpdates = !std::is_same_v<Update, NoUpdate>;
  const int dim = Update::kDim > 0 ? Update::kDim : layout_.dim;
  const bool spilled = store_ != nullptr;
  const bool counts_first = layout_.min_count > 0;
  TableStripes::ForEachStripe(batch, [&](uint32_t s) {
    TableStripe& stripe = stripes_[s];
    const size_t old_misses = misses->size();
    absl::MutexLock lock(&stripe.mutex);
    stripes_.Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          if (kUpdates) {
            PrefetchRange(gradients + size_t{entry.position} * dim, dim * sizeof(float));
          }
          RowRef ref = FindForChange(stripe, entry);
          if (ref.row != 0) return ref;
          if (spilled && (!counts_first || !stripe.candidates.contains(entry.key))) {
            misses->push_back({entry.key, entry.place, s, entry.position});
            return ref;
          }
          const std::optional<uint32_t> count =
              admission_.Admit(stripe, entry.key, lookups, entry.position);
          if (!count.has_value()) return ref;
          if (spilled) rows_created_.fetch_add(1, std::memory_order_relaxed);
          ref = Create(stripe, entry.key, entry.place, lookups.changed);
          storage_.Meta(ref.row)->count = *count;
          Initialize(entry.key, ref);
          return ref;
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          if (ABSL_PREDICT_FALSE(ref.row == 0)) return;
          SaveForSnapshot(stripe, entry.key, ref.row);
          if constexpr (kUpdates) {
            update(gradients + size_t{entry.position} * dim, lookups.counts[entry.position],
                   ref.weights, storage_.State(ref.row), dim);
          }
          RowMeta* meta = storage_.Meta(ref.row);
          meta->AddCount(lookups.counts[entry.position]);
          MarkChanged(meta, lookups.changed);
          if (spilled) storage_.MarkDirty(ref.row);
        });
    if (spilled) stripe.Pin(absl::MakeConstSpan(*misses).subspan(old_misses));
  });
}

EmbeddingTable::ApplyFunction EmbeddingTable::SelectApply(const RowScalars& scalars, int dim) {
  if (scalars.has_first_order || scalars.vector.changes_gradients()) {
    return &EmbeddingTable::Apply<AnyUpdate>;
  }
  return VisitOptimizer(scalars.vector.kind, [dim](auto kind) -> ApplyFunction {
    if constexpr (HasFixedDims(kind())) {
      switch (dim) {
        case 16:
          return &EmbeddingTable::Apply<PlainUpdate<kind(), 16>>;
        case 32:
          return &EmbeddingTable::Apply<PlainUpdate<kind(), 32>>;
        case 64:
          return &EmbeddingTable::Apply<PlainUpdate<kind(), 64>>;
        case 128:
          return &EmbeddingTable::Apply<PlainUpdate<kind(), 128>>;
        default:
          return &EmbeddingTable::Apply<PlainUpdate<kind(), 0>>;
      }
    }
    return &EmbeddingTable::Apply<AnyUpdate>;
  });
}

template <typename ChangedOf, typename SetRow>
void EmbeddingTable::OverwriteBatch(const KeyBatch& batch, size_t first, ChangedOf changed_of,
                                    SetRow set_row, Misses* misses) {
  const bool spilled = store_ != nullptr;
  TableStripes::ForEachStripe(batch, [&](uint32_t s) {
    TableStripe& stripe = stripes_[s];
    const size_t old_misses = misses->size();
    absl::MutexLock lock(&stripe.mutex);
    stripes_.Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          const RowRef ref = FindForChange(stripe, entry);
          if (ref.row != 0) return ref;
          const size_t position = first + entry.position;
          if (!spilled) {
            const uint32_t count = admission_.TakeCandidate(stripe, entry.key);
            const RowRef created = Create(stripe, entry.key, entry.place, changed_of(position));
            storage_.Meta(created.row)->count = count;
            return created;
          }
          misses->push_back({entry.key, entry.place, s, position});
          return ref;
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          if (ABSL_PREDICT_FALSE(ref.row == 0)) return;
          SaveForSnapshot(stripe, entry.key, ref.row);
          set_row(first + entry.position, ref.row);
          if (spilled) storage_.MarkDirty(ref.row);
        });
    if (spilled) stripe.Pin(absl::MakeConstSpan(*misses).subspan(old_misses));
  });
}

template <typename ChangedOf, typename SetRow>
absl::Status EmbeddingTable::Overwrite(absl::Span<const Key> keys, ChangedOf changed_of,
                                       SetRow set_row) {
  Misses misses;
  stripes_.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    OverwriteBatch(batch, first, changed_of, set_row, &misses);
  });
  if (misses.empty()) return absl::OkStatus();
  return ChangeMissed(misses, /*lookups=*/nullptr,
                      [&](const Miss& miss, uint32_t row, bool) { set_row(miss.position, row); });
}

absl::Status EmbeddingTable::ApplyGradients(absl::Span<const Key> keys,
                                            absl::Span<const uint32_t> counts,
                                            absl::Span<const float> gradients,
                                            const RowScalars& scalars, Step step) {
  CHECK_EQ(gradients.size(), keys.size() * layout_.dim);
  CHECK(scalars.vector.kind == layout_.optimizer.kind);
  CHECK_EQ(scalars.has_first_order, layout_.first_order.has_value());
  return ApplyAll(keys, {counts, ChangedAt(step), /*have_gradients=*/true}, gradients.data(),
                  scalars);
}

absl::Status EmbeddingTable::CountLookups(absl::Span<const Key> keys,
                                          absl::Span<const uint32_t> counts, Step step) {
  return ApplyAll(keys, {counts, ChangedAt(step), /*have_gradients=*/false}, nullptr, {});
}

absl::Status EmbeddingTable::ApplyAll(absl::Span<const Key> keys, const PushedLookups& lookups,
                                      const float* gradients, const RowScalars& scalars) {
  const size_t dim = lookups.have_gradients ? layout_.dim : 0;
  const ApplyFunction apply =
      lookups.have_gradients ? SelectApply(scalars, layout_.dim) : &EmbeddingTable::Apply<NoUpdate>;
  CHECK_EQ(lookups.counts.size(), keys.size());
  Misses misses;
  stripes_.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    const size_t old_misses = misses.size();
    PushedLookups of_batch = lookups;
    of_batch.counts.remove_prefix(first);
    (this->*apply)(batch, of_batch, gradients + first * dim, scalars, &misses);
    for (size_t i = old_misses; i < misses.size(); ++i) misses[i].position += first;
    // Candidates that got their rows are no misses.
    if (store_ != nullptr && layout_.min_count > 0) {
      KeepBudget(stripes_.MostRows());
    }
  });
  if (misses.empty()) return absl::OkStatus();
  const RowUpdate update = SelectRowUpdate(scalars);
  return ChangeMissed(misses, &lookups, [&](const Miss& miss, uint32_t row, bool is_new) {
    float* weights = storage_.Weights(row);
    if (is_new) Initialize(miss.key, {weights, row});
    if (lookups.have_gradients) {
      update(scalars, gradients + miss.position * dim, lookups.counts[miss.position], weights,
             storage_.State(row), static_cast<int>(dim));
    }
    RowMeta* meta = storage_.Meta(row);
    meta->AddCount(lookups.counts[miss.position]);
    MarkChanged(meta, lookups.changed);
  });
}

absl::Status EmbeddingTable::AssignRows(absl::Span<const Key> keys,
                                        absl::Span<const uint32_t> counts,
                                        absl::Span<const float> rows, Step step) {
  const size_t row_floats = layout_.row_floats();
  const uint32_t changed = ChangedAt(step);
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  return Overwrite(
      keys, [=](size_t) { return changed; },
      [&](size_t i, uint32_t row) {
        storage_.CopyIn(rows.data() + i * row_floats, row);
        RowMeta* meta = storage_.Meta(row);
        meta->AddCount(counts[i]);
        MarkChanged(meta, changed);
      });
}

void EmbeddingTable::ReserveRows(uint64_t rows) {
  if (store_ != nullptr) return;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    absl::MutexLock lock(&stripes_[s].mutex);
    stripes_[s].index.Reserve(rows / kNumStripes);
  }
}

absl::Status EmbeddingTable::LoadRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                      absl::Span<const uint32_t> changed,
                                      absl::Span<const float> rows) {
  const size_t row_floats = layout_.row_floats();
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(changed.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  CHECK(!snapshot_.exists.load());
  return Overwrite(
      keys, [&](size_t i) { return changed[i]; },
      [&](size_t i, uint32_t row) {
        storage_.CopyIn(rows.data() + i * row_floats, row);
        *storage_.Meta(row) = {counts[i], changed[i]};
      });
}

void EmbeddingTable::LoadCandidates(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                    absl::Span<const uint32_t> changed) {
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(changed.size(), keys.size());
  CHECK(!snapshot_.exists.load());
  stripes_.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    for (uint32_t s = 0; s < kNumStripes; ++s) {
      TableStripe& stripe = stripes_[s];
      absl::MutexLock lock(&stripe.mutex);
      for (uint32_t at = batch.begin(s); at < batch.begin(s + 1); ++at) {
        const Entry& entry = batch.entries()[at];
        const size_t i = first + entry.position;
        stripe.candidates[entry.key] = {counts[i], changed[i]};
      }
    }
  });
}

void EmbeddingTable::Forget(Step step, uint32_t oldest_kept) {
  oldest_kept = std::max(oldest_kept, layout_.OldestKept(step));
  if (oldest_kept <= admission_.oldest_kept()) return;
  // Rows on their way to the store would come there as if they were not forgotten.
  absl::MutexLockMaybe no_rounds(store_ != nullptr ? spiller_->round_mutex() : nullptr);
  // From here on, what is read from the store doesn't come to memory if it is forgotten.
  admission_.SetOldestKept(oldest_kept);
  for (uint32_t s = 0; s < kNumStripes; ++s) ForgetStripe(stripes_[s]);
  if (store_ != nullptr) spiller_->Wake();
}

// No other thread changes rows now, so what is found under the shared lock stays as it is.
void EmbeddingTable::ForgetStripe(TableStripe& stripe) {
  std::vector<std::pair<Key, uint32_t>> unused;
  {
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripe.index.ForEach([&](Key key, uint32_t row) {
      if (!admission_.IsKept(*storage_.Meta(row))) unused.emplace_back(key, row);
    });
  }
  const uint64_t salt = TableSalt(layout_.id);
  absl::MutexLock lock(&stripe.mutex);
  for (const auto& [key, row] : unused) {
    SaveForSnapshot(stripe, key, row);
    stripe.Erase(key, KeyIndex::PlaceOfHash(KeyHash(salt, key)), row);
  }
  admission_.ForgetOthers(stripe, unused.size());
}

RowsByGroup EmbeddingTable::CountRows(Step step) {
  CHECK_GT(layout_.max_rows, 0u);
  RowsByGroup counts;
  absl::flat_hash_map<uint32_t, uint64_t> in_memory;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    TableStripe& stripe = stripes_[s];
    absl::MutexLock lock(&stripe.mutex);  // Rows move between memory and the store.
    stripe.index.ForEach([&](Key, uint32_t row) {
      ++in_memory[GroupOfChange(layout_, storage_.Meta(row)->changed, step)];
    });
    admission_.AddStored(stripe, step, &counts);
  }
  for (const auto& [group, rows] : in_memory) counts[group] += rows;
  return counts;
}

// Making a table, and looking at all of it
// ------------------------------------------------------------------------------------------------

EmbeddingTable::EmbeddingTable(const TableLayout& layout, uint64_t job_seed)
    : EmbeddingTable(layout, job_seed, TableSpill()) {}

EmbeddingTable::EmbeddingTable(const TableLayout& layout, uint64_t job_seed, TableSpill spill)
    : layout_(layout),
      seed_(job_seed),
      store_(std::move(spill.store)),
      storage_(layout, store_ != nullptr),
      gather_(store_ != nullptr ? SelectGather<true>(layout.dim) : SelectGather<false>(layout.dim)),
      stripes_(TableSalt(layout.id)),
      admission_(layout, &snapshot_),
      stored_row_bytes_(StoredRowBytes(layout)),
      max_stripe_rows_(MaxStripeRows(layout.memory_budget_bytes, storage_.row_bytes())) {
  if (store_ == nullptr) return;
  spiller_ = std::make_unique<Spiller>([this] { return SpillRound(); }, std::move(spill.on_broken));
}

EmbeddingTable::~EmbeddingTable() = default;

void EmbeddingTable::VisitMemory(VisitRow visit) const {
  std::vector<float> scratch(layout_.row_floats());
  for (const TableStripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripe.index.ForEach([&](Key key, uint32_t row) {
      storage_.CopyOut(row, scratch.data());
      visit(key, scratch, *storage_.Meta(row));
    });
    for (const auto& [key, meta] : stripe.candidates) visit(key, {}, meta);
  }
}

absl::Status EmbeddingTable::VisitAll(VisitRow visit) const {
  if (store_ == nullptr) {
    VisitMemory(visit);
    return absl::OkStatus();
  }
  absl::MutexLock no_rounds(spiller_->round_mutex());
  const auto set_frozen = [this](bool value) {
    frozen_.store(value);
    // A thread that saw the old value has moved its rows by the time its stripes can be locked.
    for (const TableStripe& stripe : stripes_) absl::MutexLock lock(&stripe.mutex);
  };
  set_frozen(true);
  const absl::Status stored = VisitStored(visit);
  if (stored.ok()) VisitMemory(visit);
  set_frozen(false);
  return stored;
}

absl::Status EmbeddingTable::VisitRows(const RowVisitor& visit) const {
  return VisitAll([&](Key key, absl::Span<const float> row, const RowMeta& meta) {
    visit(key, row, meta.count, StepOfChange(meta.changed));
  });
}

absl::StatusOr<Digest> EmbeddingTable::ComputeDigest() const {
  const TableId table = layout_.id;
  Digest digest;
  RETURN_IF_ERROR(VisitAll([&](Key key, absl::Span<const float> row, const RowMeta& meta) {
    digest.Add(row.empty() ? CandidateDigest(table, key, meta.count) : RowDigest(table, key, row));
  }));
  return digest;
}

absl::Status EmbeddingTable::CheckRoom() const {
  if (store_ == nullptr) return absl::OkStatus();
  const absl::Status full = spiller_->full();
  if (full.ok()) return full;
  if (stripes_.RowsInMemory() <= max_stripe_rows_ * kNumStripes) {
    return absl::OkStatus();
  }
  return absl::Status(full.code(),
                      absl::StrCat("table '", layout_.name, "' is over its memory budget of ",
                                   layout_.memory_budget_bytes, " bytes: ", full.message()));
}

uint64_t EmbeddingTable::num_rows() const {
  if (store_ == nullptr) return stripes_.RowsInMemory();
  return rows_created_.load() - admission_.rows_forgotten();
}

uint64_t EmbeddingTable::memory_bytes() const {
  uint64_t bytes = sizeof(EmbeddingTable) + storage_.ResidentBytes();
  for (const TableStripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    bytes += stripe.index.memory_bytes() + stripe.free_rows.capacity() * sizeof(uint32_t) +
             stripe.cut.memory_bytes() +
             stripe.candidates.capacity() * (sizeof(std::pair<Key, RowMeta>) + 1);
  }
  return bytes;
}

uint64_t EmbeddingTable::old_image_bytes() const {
  return snapshot_.old_images.load(std::memory_order_relaxed) *
         RowCut::BytesPerImage(layout_.row_floats());
}

uint64_t EmbeddingTable::num_candidates() const {
  uint64_t candidates = 0;
  for (const TableStripe& stripe : stripes_) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    candidates += stripe.candidates.size();
  }
  return candidates;
}

std::optional<SpillStats> EmbeddingTable::spill_stats() const {
  if (store_ == nullptr) return std::nullopt;
  return SpillStats{stripes_.RowsInMemory(), store_->bytes(), rows_read_back_.load(),
                    rows_spilled_.load()};
}

}  // namespace thermocline
