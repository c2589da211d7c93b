// Reading rows, or what a row would begin with.
#include <cstring>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/math/table_spec.h"
#include "server/tables/embedding_table_impl.h"
#include "server/tables/prefetch.h"

namespace thermocline {

template <int kDim, bool kSpilled>
void EmbeddingTable::Impl::Gather(const KeyBatch& batch, uint8_t* weights, Misses* misses) const {
  const size_t bytes = sizeof(float) * (kDim > 0 ? kDim : layout.dim);
  struct Found {
    const float* weights;
    uint32_t row;  // Only for a table with a store.
  };
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    const TableStripe& stripe = stripes[s];
    const size_t old_misses = kSpilled ? misses->size() : 0;
    absl::ReaderMutexLock lock(&stripe.mutex);
    const KeyIndex& index = stripe.index;
    stripes.Pipeline<Found>(
        batch, s,
        [&](const Entry& entry) -> Found {
          const uint32_t row = index.Find(entry.key, entry.place);
          if (row == 0) return {nullptr, 0};
          const float* found = storage.Weights(row);
          PrefetchRange(found, bytes);
          PrefetchForWrite(weights + entry.position * bytes, bytes);
          if (kSpilled) __builtin_prefetch(storage.Flags(row));
          return {found, row};
        },
        [&](const Entry& entry, const Found& found) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
          uint8_t* out = weights + entry.position * bytes;
          if (__builtin_expect(found.weights != nullptr, true)) {
            std::memcpy(out, found.weights, bytes);
            if (kSpilled) storage.MarkReferenced(found.row);
          } else if (kSpilled && !stripe.candidates.contains(entry.key)) {
            misses->push_back({entry.key, entry.place, s, entry.position});
          } else {
            GatherInitial(entry.key, out);
          }
        });
    if (kSpilled) Pin(stripe, absl::MakeConstSpan(*misses).subspan(old_misses));
  }
}

void EmbeddingTable::Impl::GatherInitial(Key key, uint8_t* weights) const {
  thread_local std::vector<float> initial;  // `weights` may be unaligned
  initial.resize(layout.dim);
  InitialWeights(seed, layout.id, key, layout.distribution, layout.init_scale,
                 absl::MakeSpan(initial));
  std::memcpy(weights, initial.data(), initial.size() * sizeof(float));
}

template <bool kSpilled>
EmbeddingTable::Impl::GatherFunction EmbeddingTable::Impl::SelectGather(int dim) {
  switch (dim) {
    case 16:
      return &Impl::Gather<16, kSpilled>;
    case 32:
      return &Impl::Gather<32, kSpilled>;
    case 64:
      return &Impl::Gather<64, kSpilled>;
    case 128:
      return &Impl::Gather<128, kSpilled>;
    default:
      return &Impl::Gather<0, kSpilled>;
  }
}
template EmbeddingTable::Impl::GatherFunction EmbeddingTable::Impl::SelectGather<false>(int dim);
template EmbeddingTable::Impl::GatherFunction EmbeddingTable::Impl::SelectGather<true>(int dim);

void EmbeddingTable::Impl::GatherWhole(const KeyBatch& batch, uint8_t* rows, Misses* misses) const {
  const bool spilled = store != nullptr;
  const size_t weights_bytes = sizeof(float) * layout.dim;
  const size_t state_bytes = sizeof(float) * layout.state_floats();
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    const TableStripe& stripe = stripes[s];
    const size_t old_misses = misses->size();
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripes.Pipeline<uint32_t>(
        batch, s,
        [&](const Entry& entry) {
          const uint32_t row = stripe.index.Find(entry.key, entry.place);
          if (row == 0) return row;
          PrefetchRange(storage.Weights(row), weights_bytes);
          PrefetchRange(storage.State(row), state_bytes);
          if (spilled) __builtin_prefetch(storage.Flags(row));
          return row;
        },
        [&](const Entry& entry, uint32_t row) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
          uint8_t* out = rows + entry.position * (weights_bytes + state_bytes);
          if (row == 0) {
            if (!spilled || stripe.candidates.contains(entry.key)) {
              return GatherInitialRow(entry.key, out);
            }
            misses->push_back({entry.key, entry.place, s, entry.position});
            return;
          }
          std::memcpy(out, storage.Weights(row), weights_bytes);
          if (state_bytes > 0) std::memcpy(out + weights_bytes, storage.State(row), state_bytes);
          if (spilled) storage.MarkReferenced(row);
        });
    if (spilled) Pin(stripe, absl::MakeConstSpan(*misses).subspan(old_misses));
  }
}

void EmbeddingTable::Impl::GatherInitialRow(Key key, uint8_t* row) const {
  thread_local std::vector<float> initial;  // `row` may be unaligned
  initial.resize(layout.row_floats());
  InitialRow(layout, seed, key, absl::MakeSpan(initial));
  std::memcpy(row, initial.data(), initial.size() * sizeof(float));
}

template <typename GatherBatch>
absl::Status EmbeddingTable::Impl::GatherAll(absl::Span<const Key> keys, uint8_t* rows,
                                             size_t row_floats, ReadBack read_back,
                                             GatherBatch gather_batch) {
  Misses misses;
  stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    const size_t old_misses = misses.size();
    gather_batch(batch, rows + first * row_floats * sizeof(float), &misses);
    for (size_t i = old_misses; i < misses.size(); ++i) misses[i].position += first;
  });
  if (misses.empty()) return absl::OkStatus();
  return GatherMissed(misses, rows, row_floats, read_back);
}

absl::Status EmbeddingTable::GatherWeights(absl::Span<const Key> keys, uint8_t* weights,
                                           ReadBack read_back) const {
  return impl_->GatherAll(keys, weights, impl_->layout.dim, read_back,
                          [this](const KeyBatch& batch, uint8_t* out, Impl::Misses* misses) {
                            (impl_.get()->*impl_->gather)(batch, out, misses);
                          });
}

absl::Status EmbeddingTable::GatherRows(absl::Span<const Key> keys, uint8_t* rows,
                                        ReadBack read_back) const {
  return impl_->GatherAll(keys, rows, impl_->layout.row_floats(), read_back,
                          [this](const KeyBatch& batch, uint8_t* out, Impl::Misses* misses) {
                            impl_->GatherWhole(batch, out, misses);
                          });
}

}  // namespace thermocline
