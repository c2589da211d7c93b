#include "server/tables/embedding_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "common/row_init.h"
#include "common/row_update.h"
#include "server/tables/key_batch.h"
#include "server/tables/key_index.h"
#include "server/tables/row_storage.h"

namespace thermocline {
namespace {

// How far ahead of their use memory is fetched, in keys: first the bucket, then the row. A core has
// 10 to 16 line fills in flight.
constexpr uint32_t kBucketsAhead = 24;
constexpr uint32_t kRowsAhead = 16;
static_assert((kRowsAhead & (kRowsAhead - 1)) == 0);

// The hardware follows a row that is longer than this by itself.
constexpr size_t kMaxPrefetchBytes = 512;

KeyBatch& ThreadBatch() {
  thread_local std::unique_ptr<KeyBatch> batch = std::make_unique<KeyBatch>();
  return *batch;
}

// `bytes` is a constant where the caller's template knows it.
inline void PrefetchRange(const void* begin, size_t bytes) {
  const size_t end = std::min(bytes, kMaxPrefetchBytes);
  for (size_t offset = 0; offset < end; offset += kCacheLineBytes) {
    __builtin_prefetch(static_cast<const uint8_t*>(begin) + offset);
  }
}

// For what is written next, at any alignment. The stores would else wait for their lines one after
// the other: a reply is larger than the second-level cache.
inline void PrefetchForWrite(uint8_t* begin, size_t bytes) {
  const size_t end = std::min(bytes, kMaxPrefetchBytes);
  for (size_t offset = 0; offset < end; offset += kCacheLineBytes) {
    __builtin_prefetch(begin + offset, /*rw=*/1);
  }
  __builtin_prefetch(begin + end - 1, /*rw=*/1);
}

void AddCount(uint32_t* count, uint32_t lookups) {
  const uint32_t sum = *count + lookups;
  *count = sum < lookups ? std::numeric_limits<uint32_t>::max() : sum;
}

}  // namespace

struct EmbeddingTable::Impl {
  struct alignas(kCacheLineBytes) Stripe {
    mutable absl::Mutex mutex;
    // Written under the mutex. Reads need it too, but for KeyIndex::Prefetch.
    KeyIndex index;
    uint32_t next_row ABSL_GUARDED_BY(mutex) = 0;
    uint32_t end_row ABSL_GUARDED_BY(mutex) = 0;  // of the block that is being filled
  };
  using Entry = KeyBatch::Entry;
  using GatherFunction = void (Impl::*)(const KeyBatch&, uint8_t*) const;
  using ApplyFunction = void (Impl::*)(const KeyBatch&, const uint32_t*, const float*,
                                       const UpdateScalars&, Step);

  Impl(const TableLayout& table_layout, uint64_t job_seed)
      : layout(table_layout),
        seed(job_seed),
        salt(TableSalt(table_layout.id)),
        storage(table_layout),
        gather(SelectGather(table_layout.dim)),
        apply(SelectApply(table_layout)) {
    for (uint32_t i = 0; i < kNumStripes; ++i) {
      stripes[i].index.Init(salt, static_cast<double>(i) / kNumStripes);
    }
  }

  void PrefetchBucket(const KeyBatch& batch, uint32_t at) const {
    if (at >= batch.size()) return;
    const Entry& entry = batch.entries()[at];
    stripes[entry.stripe].index.Prefetch(entry.place);
  }

  // Runs probe(entry) -> item, which starts the fetch of the item, for every entry of a stripe, and
  // use(entry, item) once the item had the time to arrive. The buckets of stripes that come later
  // are fetched meanwhile. The caller holds the stripe's lock; the analysis can't see that here.
  template <typename Item, typename Probe, typename Use>
  void Pipeline(const KeyBatch& batch, uint32_t stripe, Probe probe,
                Use use) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const Entry* entries = batch.entries();
    std::array<Item, kRowsAhead> items;
    const uint32_t begin = batch.begin(stripe);
    const uint32_t end = batch.begin(stripe + 1);
    const uint32_t primed = std::min(end, begin + kRowsAhead);
    uint32_t at = begin;
    for (; at < primed; ++at) {
      PrefetchBucket(batch, at + kBucketsAhead);
      items[at % kRowsAhead] = probe(entries[at]);
    }
    for (; at < end; ++at) {
      PrefetchBucket(batch, at + kBucketsAhead);
      Item& item = items[at % kRowsAhead];
      use(entries[at - kRowsAhead], item);
      item = probe(entries[at]);
    }
    for (at = end - (primed - begin); at < end; ++at) use(entries[at], items[at % kRowsAhead]);
  }

  // Calls run(batch, first) for the keys of a request, kMaxKeys at a time; batch position i is
  // keys[first + i].
  template <typename Run>
  void ForEachBatch(absl::Span<const Key> keys, Run run) const {
    KeyBatch& batch = ThreadBatch();
    for (size_t first = 0; first < keys.size(); first += KeyBatch::kMaxKeys) {
      batch.Group(salt, keys.subspan(first, KeyBatch::kMaxKeys));
      for (uint32_t at = 0; at < kBucketsAhead; ++at) PrefetchBucket(batch, at);
      run(batch, first);
    }
  }

  // kDim: the table's dim, or 0 where it is none of those specialized.
  template <int kDim>
  void Gather(const KeyBatch& batch, uint8_t* weights) const;
  void GatherMissing(Key key, uint8_t* weights) const;
  static GatherFunction SelectGather(int dim);

  // A row about to be changed.
  struct RowRef {
    float* weights;
    uint32_t row;
  };
  // Finds a row and starts fetching all that a change touches. 0 in `row`: it doesn't exist.
  RowRef FindForChange(const Stripe& stripe, const Entry& entry) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  // A new row, uninitialized but for its count.
  RowRef Create(Stripe& stripe, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex);
  void Initialize(Key key, RowRef ref);

  template <OptimizerKind kKind, int kDim>
  void Apply(const KeyBatch& batch, const uint32_t* counts, const float* gradients,
             const UpdateScalars& scalars, Step step);
  template <OptimizerKind kKind>
  static ApplyFunction SelectApplyOf(int dim);
  static ApplyFunction SelectApply(const TableLayout& layout);

  void Assign(const KeyBatch& batch, const uint32_t* counts, const float* rows, Step step);

  // visit(Key, row, row number) for the rows of one stripe. row: [row_floats], in `scratch`
  template <typename Visit>
  void VisitStripe(const Stripe& stripe, std::vector<float>* scratch, Visit visit) const
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex);

  const TableLayout layout;
  const uint64_t seed;
  const uint64_t salt;
  RowStorage storage;
  const GatherFunction gather;
  const ApplyFunction apply;
  std::array<Stripe, kNumStripes> stripes;
};

// ---- Reading ----

template <int kDim>
void EmbeddingTable::Impl::Gather(const KeyBatch& batch, uint8_t* weights) const {
  const size_t bytes = sizeof(float) * (kDim > 0 ? kDim : layout.dim);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    const Stripe& stripe = stripes[s];
    absl::ReaderMutexLock lock(&stripe.mutex);
    const KeyIndex& index = stripe.index;
    Pipeline<const float*>(
        batch, s,
        [&](const Entry& entry) -> const float* {
          const uint32_t row = index.Find(entry.key, entry.place);
          if (row == 0) return nullptr;
          const float* found = storage.Weights(row);
          PrefetchRange(found, bytes);
          PrefetchForWrite(weights + entry.position * bytes, bytes);
          return found;
        },
        [&](const Entry& entry, const float* row) {
          uint8_t* out = weights + entry.position * bytes;
          if (__builtin_expect(row != nullptr, true)) {
            std::memcpy(out, row, bytes);
          } else {
            GatherMissing(entry.key, out);
          }
        });
  }
}

void EmbeddingTable::Impl::GatherMissing(Key key, uint8_t* weights) const {
  thread_local std::vector<float> initial;  // `weights` may be unaligned
  initial.resize(layout.dim);
  InitialWeights(seed, layout.id, key, layout.init_scale, absl::MakeSpan(initial));
  std::memcpy(weights, initial.data(), initial.size() * sizeof(float));
}

EmbeddingTable::Impl::GatherFunction EmbeddingTable::Impl::SelectGather(int dim) {
  switch (dim) {
    case 16:
      return &Impl::Gather<16>;
    case 32:
      return &Impl::Gather<32>;
    case 64:
      return &Impl::Gather<64>;
    case 128:
      return &Impl::Gather<128>;
    default:
      return &Impl::Gather<0>;
  }
}

// ---- Changing ----

EmbeddingTable::Impl::RowRef EmbeddingTable::Impl::FindForChange(const Stripe& stripe,
                                                                 const Entry& entry) const {
  const uint32_t row = stripe.index.Find(entry.key, entry.place);
  if (row == 0) return {nullptr, 0};
  float* weights = storage.Weights(row);
  PrefetchRange(weights, layout.dim * sizeof(float));
  PrefetchRange(storage.Slots(row), layout.slot_floats() * sizeof(float));
  __builtin_prefetch(storage.Count(row));
  return {weights, row};
}

EmbeddingTable::Impl::RowRef EmbeddingTable::Impl::Create(Stripe& stripe, const Entry& entry) {
  if (stripe.next_row == stripe.end_row) {
    stripe.next_row = storage.AllocateBlock();
    stripe.end_row = stripe.next_row + storage.rows_per_block();
  }
  const uint32_t row = stripe.next_row++;
  stripe.index.Insert(entry.key, entry.place, row);
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
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    Stripe& stripe = stripes[s];
    absl::MutexLock lock(&stripe.mutex);
    Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          PrefetchRange(gradients + size_t{entry.position} * dim, dim * sizeof(float));
          RowRef ref = FindForChange(stripe, entry);
          if (ref.row == 0) {
            ref = Create(stripe, entry);
            Initialize(entry.key, ref);
          }
          return ref;
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          UpdateRow<kKind>(scalars, gradients + size_t{entry.position} * dim, ref.weights,
                           storage.Slots(ref.row), dim);
          AddCount(storage.Count(ref.row), counts[entry.position]);
          storage.MarkChanged(ref.row, step);
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

void EmbeddingTable::Impl::Assign(const KeyBatch& batch, const uint32_t* counts, const float* rows,
                                  Step step) {
  const size_t row_floats = layout.row_floats();
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    Stripe& stripe = stripes[s];
    absl::MutexLock lock(&stripe.mutex);
    Pipeline<RowRef>(
        batch, s,
        [&](const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          const RowRef ref = FindForChange(stripe, entry);
          return ref.row != 0 ? ref : Create(stripe, entry);
        },
        [&](const Entry& entry, RowRef ref) ABSL_EXCLUSIVE_LOCKS_REQUIRED(stripe.mutex) {
          const float* from = rows + entry.position * row_floats;
          std::copy_n(from, layout.dim, ref.weights);
          std::copy_n(from + layout.dim, row_floats - layout.dim, storage.Slots(ref.row));
          AddCount(storage.Count(ref.row), counts[entry.position]);
          storage.MarkChanged(ref.row, step);
        });
  }
}

// ---- Visiting ----

template <typename Visit>
void EmbeddingTable::Impl::VisitStripe(const Stripe& stripe, std::vector<float>* scratch,
                                       Visit visit) const {
  stripe.index.ForEach([&](Key key, uint32_t row) {
    const float* weights = storage.Weights(row);
    const float* slots = storage.Slots(row);
    std::copy_n(weights, layout.dim, scratch->begin());
    std::copy_n(slots, layout.slot_floats(), scratch->begin() + layout.dim);
    visit(key, absl::MakeConstSpan(*scratch), row);
  });
}

// ---- The public face ----

EmbeddingTable::EmbeddingTable(const TableLayout& layout, uint64_t job_seed)
    : impl_(std::make_unique<Impl>(layout, job_seed)) {}

EmbeddingTable::~EmbeddingTable() = default;

const TableLayout& EmbeddingTable::layout() const { return impl_->layout; }

void EmbeddingTable::GatherWeights(absl::Span<const Key> keys, uint8_t* weights) const {
  const size_t row_bytes = sizeof(float) * impl_->layout.dim;
  impl_->ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    (impl_.get()->*impl_->gather)(batch, weights + first * row_bytes);
  });
}

void EmbeddingTable::ApplyGradients(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                    absl::Span<const float> gradients, const UpdateScalars& scalars,
                                    Step step) {
  const size_t dim = impl_->layout.dim;
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(gradients.size(), keys.size() * dim);
  impl_->ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    (impl_.get()->*impl_->apply)(batch, counts.data() + first, gradients.data() + first * dim,
                                 scalars, step);
  });
}

void EmbeddingTable::AssignRows(absl::Span<const Key> keys, absl::Span<const uint32_t> counts,
                                absl::Span<const float> rows, Step step) {
  const size_t row_floats = impl_->layout.row_floats();
  CHECK_EQ(counts.size(), keys.size());
  CHECK_EQ(rows.size(), keys.size() * row_floats);
  impl_->ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    impl_->Assign(batch, counts.data() + first, rows.data() + first * row_floats, step);
  });
}

void EmbeddingTable::VisitRows(const RowVisitor& visit) const {
  std::vector<float> scratch(impl_->layout.row_floats());
  for (const Impl::Stripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    impl_->VisitStripe(
        stripe, &scratch, [&](Key key, absl::Span<const float> row, uint32_t number) {
          visit(key, row, *impl_->storage.Count(number), impl_->storage.Changed(number));
        });
  }
}

Digest EmbeddingTable::ComputeDigest() const {
  const TableId table = impl_->layout.id;
  Digest digest;
  std::vector<float> scratch(impl_->layout.row_floats());
  for (const Impl::Stripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    impl_->VisitStripe(stripe, &scratch, [&](Key key, absl::Span<const float> row, uint32_t) {
      digest.Add(RowDigest(table, key, row));
    });
  }
  return digest;
}

uint64_t EmbeddingTable::num_rows() const {
  uint64_t rows = 0;
  for (const Impl::Stripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    rows += stripe.index.size();
  }
  return rows;
}

uint64_t EmbeddingTable::memory_bytes() const {
  uint64_t bytes = sizeof(Impl) + impl_->storage.ResidentBytes();
  for (const Impl::Stripe& stripe : impl_->stripes) {
    absl::ReaderMutexLock lock(&stripe.mutex);
    bytes += stripe.index.memory_bytes();
  }
  return bytes;
}

// No row is ever erased yet.
uint64_t EmbeddingTable::rows_created() const { return num_rows(); }

}  // namespace thermocline
