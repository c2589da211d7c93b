#include "server/tables/row_storage.h"

#include <algorithm>
#include <limits>
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

RowStorage::RowStorage(const TableLayout& layout, bool with_flags)
    : weights_bytes_(sizeof(float) * layout.dim),
      state_bytes_(sizeof(float) * layout.state_floats()),
      has_state_(state_bytes_ > 0),
      with_flags_(with_flags),
      block_shift_(BlockShift(layout)),
      end_row_(1u << block_shift_),
      weights_(weights_bytes_, end_row_),
      state_(state_bytes_, end_row_),
      meta_(sizeof(RowMeta), end_row_),
      flags_(sizeof(std::atomic<uint32_t>), end_row_) {}

uint32_t RowStorage::AllocateBlock() {
  absl::MutexLock lock(&mutex_);
  const uint32_t first = end_row_;
  CHECK_LT(first, std::numeric_limits<uint32_t>::max() - rows_per_block());  // 4 billion rows
  end_row_ += rows_per_block();
  weights_.Grow(end_row_);
  if (has_state_) state_.Grow(end_row_);
  meta_.Grow(end_row_);
  if (with_flags_) flags_.Grow(end_row_);
  return first;
}

uint64_t RowStorage::ResidentBytes() const {
  absl::MutexLock lock(&mutex_);
  return weights_.ResidentBytes(end_row_) + state_.ResidentBytes(end_row_) +
         meta_.ResidentBytes(end_row_) + flags_.ResidentBytes(end_row_);
}

size_t RowStorage::row_bytes() const {
  return weights_.record_bytes() + (has_state_ ? state_.record_bytes() : 0) + meta_.record_bytes() +
         (with_flags_ ? flags_.record_bytes() : 0);
}

}  // namespace thermocline
