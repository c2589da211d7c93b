// Keys in the order in which checkpoints and RocksDB hold them.
#ifndef THERMOCLINE_SERVER_TABLES_SLOT_ORDER_H_
#define THERMOCLINE_SERVER_TABLES_SLOT_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

inline uint32_t SlotOfKey(uint64_t table_salt, Key key) {
  return SlotOfHash(KeyHash(table_salt, key));
}

// Whether `a` comes before `b`, by (slot, key).
inline bool InSlotOrder(uint64_t table_salt, Key a, Key b) {
  const uint32_t slot_a = SlotOfKey(table_salt, a);
  const uint32_t slot_b = SlotOfKey(table_salt, b);
  return slot_a != slot_b ? slot_a < slot_b : a < b;
}

// All keys of `groups` by (slot, key), each once. Frees the groups.
UninitializedVector<Key> SortBySlot(uint64_t table_salt,
                                    std::vector<UninitializedVector<Key>> groups);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_SLOT_ORDER_H_
