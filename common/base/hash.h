// The hashes that placement, digests and files depend on, and the placement itself. Their values
// never change: hash_test.cc pins golden values.
#ifndef THERMOCLINE_COMMON_BASE_HASH_H_
#define THERMOCLINE_COMMON_BASE_HASH_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/check.h"
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

// A key's partition, in [0, kNumPartitions).
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

// Digest of a key that has no row yet, and was looked up `count` times.
Digest CandidateDigest(TableId table, Key key, uint32_t count);

// Says which server holds a key: every server owns a contiguous range of the partitions.
class ClusterMap {
 public:
  // REQUIRES: 1 <= num_servers <= kNumPartitions
  explicit ClusterMap(uint32_t num_servers) : num_servers_(num_servers) {
    CHECK_GE(num_servers, 1u);
    CHECK_LE(num_servers, kNumPartitions);
  }

  uint32_t num_servers() const { return num_servers_; }

  // The server of a partition: floor(partition * n / 65536), so the ranges are contiguous and even.
  ServerIndex ServerOfPartition(uint32_t partition) const {
    return ServerIndex(
        static_cast<uint32_t>((static_cast<uint64_t>(partition) * num_servers_) >> 16));
  }
  // The partitions of a server: [begin, end). `begin` is the least partition p with
  // floor(p * n / 65536) == server, `end` that of the next server.
  struct PartitionRange {
    uint32_t begin;
    uint32_t end;
  };
  PartitionRange PartitionRangeOf(ServerIndex server) const {
    CHECK_LT(server.value(), num_servers_);
    return {FirstPartition(server.value()), FirstPartition(uint64_t{server.value()} + 1)};
  }
  ServerIndex ServerOfHash(uint64_t key_hash) const {
    return ServerOfPartition(PartitionOfHash(key_hash));
  }

 private:
  uint32_t FirstPartition(uint64_t server) const {
    return static_cast<uint32_t>((server * kNumPartitions + num_servers_ - 1) / num_servers_);
  }

  uint32_t num_servers_;
};

// CRC-32C (Castagnoli, RFC 3720) is the checksum of everything that we write to a disk.
//
// Extends `crc`, the checksum of the bytes before, by `data`; `crc` is 0 for the first piece.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

inline uint32_t Crc32c(const void* data, size_t bytes) { return ExtendCrc32c(0, data, bytes); }

// Returns the CRC-32C of two texts, one after the other, from that of each. second_bytes: the
// length of the second one. Takes less than a microsecond.
uint32_t CombineCrc32c(uint32_t first, uint32_t second, uint64_t second_bytes);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_HASH_H_
