#include "worker/rows/cache_directory.h"

#include <algorithm>
#include <utility>

#include "absl/base/optimization.h"
#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

// Buckets and entries of so many keys are prefetched before the first of them is looked at.
constexpr size_t kKeysAhead = 32;

constexpr int kMinBucketBits = 8;
static_assert((size_t{1} << kMinBucketBits) >= 4 * kKeysAhead);

}  // namespace

CacheDirectory::CacheDirectory(uint64_t salt)
    : salt_(salt),
      entries_(kScratch + 1),
      buckets_(size_t{1} << kMinBucketBits, Bucket{0, kNone}),
      shift_(32 - kMinBucketBits) {}

void CacheDirectory::FindOrAdd(absl::Span<const Key> keys, int32_t* entries) {
  uint32_t tags[kKeysAhead];
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAhead) {
    const size_t n = std::min(kKeysAhead, keys.size() - begin);
    MakeRoom(n);
    for (size_t i = 0; i < n; ++i) {
      tags[i] = static_cast<uint32_t>(KeyHash(salt_, keys[begin + i]) >> 32);
      __builtin_prefetch(&buckets_[Home(tags[i])], 1);
    }
    FindOrAddSome(keys.data() + begin, tags, n, entries + begin);
  }
}

// Branches on whether a key is new would be mispredicted, so both cases run the same instructions.
void CacheDirectory::FindOrAddSome(const Key* keys, const uint32_t* tags, size_t n,
                                   int32_t* entries) {
  Bucket* const buckets = buckets_.data();
  const uint64_t mask = buckets_.size() - 1;
  CacheEntry* const pool = entries_.data();
  const int32_t* next_free = free_.data() + free_.size() - 1;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t tag = tags[i];
    uint64_t at = Home(tag);
    Bucket held = buckets[at];
    int32_t if_empty = held.entry >> 31;  // all ones where the bucket is empty, else 0
    while (((held.tag ^ tag) & ~static_cast<uint32_t>(if_empty)) != 0) {
      at = (at + 1) & mask;
      held = buckets[at];
      if_empty = held.entry >> 31;
    }
    const int32_t number = held.entry ^ ((held.entry ^ *next_free) & if_empty);
    next_free += if_empty;
    buckets[at] = {tag, number};
    CacheEntry& to = pool[number & if_empty];  // kScratch, unless the key is new
    to = CacheEntry();
    to.key = keys[i];
    to.bucket = static_cast<uint32_t>(at);
    entries[i] = number;
    __builtin_prefetch(pool + number, 1);
  }
  free_.resize(next_free + 1 - free_.data());
  for (size_t i = 0; i < n; ++i) {
    const CacheEntry& entry = entries_[entries[i]];
    if (ABSL_PREDICT_FALSE(entry.key != keys[i])) {
      entries[i] = FindOrAddFrom(entry.bucket, tags[i], keys[i]);
    }
  }
}

int32_t CacheDirectory::FindOrAddFrom(uint64_t bucket, uint32_t tag, Key key) {
  const uint64_t mask = buckets_.size() - 1;
  for (; buckets_[bucket].entry != kNone; bucket = (bucket + 1) & mask) {
    if (buckets_[bucket].tag != tag) continue;
    const CacheEntry& entry = entries_[buckets_[bucket].entry];
    if (entry.key == key) return buckets_[bucket].entry;
  }
  const int32_t number = free_.back();
  free_.pop_back();
  buckets_[bucket] = {tag, number};
  entries_[number] = CacheEntry();
  entries_[number].key = key;
  entries_[number].bucket = static_cast<uint32_t>(bucket);
  return number;
}

void CacheDirectory::MakeRoom(size_t n) {
  if (ABSL_PREDICT_FALSE(8 * (size() + n) > 3 * buckets_.size())) Grow();
  // One more, since the number of an entry that may not be needed is read.
  while (ABSL_PREDICT_FALSE(free_.size() < n + 1)) {
    CHECK_LT(entries_.size(), size_t{1} << 30);
    free_.push_back(static_cast<int32_t>(entries_.size()));
    entries_.emplace_back();
  }
}

void CacheDirectory::Remove(absl::Span<const int32_t> entries) {
  for (size_t begin = 0; begin < entries.size(); begin += kKeysAhead) {
    const size_t n = std::min(kKeysAhead, entries.size() - begin);
    for (size_t i = 0; i < n; ++i) {
      __builtin_prefetch(&buckets_[entries_[entries[begin + i]].bucket], 1);
    }
    for (size_t i = 0; i < n; ++i) {
      const uint64_t bucket = entries_[entries[begin + i]].bucket;
      CHECK_EQ(buckets_[bucket].entry, entries[begin + i]);
      Empty(bucket);
    }
  }
  free_.insert(free_.end(), entries.begin(), entries.end());
}

// Later keys move up, so that no empty bucket stands between a key and the bucket it belongs to.
inline void CacheDirectory::Empty(uint64_t bucket) {
  const uint64_t mask = buckets_.size() - 1;
  for (uint64_t next = (bucket + 1) & mask; buckets_[next].entry != kNone;
       next = (next + 1) & mask) {
    const uint64_t distance = (next - Home(buckets_[next].tag)) & mask;
    if (distance < ((next - bucket) & mask)) continue;
    buckets_[bucket] = buckets_[next];
    entries_[buckets_[bucket].entry].bucket = static_cast<uint32_t>(bucket);
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
    entries_[from.entry].bucket = static_cast<uint32_t>(bucket);
  }
}

}  // namespace thermocline
