// Numbers distinct keys in the order in which they come: 0, 1, 2, ...
//
// It is a hash table with open addressing and linear probing. Its index has 4 bytes an entry, so it
// stays within few cache lines where there are few keys.
//
// Not thread-safe; keeps its memory for the next keys.
#ifndef THERMOCLINE_COMMON_MATH_KEY_NUMBERS_H_
#define THERMOCLINE_COMMON_MATH_KEY_NUMBERS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

class KeyNumbers {
 public:
  static constexpr size_t kMaxKeys = size_t{1} << 31;

  // Forgets all keys, and makes room for `max_keys` distinct ones. REQUIRES: max_keys < kMaxKeys
  void Begin(size_t max_keys) {
    CHECK_LT(max_keys, kMaxKeys);
    size_t num_entries = 16;
    while (num_entries < 2 * max_keys) num_entries *= 2;  // At most half of them are filled.
    entries_.assign(num_entries, 0);
    mask_ = num_entries - 1;
    keys_.resize(max_keys);
    size_ = 0;
  }

  // Returns the number of `key`. A new key gets the next one.
  //   hash: a function of the key whose lower bits are spread well
  // REQUIRES: no more than Begin's max_keys distinct keys come.
  uint32_t Add(Key key, uint64_t hash) {
    uint32_t* const entries = entries_.data();
    Key* const keys = keys_.data();
    uint64_t at = hash & mask_;
    for (; entries[at] != 0; at = (at + 1) & mask_) {
      if (keys[entries[at] - 1] == key) return entries[at] - 1;
    }
    keys[size_] = key;
    entries[at] = ++size_;
    return size_ - 1;
  }
  // Brings the entry that Add(key, hash) looks at first into the processor's cache.
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[hash & mask_], /*rw=*/1); }

  // The keys that came since Begin, by number.
  absl::Span<const Key> keys() const { return absl::MakeConstSpan(keys_.data(), size_); }
  uint32_t size() const { return size_; }
  size_t capacity() const { return entries_.capacity() / 2; }  // Keys for which there is memory.

 private:
  std::vector<uint32_t> entries_;  // A key's number plus 1, or 0.
  uint64_t mask_ = 0;
  UninitializedVector<Key> keys_;
  uint32_t size_ = 0;
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_KEY_NUMBERS_H_
