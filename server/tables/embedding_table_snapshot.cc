// A snapshot: the keys of the rows are collected once and sorted, then rows are read a batch at a
// time. A row that was changed since the cut is read from the image that its stripe keeps.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "common/check.h"
#include "server/tables/embedding_table_impl.h"
#include "server/tables/prefetch.h"
#include "server/tables/slot_order.h"

namespace thermocline {

void EmbeddingTable::Impl::SaveImage(TableStripe& stripe, Key key, uint32_t row) {
  // Nobody asks for it any more. Who reads a slot's rows says so afterwards.
  const uint32_t slots_read = snapshot_slots_read.load(std::memory_order_acquire);
  if (SlotOfKey(TableSalt(layout.id), key) < slots_read) return;
  stripe.cut.Save(key, *storage.Meta(row), storage.Weights(row), layout.dim, storage.Slots(row),
                  layout.slot_floats());
}

class EmbeddingTable::Impl::Snapshot final : public TableSnapshot {
 public:
  Snapshot(Impl* table, uint32_t oldest, uint32_t newest);
  ~Snapshot() override;

  absl::StatusOr<bool> Next(SnapshotRows* rows) override;

 private:
  void Collect();
  UninitializedVector<Key> CopyKeys(const TableStripe& stripe) const;
  // Leaves the keys of rows that belong to the snapshot.
  void DropOthers(UninitializedVector<Key>* keys) const;
  void Read(absl::Span<const Key> keys, SnapshotRows* rows);
  void ReadStripe(const KeyBatch& batch, uint32_t s, SnapshotRows* rows);

  Impl* const table_;
  const uint64_t salt_;
  const bool all_rows_;  // Whatever the step of their last change.
  bool collected_ = false;
  UninitializedVector<Key> keys_;
  size_t next_ = 0;            // in keys_
  std::vector<char> present_;  // of the batch that is being read
};

EmbeddingTable::Impl::Snapshot::Snapshot(Impl* table, uint32_t oldest, uint32_t newest)
    : table_(table), salt_(TableSalt(table->layout.id)), all_rows_(oldest == 0) {
  CHECK(!table_->in_snapshot.exchange(true));
  table_->snapshot_slots_read.store(0);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    absl::MutexLock lock(&table_->stripes[s].mutex);
    table_->stripes[s].cut = RowCut(oldest, newest);
  }
}

EmbeddingTable::Impl::Snapshot::~Snapshot() {
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    RowCut ended;  // Freed without the lock.
    absl::MutexLock lock(&table_->stripes[s].mutex);
    std::swap(ended, table_->stripes[s].cut);
  }
  CHECK(table_->in_snapshot.exchange(false));
}

absl::StatusOr<bool> EmbeddingTable::Impl::Snapshot::Next(SnapshotRows* rows) {
  if (!collected_) Collect();
  rows->keys.clear();
  while (rows->keys.empty() && next_ < keys_.size()) {
    const auto keys = absl::MakeConstSpan(keys_).subspan(next_, KeyBatch::kMaxKeys);
    Read(keys, rows);
    next_ += keys.size();
    const uint32_t slots_read = next_ < keys_.size() ? SlotOfKey(salt_, keys_[next_]) : kNumSlots;
    table_->snapshot_slots_read.store(slots_read, std::memory_order_release);
  }
  return !rows->keys.empty();
}

void EmbeddingTable::Impl::Snapshot::Collect() {
  std::vector<UninitializedVector<Key>> groups;
  for (const TableStripe& stripe : table_->stripes) {
    groups.push_back(CopyKeys(stripe));
    if (!all_rows_) DropOthers(&groups.back());
  }
  keys_ = SortBySlot(salt_, std::move(groups));
  collected_ = true;
}

// An apply waits for the lock: nothing but the copying is done under it, into memory that is there.
UninitializedVector<Key> EmbeddingTable::Impl::Snapshot::CopyKeys(const TableStripe& stripe) const {
  const auto room = [&]() ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
    return stripe.index.size() + stripe.cut.images().size() + 1;
  };
  UninitializedVector<Key> keys;
  size_t wanted = 0;
  while (true) {
    keys.resize(wanted + wanted / 16);
    std::memset(keys.data(), 0, keys.size() * sizeof(Key));  // Makes it resident.
    absl::ReaderMutexLock lock(&stripe.mutex);
    wanted = room();
    if (wanted > keys.size()) continue;
    size_t n = stripe.index.CopyKeys(keys.data());
    for (const auto& image : stripe.cut.images()) keys[n++] = image.first;
    keys.resize(n);
    return keys;
  }
}

void EmbeddingTable::Impl::Snapshot::DropOthers(UninitializedVector<Key>* keys) const {
  size_t kept = 0;
  table_->stripes.ForEachBatch(*keys, [&](const KeyBatch& batch, size_t) {
    for (uint32_t s = 0; s < kNumStripes; ++s) {
      if (batch.begin(s) == batch.begin(s + 1)) continue;
      const TableStripe& stripe = table_->stripes[s];
      absl::ReaderMutexLock lock(&stripe.mutex);
      table_->stripes.Pipeline<const RowMeta*>(
          batch, s,
          [&](const Entry& entry) -> const RowMeta* {
            const uint32_t row = stripe.index.Find(entry.key, entry.place);
            if (row == 0) return nullptr;
            __builtin_prefetch(table_->storage.Meta(row));
            return table_->storage.Meta(row);
          },
          [&](const Entry& entry, const RowMeta* meta) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
            const bool belongs = (meta != nullptr && stripe.cut.Contains(*meta)) ||
                                 stripe.cut.Find(entry.key) != nullptr;
            if (belongs) (*keys)[kept++] = entry.key;  // The batch is a copy.
          });
    }
  });
  keys->resize(kept);
}

void EmbeddingTable::Impl::Snapshot::Read(absl::Span<const Key> keys, SnapshotRows* rows) {
  const size_t row_floats = table_->layout.row_floats();
  rows->keys.assign(keys.begin(), keys.end());
  rows->counts.resize(keys.size());
  rows->changed.resize(keys.size());
  rows->rows.resize(keys.size() * row_floats);
  present_.assign(keys.size(), 0);
  table_->stripes.ForEachBatch(keys, [&](const KeyBatch& batch, size_t) {
    for (uint32_t s = 0; s < kNumStripes; ++s) {
      if (batch.begin(s) != batch.begin(s + 1)) ReadStripe(batch, s, rows);
    }
  });
  size_t kept = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!present_[i]) continue;
    if (kept != i) {
      rows->keys[kept] = rows->keys[i];
      rows->counts[kept] = rows->counts[i];
      rows->changed[kept] = rows->changed[i];
      std::copy_n(&rows->rows[i * row_floats], row_floats, &rows->rows[kept * row_floats]);
    }
    ++kept;
  }
  rows->keys.resize(kept);
  rows->counts.resize(kept);
  rows->changed.resize(kept);
  rows->rows.resize(kept * row_floats);
}

void EmbeddingTable::Impl::Snapshot::ReadStripe(const KeyBatch& batch, uint32_t s,
                                                SnapshotRows* rows) {
  const RowStorage& storage = table_->storage;
  const size_t dim = table_->layout.dim;
  const size_t slot_floats = table_->layout.slot_floats();
  const TableStripe& stripe = table_->stripes[s];
  const auto set_meta = [&](uint32_t position, const RowMeta& meta) {
    present_[position] = 1;
    rows->counts[position] = meta.count;
    rows->changed[position] = meta.changed;
  };
  absl::ReaderMutexLock lock(&stripe.mutex);
  table_->stripes.Pipeline<uint32_t>(
      batch, s,
      [&](const Entry& entry) {
        const uint32_t row = stripe.index.Find(entry.key, entry.place);
        if (row == 0) return row;
        PrefetchRange(storage.Weights(row), dim * sizeof(float));
        PrefetchRange(storage.Slots(row), slot_floats * sizeof(float));
        __builtin_prefetch(storage.Meta(row));
        return row;
      },
      [&](const Entry& entry, uint32_t row) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
        float* out = &rows->rows[entry.position * (dim + slot_floats)];
        if (row != 0 && stripe.cut.Contains(*storage.Meta(row))) {
          std::copy_n(storage.Weights(row), dim, out);
          std::copy_n(storage.Slots(row), slot_floats, out + dim);
          set_meta(entry.position, *storage.Meta(row));
        } else if (const RowCut::Image* image = stripe.cut.Find(entry.key)) {
          std::copy_n(image->row, dim + slot_floats, out);
          set_meta(entry.position, image->meta);
        }
      });
}

std::unique_ptr<TableSnapshot> EmbeddingTable::BeginSnapshot(Step cut, Step changed_after) {
  CHECK_LE(changed_after, cut);
  const uint32_t oldest = changed_after == kNoStep ? 0 : ChangedAt(changed_after) + 1;
  return std::make_unique<Impl::Snapshot>(impl_.get(), oldest, ChangedAt(cut));
}

}  // namespace thermocline
