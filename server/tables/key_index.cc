#include "server/tables/key_index.h"

#include "common/base/check.h"
#include "common/base/hash.h"
#include "common/math/table_memory.h"

namespace thermocline {

void KeyIndex::InsertInto(Bucket* buckets, uint32_t num_buckets, Key key, uint32_t place,
                          uint32_t row) {
  uint32_t at = BucketOf(place, num_buckets);
  for (;;) {
    Bucket& bucket = buckets[at];
    for (int i = 0; i < kKeysPerBucket; ++i) {
      if (bucket.rows[i] == 0) {
        bucket.keys[i] = key;
        bucket.rows[i] = row;
        return;
      }
    }
    ++bucket.passed;
    if (++at == num_buckets) at = 0;
  }
}

void KeyIndex::Insert(Key key, uint32_t place, uint32_t row) {
  CHECK_NE(row, 0u);
  if (size_ == max_size_) Reserve(size_ + 1);
  InsertInto(buckets_.load(std::memory_order_relaxed), num_buckets_.load(std::memory_order_relaxed),
             key, place, row);
  ++size_;
}

void KeyIndex::Erase(Key key, uint32_t place) {
  Bucket* buckets = buckets_.load(std::memory_order_relaxed);
  const uint32_t num_buckets = num_buckets_.load(std::memory_order_relaxed);
  uint32_t at = BucketOf(place, num_buckets);
  for (size_t visited = 0; visited < num_buckets; ++visited) {
    Bucket& bucket = buckets[at];
    int last = kKeysPerBucket - 1;
    while (last >= 0 && bucket.rows[last] == 0) --last;
    for (int i = 0; i <= last; ++i) {
      if (bucket.keys[i] != key) continue;
      bucket.keys[i] = bucket.keys[last];
      bucket.rows[i] = bucket.rows[last];
      bucket.keys[last] = key;  // See Find().
      bucket.rows[last] = 0;
      --size_;
      return;
    }
    CHECK_NE(bucket.passed, 0u);
    --bucket.passed;
    if (++at == num_buckets) at = 0;
  }
  CHECK(false);  // There is no such key.
}

void KeyIndex::Reserve(size_t keys) {
  if (keys <= max_size_) return;
  uint32_t num_buckets = num_buckets_.load(std::memory_order_relaxed);
  do {
    num_buckets = NextIndexBuckets(num_buckets, growth_phase_);
  } while (MaxIndexKeys(num_buckets) < keys);
  GrowTo(num_buckets);
}

void KeyIndex::GrowTo(uint32_t num_buckets) {
  PageMemory memory(num_buckets * sizeof(Bucket), PageMemory::HugePages::kAtOnce);
  Bucket* buckets = reinterpret_cast<Bucket*>(memory.data());
  // Both old and new buckets are in the order of the keys' places: two streams through memory.
  ForEach([&](Key key, uint32_t row) {
    InsertInto(buckets, num_buckets, key, PlaceOfHash(KeyHash(salt_, key)), row);
  });
  buckets_.store(buckets, std::memory_order_relaxed);
  num_buckets_.store(num_buckets, std::memory_order_relaxed);
  memory_ = std::move(memory);  // the old buckets die with `memory`
  max_size_ = MaxIndexKeys(num_buckets);
}

}  // namespace thermocline
