// The memory of one table's rows, by row number: weights, optimizer state, and of each row the
// number of its lookups and the step of its last change.
#ifndef THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
#define THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/page_memory.h"
#include "common/math/table_memory.h"
#include "common/math/table_spec.h"

namespace thermocline {

struct RowMeta {
  uint32_t count;    // Lookups, saturating.
  uint32_t changed;  // The step of the last change, plus 1; 0: never changed.

  void AddCount(uint32_t lookups) {
    const uint32_t sum = count + lookups;
    count = sum < lookups ? UINT32_MAX : sum;
  }
};

static_assert(sizeof(RowMeta) == kRowMetaMemoryBytes);

// The meta data in front of a row as the store has it (StoredRowBytes).
inline RowMeta StoredMeta(const uint8_t* stored) {
  RowMeta meta;
  std::memcpy(&meta, stored, sizeof(meta));
  return meta;
}

// RowMeta::changed of a row that `step` changed.
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

// They decide which rows leave memory. Set under the stripe's exclusive lock, but for kReferenced,
// which readers set too.
enum RowFlags : uint32_t {
  kReferenced = 1,  // The row was used since the clock's hand visited it.
  kDirty = 2,       // The row was changed since it was stored, or was never stored.
  kSpilling = 4,    // The row's present image is being written to the store.
  // The row was read into memory, or created, and not changed since. The change that follows is a
  // part of the same use: a row that is used once in a long time leaves at the hand's first visit.
  kFresh = 8,
};

// Fixed-size records by number, at addresses that never change. Records are numbered from
// first_record(), a power of two, and 0 names none. Records [2^k, 2^(k+1)) share one range of
// memory, so an address is a bit scan, a load and a multiplication; a small slab is small, and
// pages of a large range cost nothing before their first touch.
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
  int end_range_;  // Ranges in [first_range_, end_range_) exist.
  std::array<PageMemory, kMaxRanges> memory_;
  // [range]: the address where record 0 would be if the range reached down to it. An integer, since
  // it points outside.
  std::array<uintptr_t, kMaxRanges> biased_ = {};
};

// Rows come in blocks. A block belongs to one lock stripe: its rows are touched under the stripe's
// lock. AllocateBlock() and ResidentBytes() are thread-safe.
class RowStorage {
 public:
  RowStorage(const TableLayout& layout, bool with_flags);

  uint32_t rows_per_block() const { return 1u << block_shift_; }

  // The number of the first row of a new block; never 0. Its memory is zeroed.
  uint32_t AllocateBlock();

  // [dim] float32, aligned to a cache line, or to its own size if that is smaller. Weights are in
  // other memory than optimizer state: a pull reads weights alone, and is much faster with half the
  // memory to roam in.
  float* Weights(uint32_t row) const { return reinterpret_cast<float*>(weights_.At(row)); }
  // [state_floats] float32; nullptr where the optimizer has none
  float* State(uint32_t row) const {
    return has_state_ ? reinterpret_cast<float*>(state_.At(row)) : nullptr;
  }
  RowMeta* Meta(uint32_t row) const { return reinterpret_cast<RowMeta*>(meta_.At(row)); }

  // Copies a row, weights and then optimizer state, to or from [row_floats] float32 at any
  // alignment.
  void CopyOut(uint32_t row, void* to) const {
    std::memcpy(to, Weights(row), weights_bytes_);
    if (has_state_) {
      std::memcpy(static_cast<uint8_t*>(to) + weights_bytes_, State(row), state_bytes_);
    }
  }
  void CopyIn(const void* from, uint32_t row) const {
    std::memcpy(Weights(row), from, weights_bytes_);
    if (has_state_) {
      std::memcpy(State(row), static_cast<const uint8_t*>(from) + weights_bytes_, state_bytes_);
    }
  }

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

  // Whether the store has the row's present image. False where there is no store.
  bool IsAsStored(uint32_t row) const {
    return with_flags_ && (Flags(row)->load(std::memory_order_relaxed) & (kDirty | kSpilling)) == 0;
  }

  uint64_t ResidentBytes() const;
  size_t row_bytes() const;  // For one row.

 private:
  const size_t weights_bytes_;
  const size_t state_bytes_;
  const bool has_state_;
  const bool with_flags_;
  const int block_shift_;

  mutable absl::Mutex mutex_;  // For growth.
  uint32_t end_row_ ABSL_GUARDED_BY(mutex_);
  RowSlab weights_;
  RowSlab state_;
  RowSlab meta_;
  RowSlab flags_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_TABLES_ROW_STORAGE_H_
