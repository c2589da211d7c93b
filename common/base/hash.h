// The hashes that placement and digests depend on. Their values are fixed for ever: golden values
// are pinned in hash_test.cc.
#ifndef THERMOCLINE_COMMON_BASE_HASH_H_
#define THERMOCLINE_COMMON_BASE_HASH_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014): a bijection on 64 bits.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

constexpr uint64_t TableSalt(TableId table) { return Mix64(0x7468726D636C696Eull ^ table.value()); }

// Hash of a key within its table: the upper 16 bits are the partition; tables index by the bits
// below.
constexpr uint64_t KeyHash(uint64_t table_salt, Key key) { return Mix64(key ^ table_salt); }

// In [0, kNumPartitions).
constexpr uint32_t PartitionOfHash(uint64_t key_hash) {
  return static_cast<uint32_t>(key_hash >> 48);
}

// A number modulo 2^128. Sums of row digests don't depend on the order or the sharding of the rows.
struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;

  void Add(const Digest& other) {
    const uint64_t sum = low + other.low;
    high += other.high + (sum < low ? 1 : 0);
    low = sum;
  }
  friend bool operator==(const Digest& a, const Digest& b) {
    return a.low == b.low && a.high == b.high;
  }
};

// Digest of one row. `row`: weights, then optimizer state.
Digest RowDigest(TableId table, Key key, absl::Span<const float> row);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_HASH_H_
