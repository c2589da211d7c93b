// A snapshot: the keys of the rows in memory are collected once and sorted, then rows are read a
// batch at a time. A row that was changed since the cut, or left memory, is read from the image
// that its stripe keeps. What the store had at the cut is merged in; where memory has a row too,
// the store's is the same or older.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

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
  UninitializedVector<Key> CopyKeys(const TableStripe& stripe) const;
  // Removes the keys of rows that don't belong to the snapshot.
  void DropOthers(UninitializedVector<Key>* keys) const;
  absl::Status FillStored();
  // Fills batch_ with the next keys in order, and batch_stored_ with their places in stored_rows_.
  void TakeKeys();
  void Read(SnapshotRows* rows);
  void ReadFromStore(size_t position, SnapshotRows* rows);
  void Compact(SnapshotRows* rows);
  void ReadStripe(const KeyBatch& batch, uint32_t s, SnapshotRows* rows);
  void SetRead(uint32_t partitions);

  EmbeddingTable* const table_;
  const uint64_t salt_;
  const bool all_rows_;                // The step of the last change doesn't matter.
  const RowCut cut_;                   // It holds no images.
  std::unique_ptr<RowCursor> cursor_;  // Null once it is at its end, and where there is no store.
  bool collected_ = false;
  UninitializedVector<Key> keys_;  // Their rows were in memory.
  size_t next_ = 0;                // in keys_
  std::vector<Key> stored_keys_;   // The cursor's last batch.
  UninitializedVector<uint8_t> stored_rows_;
  size_t next_stored_ = 0;           // in stored_keys_
  uint32_t partitions_dropped_ = 0;  // The images of lower partitions' rows are gone.
  // The batch that is being read.
  std::vector<Key> batch_;
  std::vector<uint32_t> batch_stored_;  // [batch_] rows of stored_rows_, or kNotStored
  std::vector<char> present_;
};

EmbeddingTable::Snapshot::Snapshot(EmbeddingTable* table, uint32_t oldest, uint32_t newest,
                                   bool all_rows)
    : table_(table),
      salt_(TableSalt(table->layout_.id)),
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
  if (!collected_) Collect();
  rows->keys.clear();
  while (rows->keys.empty()) {
    RETURN_IF_ERROR(FillStored());
    TakeKeys();
    if (batch_.empty()) break;
    Read(rows);
    SetRead(PartitionOfKey(salt_, batch_.back()));
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
  const absl::Status status = cursor_->Next(KeyBatch::kMaxKeys, &stored_keys_, &stored_rows_);
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
  while (batch_.size() < KeyBatch::kMaxKeys) {
    const bool more_stored = next_stored_ < stored_keys_.size();
    if (cursor_ != nullptr && !more_stored) return;  // Which key is next isn't known.
    const bool more = next_ < keys_.size();
    if (!more && !more_stored) return;
    const bool stored_first =
        more_stored &&
        (!more || !InPartitionOrder(salt_, keys_[next_], stored_keys_[next_stored_]));
    const Key key = stored_first ? stored_keys_[next_stored_] : keys_[next_];
    if (more && keys_[next_] == key) ++next_;
    batch_.push_back(key);
    batch_stored_.push_back(stored_first ? static_cast<uint32_t>(next_stored_++) : kNotStored);
  }
}

void EmbeddingTable::Snapshot::Collect() {
  std::vector<UninitializedVector<Key>> groups;
  for (const TableStripe& stripe : table_->stripes_) {
    groups.push_back(CopyKeys(stripe));
    if (!all_rows_) DropOthers(&groups.back());
  }
  keys_ = SortByPartition(salt_, std::move(groups));
  collected_ = true;
}

// An apply waits for the lock: nothing but the copying is done under it, into memory that is there.
UninitializedVector<Key> EmbeddingTable::Snapshot::CopyKeys(const TableStripe& stripe) const {
  const auto room = [&]() ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
    return stripe.index.size() + stripe.candidates.size() + stripe.cut.images().size() + 1;
  };
  UninitializedVector<Key> keys;
  size_t wanted = 0;
  while (true) {
    keys.resize(wanted + wanted / 16);
    if (!keys.empty()) {  // Makes it resident.
      std::memset(keys.data(), 0, keys.size() * sizeof(Key));
    }
    absl::ReaderMutexLock lock(&stripe.mutex);
    wanted = room();
    if (wanted > keys.size()) continue;
    size_t n = stripe.index.CopyKeys(keys.data());
    for (const auto& candidate : stripe.candidates) keys[n++] = candidate.first;
    for (const auto& image : stripe.cut.images()) keys[n++] = image.first;
    keys.resize(n);
    return keys;
  }
}

void EmbeddingTable::Snapshot::DropOthers(UninitializedVector<Key>* keys) const {
  size_t kept = 0;
  table_->stripes_.ForEachBatch(*keys, [&](const KeyBatch& batch, size_t) {
    TableStripes::ForEachStripe(batch, [&](uint32_t s) {
      const TableStripe& stripe = table_->stripes_[s];
      absl::ReaderMutexLock lock(&stripe.mutex);
      table_->stripes_.Pipeline<const RowMeta*>(
          batch, s,
          [&](const Entry& entry) -> const RowMeta* {
            const uint32_t row = stripe.index.Find(entry.key, entry.place);
            if (row == 0) return nullptr;
            __builtin_prefetch(table_->storage_.Meta(row));
            return table_->storage_.Meta(row);
          },
          [&](const Entry& entry, const RowMeta* meta) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
            if (meta == nullptr) {
              const auto candidate = stripe.candidates.find(entry.key);
              if (candidate != stripe.candidates.end()) meta = &candidate->second;
            }
            const bool belongs = (meta != nullptr && stripe.cut.Contains(*meta)) ||
                                 stripe.cut.Find(entry.key) != nullptr;
            if (belongs) (*keys)[kept++] = entry.key;  // The batch is a copy.
          });
    });
  });
  keys->resize(kept);
}

void EmbeddingTable::Snapshot::Read(SnapshotRows* rows) {
  const size_t n = batch_.size();
  rows->keys = batch_;
  rows->counts.resize(n);
  rows->changed.resize(n);
  rows->has_row.assign(n, 1);
  rows->rows.resize(n * table_->layout_.row_floats());
  present_.assign(n, 0);
  table_->stripes_.ForEachBatch(batch_, [&](const KeyBatch& batch, size_t) {
    TableStripes::ForEachStripe(batch, [&](uint32_t s) { ReadStripe(batch, s, rows); });
  });
  for (size_t i = 0; i < n; ++i) {
    if (!present_[i] && batch_stored_[i] != kNotStored) ReadFromStore(i, rows);
  }
  Compact(rows);
}

void EmbeddingTable::Snapshot::ReadFromStore(size_t position, SnapshotRows* rows) {
  const uint8_t* stored = stored_rows_.data() + batch_stored_[position] * table_->stored_row_bytes_;
  const RowMeta meta = StoredMeta(stored);
  if (!cut_.Contains(meta)) return;
  const size_t row_floats = table_->layout_.row_floats();
  std::memcpy(&rows->rows[position * row_floats], stored + sizeof(meta),
              row_floats * sizeof(float));
  rows->counts[position] = meta.count;
  rows->changed[position] = meta.changed;
  present_[position] = 1;
}

void EmbeddingTable::Snapshot::Compact(SnapshotRows* rows) {
  const size_t row_floats = table_->layout_.row_floats();
  size_t kept = 0;
  for (size_t i = 0; i < present_.size(); ++i) {
    if (!present_[i]) continue;
    if (kept != i) {
      rows->keys[kept] = rows->keys[i];
      rows->counts[kept] = rows->counts[i];
      rows->changed[kept] = rows->changed[i];
      rows->has_row[kept] = rows->has_row[i];
      std::copy_n(&rows->rows[i * row_floats], row_floats, &rows->rows[kept * row_floats]);
    }
    ++kept;
  }
  rows->keys.resize(kept);
  rows->counts.resize(kept);
  rows->changed.resize(kept);
  rows->has_row.resize(kept);
  rows->rows.resize(kept * row_floats);
}

void EmbeddingTable::Snapshot::ReadStripe(const KeyBatch& batch, uint32_t s, SnapshotRows* rows) {
  const RowStorage& storage = table_->storage_;
  const size_t dim = table_->layout_.dim;
  const size_t state_floats = table_->layout_.state_floats();
  const TableStripe& stripe = table_->stripes_[s];
  const auto set_meta = [&](uint32_t position, const RowMeta& meta) {
    present_[position] = 1;
    rows->counts[position] = meta.count;
    rows->changed[position] = meta.changed;
  };
  absl::ReaderMutexLock lock(&stripe.mutex);
  table_->stripes_.Pipeline<uint32_t>(
      batch, s,
      [&](const Entry& entry) {
        const uint32_t row = stripe.index.Find(entry.key, entry.place);
        if (row == 0) return row;
        PrefetchRange(storage.Weights(row), dim * sizeof(float));
        PrefetchRange(storage.State(row), state_floats * sizeof(float));
        __builtin_prefetch(storage.Meta(row));
        return row;
      },
      [&](const Entry& entry, uint32_t row) ABSL_SHARED_LOCKS_REQUIRED(stripe.mutex) {
        float* out = &rows->rows[entry.position * (dim + state_floats)];
        if (row != 0 && stripe.cut.Contains(*storage.Meta(row))) {
          storage.CopyOut(row, out);
          set_meta(entry.position, *storage.Meta(row));
        } else if (const RowCut::Image* image = stripe.cut.Find(entry.key)) {
          rows->has_row[entry.position] = image->row != nullptr ? 1 : 0;
          if (image->row != nullptr) std::copy_n(image->row, dim + state_floats, out);
          set_meta(entry.position, image->meta);
        } else if (const auto candidate = stripe.candidates.find(entry.key);
                   candidate != stripe.candidates.end() && stripe.cut.Contains(candidate->second)) {
          rows->has_row[entry.position] = 0;
          set_meta(entry.position, candidate->second);
        }
      });
}

std::unique_ptr<TableSnapshot> EmbeddingTable::BeginSnapshot(Step cut, Step changed_after) {
  CHECK_LE(changed_after, cut);
  const uint32_t oldest = changed_after == kNoStep ? 0 : ChangedAt(changed_after) + 1;
  // Forgotten rows may still be in the store.
  return std::make_unique<Snapshot>(this, std::max(oldest, admission_.oldest_kept()),
                                    ChangedAt(cut), oldest == 0);
}

}  // namespace thermocline
