// Fixed-size records by number, at addresses that never change: the rows of a table.
#ifndef THERMOCLINE_SERVER_TABLES_ROW_SLAB_H_
#define THERMOCLINE_SERVER_TABLES_ROW_SLAB_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "server/tables/page_memory.h"

namespace thermocline {

// Records are numbered from first_record(), a power of two, and 0 names none. Records
// [2^k, 2^(k+1)) share one range of memory, so an address is a bit scan, a load and a
// multiplication; a small slab is small, and pages of a large range cost nothing before their first
// touch.
//
// At() may run while another thread grows the slab, as long as the record's own growth happened
// before (in the sense of the memory model). Grow() calls must not overlap.
class RowSlab {
 public:
  // REQUIRES: first_record is a power of two
  RowSlab(size_t record_bytes, uint32_t first_record);

  // A power of two up to a cache line, a multiple of a cache line beyond: no record lies on more
  // cache lines than it must.
  size_t record_bytes() const { return record_bytes_; }

  uint8_t* At(uint32_t record) const {
    return reinterpret_cast<uint8_t*>(biased_[31 - __builtin_clz(record)] + record * record_bytes_);
  }

  // Makes the records below `end` usable, zeroed.
  void Grow(uint32_t end);

  // Resident bytes for a slab whose records below `end` have been touched.
  uint64_t ResidentBytes(uint32_t end) const;

 private:
  static constexpr int kMaxRanges = 32;

  size_t RangeBytes(int range) const { return record_bytes_ << range; }
  bool StartsOnHugePages(int range) const;

  const size_t record_bytes_;
  const int first_range_;
  int end_range_;  // ranges in [first_range_, end_range_) exist
  std::array<PageMemory, kMaxRanges> memory_;
  // Of range k: the address where record 0 would lie. An integer, since it points outside.
  std::array<uintptr_t, kMaxRanges> biased_ = {};
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_SLAB_H_
