// The state of each key of a table in a cache planner.
#ifndef THERMOCLINE_WORKER_ROWS_CACHE_DIRECTORY_H_
#define THERMOCLINE_WORKER_ROWS_CACHE_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "worker/rows/cache_plan.h"

namespace thermocline {

// Half a cache line, so that a key costs one. Steps are numbered in 31 bits here.
struct alignas(32) CacheEntry {
  Key key = 0;
  int32_t last_use = -1;  // the latest step admitted that uses the key
  int32_t row = kNoRow;   // of the cache
  int32_t step = -1;      // the last one that pulled the key; -1: none since the entry was made
  uint32_t bucket = 0;    // used by the directory only
  uint8_t uses = 0;       // steps that used the key since the entry was made; stops at 127
};
static_assert(sizeof(CacheEntry) == 32);

// Entries keep their numbers until they are removed. A number may be given again then. Not
// thread-safe.
class CacheDirectory {
 public:
  // Keys that there can be at a time: with more, the buckets would have more numbers than tags.
  static constexpr size_t kMaxKeys = 3 * (size_t{1} << 31) / 8 - 64;

  // `salt`: TableSalt of the table.
  explicit CacheDirectory(uint64_t salt);

  // Sets entries[i] to the number of the entry of keys[i], which it makes if there is none. The
  // keys are distinct. REQUIRES: size() + keys.size() <= kMaxKeys
  void FindOrAdd(absl::Span<const Key> keys, int32_t* entries);

  // Distinct entries, each there.
  void Remove(absl::Span<const int32_t> entries);

  CacheEntry& operator[](int32_t entry) { return entries_[entry]; }
  const CacheEntry& operator[](int32_t entry) const { return entries_[entry]; }
  void Prefetch(int32_t entry) const { __builtin_prefetch(entries_.data() + entry, 1); }

  size_t size() const { return entries_.size() - 1 - free_.size(); }

 private:
  // The tag decides whether a bucket holds a key; the entry is read only for one key in 2^32.
  struct Bucket {
    uint32_t tag;   // the upper half of the key's hash; the bucket it belongs to is in its front
    int32_t entry;  // kNone: the bucket is empty
  };
  static constexpr int32_t kNone = -1;
  static constexpr int32_t kScratch = 0;  // no key's entry: takes writes that have no target

  uint64_t Home(uint32_t tag) const { return tag >> shift_; }
  // Entries of n distinct keys with these tags; there is room for as many new ones.
  void FindOrAddSome(const Key* keys, const uint32_t* tags, size_t n, int32_t* entries);
  // The rare case: the bucket holds another key with the same tag.
  int32_t FindOrAddFrom(uint64_t bucket, uint32_t tag, Key key);
  void MakeRoom(size_t n);
  void Empty(uint64_t bucket);
  void Grow();

  const uint64_t salt_;
  std::vector<CacheEntry> entries_;
  std::vector<int32_t> free_;  // numbers of entries
  // Linear probing, at most 3/8 full; no empty bucket stands between a key and the bucket it
  // belongs to.
  std::vector<Bucket> buckets_;
  int shift_;  // 32 - log2(buckets_.size())
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHE_DIRECTORY_H_
