#include "server/tables/row_storage.h"

#include <limits>

#include "common/check.h"

namespace thermocline {
namespace {

// Small enough that a table of few rows, spread over all stripes, stays small, and that a
// checkpoint which saves changed blocks saves little else.
constexpr size_t kBlockBytes = 4096;
constexpr int kMaxBlockShift = 6;

int BlockShift(size_t row_bytes) {
  int shift = 0;
  while (shift < kMaxBlockShift && (row_bytes << (shift + 1)) <= kBlockBytes) ++shift;
  return shift;
}

}  // namespace

RowStorage::RowStorage(const TableLayout& layout)
    : dim_(layout.dim),
      slot_beside_count_(layout.slot_floats() == 1),
      row_bytes_(sizeof(float) * (slot_beside_count_ ? layout.dim : layout.row_floats())),
      block_shift_(BlockShift(row_bytes_)),
      end_row_(1u << block_shift_),
      rows_(row_bytes_, 1u << block_shift_),
      side_(slot_beside_count_ ? 2 * sizeof(uint32_t) : sizeof(uint32_t), 1u << block_shift_),
      block_steps_(sizeof(int64_t), 1) {}

uint32_t RowStorage::AllocateBlock() {
  absl::MutexLock lock(&mutex_);
  const uint32_t first = end_row_;
  CHECK_LT(first, std::numeric_limits<uint32_t>::max() - rows_per_block());  // 4 billion rows
  end_row_ += rows_per_block();
  rows_.Grow(end_row_);
  side_.Grow(end_row_);
  block_steps_.Grow(end_row_ >> block_shift_);
  *BlockStep(first) = kNoStep.value();
  return first;
}

uint64_t RowStorage::ResidentBytes() const {
  absl::MutexLock lock(&mutex_);
  return rows_.ResidentBytes(end_row_) + side_.ResidentBytes(end_row_) +
         block_steps_.ResidentBytes(end_row_ >> block_shift_);
}

}  // namespace thermocline
