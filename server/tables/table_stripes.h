// The lock stripes of a table, and the loops over a request's keys that hide the latency of memory.
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
#include "common/base/ids.h"
#include "server/tables/key_batch.h"
#include "server/tables/key_index.h"
#include "server/tables/row_cut.h"

namespace thermocline {

struct alignas(kCacheLineBytes) TableStripe {
  mutable absl::Mutex mutex;
  // Written under the mutex. Reads need it too, but for KeyIndex::Prefetch.
  KeyIndex index;
  uint32_t next_row ABSL_GUARDED_BY(mutex) = 0;
  uint32_t end_row ABSL_GUARDED_BY(mutex) = 0;  // of the block that is being filled
  RowCut cut ABSL_GUARDED_BY(mutex);
  std::vector<uint32_t> free_rows ABSL_GUARDED_BY(mutex);  // Of rows that left memory.
  // Keys looked up less than TableLayout::min_count times. None of them has a row.
  absl::flat_hash_map<Key, RowMeta> candidates ABSL_GUARDED_BY(mutex);

  // Of a table with a memory budget.
  // Rows that are in the store alone and not forgotten, by GroupOfChange at the step `grouped_at`.
  // Where rows are forgotten.
  absl::flat_hash_map<uint32_t, uint64_t> stored_rows ABSL_GUARDED_BY(mutex);
  Step grouped_at ABSL_GUARDED_BY(mutex) = kNoStep;
  uint32_t clock_hand ABSL_GUARDED_BY(mutex) = 0;  // The bucket to look at next.
  // Keys that somebody found missing, and is reading from the store now: how many do. While a key
  // is here its row doesn't leave memory, should it come there meanwhile. So what was read is not
  // older than what the store has. Pinned with `mutex` shared at least, in one go with the look.
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
