// The lock stripes of a table: how the keys of a request are grouped by stripe, and the loops over
// them that hide the latency of memory.
#ifndef THERMOCLINE_SERVER_TABLES_TABLE_STRIPES_H_
#define THERMOCLINE_SERVER_TABLES_TABLE_STRIPES_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "server/tables/key_index.h"
#include "server/tables/row_cut.h"

namespace thermocline {

// A server owns a contiguous range of partitions, so the upper 16 bits of its hashes are not
// uniform: the stripe comes from the bits below them.
inline uint32_t StripeOfHash(uint64_t key_hash) {
  return static_cast<uint32_t>(key_hash >> 40) % kNumStripes;
}

// Up to kMaxKeys keys of a request, grouped by stripe in a counting sort. About 100 KiB: meant to
// be reused.
class KeyBatch {
 public:
  // Bounds the scratch memory, and the window of a caller's rows that is visited out of order, to
  // what the second-level cache holds.
  static constexpr size_t kMaxKeys = 4096;

  struct Entry {
    Key key;
    uint32_t place;     // KeyIndex::PlaceOfHash
    uint16_t position;  // In the request.
    uint16_t stripe;
  };

  // REQUIRES: keys.size() <= kMaxKeys
  void Group(uint64_t table_salt, absl::Span<const Key> keys) {
    std::array<uint32_t, kNumStripes> next = {};
    for (size_t i = 0; i < keys.size(); ++i) {
      hashes_[i] = KeyHash(table_salt, keys[i]);
      ++next[StripeOfHash(hashes_[i])];
    }
    uint32_t begin = 0;
    for (uint32_t stripe = 0; stripe < kNumStripes; ++stripe) {
      begin_[stripe] = begin;
      begin += next[stripe];
      next[stripe] = begin_[stripe];
    }
    begin_[kNumStripes] = begin;
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint32_t stripe = StripeOfHash(hashes_[i]);
      entries_[next[stripe]++] = {keys[i], KeyIndex::PlaceOfHash(hashes_[i]),
                                  static_cast<uint16_t>(i), static_cast<uint16_t>(stripe)};
    }
  }

  // The entries of all stripes, in the order of the stripes.
  const Entry* entries() const { return entries_.data(); }
  uint32_t size() const { return begin_[kNumStripes]; }
  // The entries of a stripe are [begin(stripe), begin(stripe + 1)).
  uint32_t begin(uint32_t stripe) const { return begin_[stripe]; }

 private:
  std::array<uint64_t, kMaxKeys> hashes_;
  std::array<Entry, kMaxKeys> entries_;
  std::array<uint32_t, kNumStripes + 1> begin_;
};

// A key of a request that isn't in memory: it is in the store, or nowhere.
struct TableMiss {
  Key key;
  uint32_t place;  // KeyIndex::PlaceOfHash
  uint32_t stripe;
  size_t position;  // In the request.
};

struct alignas(kCacheLineBytes) TableStripe {
  // Removes a row from memory, whose number another may get.
  void Erase(Key key, uint32_t place, uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    index.Erase(key, place);
    free_rows.push_back(row);
    ++rows_erased;
  }
  // Counts one more reader for each missing key. Must be called under the lock that they were found
  // missing under.
  void Pin(absl::Span<const TableMiss> misses) const ABSL_SHARED_LOCKS_REQUIRED(mutex);
  void Unpin(absl::Span<const TableMiss> misses) const;

  mutable absl::Mutex mutex;
  // Written under the mutex, and read under it but for KeyIndex::Prefetch.
  KeyIndex index;
  // The unused rows of the block that is being filled are [next_row, end_row).
  uint32_t next_row ABSL_GUARDED_BY(mutex) = 0;
  uint32_t end_row ABSL_GUARDED_BY(mutex) = 0;
  RowCut cut ABSL_GUARDED_BY(mutex);
  std::vector<uint32_t> free_rows ABSL_GUARDED_BY(mutex);  // Their rows left memory.
  // While it stays the same, every key keeps the row that it has.
  uint64_t rows_erased ABSL_GUARDED_BY(mutex) = 0;
  // Keys looked up less than TableLayout::min_count times. None of them has a row.
  absl::flat_hash_map<Key, RowMeta> candidates ABSL_GUARDED_BY(mutex);

  // The rest is for a table with a memory budget.
  // Rows that are in the store alone and not forgotten, by GroupOfChange at the step `grouped_at`.
  // Kept only where the layout forgets rows.
  absl::flat_hash_map<uint32_t, uint64_t> stored_rows ABSL_GUARDED_BY(mutex);
  Step grouped_at ABSL_GUARDED_BY(mutex) = kNoStep;
  uint32_t clock_hand ABSL_GUARDED_BY(mutex) = 0;  // The bucket to look at next.
  // Keys that were found missing and are being read from the store, with their numbers of readers.
  // While a key is pinned its row doesn't leave memory, should it come there meanwhile. So what a
  // reader got from the store is as new as what the store has.
  mutable absl::Mutex pin_mutex ABSL_ACQUIRED_AFTER(mutex);
  mutable absl::flat_hash_map<Key, uint32_t> pinned ABSL_GUARDED_BY(pin_mutex);
};

class TableStripes {
 public:
  // How far ahead of their use memory is fetched, in keys: first the bucket, then the row. A core
  // has 10 to 16 line fills in flight.
  static constexpr uint32_t kBucketsAhead = 24;
  static constexpr uint32_t kRowsAhead = 16;
  static_assert((kRowsAhead & (kRowsAhead - 1)) == 0);

  explicit TableStripes(uint64_t table_salt) : salt_(table_salt) {
    for (uint32_t i = 0; i < kNumStripes; ++i) {
      stripes_[i].index.Init(salt_, static_cast<double>(i) / kNumStripes);
    }
  }

  TableStripe& operator[](uint32_t stripe) { return stripes_[stripe]; }
  const TableStripe& operator[](uint32_t stripe) const { return stripes_[stripe]; }
  const TableStripe* begin() const { return stripes_.data(); }
  const TableStripe* end() const { return stripes_.data() + stripes_.size(); }

  uint64_t RowsInMemory() const;
  size_t MostRows() const;  // In memory, of the stripes.

  // Calls run(batch, first) for the keys of a request, kMaxKeys at a time; batch position i is
  // keys[first + i].
  template <typename Run>
  void ForEachBatch(absl::Span<const Key> keys, Run run) const {
    thread_local const std::unique_ptr<KeyBatch> batch = std::make_unique<KeyBatch>();
    for (size_t first = 0; first < keys.size(); first += KeyBatch::kMaxKeys) {
      batch->Group(salt_, keys.subspan(first, KeyBatch::kMaxKeys));
      for (uint32_t at = 0; at < kBucketsAhead; ++at) PrefetchBucket(*batch, at);
      run(static_cast<const KeyBatch&>(*batch), first);
    }
  }

  // Calls run(stripe) for every stripe that the batch has keys of.
  template <typename Run>
  static void ForEachStripe(const KeyBatch& batch, Run run) {
    for (uint32_t stripe = 0; stripe < kNumStripes; ++stripe) {
      if (batch.begin(stripe) < batch.begin(stripe + 1)) run(stripe);
    }
  }

  // Runs probe(entry) -> item, which starts the fetch of the item, for every entry of a stripe, and
  // use(entry, item) once the item had the time to arrive. The buckets of stripes that come later
  // are fetched meanwhile. The caller holds the stripe's lock; the analysis can't see that here.
  template <typename Item, typename Probe, typename Use>
  void Pipeline(const KeyBatch& batch, uint32_t stripe, Probe probe,
                Use use) const ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const KeyBatch::Entry* entries = batch.entries();
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

 private:
  void PrefetchBucket(const KeyBatch& batch, uint32_t at) const {
    if (at >= batch.size()) return;
    const KeyBatch::Entry& entry = batch.entries()[at];
    stripes_[entry.stripe].index.Prefetch(entry.place);
  }

  const uint64_t salt_;
  std::array<TableStripe, kNumStripes> stripes_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_TABLE_STRIPES_H_
