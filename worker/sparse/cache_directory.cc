#include "worker/sparse/cache_directory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/base/optimization.h"
#include "common/check.h"
#include "common/hash.h"

namespace thermocline {
namespace {

// Buckets and entries of so many keys are prefetched before the first of them is looked at.
constexpr size_t kKeysAhead = 32;

constexpr int kMinBucketBits = 8;
static_assert((size_t{1} << kMinBucketBits) >= 2 * kKeysAhead);

}  // namespace

CacheDirectory::CacheDirectory(std::vector<uint64_t> salts)
    : salts_(std::move(salts)),
      buckets_(size_t{1} << kMinBucketBits, Bucket{0, kNone}),
      shift_(32 - kMinBucketBits) {
  CHECK_LE(salts_.size(), size_t{std::numeric_limits<uint16_t>::max()} + 1);
}

inline uint32_t CacheDirectory::TagOf(int32_t table, Key key) const {
  return static_cast<uint32_t>(KeyHash(salts_[table], key) >> 32);
}

void CacheDirectory::FindOrAdd(int32_t table, absl::Span<const Key> keys, int32_t* entries) {
  uint32_t tags[kKeysAhead];
  uint64_t found[kKeysAhead];
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAhead) {
    const size_t n = std::min(kKeysAhead, keys.size() - begin);
    if (ABSL_PREDICT_FALSE(2 * (size() + n) > buckets_.size())) Grow();
    for (size_t i = 0; i < n; ++i) {
      tags[i] = TagOf(table, keys[begin + i]);
      __builtin_prefetch(&buckets_[Home(tags[i])], 1);
    }
    // The first bucket with the tag holds the key, nearly always.
    const uint64_t mask = buckets_.size() - 1;
    for (size_t i = 0; i < n; ++i) {
      uint64_t bucket = Home(tags[i]);
      while (buckets_[bucket].entry != kNone && buckets_[bucket].tag != tags[i]) {
        bucket = (bucket + 1) & mask;
      }
      found[i] = bucket;
      if (buckets_[bucket].entry == kNone) {
        entries[begin + i] = Add(bucket, tags[i], table, keys[begin + i]);
      } else {
        entries[begin + i] = buckets_[bucket].entry;
        Prefetch(entries[begin + i]);
      }
    }
    for (size_t i = 0; i < n; ++i) {
      const CacheEntry& entry = entries_[entries[begin + i]];
      if (ABSL_PREDICT_FALSE(entry.key != keys[begin + i] || entry.table != table)) {
        entries[begin + i] = FindFrom(found[i], tags[i], table, keys[begin + i]);
      }
    }
  }
}

int32_t CacheDirectory::FindFrom(uint64_t bucket, uint32_t tag, int32_t table, Key key) {
  for (const uint64_t mask = buckets_.size() - 1;; bucket = (bucket + 1) & mask) {
    if (buckets_[bucket].entry == kNone) return Add(bucket, tag, table, key);
    if (buckets_[bucket].tag != tag) continue;
    const CacheEntry& entry = entries_[buckets_[bucket].entry];
    if (entry.key == key && entry.table == table) return buckets_[bucket].entry;
  }
}

inline int32_t CacheDirectory::Add(uint64_t bucket, uint32_t tag, int32_t table, Key key) {
  int32_t number;
  if (free_.empty()) {
    CHECK_LT(entries_.size(), size_t{1} << 30);
    number = static_cast<int32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    number = free_.back();
    free_.pop_back();
    entries_[number] = CacheEntry();
  }
  entries_[number].key = key;
  entries_[number].table = static_cast<uint16_t>(table);
  buckets_[bucket] = {tag, number};
  return number;
}

void CacheDirectory::Remove(absl::Span<const int32_t> entries) {
  uint32_t tags[kKeysAhead];
  const uint64_t mask = buckets_.size() - 1;
  for (size_t begin = 0; begin < entries.size(); begin += kKeysAhead) {
    const size_t n = std::min(kKeysAhead, entries.size() - begin);
    for (size_t i = 0; i < n; ++i) {
      const CacheEntry& entry = entries_[entries[begin + i]];
      tags[i] = TagOf(entry.table, entry.key);
      __builtin_prefetch(&buckets_[Home(tags[i])], 1);
    }
    for (size_t i = 0; i < n; ++i) {
      uint64_t bucket = Home(tags[i]);
      while (buckets_[bucket].entry != entries[begin + i]) {
        CHECK_NE(buckets_[bucket].entry, kNone);
        bucket = (bucket + 1) & mask;
      }
      Empty(bucket);
      free_.push_back(entries[begin + i]);
    }
  }
}

// Keys behind the bucket move up, so that none is cut off from the bucket it belongs to.
void CacheDirectory::Empty(uint64_t bucket) {
  const uint64_t mask = buckets_.size() - 1;
  for (uint64_t next = (bucket + 1) & mask; buckets_[next].entry != kNone;
       next = (next + 1) & mask) {
    const uint64_t distance = (next - Home(buckets_[next].tag)) & mask;
    if (distance < ((next - bucket) & mask)) continue;
    buckets_[bucket] = buckets_[next];
    bucket = next;
  }
  buckets_[bucket].entry = kNone;
}

void CacheDirectory::Grow() {
  CHECK(shift_ > 1);
  --shift_;
  std::vector<Bucket> old(2 * buckets_.size(), Bucket{0, kNone});
  std::swap(old, buckets_);
  const uint64_t mask = buckets_.size() - 1;
  for (const Bucket& from : old) {
    if (from.entry == kNone) continue;
    uint64_t bucket = Home(from.tag);
    while (buckets_[bucket].entry != kNone) bucket = (bucket + 1) & mask;
    buckets_[bucket] = from;
  }
}

}  // namespace thermocline
