#include "server/tables/partition_order.h"

#include <algorithm>

namespace thermocline {

// One pass of a radix sort by partition leaves few keys a partition: 460 of 30 million.
UninitializedVector<Key> SortByPartition(uint64_t table_salt,
                                         std::vector<UninitializedVector<Key>> groups) {
  // ends[partition + 1]: where the keys of the partition end.
  std::vector<size_t> ends(kNumPartitions + 1);
  for (const UninitializedVector<Key>& group : groups) {
    for (Key key : group) ++ends[PartitionOfKey(table_salt, key) + 1];
  }
  for (uint32_t partition = 0; partition < kNumPartitions; ++partition)
    ends[partition + 1] += ends[partition];
  UninitializedVector<Key> keys(ends.back());
  // From here on ends[partition] is where the partition's next key is put; at last it is where they
  // end.
  for (UninitializedVector<Key>& group : groups) {
    for (Key key : group) keys[ends[PartitionOfKey(table_salt, key)]++] = key;
    group = {};
  }
  size_t begin = 0;
  size_t size = 0;
  for (uint32_t partition = 0; partition < kNumPartitions; ++partition) {
    Key* first = keys.data() + begin;
    Key* last = keys.data() + ends[partition];
    begin = ends[partition];
    std::sort(first, last);
    last = std::unique(first, last);
    if (first != keys.data() + size) std::copy(first, last, keys.data() + size);
    size += last - first;
  }
  keys.resize(size);
  return keys;
}

}  // namespace thermocline
