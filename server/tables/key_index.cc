#include "server/tables/key_index.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

constexpr double kMaxLoad = 0.6;
constexpr double kGrowth = 1.2;
// Up to here an index doubles: it is small, and its memory hardly counts.
constexpr uint32_t kDoublingBuckets = 64;

}  // namespace

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
  if (size_ == max_size_) Grow();
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

uint32_t KeyIndex::NextNumBuckets() const {
  constexpr uint32_t kBucketsPerHugePage = kHugePageBytes / sizeof(Bucket);
  const uint32_t now = num_buckets_.load(std::memory_order_relaxed);
  if (now == 0) return 1;
  if (now < kDoublingBuckets / 2) return now * 2;
  if (now < kDoublingBuckets) {
    return static_cast<uint32_t>(kDoublingBuckets * std::pow(kGrowth, growth_phase_));
  }
  const uint32_t next = static_cast<uint32_t>(now * kGrowth);
  // From two huge pages on, whole ones: a lookup in the rest, on small pages, takes several times
  // as long, since the processor's page tables don't fit its caches.
  if (next < 2 * kBucketsPerHugePage) return next;
  return (next + kBucketsPerHugePage - 1) / kBucketsPerHugePage * kBucketsPerHugePage;
}

void KeyIndex::Grow() {
  const uint32_t num_buckets = NextNumBuckets();
  PageMemory memory(num_buckets * sizeof(Bucket), PageMemory::HugePages::kAtOnce);
  Bucket* buckets = reinterpret_cast<Bucket*>(memory.data());
  // Both old and new buckets are in the order of the keys' places: two streams through memory.
  ForEach([&](Key key, uint32_t row) {
    InsertInto(buckets, num_buckets, key, PlaceOfHash(KeyHash(salt_, key)), row);
  });
  buckets_.store(buckets, std::memory_order_relaxed);
  num_buckets_.store(num_buckets, std::memory_order_relaxed);
  memory_ = std::move(memory);  // the old buckets die with `memory`
  max_size_ = std::max<size_t>(kKeysPerBucket - 1,
                               static_cast<size_t>(num_buckets * (kKeysPerBucket * kMaxLoad)));
}

}  // namespace thermocline
