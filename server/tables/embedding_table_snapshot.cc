// A snapshot: the keys of the rows in memory are collected once, with the places of their rows, and
// sorted, then rows are read a batch at a time. A row that was changed since the cut, or left
// memory, is read from the image that its stripe keeps. What the store had at the cut is merged in;
// where memory has a row too, the store's is the same or older.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "server/tables/embedding_table.h"
#include "server/tables/partition_order.h"
#include "server/tables/prefetch.h"

namespace thermocline {
namespace {

constexpr uint32_t kNotStored = UINT32_MAX;

// The rows of one slice.
constexpr size_t kBatchKeys = KeyBatch::kMaxKeys;

// How far ahead of its use a row is fetched. Then its meta data say whether its image is read,
// which is somewhere else.
constexpr size_t kRowsAhead = TableStripes::kRowsAhead;
constexpr size_t kSlotsAhead = kRowsAhead / 2;
constexpr size_t kImagesAhead = kRowsAhead / 4;

// Each time that so many partitions were read, the images of their rows go. A look at all images
// takes as long as saving them, about.
constexpr uint32_t kPartitionsPerDrop = kNumPartitions / 16;

}  // namespace

void EmbeddingTable::SaveImage(TableStripe& stripe, Key key, uint32_t row) {
  // The snapshot has read the row already.
  const uint32_t partitions_read = snapshot_.partitions_read.load(std::memory_order_acquire);
  if (PartitionOfKey(TableSalt(layout_.id), key) < partitions_read) return;
  // It was stored before the snapshot began, or left memory since, and left its image.
  if (storage_.IsAsStored(row)) return;
  const bool saved = stripe.cut.Save(key, *storage_.Meta(row), storage_.Weights(row), layout_.dim,
                                     storage_.State(row), layout_.state_floats());
  if (saved) snapshot_.old_images.fetch_add(1, std::memory_order_relaxed);
}

class EmbeddingTable::Snapshot final : public TableSnapshot {
 public:
  Snapshot(EmbeddingTable* table, uint32_t oldest, uint32_t newest, bool all_rows);
  ~Snapshot() override;

  absl::StatusOr<bool> Next(SnapshotRows* rows) override;

 private:
  void Collect();
  // Copies the keys of a stripe, with their rows, and sets rows_erased_.
  void CopyKeys(uint32_t s, UninitializedVector<KeyRow>* keys);
  // Removes the keys of rows that don't belong to the snapshot.
  void DropOthers(uint32_t s, UninitializedVector<KeyRow>* keys) const;
  // Looks up the rows of n keys of a stripe where they are not known, or may not be what they were
  // when the stripe had erased `rows_erased` rows. `key_at(i)`: a reference to the i-th one, a
  // KeyRow or PlacedKey.
  template <typename KeyAt>
  void FindRows(const TableStripe& stripe, uint64_t rows_erased, size_t n, KeyAt key_at) const
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex);
  absl::Status FillStored();
  // Fills batch_ with the next keys in order, and batch_stored_ with their places in stored_rows_.
  void TakeKeys();
  void Read(SnapshotRows* rows);
  void GroupByStripe();
  void ReadFromStore(size_t position, SnapshotRows* rows);
  void Compact(SnapshotRows* rows);
  // Fetches the row of by_stripe_[at], which is read soon. Always inlined: see prefetch.h.
  ABSL_ATTRIBUTE_ALWAYS_INLINE inline void Prefetch(size_t at) const;
  // Fetches images of by_stripe_[at, end) that are read soon: first the slot that says where one
  // is. Always inlined: see prefetch.h.
  ABSL_ATTRIBUTE_ALWAYS_INLINE inline void PrefetchImage(const TableStripe& stripe, size_t at,
                                                         size_t end) const
      ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex);
  void ReadStripe(uint32_t s, SnapshotRows* rows);
  void SetRead(uint32_t partitions);

  EmbeddingTable* const table_;
  const uint64_t salt_;
  const size_t weights_bytes_;
  const size_t state_bytes_;
  const size_t row_floats_;
  const bool all_rows_;                 // The step of the last change doesn't matter.
  const RowCut cut_;                    // It holds no images.
  std::unique_ptr<RowCursor> cursor_;   // Null once it is at its end, and where there is no store.
  std::optional<PartitionOrder> keys_;  // The keys in memory, once collected.
  std::array<uint64_t, kNumStripes> rows_erased_ = {};  // [stripe] when its keys were copied
  std::vector<Key> stored_keys_;                        // The cursor's last batch.
  UninitializedVector<uint8_t> stored_rows_;
  size_t next_stored_ = 0;           // in stored_keys_
  uint32_t partitions_dropped_ = 0;  // The images of lower partitions' rows are gone.
  // The batch that is being read.
  std::vector<PlacedKey> batch_;
  std::vector<uint32_t> batch_stored_;  // [batch_] rows of stored_rows_, or kNotStored
  std::vector<char> present_;
  // The positions in batch_, by stripe: those of a stripe are [begin_[stripe], begin_[stripe + 1]).
  std::array<uint16_t, kBatchKeys> by_stripe_;
  std::array<uint32_t, kNumStripes + 1> begin_;
};

EmbeddingTable::Snapshot::Snapshot(EmbeddingTable* table, uint32_t oldest, uint32_t newest,
                                   bool all_rows)
    : table_(table),
      salt_(TableSalt(table->layout_.id)),
      weights_bytes_(table->layout_.dim * sizeof(float)),
      state_bytes_(table->layout_.state_floats() * sizeof(float)),
      row_floats_(table->layout_.row_floats()),
      all_rows_(all_rows),
      cut_(oldest, newest) {
  CHECK(!table_->snapshot_.exists.exchange(true));
  table_->snapshot_.partitions_read.store(0);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    absl::MutexLock lock(&table_->stripes_[s].mutex);
    table_->stripes_[s].cut = RowCut(oldest, newest);
  }
  // Last: a row that leaves memory from here on leaves its image.
  if (table_->store_ != nullptr) cursor_ = table_->store_->NewCursor();
}

EmbeddingTable::Snapshot::~Snapshot() {
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    RowCut ended;  // Freed without the lock.
    absl::MutexLock lock(&table_->stripes_[s].mutex);
    std::swap(ended, table_->stripes_[s].cut);
    table_->snapshot_.old_images -= ended.images().size();
  }
  CHECK(table_->snapshot_.exists.exchange(false));
}

absl::StatusOr<bool> EmbeddingTable::Snapshot::Next(SnapshotRows* rows) {
  if (!keys_.has_value()) Collect();
  rows->keys.clear();
  while (rows->keys.empty()) {
    RETURN_IF_ERROR(FillStored());
    TakeKeys();
    if (batch_.empty()) break;
    Read(rows);
    SetRead(PartitionOfHash(batch_.back().PartialHash()));
  }
  if (batch_.empty()) SetRead(kNumPartitions);
  return !rows->keys.empty();
}

// The partitions below `partitions` are read.
void EmbeddingTable::Snapshot::SetRead(uint32_t partitions) {
  table_->snapshot_.partitions_read.store(partitions, std::memory_order_release);
  if (partitions < kNumPartitions && partitions - partitions_dropped_ < kPartitionsPerDrop) return;
  partitions_dropped_ = partitions;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    absl::MutexLock lock(&table_->stripes_[s].mutex);
    table_->snapshot_.old_images -= table_->stripes_[s].cut.Drop(
        [&](Key key) { return PartitionOfKey(salt_, key) < partitions; });
  }
}

absl::Status EmbeddingTable::Snapshot::FillStored() {
  if (cursor_ == nullptr || next_stored_ < stored_keys_.size()) return absl::OkStatus();
  next_stored_ = 0;
  const absl::Status status = cursor_->Next(kBatchKeys, &stored_keys_, &stored_rows_);
  if (!status.ok()) {
    return absl::Status(status.code(), absl::StrCat("table '", table_->layout_.name,
                                                    "': reading all rows: ", status.message()));
  }
  if (stored_keys_.empty()) cursor_.reset();
  return absl::OkStatus();
}

void EmbeddingTable::Snapshot::TakeKeys() {
  batch_.clear();
  batch_stored_.clear();
  while (batch_.size() < kBatchKeys) {
    const bool more_stored = next_stored_ < stored_keys_.size();
    if (cursor_ != nullptr && !more_stored) return;  // Which key is next isn't known.
    const PlacedKey* const placed = keys_->Front();
    if (placed == nullptr && !more_stored) return;
    uint32_t stored = kNotStored;
    if (more_stored) {
      const Key key = stored_keys_[next_stored_];
      if (placed == nullptr || InPartitionOrder(salt_, key, placed->key)) {
        batch_.push_back({key, 0, static_cast<uint32_t>(KeyHash(salt_, key) >> 32)});
        batch_stored_.push_back(static_cast<uint32_t>(next_stored_++));
        continue;
      }
      if (placed->key == key) stored = static_cast<uint32_t>(next_stored_++);
    }
    batch_.push_back(*placed);
    batch_stored_.push_back(stored);
    keys_->Pop();
  }
}

void EmbeddingTable::Snapshot::Collect() {
  keys_.emplace(salt_, table_->stripes_.RowsInMemory());
  UninitializedVector<KeyRow> keys;
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    CopyKeys(s, &keys);
    if (!all_rows_) DropOthers(s, &keys);
    for (const KeyRow& key : keys) keys_->Add(key.key, key.row);
  }
}

// An apply waits for the lock: nothing but the copying is done under it, into memory that is there.
void EmbeddingTable::Snapshot::CopyKeys(uint32_t s, UninitializedVector<KeyRow>* keys) {
  const TableStripe& stripe = table_->stripes_[s];
  const auto room = [&]() ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
    return stripe.index.size() + stripe.candidates.size() + stripe.cut.images().size() + 1;
  };
  size_t resident = keys->capacity();  // It was filled for another stripe.
  size_t wanted = 0;
  while (true) {
    if (wanted > resident) {
      keys->clear();
      keys->resize(wanted + wanted / 16);
      std::memset(keys->data(), 0, keys->size() * sizeof(KeyRow));  // Makes it resident.
      resident = keys->size();
    }
    absl::ReaderMutexLock lock(&stripe.mutex);
    wanted = room();
    if (wanted > resident) continue;
    keys->resize(wanted);
    size_t n = stripe.index.CopyKeys(keys->data());
    for (const auto& candidate : stripe.candidates) (*keys)[n++] = {candidate.first, 0};
    for (const auto& image : stripe.cut.images()) (*keys)[n++] = {image.first, 0};
    keys->resize(n);
    rows_erased_[s] = stripe.rows_erased;
    return;
  }
}

void EmbeddingTable::Snapshot::DropOthers(uint32_t s, UninitializedVector<KeyRow>* keys) const {
  const TableStripe& stripe = table_->stripes_[s];
  size_t kept = 0;
  for (size_t begin = 0; begin < keys->size(); begin += kBatchKeys) {
    const size_t end = std::min(keys->size(), begin + kBatchKeys);
    absl::ReaderMutexLock lock(&stripe.mutex);
    FindRows(stripe, rows_erased_[s], end - begin,
             [&](size_t i) -> KeyRow& { return (*keys)[begin + i]; });
    for (size_t at = begin; at < end; ++at) {
      const size_t ahead = at + TableStripes::kBucketsAhead;
      if (ahead < end && (*keys)[ahead].row != 0) {
        __builtin_prefetch(table_->storage_.Meta((*keys)[ahead].row));
      }
      const KeyRow key = (*keys)[at];
      const RowMeta* meta = nullptr;
      if (key.row != 0) {
        meta = table_->storage_.Meta(key.row);
      } else if (const auto candidate = stripe.candidates.find(key.key);
                 candidate != stripe.candidates.end()) {
        meta = &candidate->second;
      }
      const bool belongs =
          (meta != nullptr && stripe.cut.Contains(*meta)) || stripe.cut.Find(key.key) != nullptr;
      if (belongs) (*keys)[kept++] = key;
    }
  }
  keys->resize(kept);
}

template <typename KeyAt>
void EmbeddingTable::Snapshot::FindRows(const TableStripe& stripe, uint64_t rows_erased, size_t n,
                                        KeyAt key_at) const {
  const bool erased = stripe.rows_erased != rows_erased;
  const auto place = [&](size_t i) { return KeyIndex::PlaceOfHash(KeyHash(salt_, key_at(i).key)); };
  size_t ahead = 0;
  for (size_t i = 0; i < n; ++i) {
    for (; ahead < std::min<size_t>(n, i + TableStripes::kBucketsAhead); ++ahead) {
      if (erased || key_at(ahead).row == 0) stripe.index.Prefetch(place(ahead));
    }
    if (erased || key_at(i).row == 0) key_at(i).row = stripe.index.Find(key_at(i).key, place(i));
  }
}

void EmbeddingTable::Snapshot::GroupByStripe() {
  const auto stripe_of = [](const PlacedKey& key) { return StripeOfHash(key.PartialHash()); };
  begin_.fill(0);
  for (const PlacedKey& key : batch_) ++begin_[stripe_of(key) + 1];
  for (uint32_t s = 0; s < kNumStripes; ++s) begin_[s + 1] += begin_[s];
  std::array<uint32_t, kNumStripes + 1> next = begin_;
  for (size_t i = 0; i < batch_.size(); ++i) {
    by_stripe_[next[stripe_of(batch_[i])]++] = static_cast<uint16_t>(i);
  }
}

// The row may have become another key's meanwhile: that is harmless.
void EmbeddingTable::Snapshot::Prefetch(size_t at) const {
  if (at >= batch_.size()) return;
  const uint32_t position = by_stripe_[at];
  const uint32_t row = batch_[position].row;
  if (row == 0) return;
  const RowStorage& storage = table_->storage_;
  PrefetchRange(storage.Weights(row), weights_bytes_);
  PrefetchRange(storage.State(row), state_bytes_);
  __builtin_prefetch(storage.Meta(row));
}

void EmbeddingTable::Snapshot::PrefetchImage(const TableStripe& stripe, size_t at,
                                             size_t end) const {
  if (stripe.cut.images().empty()) return;
  // The i-th key, if its row was changed since the cut, or there is none.
  const auto changed_key = [&](size_t i) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
    const PlacedKey* const key = i < end ? &batch_[by_stripe_[i]] : nullptr;
    if (key == nullptr || key->row == 0) return key;
    return stripe.cut.Contains(*table_->storage_.Meta(key->row)) ? nullptr : key;
  };
  if (const PlacedKey* key = changed_key(at + kSlotsAhead)) stripe.cut.Prefetch(key->key);
  if (const PlacedKey* key = changed_key(at + kImagesAhead)) {
    const RowCut::Image* const image = stripe.cut.Find(key->key);
    if (image != nullptr && image->row != nullptr) {
      PrefetchRange(image->row, row_floats_ * sizeof(float));
    }
  }
}

void EmbeddingTable::Snapshot::Read(SnapshotRows* rows) {
  const size_t n = batch_.size();
  rows->keys.resize(n);
  for (size_t i = 0; i < n; ++i) rows->keys[i] = batch_[i].key;
  rows->counts.resize(n);
  rows->changed.resize(n);
  rows->has_row.assign(n, 1);
  rows->rows.resize(n * row_floats_);
  present_.assign(n, 0);
  GroupByStripe();
  for (size_t at = 0; at < kRowsAhead; ++at) Prefetch(at);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    if (begin_[s] < begin_[s + 1]) ReadStripe(s, rows);
  }
  for (size_t i = 0; i < n; ++i) {
    if (!present_[i] && batch_stored_[i] != kNotStored) ReadFromStore(i, rows);
  }
  Compact(rows);
}

void EmbeddingTable::Snapshot::ReadFromStore(size_t position, SnapshotRows* rows) {
  const uint8_t* stored = stored_rows_.data() + batch_stored_[position] * table_->stored_row_bytes_;
  const RowMeta meta = StoredMeta(stored);
  if (!cut_.Contains(meta)) return;
  std::memcpy(&rows->rows[position * row_floats_], stored + sizeof(meta),
              row_floats_ * sizeof(float));
  rows->counts[position] = meta.count;
  rows->changed[position] = meta.changed;
  present_[position] = 1;
}

void EmbeddingTable::Snapshot::Compact(SnapshotRows* rows) {
  size_t kept = 0;
  for (size_t i = 0; i < present_.size(); ++i) {
    if (!present_[i]) continue;
    if (kept != i) {
      rows->keys[kept] = rows->keys[i];
      rows->counts[kept] = rows->counts[i];
      rows->changed[kept] = rows->changed[i];
      rows->has_row[kept] = rows->has_row[i];
      std::copy_n(&rows->rows[i * row_floats_], row_floats_, &rows->rows[kept * row_floats_]);
    }
    ++kept;
  }
  rows->keys.resize(kept);
  rows->counts.resize(kept);
  rows->changed.resize(kept);
  rows->has_row.resize(kept);
  rows->rows.resize(kept * row_floats_);
}

void EmbeddingTable::Snapshot::ReadStripe(uint32_t s, SnapshotRows* rows) {
  const RowStorage& storage = table_->storage_;
  const TableStripe& stripe = table_->stripes_[s];
  const uint32_t begin = begin_[s];
  const auto set_meta = [&](uint32_t position, const RowMeta& meta) {
    present_[position] = 1;
    rows->counts[position] = meta.count;
    rows->changed[position] = meta.changed;
  };
  absl::ReaderMutexLock lock(&stripe.mutex);
  FindRows(stripe, rows_erased_[s], begin_[s + 1] - begin,
           [&](size_t i) -> PlacedKey& { return batch_[by_stripe_[begin + i]]; });
  for (uint32_t at = begin; at < begin_[s + 1]; ++at) {
    Prefetch(at + kRowsAhead);
    PrefetchImage(stripe, at, begin_[s + 1]);
    const uint32_t position = by_stripe_[at];
    const auto [key, row, upper_hash] = batch_[position];
    float* out = &rows->rows[position * row_floats_];
    if (row != 0 && stripe.cut.Contains(*storage.Meta(row))) {
      storage.CopyOut(row, out);
      set_meta(position, *storage.Meta(row));
    } else if (const RowCut::Image* image = stripe.cut.Find(key)) {
      rows->has_row[position] = image->row != nullptr ? 1 : 0;
      if (image->row != nullptr) std::copy_n(image->row, row_floats_, out);
      set_meta(position, image->meta);
    } else if (const auto candidate = stripe.candidates.find(key);
               candidate != stripe.candidates.end() && stripe.cut.Contains(candidate->second)) {
      rows->has_row[position] = 0;
      set_meta(position, candidate->second);
    }
  }
}

std::unique_ptr<TableSnapshot> EmbeddingTable::BeginSnapshot(Step cut, Step changed_after) {
  CHECK_LE(changed_after, cut);
  const uint32_t oldest = changed_after == kNoStep ? 0 : ChangedAt(changed_after) + 1;
  // Forgotten rows may still be in the store.
  return std::make_unique<Snapshot>(this, std::max(oldest, admission_.oldest_kept()),
                                    ChangedAt(cut), oldest == 0);
}

}  // namespace thermocline
