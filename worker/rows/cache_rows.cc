#include "worker/rows/cache_rows.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"

namespace thermocline {
namespace {

// A search ends after so many lines without a victim, at about the cost of a few misses of the
// processor's cache; the next one goes on there.
constexpr int kMaxLines = 64;

}  // namespace

CacheRows::CacheRows(int32_t capacity)
    : capacity_(capacity),
      states_((int64_t{capacity} + kRowsPerLine - 1) / kRowsPerLine * kRowsPerLine, 0xFF) {
  CHECK_GE(capacity, 0);
}

int32_t CacheRows::Take(RowOwner owner, uint8_t frequency, RowOwner* victim) {
  int32_t row = num_held();
  if (row < capacity_) {
    owners_.push_back(owner);
    *victim = RowOwner();
  } else {
    row = FindVictim();
    if (row == kNoRow) return kNoRow;
    *victim = owners_[row];
    owners_[row] = owner;
    --num_evictable_;
  }
  states_[row] = kNeeded | std::min(frequency, kMaxFrequency);
  return row;
}

int32_t CacheRows::FindVictim() {
  if (num_evictable_ == 0) return kNoRow;
  for (int line = 0; line < kMaxLines; ++line) {
    uint8_t* const states = states_.data() + hand_;
    uint8_t lowest = 0xFF;
    for (int i = 0; i < kRowsPerLine; ++i) lowest = std::min(lowest, states[i]);
    if (lowest <= 1) {
      const void* const victim = std::memchr(states, lowest, kRowsPerLine);
      return static_cast<int32_t>(static_cast<const uint8_t*>(victim) - states_.data());
    }
    for (int i = 0; i < kRowsPerLine; ++i) {
      states[i] = states[i] < kNeeded ? states[i] >> 1 : states[i];
    }
    hand_ = hand_ + kRowsPerLine < states_.size() ? hand_ + kRowsPerLine : 0;
  }
  return kNoRow;
}

}  // namespace thermocline
