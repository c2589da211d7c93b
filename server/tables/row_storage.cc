#include "server/tables/row_storage.h"

#include <limits>

#include "common/base/check.h"
#include "common/math/table_memory.h"

namespace thermocline {

RowStorage::RowStorage(const TableLayout& layout, bool with_flags)
    : has_state_(layout.state_floats() > 0),
      with_flags_(with_flags),
      block_shift_(BlockShift(layout)),
      end_row_(1u << block_shift_),
      weights_(sizeof(float) * layout.dim, end_row_),
      state_(sizeof(float) * layout.state_floats(), end_row_),
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
