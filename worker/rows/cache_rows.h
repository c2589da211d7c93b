// The rows of a table group's cache: which entry holds each, and which of them is the victim that
// makes room for another.
#ifndef THERMOCLINE_WORKER_ROWS_CACHE_ROWS_H_
#define THERMOCLINE_WORKER_ROWS_CACHE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/uninitialized_vector.h"
#include "worker/rows/cache_plan.h"

namespace thermocline {

// An entry of a table's directory.
struct RowOwner {
  int32_t table = -1;
  int32_t entry = -1;
};

// A row is needed while a step of the window uses it. The victim is a row not needed, of low
// frequency: a clock goes round the rows, line by line of 64, takes the rows not needed that one
// step has used, and halves the frequencies of the rows it passes. So a row that was
// popular once does not stay for ever. On click logs the hit rate is that of the exact lowest
// frequency, or better.
//
// Not thread-safe.
class CacheRows {
 public:
  explicit CacheRows(int32_t capacity);

  // Gives `owner` a row that is needed, one that was never held or else a victim's; kNoRow if there
  // is none. *victim: the owner before, whose table is -1 if there was none.
  int32_t Take(RowOwner owner, uint8_t frequency, RowOwner* victim);

  // One more step uses the row.
  void Need(int32_t row);
  // No step of the window uses the row any more.
  void Release(int32_t row);

  int32_t capacity() const { return capacity_; }
  int32_t num_held() const { return static_cast<int32_t>(owners_.size()); }  // rows [0, num_held)
  RowOwner owner(int32_t row) const { return owners_[row]; }

  static constexpr uint8_t kMaxFrequency = 127;

 private:
  // At least that: the row is needed. A row is one byte, so that a victim is found in one cache
  // line.
  static constexpr uint8_t kNeeded = 128;
  static constexpr int32_t kRowsPerLine = 64;

  int32_t FindVictim();

  const int32_t capacity_;
  // [capacity, rounded up to whole lines] frequency, or kNeeded + frequency. Padding rows count as
  // needed, so they are never victims.
  UninitializedVector<uint8_t> states_;
  std::vector<RowOwner> owners_;  // [num_held]
  int32_t num_evictable_ = 0;     // held and not needed
  size_t hand_ = 0;               // the first row of a line
};

inline void CacheRows::Need(int32_t row) {
  uint8_t& state = states_[row];
  num_evictable_ -= state < kNeeded ? 1 : 0;
  const uint8_t frequency = state & kMaxFrequency;
  state = kNeeded | (frequency + (frequency < kMaxFrequency ? 1 : 0));
}

inline void CacheRows::Release(int32_t row) {
  states_[row] &= kMaxFrequency;
  ++num_evictable_;
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_CACHE_ROWS_H_
