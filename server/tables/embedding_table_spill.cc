// How rows of an EmbeddingTable come back from the store, and how they leave for it.
//
// A row in memory is valid; the store may have an older image of it. Rows leave in rounds, one
// round at a time (Spiller): dirty rows are copied, written to the store, and removed from memory
// unless they were changed meanwhile. So every row is in memory, or valid in the store.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "server/tables/embedding_table.h"

namespace thermocline {
namespace {

// Stored rows that are copied at once, on their way out or back, have at most so many bytes.
constexpr size_t kMaxBatchBytes = size_t{8} << 20;
// Rows that leave a stripe, or entries that are looked at, while its lock is held.
constexpr size_t kMaxSweptRows = 256;
constexpr size_t kMaxSweptEntries = 4096;
// Misses that are answered while a stripe's lock is held.
constexpr size_t kMaxMissesALock = 256;
constexpr size_t kVisitRows = 4096;
// Rows that a request may bring beyond the budget before others leave: this part of the budget, if
// that isn't too few or too many.
constexpr size_t kMissesFraction = 16;
constexpr size_t kMaxMissesABudget = 4096;
// Rows leave once a part of the budget is all that is left, until twice that is free: the fewer
// rounds, the larger the writes, and the less a request meets them; the later, the more is found.
// A request's new rows should fit into what is left of a small budget, too.
constexpr size_t kRoomyStripeRows = 256;
size_t RoomOfStripe(size_t max_rows) {
  return std::clamp(kRoomyStripeRows, std::max<size_t>(1, max_rows / 16),
                    std::max<size_t>(1, max_rows / 8));
}
size_t FullStripeRows(size_t max_rows) { return max_rows - RoomOfStripe(max_rows); }
size_t SweptStripeRows(size_t max_rows) { return max_rows - 2 * RoomOfStripe(max_rows); }

// The hand goes round the buckets in long steps that visit each bucket once a round. If it went
// from one to the next, it would leave empty buckets behind it and find full ones ahead, and keys
// in full buckets are slow to find. Steps by the golden section spread its visits evenly.
uint32_t HandStep(uint32_t num_buckets) {
  uint32_t step = std::max<uint32_t>(1, static_cast<uint32_t>(num_buckets * 0.6180339887));
  while (std::gcd(step, num_buckets) != 1) ++step;
  return step;
}

// At least one.
size_t MaxBatchRows(size_t stored_row_bytes) {
  return std::max<size_t>(1, kMaxBatchBytes / stored_row_bytes);
}

size_t MaxMissesABudget(size_t stored_row_bytes, size_t max_stripe_rows) {
  const size_t fraction =
      std::max(kMaxMissesALock, max_stripe_rows * kNumStripes / kMissesFraction);
  return std::min({kMaxMissesABudget, MaxBatchRows(stored_row_bytes), fraction});
}

// Calls run(stripe, begin, end) for successive misses of one stripe, at most max_rows at a time.
template <typename Misses, typename Run>
void ForEachStripeOf(const Misses& misses, size_t max_rows, Run run) {
  for (size_t begin = 0; begin < misses.size();) {
    size_t end = begin + 1;
    while (end < misses.size() && end - begin < max_rows &&
           misses[end].stripe == misses[begin].stripe) {
      ++end;
    }
    run(misses[begin].stripe, begin, end);
    begin = end;
  }
}

}  // namespace

struct EmbeddingTable::StoredRows {
  UninitializedVector<uint8_t> rows;  // [misses, stored_row_bytes]
  std::unique_ptr<bool[]> found;      // [misses]
};

// Dirty rows on their way to the store, stripe by stripe.
struct EmbeddingTable::SpillBatch {
  explicit SpillBatch(size_t most_rows) : max_rows(most_rows) {}

  const size_t max_rows;
  std::vector<Key> keys;
  std::vector<uint32_t> rows;  // [keys] row numbers
  UninitializedVector<uint8_t> stored;
  std::array<size_t, kNumStripes + 1> ends = {};  // [stripe + 1]: where the stripe's rows end
  size_t leaving = 0;  // The rows above, and clean ones that were removed at once.
  size_t swept = 0;    // Entries and buckets that the hand passed.
};

// Coming back
// ------------------------------------------------------------------------------------------------

template <typename Use>
absl::Status EmbeddingTable::ReadMissed(absl::Span<const Miss> misses, Use use) const {
  StoredRows stored;
  std::vector<Key> keys;
  while (!misses.empty()) {
    const absl::Span<const Miss> some = misses.subspan(0, MaxBatchRows(stored_row_bytes_));
    keys.clear();
    for (const Miss& miss : some) keys.push_back(miss.key);
    stored.rows.resize(keys.size() * stored_row_bytes_);
    stored.found = std::make_unique<bool[]>(keys.size());
    const absl::Status status = store_->MultiGet(keys, absl::MakeSpan(stored.rows),
                                                 absl::MakeSpan(stored.found.get(), keys.size()));
    if (!status.ok()) {
      ForEachStripeOf(misses, kMaxMissesALock, [&](uint32_t stripe, size_t begin, size_t end) {
        stripes_[stripe].Unpin(misses.subspan(begin, end - begin));
      });
      return absl::Status(status.code(), absl::StrCat("table '", layout_.name, "': reading back ",
                                                      keys.size(), " rows: ", status.message()));
    }
    uint64_t found = 0;
    for (size_t i = 0; i < keys.size(); ++i) found += IsStored(stored, i) ? 1 : 0;
    rows_read_back_.fetch_add(found, std::memory_order_relaxed);
    use(some, stored);
    misses.remove_prefix(some.size());
  }
  return absl::OkStatus();
}

bool EmbeddingTable::IsStored(const StoredRows& stored, size_t i) const {
  return stored.found[i] &&
         admission_.IsKept(StoredMeta(stored.rows.data() + i * stored_row_bytes_));
}

uint32_t EmbeddingTable::Install(TableStripe& stripe, const Miss& miss,
                                 const uint8_t* stored) const {
  const RowMeta meta = StoredMeta(stored);
  const RowRef ref = Create(stripe, miss.key, miss.place, meta.changed);
  storage_.Meta(ref.row)->count = meta.count;
  admission_.CountStored(stripe, meta.changed, -1);
  storage_.CopyIn(stored + sizeof(meta), ref.row);
  return ref.row;
}

absl::Status EmbeddingTable::GatherMissed(const Misses& all_misses, uint8_t* rows,
                                          size_t row_floats, ReadBack read_back) const {
  const size_t row_bytes = row_floats * sizeof(float);
  const size_t weights_bytes = std::min(row_bytes, layout_.dim * sizeof(float));
  return ReadMissed(all_misses, [&](absl::Span<const Miss> misses, const StoredRows& stored) {
    size_t most_stripe_rows = 0;
    ForEachStripeOf(misses, kMaxMissesALock, [&](uint32_t s, size_t begin, size_t end) {
      TableStripe& stripe = stripes_[s];
      absl::MutexLock lock(&stripe.mutex);
      for (size_t i = begin; i < end; ++i) {
        const Miss& miss = misses[i];
        uint8_t* out = rows + miss.position * row_bytes;
        const uint8_t* found = stored.rows.data() + i * stored_row_bytes_;
        // Another thread may have brought it to memory, and changed it.
        if (const uint32_t row = stripe.index.Find(miss.key, miss.place); row != 0) {
          if (row_bytes > weights_bytes) {
            storage_.CopyOut(row, out);
          } else {
            std::memcpy(out, storage_.Weights(row), weights_bytes);
          }
        } else if (IsStored(stored, i)) {
          std::memcpy(out, found + sizeof(RowMeta), row_bytes);
          const bool room = stripe.index.size() < max_stripe_rows_ && !frozen_.load();
          if (read_back == ReadBack::kKeep && room) Install(stripe, miss, found);
        } else {
          GatherInitial(miss.key, /*with_state=*/row_bytes > weights_bytes, out);
        }
      }
      most_stripe_rows = std::max(most_stripe_rows, stripe.index.size());
      stripe.Unpin(misses.subspan(begin, end - begin));
    });
    if (most_stripe_rows > FullStripeRows(max_stripe_rows_)) spiller_->Wake();
  });
}

absl::Status EmbeddingTable::ChangeMissed(const Misses& all_misses, const PushedLookups* lookups,
                                          ChangeMiss change) {
  const size_t max_misses_a_budget = MaxMissesABudget(stored_row_bytes_, max_stripe_rows_);
  return ReadMissed(all_misses, [&](absl::Span<const Miss> misses, const StoredRows& stored) {
    size_t most_stripe_rows = 0;
    size_t budget_kept = 0;  // Misses below it are in the budget already.
    const size_t max_rows = std::min(kMaxMissesALock, max_misses_a_budget);
    ForEachStripeOf(misses, max_rows, [&](uint32_t s, size_t begin, size_t end) {
      TableStripe& stripe = stripes_[s];
      {
        absl::MutexLock lock(&stripe.mutex);
        uint64_t created = 0;
        for (size_t i = begin; i < end; ++i) {
          const Miss& miss = misses[i];
          uint32_t row = stripe.index.Find(miss.key, miss.place);
          if (row == 0 && IsStored(stored, i)) {
            row = Install(stripe, miss, stored.rows.data() + i * stored_row_bytes_);
          }
          const bool is_new = row == 0;
          if (is_new) {
            const std::optional<uint32_t> count =
                lookups == nullptr ? admission_.TakeCandidate(stripe, miss.key)
                                   : admission_.Admit(stripe, miss.key, *lookups, miss.position);
            if (!count.has_value()) continue;
            row = Create(stripe, miss.key, miss.place, 0).row;
            storage_.Meta(row)->count = *count;
            ++created;
          } else {
            SaveForSnapshot(stripe, miss.key, row);
          }
          change(miss, row, is_new);
          storage_.MarkDirty(row);
        }
        most_stripe_rows = std::max(most_stripe_rows, stripe.index.size());
        rows_created_.fetch_add(created, std::memory_order_relaxed);
        stripe.Unpin(misses.subspan(begin, end - begin));
      }
      if (end < misses.size() && end - budget_kept < max_misses_a_budget) return;
      KeepBudget(std::exchange(most_stripe_rows, 0));
      budget_kept = end;
    });
  });
}

// Leaving
// ------------------------------------------------------------------------------------------------

void EmbeddingTable::KeepBudget(size_t most_stripe_rows) const {
  if (most_stripe_rows <= FullStripeRows(max_stripe_rows_)) return;
  if (most_stripe_rows <= max_stripe_rows_ || !spiller_->full().ok()) return spiller_->Wake();
  spiller_->RunNow();
}

absl::Status EmbeddingTable::SpillRound() {
  if (layout_.unused_steps > 0 || layout_.max_rows > 0) {
    const uint64_t num_rows = rows_created_.load() - admission_.rows_forgotten();
    ASSIGN_OR_RETURN(const bool more, admission_.RemoveForgotten(store_.get(), num_rows));
    if (more) spiller_->Wake();
  }
  SpillBatch batch(MaxBatchRows(stored_row_bytes_));
  size_t swept_in_vain = 0;
  while (true) {
    batch.keys.clear();
    batch.rows.clear();
    batch.stored.clear();
    batch.leaving = batch.swept = 0;
    size_t entries = 0;
    for (uint32_t s = 0; s < kNumStripes; ++s) {
      // A full batch leaves the other stripes to the next.
      if (batch.keys.size() < batch.max_rows) entries += SweepStripe(s, &batch);
      batch.ends[s + 1] = batch.keys.size();
    }
    swept_in_vain = batch.leaving > 0 ? 0 : swept_in_vain + batch.swept;
    // Two turns of the hand find a row, unless all are in use: then they stay.
    if (batch.swept == 0 || swept_in_vain > 3 * entries) return absl::OkStatus();
    if (batch.keys.empty()) continue;
    const absl::Status written = store_->Write(batch.keys, batch.stored);
    FinishBatch(batch, written.ok());
    if (!written.ok()) return written;
    rows_spilled_.fetch_add(batch.keys.size(), std::memory_order_relaxed);
  }
}

// Second chance: the hand leaves a row that was used since its last visit. Returns the number of
// entries and buckets of the stripe.
size_t EmbeddingTable::SweepStripe(uint32_t s, SpillBatch* batch) {
  const uint64_t salt = TableSalt(layout_.id);
  const size_t wanted_rows = SweptStripeRows(max_stripe_rows_);
  TableStripe& stripe = stripes_[s];
  absl::MutexLock lock(&stripe.mutex);
  absl::MutexLock pin_lock(&stripe.pin_mutex);
  const size_t batch_begin = batch->keys.size();
  const size_t batch_leaving = batch->leaving;
  size_t swept = 0;
  const uint32_t num_buckets = stripe.index.num_buckets();
  const uint32_t step = HandStep(num_buckets);
  while (stripe.index.size() > wanted_rows + (batch->keys.size() - batch_begin) &&
         batch->leaving - batch_leaving < kMaxSweptRows && swept < kMaxSweptEntries &&
         batch->keys.size() < batch->max_rows) {
    if (stripe.clock_hand >= num_buckets) stripe.clock_hand = 0;  // The index has grown.
    const KeyIndex::Bucket& bucket = stripe.index.bucket(stripe.clock_hand);
    for (int i = 0; i < KeyIndex::kKeysPerBucket && bucket.rows[i] != 0; ++swept) {
      const Key key = bucket.keys[i];
      const uint32_t row = bucket.rows[i];
      std::atomic<uint32_t>* flags = storage_.Flags(row);
      const uint32_t now = flags->load(std::memory_order_relaxed);
      ++i;
      if ((now & kReferenced) != 0) {
        flags->store(now & ~kReferenced, std::memory_order_relaxed);
      } else if ((now & kSpilling) != 0 || stripe.pinned.contains(key)) {
        // It stays for now.
      } else if ((now & kDirty) == 0) {
        admission_.CountStored(stripe, storage_.Meta(row)->changed, 1);
        stripe.Erase(key, KeyIndex::PlaceOfHash(KeyHash(salt, key)), row);
        ++batch->leaving;
        --i;  // The bucket's last entry is here now.
      } else {
        AddToBatch(key, row, batch);
        flags->store(kSpilling, std::memory_order_relaxed);
        ++batch->leaving;
      }
    }
    stripe.clock_hand = static_cast<uint32_t>((uint64_t{stripe.clock_hand} + step) % num_buckets);
    ++swept;
  }
  batch->swept += swept;
  return stripe.index.size() + num_buckets;
}

void EmbeddingTable::AddToBatch(Key key, uint32_t row, SpillBatch* batch) const {
  batch->keys.push_back(key);
  batch->rows.push_back(row);
  batch->stored.resize(batch->keys.size() * stored_row_bytes_);
  uint8_t* stored = batch->stored.data() + batch->stored.size() - stored_row_bytes_;
  std::memcpy(stored, storage_.Meta(row), sizeof(RowMeta));
  storage_.CopyOut(row, stored + sizeof(RowMeta));
}

void EmbeddingTable::FinishBatch(const SpillBatch& batch, bool written) {
  const uint64_t salt = TableSalt(layout_.id);
  for (uint32_t s = 0; s < kNumStripes; ++s) {
    TableStripe& stripe = stripes_[s];
    if (batch.ends[s] == batch.ends[s + 1]) continue;
    absl::MutexLock lock(&stripe.mutex);
    for (size_t i = batch.ends[s]; i < batch.ends[s + 1]; ++i) {
      std::atomic<uint32_t>* flags = storage_.Flags(batch.rows[i]);
      const uint32_t now = flags->load(std::memory_order_relaxed);
      if ((now & kSpilling) == 0) continue;  // Changed since.
      if (!written) {
        flags->store((now & ~kSpilling) | kDirty, std::memory_order_relaxed);
        continue;
      }
      // The store's snapshot may be from before it was written.
      SaveForSnapshot(stripe, batch.keys[i], batch.rows[i]);
      admission_.CountStored(stripe, storage_.Meta(batch.rows[i])->changed, 1);
      stripe.Erase(batch.keys[i], KeyIndex::PlaceOfHash(KeyHash(salt, batch.keys[i])),
                   batch.rows[i]);
    }
  }
}

// Looking at all
// ------------------------------------------------------------------------------------------------

absl::Status EmbeddingTable::VisitStored(VisitRow visit) const {
  std::vector<Key> keys;
  UninitializedVector<uint8_t> rows;
  const std::unique_ptr<RowCursor> cursor = store_->NewCursor();
  const uint64_t salt = TableSalt(layout_.id);
  std::vector<float> row(layout_.row_floats());
  while (true) {
    RETURN_IF_ERROR(
        cursor->Next(std::min(kVisitRows, MaxBatchRows(stored_row_bytes_)), &keys, &rows));
    if (keys.empty()) return absl::OkStatus();
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t hash = KeyHash(salt, keys[i]);
      const TableStripe& stripe = stripes_[StripeOfHash(hash)];
      {
        absl::ReaderMutexLock lock(&stripe.mutex);
        if (stripe.index.Find(keys[i], KeyIndex::PlaceOfHash(hash)) != 0) continue;
      }
      const uint8_t* stored = rows.data() + i * stored_row_bytes_;
      const RowMeta meta = StoredMeta(stored);
      if (!admission_.IsKept(meta)) continue;
      std::memcpy(row.data(), stored + sizeof(meta), row.size() * sizeof(float));
      visit(keys[i], row, meta);
    }
  }
}

}  // namespace thermocline
