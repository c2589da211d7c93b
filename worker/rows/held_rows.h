// The key of each row of a slab, and which rows are newer than the servers'.
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_ROWS_HELD_ROWS_H_
#define THERMOCLINE_WORKER_ROWS_HELD_ROWS_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/ids.h"

namespace thermocline {

// A row is unwritten from an update of it here until it is on its way to the servers. Lookups
// without a gradient, which leave the row as it is, are an update, too: the servers have not
// counted them.
class HeldRows {
 public:
  explicit HeldRows(int32_t capacity) : rows_(capacity) {}

  int32_t table(int32_t row) const { return rows_[row].table; }
  Key key(int32_t row) const { return rows_[row].key; }
  int32_t num_unwritten() const { return num_unwritten_; }

  // The row becomes that of `key`, as the servers have it.
  // REQUIRES: what it was before is not unwritten.
  void Hold(int32_t row, int32_t table, Key key);

  // Counts an update that stands for so many lookups, one or more. The sum saturates, as the
  // servers' counts do.
  void AddUpdate(int32_t row, uint32_t lookups);

  void Prefetch(int32_t row) const { __builtin_prefetch(rows_.data() + row, 1); }

  // The lookups of the updates that the servers do not have; the caller sends them. 0: the servers
  // have the same row.
  uint32_t TakeUnwritten(int32_t row);

  // Takes the unwritten row that has waited longest; rows that were updated again while they waited
  // get a second chance and go to the end of the queue. REQUIRES: num_unwritten() > 0
  struct Unwritten {
    int32_t row;
    uint32_t lookups;
  };
  Unwritten TakeOldest();

 private:
  struct alignas(32) Held {  // Half a cache line, so that a row costs one.
    int32_t table = -1;
    uint32_t unwritten_lookups = 0;
    Key key = 0;
    bool is_queued = false;
    bool is_used_again = false;  // since it was queued
  };
  static_assert(sizeof(Held) == 32);

  std::vector<Held> rows_;  // [capacity]
  int32_t num_unwritten_ = 0;
  // Every unwritten row once, and some that were written since.
  std::deque<int32_t> queue_;
};

inline void HeldRows::AddUpdate(int32_t row, uint32_t lookups) {
  Held& held = rows_[row];
  const uint32_t before = held.unwritten_lookups;
  held.unwritten_lookups = before + lookups < before ? UINT32_MAX : before + lookups;
  num_unwritten_ += before == 0 ? 1 : 0;
  held.is_used_again = held.is_queued;
  if (held.is_queued) return;
  held.is_queued = true;
  queue_.push_back(row);
}

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_HELD_ROWS_H_
