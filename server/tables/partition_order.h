// The order of keys in checkpoints and RocksDB.
#ifndef THERMOCLINE_SERVER_TABLES_PARTITION_ORDER_H_
#define THERMOCLINE_SERVER_TABLES_PARTITION_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"

namespace thermocline {

inline uint32_t PartitionOfKey(uint64_t table_salt, Key key) {
  return PartitionOfHash(KeyHash(table_salt, key));
}

// Whether `a` comes before `b`, by (partition, key).
inline bool InPartitionOrder(uint64_t table_salt, Key a, Key b) {
  const uint32_t partition_a = PartitionOfKey(table_salt, a);
  const uint32_t partition_b = PartitionOfKey(table_salt, b);
  return partition_a != partition_b ? partition_a < partition_b : a < b;
}

// Sorts all keys of `groups` by (partition, key) and drops doubles. Frees the groups.
UninitializedVector<Key> SortByPartition(uint64_t table_salt,
                                         std::vector<UninitializedVector<Key>> groups);

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_PARTITION_ORDER_H_
