// The keys of a request, grouped by lock stripe.
#ifndef THERMOCLINE_SERVER_TABLES_KEY_BATCH_H_
#define THERMOCLINE_SERVER_TABLES_KEY_BATCH_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "server/tables/key_index.h"

namespace thermocline {

// A server owns a contiguous range of partitions, so the upper 16 bits of its hashes are not
// uniform: the stripe comes from the bits below them.
inline uint32_t StripeOfHash(uint64_t key_hash) {
  return static_cast<uint32_t>(key_hash >> 40) % kNumStripes;
}

// A counting sort of up to kMaxKeys keys by stripe. About 100 KiB: meant to be reused.
class KeyBatch {
 public:
  // Bounds the scratch memory, and the window of a caller's rows that is visited out of order, to
  // what the second-level cache holds.
  static constexpr size_t kMaxKeys = 4096;

  struct Entry {
    Key key;
    uint32_t place;     // KeyIndex::PlaceOfHash
    uint16_t position;  // in the request
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

  // Of all stripes, in their order.
  const Entry* entries() const { return entries_.data(); }
  uint32_t size() const { return begin_[kNumStripes]; }
  // The entries of a stripe are [begin(stripe), begin(stripe + 1)).
  uint32_t begin(uint32_t stripe) const { return begin_[stripe]; }

 private:
  std::array<uint64_t, kMaxKeys> hashes_;
  std::array<Entry, kMaxKeys> entries_;
  std::array<uint32_t, kNumStripes + 1> begin_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_KEY_BATCH_H_
