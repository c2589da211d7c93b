#include "server/tables/slot_order.h"

#include <algorithm>

namespace thermocline {

// One pass of a radix sort by slot leaves few keys a slot: 460 of 30 million.
UninitializedVector<Key> SortBySlot(uint64_t table_salt,
                                    std::vector<UninitializedVector<Key>> groups) {
  std::vector<size_t> ends(kNumSlots + 1);  // [slot + 1]: where the keys of the slot end
  for (const UninitializedVector<Key>& group : groups) {
    for (Key key : group) ++ends[SlotOfKey(table_salt, key) + 1];
  }
  for (uint32_t slot = 0; slot < kNumSlots; ++slot) ends[slot + 1] += ends[slot];
  UninitializedVector<Key> keys(ends.back());
  // From here on ends[slot] is where the next key of the slot goes, and in the end what it says.
  for (UninitializedVector<Key>& group : groups) {
    for (Key key : group) keys[ends[SlotOfKey(table_salt, key)]++] = key;
    group = {};
  }
  size_t begin = 0;
  size_t size = 0;
  for (uint32_t slot = 0; slot < kNumSlots; ++slot) {
    Key* first = keys.data() + begin;
    Key* last = keys.data() + ends[slot];
    begin = ends[slot];
    std::sort(first, last);
    last = std::unique(first, last);
    if (first != keys.data() + size) std::copy(first, last, keys.data() + size);
    size += last - first;
  }
  keys.resize(size);
  return keys;
}

}  // namespace thermocline
