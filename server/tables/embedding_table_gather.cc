// Reading rows, or what a row would begin with.
#include <cstring>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/row_init.h"
#include "server/tables/embedding_table_impl.h"
#include "server/tables/prefetch.h"

namespace thermocline {

template <int kDim>
void EmbeddingTable::Impl::Gather(const KeyBatch& batch, uint8_t* weights) const {
  const size_t bytes = sizeof(float) * (kDim > 0 ? kDim : layout.dim);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    const TableStripe& stripe = stripes[s];
    absl::ReaderMutexLock lock(&stripe.mutex);
    const KeyIndex& index = stripe.index;
    stripes.Pipeline<const float*>(
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

void EmbeddingTable::Impl::GatherWhole(const KeyBatch& batch, uint8_t* rows) const {
  const size_t weights_bytes = sizeof(float) * layout.dim;
  const size_t slots_bytes = sizeof(float) * layout.slot_floats();
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (batch.begin(s) == batch.begin(s + 1)) continue;
    const TableStripe& stripe = stripes[s];
    absl::ReaderMutexLock lock(&stripe.mutex);
    stripes.Pipeline<uint32_t>(
        batch, s,
        [&](const Entry& entry) {
          const uint32_t row = stripe.index.Find(entry.key, entry.place);
          if (row == 0) return row;
          PrefetchRange(storage.Weights(row), weights_bytes);
          PrefetchRange(storage.Slots(row), slots_bytes);
          return row;
        },
        [&](const Entry& entry, uint32_t row) {
          uint8_t* out = rows + entry.position * (weights_bytes + slots_bytes);
          if (row == 0) return GatherMissingRow(entry.key, out);
          std::memcpy(out, storage.Weights(row), weights_bytes);
          if (slots_bytes > 0) {
            std::memcpy(out + weights_bytes, storage.Slots(row), slots_bytes);
          }
        });
  }
}

void EmbeddingTable::Impl::GatherMissingRow(Key key, uint8_t* row) const {
  thread_local std::vector<float> initial;  // `row` may be unaligned
  initial.resize(layout.row_floats());
  InitialRow(layout, seed, key, absl::MakeSpan(initial));
  std::memcpy(row, initial.data(), initial.size() * sizeof(float));
}

absl::Status EmbeddingTable::GatherRows(absl::Span<const Key> keys, uint8_t* rows) const {
  const size_t row_bytes = sizeof(float) * impl_->layout.row_floats();
  impl_->stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    impl_->GatherWhole(batch, rows + first * row_bytes);
  });
  return absl::OkStatus();
}

void EmbeddingTable::GatherWeights(absl::Span<const Key> keys, uint8_t* weights) const {
  const size_t row_bytes = sizeof(float) * impl_->layout.dim;
  impl_->stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t first) {
    (impl_.get()->*impl_->gather)(batch, weights + first * row_bytes);
  });
}

}  // namespace thermocline
