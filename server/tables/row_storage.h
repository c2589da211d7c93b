// Where the rows of one table lie, by row number: weights, optimizer state, and what is known of
// each row: its lookups and the step of its last change.
#ifndef THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
#define THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/math/table_memory.h"
#include "common/math/table_spec.h"
#include "server/tables/row_slab.h"

namespace thermocline {

struct RowMeta {
  uint32_t count;    // Lookups; stays at the largest number.
  uint32_t changed;  // The step of the last change, plus 1; 0: never changed.

  void AddCount(uint32_t lookups) {
    const uint32_t sum = count + lookups;
    count = sum < lookups ? UINT32_MAX : sum;
  }
};

static_assert(sizeof(RowMeta) == kRowMetaMemoryBytes);

// What `changed` is for a step.
inline uint32_t ChangedAt(Step step) {
  CHECK(step >= kNoStep && step <= kLastStep);
  return static_cast<uint32_t>(step.value() + 1);
}
inline Step StepOfChange(uint32_t changed) { return Step(int64_t{changed} - 1); }

// A row about to be changed.
struct RowRef {
  float* weights;
  uint32_t row;  // 0: it isn't there.
};

// What decides which rows leave memory. Set with the stripe's lock held exclusively, but for
// kReferenced, which readers set too.
enum RowFlags : uint32_t {
  kReferenced = 1,  // Since the clock's hand came by.
  kDirty = 2,       // Not as the store has it.
  kSpilling = 4,    // Being written to the store as it is.
  // It was read into memory, or created, and not changed since. The change that follows is a part
  // of the same use: a row that is used once in a long time leaves at the hand's first visit.
  kFresh = 8,
};

// Rows come in blocks. A block belongs to one lock stripe: whoever touches its rows holds that
// stripe's lock. AllocateBlock() and ResidentBytes() are thread-safe.
class RowStorage {
 public:
  RowStorage(const TableLayout& layout, bool with_flags);

  uint32_t rows_per_block() const { return 1u << block_shift_; }

  // The number of the first row of a new block; never 0. Its memory is zeroed.
  uint32_t AllocateBlock();

  // [dim] float32, aligned to a cache line, or to its own size if that is smaller. Weights and
  // the optimizer state lies apart: a pull reads weights alone, and with half the memory to roam in
  // it is much faster.
  float* Weights(uint32_t row) const { return reinterpret_cast<float*>(weights_.At(row)); }
  // [state_floats] float32; nullptr where the optimizer has none
  float* State(uint32_t row) const {
    return has_state_ ? reinterpret_cast<float*>(state_.At(row)) : nullptr;
  }
  RowMeta* Meta(uint32_t row) const { return reinterpret_cast<RowMeta*>(meta_.At(row)); }

  // RowFlags. REQUIRES: with_flags
  std::atomic<uint32_t>* Flags(uint32_t row) const {
    return reinterpret_cast<std::atomic<uint32_t>*>(flags_.At(row));
  }

  void MarkReferenced(uint32_t row) const {
    std::atomic<uint32_t>* flags = Flags(row);
    const uint32_t now = flags->load(std::memory_order_relaxed);
    if ((now & kReferenced) == 0) flags->fetch_or(kReferenced, std::memory_order_relaxed);
  }
  void MarkDirty(uint32_t row) {
    std::atomic<uint32_t>* flags = Flags(row);
    const uint32_t now = flags->load(std::memory_order_relaxed);
    const uint32_t used = (now & kFresh) != 0 ? now & kReferenced : kReferenced;
    flags->store(used | kDirty, std::memory_order_relaxed);
  }

  // Whether the store has the row as it is. False where there is none.
  bool IsAsStored(uint32_t row) const {
    return with_flags_ && (Flags(row)->load(std::memory_order_relaxed) & (kDirty | kSpilling)) == 0;
  }

  uint64_t ResidentBytes() const;
  // Of one row.
  size_t row_bytes() const;

 private:
  const bool has_state_;
  const bool with_flags_;
  const int block_shift_;

  mutable absl::Mutex mutex_;  // for growth
  uint32_t end_row_ ABSL_GUARDED_BY(mutex_);
  RowSlab weights_;
  RowSlab state_;
  RowSlab meta_;
  RowSlab flags_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
