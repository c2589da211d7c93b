// Where the rows of one table lie, by row number: weights, optimizer slots, lookup counts, and the
// step that last changed each block of rows.
#ifndef THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
#define THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/ids.h"
#include "common/table_spec.h"
#include "server/tables/row_slab.h"

namespace thermocline {

// Rows come in blocks. A block belongs to one lock stripe: whoever touches its rows holds that
// stripe's lock. AllocateBlock() and ResidentBytes() are thread-safe.
class RowStorage {
 public:
  explicit RowStorage(const TableLayout& layout);

  uint32_t rows_per_block() const { return 1u << block_shift_; }

  // The number of the first row of a new block; never 0. Its memory is zeroed.
  uint32_t AllocateBlock();

  // [dim] float32, aligned to a cache line, or to its own size if that is smaller
  float* Weights(uint32_t row) const { return reinterpret_cast<float*>(rows_.At(row)); }
  // [slot_floats] float32. They follow the weights, but for a single float: that one stands beside
  // the count, since it would cost a row of 16 floats a second cache line.
  float* Slots(uint32_t row) const {
    return slot_beside_count_ ? reinterpret_cast<float*>(side_.At(row) + sizeof(uint32_t))
                              : Weights(row) + dim_;
  }
  uint32_t* Count(uint32_t row) const { return reinterpret_cast<uint32_t*>(side_.At(row)); }

  // The step of the last change to the row's block.
  Step Changed(uint32_t row) const { return Step(*BlockStep(row)); }
  void MarkChanged(uint32_t row, Step step) {
    int64_t* changed = BlockStep(row);
    if (*changed < step.value()) *changed = step.value();
  }

  bool slots_follow_weights() const { return !slot_beside_count_; }
  // Bytes at Weights(row) that an update touches.
  size_t row_bytes() const { return row_bytes_; }

  uint64_t ResidentBytes() const;

 private:
  int64_t* BlockStep(uint32_t row) const {
    return reinterpret_cast<int64_t*>(block_steps_.At(row >> block_shift_));
  }

  const int dim_;
  const bool slot_beside_count_;
  const size_t row_bytes_;
  const int block_shift_;

  mutable absl::Mutex mutex_;  // for growth
  uint32_t end_row_ ABSL_GUARDED_BY(mutex_);
  RowSlab rows_;
  RowSlab side_;         // count, then perhaps one slot
  RowSlab block_steps_;  // int64 by block
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
