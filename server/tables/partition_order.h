// The order of keys in checkpoints and RocksDB, and a table's keys in that order.
#ifndef THERMOCLINE_SERVER_TABLES_PARTITION_ORDER_H_
#define THERMOCLINE_SERVER_TABLES_PARTITION_ORDER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/attributes.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/base/page_memory.h"
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

// A key of a table, and where its row was when that was looked up.
struct PlacedKey {
  Key key;
  uint32_t row;         // 0: unknown, or there is none.
  uint32_t upper_hash;  // The upper half of its KeyHash, which says partition and stripe.

  uint64_t PartialHash() const { return uint64_t{upper_hash} << 32; }
};

// Keys that are added in any order and leave by (partition, key), each once. They are sorted in two
// steps, both within the caches: into groups of 256 partitions as they are added, and a group at a
// time when its first key leaves. So the first key leaves soon, and no key is copied far.
//
// Not thread-safe.
class PartitionOrder {
 public:
  // So many keys will be added, about. They take 13 bytes each, to the end of this object.
  PartitionOrder(uint64_t table_salt, size_t keys);

  void Add(Key key, uint32_t row) {
    const uint64_t hash = KeyHash(salt_, key);
    Group& group = groups_[hash >> 56];
    if (group.next == group.end) AddChunk(&group);
    *group.next++ = {key, row};
  }

  // The next key that leaves, or null. Of a key that was added twice, one of the rows that are not
  // 0. Valid until Pop. REQUIRES: no key is added later.
  const PlacedKey* Front() {
    return next_ < sorted_.size() || SortNextGroup() ? &sorted_[next_] : nullptr;
  }
  // REQUIRES: Front() != nullptr
  void Pop() { ++next_; }

 private:
  // A key that was added. Its hash is computed again once its group is sorted: with it these would
  // take a third more memory, and new memory is what adding keys waits for.
  struct ABSL_ATTRIBUTE_PACKED AddedKey {
    Key key;
    uint32_t row;
  };
  // All chunks but the last are full.
  struct Group {
    std::vector<AddedKey*> chunks;  // [chunk_keys_] each
    AddedKey* next = nullptr;       // In the last chunk.
    AddedKey* end = nullptr;        // The end of the last chunk.
  };
  static constexpr size_t kPartitionsPerGroup = 256;

  void AddChunk(Group* group);
  template <typename Visit>
  void ForEach(const Group& group, Visit visit) const;
  bool SortNextGroup();  // False: there is none left.
  void SortGroup(const Group& group, size_t keys);
  // Appends the keys of one partition to sorted_.
  void AppendSorted(const PlacedKey* begin, const PlacedKey* end);

  const uint64_t salt_;
  const size_t chunk_keys_;
  const PageMemory::HugePages huge_pages_;
  std::vector<PageMemory> memory_;  // The chunks' memory; only the last has room for one more.
  size_t memory_used_ = 0;          // Bytes of the last.
  std::array<Group, kNumPartitions / kPartitionsPerGroup> groups_;
  size_t next_group_ = 0;                        // The next one to be sorted.
  UninitializedVector<PlacedKey> placed_;        // The group's keys, as they were added.
  UninitializedVector<PlacedKey> by_partition_;  // The same, by partition.
  UninitializedVector<PlacedKey> sorted_;
  std::vector<uint32_t> ends_;  // AppendSorted's.
  size_t next_ = 0;             // In sorted_.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_PARTITION_ORDER_H_
