// Maps keys to row numbers, for one lock stripe of a table.
#ifndef THERMOCLINE_SERVER_TABLES_KEY_INDEX_H_
#define THERMOCLINE_SERVER_TABLES_KEY_INDEX_H_

#include <immintrin.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/base/ids.h"
#include "common/base/page_memory.h"
#include "common/math/table_memory.h"

namespace thermocline {

struct KeyRow {
  Key key;
  uint32_t row;
};

// Open addressing over buckets of one cache line, each with room for five keys; a full bucket
// spills into the next. common/math/table_memory.h decides how many buckets there are: at most 60%
// of the room is used, so that 19 of 20 lookups read one line, and the index grows by a fifth, so
// that it takes 21 to 26 bytes a key.
//
// Not thread-safe, but for Prefetch().
class KeyIndex {
 public:
  static constexpr int kKeysPerBucket = kIndexKeysPerBucket;
  struct alignas(kCacheLineBytes) Bucket {
    Key keys[kKeysPerBucket];
    uint32_t rows[kKeysPerBucket];  // 0: free. Filled from the front.
    uint32_t passed;                // How many keys found this bucket full and went to a later one.
  };
  static_assert(sizeof(Bucket) == kIndexBucketBytes && sizeof(Bucket) == kCacheLineBytes);

  KeyIndex() = default;
  // `salt`: the table's, see KeyHash. `growth_phase` in [0, 1): indexes with different phases grow
  // at different times, even if they fill alike.
  void Init(uint64_t salt, double growth_phase) {
    salt_ = salt;
    growth_phase_ = growth_phase;
  }

  // The bits of a KeyHash that place a key within an index. They don't overlap the bits that choose
  // server and stripe, which are the same for all keys of an index.
  static uint32_t PlaceOfHash(uint64_t key_hash) { return static_cast<uint32_t>(key_hash); }

  // Starts loading the bucket of a key. May run beside any other call: it is a hint, and a stale
  // hint is harmless.
  void Prefetch(uint32_t place) const {
    const uint64_t bucket =
        BucketOf(place, num_buckets_.load(std::memory_order_relaxed)) * sizeof(Bucket);
    __builtin_prefetch(reinterpret_cast<const void*>(
        reinterpret_cast<uintptr_t>(buckets_.load(std::memory_order_relaxed)) + bucket));
  }

  // The row of `key`, or 0.
  uint32_t Find(Key key, uint32_t place) const {
    const uint32_t num_buckets = num_buckets_.load(std::memory_order_relaxed);
    if (__builtin_expect(num_buckets == 0, false)) return 0;
    const Bucket* buckets = buckets_.load(std::memory_order_relaxed);
    uint32_t at = BucketOf(place, num_buckets);
    for (;;) {
      const Bucket& bucket = buckets[at];
      const uint32_t match = MatchMask(bucket, key);
      // A free entry may match too, if the key was erased from it, or is 0 and the entry was never
      // used. Its row is 0, which is the right answer: the key is in no later bucket, since it
      // would have been put into this one while there was room.
      if (match != 0) return bucket.rows[__builtin_ctz(match)];
      if (__builtin_expect(bucket.passed == 0, true)) return 0;
      if (++at == num_buckets) at = 0;
    }
  }

  // Grows at once as far as so many keys would make it grow, one after the other.
  void Reserve(size_t keys);

  // REQUIRES: Find(key, place) == 0, row != 0
  void Insert(Key key, uint32_t place, uint32_t row);

  // REQUIRES: Find(key, place) != 0
  void Erase(Key key, uint32_t place);

  // For visits of a few buckets at a time. Erasing an entry moves the last of its bucket there.
  uint32_t num_buckets() const { return num_buckets_.load(std::memory_order_relaxed); }
  // REQUIRES: at < num_buckets(). Valid until the next Insert.
  const Bucket& bucket(uint32_t at) const { return buckets_.load(std::memory_order_relaxed)[at]; }

  // visit(Key, uint32_t row), by place.
  template <typename Visit>
  void ForEach(Visit visit) const {
    const Bucket* buckets = buckets_.load(std::memory_order_relaxed);
    const uint32_t num_buckets = num_buckets_.load(std::memory_order_relaxed);
    for (uint32_t at = 0; at < num_buckets; ++at) {
      for (int i = 0; i < kKeysPerBucket && buckets[at].rows[i] != 0; ++i) {
        visit(buckets[at].keys[i], buckets[at].rows[i]);
      }
    }
  }

  // Writes all keys with their rows, by place, and returns how many. Faster than ForEach, since no
  // branch depends on the keys. REQUIRES: `keys` has room for size() + 1 keys.
  size_t CopyKeys(KeyRow* keys) const {
    const Bucket* buckets = buckets_.load(std::memory_order_relaxed);
    const uint32_t num_buckets = num_buckets_.load(std::memory_order_relaxed);
    size_t n = 0;
    for (uint32_t at = 0; at < num_buckets; ++at) {
      for (int i = 0; i < kKeysPerBucket; ++i) {
        keys[n] = {buckets[at].keys[i], buckets[at].rows[i]};
        n += buckets[at].rows[i] != 0 ? 1 : 0;
      }
    }
    return n;
  }

  size_t size() const { return size_; }
  size_t memory_bytes() const { return memory_.bytes(); }

 private:
  static uint32_t BucketOf(uint32_t place, uint32_t num_buckets) {
    return static_cast<uint32_t>((uint64_t{place} * num_buckets) >> 32);
  }

  // Bit i says whether keys[i] == key. Uses two overlapping loads of four keys and no branch, since
  // the position can't be predicted.
  static uint32_t MatchMask(const Bucket& bucket, Key key) {
    const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(key));
    return FourMatches(bucket.keys, wanted) | FourMatches(bucket.keys + 1, wanted) << 1;
  }
  static uint32_t FourMatches(const Key* keys, __m256i wanted) {
    const __m256i four = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys));
    return static_cast<uint32_t>(
        _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(four, wanted))));
  }

  static void InsertInto(Bucket* buckets, uint32_t num_buckets, Key key, uint32_t place,
                         uint32_t row);
  void GrowTo(uint32_t num_buckets);

  uint64_t salt_ = 0;
  double growth_phase_ = 0;
  // Atomic for Prefetch() alone.
  std::atomic<Bucket*> buckets_{nullptr};
  std::atomic<uint32_t> num_buckets_{0};
  size_t size_ = 0;
  size_t max_size_ = 0;  // at the present number of buckets
  PageMemory memory_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_KEY_INDEX_H_
