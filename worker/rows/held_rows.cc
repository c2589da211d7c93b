#include "worker/rows/held_rows.h"

#include <utility>

#include "common/base/check.h"

namespace thermocline {
namespace {

// Rows of the queue are prefetched so many ahead.
constexpr size_t kHeldRowsAhead = 16;

}  // namespace

void HeldRows::Hold(int32_t row, int32_t table, Key key) {
  Held& held = rows_[row];
  CHECK_EQ(held.unwritten_lookups, 0u);
  held.table = table;
  held.key = key;
}

uint32_t HeldRows::TakeUnwritten(int32_t row) {
  const uint32_t lookups = std::exchange(rows_[row].unwritten_lookups, 0);
  num_unwritten_ -= lookups > 0 ? 1 : 0;
  return lookups;
}

HeldRows::Unwritten HeldRows::TakeOldest() {
  CHECK_GT(num_unwritten_, 0);
  while (true) {
    const int32_t row = queue_.front();
    queue_.pop_front();
    if (queue_.size() > kHeldRowsAhead) Prefetch(queue_[kHeldRowsAhead]);
    Held& held = rows_[row];
    const bool is_unwritten = held.unwritten_lookups > 0;
    held.is_queued = is_unwritten && held.is_used_again;
    held.is_used_again = false;
    if (held.is_queued) {
      queue_.push_back(row);
    } else if (is_unwritten) {
      return {row, TakeUnwritten(row)};
    }
  }
}

}  // namespace thermocline
