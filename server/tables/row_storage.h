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

  // [dim] float32, aligned to a cache line, or to its own size if that is smaller. Weights and
  // slots lie apart: a pull reads weights alone, and with half the memory to roam in it is much
  // faster.
  float* Weights(uint32_t row) const { return reinterpret_cast<float*>(weights_.At(row)); }
  // [slot_floats] float32; nullptr where the optimizer has none
  float* Slots(uint32_t row) const {
    return has_slots_ ? reinterpret_cast<float*>(slots_.At(row)) : nullptr;
  }
  uint32_t* Count(uint32_t row) const { return reinterpret_cast<uint32_t*>(counts_.At(row)); }

  // The step of the last change to the row's block.
  Step Changed(uint32_t row) const { return Step(*BlockStep(row)); }
  void MarkChanged(uint32_t row, Step step) {
    int64_t* changed = BlockStep(row);
    if (*changed < step.value()) *changed = step.value();
  }

  uint64_t ResidentBytes() const;

 private:
  int64_t* BlockStep(uint32_t row) const {
    return reinterpret_cast<int64_t*>(block_steps_.At(row >> block_shift_));
  }

  const bool has_slots_;
  const int block_shift_;

  mutable absl::Mutex mutex_;  // for growth
  uint32_t end_row_ ABSL_GUARDED_BY(mutex_);
  RowSlab weights_;
  RowSlab slots_;
  RowSlab counts_;       // uint32
  RowSlab block_steps_;  // int64, by block
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
