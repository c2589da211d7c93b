#include "server/tables/row_slab.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/math/table_memory.h"

namespace thermocline {
namespace {

// A huge page that is touched anywhere is resident whole; in a range this large it is a small
// share.
constexpr size_t kHugeRangeBytes = size_t{32} << 20;

}  // namespace

RowSlab::RowSlab(size_t record_bytes, uint32_t first_record)
    : record_bytes_(PaddedRecordBytes(record_bytes)),
      first_range_(31 - __builtin_clz(first_record)),
      end_range_(first_range_) {
  CHECK_EQ(first_record, uint32_t{1} << first_range_);
}

bool RowSlab::StartsOnHugePages(int range) const { return RangeBytes(range) >= kHugeRangeBytes; }

void RowSlab::Grow(uint32_t end) {
  while (end_range_ < kMaxRanges && (uint64_t{1} << end_range_) < end) {
    const bool huge = StartsOnHugePages(end_range_);
    PageMemory range(RangeBytes(end_range_),
                     huge ? PageMemory::HugePages::kAtOnce : PageMemory::HugePages::kLater);
    biased_[end_range_] = reinterpret_cast<uintptr_t>(range.data()) - RangeBytes(end_range_);
    memory_[end_range_] = std::move(range);
    if (end_range_ > first_range_ && !StartsOnHugePages(end_range_ - 1)) {
      memory_[end_range_ - 1].MoveToHugePages();
    }
    ++end_range_;
  }
}

uint64_t RowSlab::ResidentBytes(uint32_t end) const {
  uint64_t bytes = 0;
  for (int range = first_range_; range < end_range_; ++range) {
    const uint64_t first = uint64_t{1} << range;
    if (end <= first) break;
    const uint64_t touched = (end - first) * record_bytes_;
    const uint64_t page = StartsOnHugePages(range) ? kHugePageBytes : 4096;
    bytes += std::min<uint64_t>(memory_[range].bytes(), (touched + page - 1) / page * page);
  }
  return bytes;
}

}  // namespace thermocline
