// Ids that must not be mixed up. Each is an integer of its own type; arithmetic is defined for Step
// alone.
#ifndef THERMOCLINE_COMMON_BASE_IDS_H_
#define THERMOCLINE_COMMON_BASE_IDS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ostream>
#include <utility>

#include "absl/strings/string_view.h"

namespace thermocline {

// A feature id: names one row of a table.
using Key = uint64_t;

// Keys hash into this many partitions. Each server holds the rows of a contiguous range of them.
inline constexpr uint32_t kNumPartitions = 65536;

template <typename Tag, typename T>
class StrongId {
 public:
  using ValueType = T;
  constexpr StrongId() = default;
  constexpr explicit StrongId(T value) : value_(value) {}
  constexpr T value() const { return value_; }

  friend constexpr bool operator==(StrongId a, StrongId b) { return a.value_ == b.value_; }
  friend constexpr bool operator!=(StrongId a, StrongId b) { return a.value_ != b.value_; }
  friend constexpr bool operator<(StrongId a, StrongId b) { return a.value_ < b.value_; }
  friend constexpr bool operator<=(StrongId a, StrongId b) { return a.value_ <= b.value_; }
  friend constexpr bool operator>(StrongId a, StrongId b) { return a.value_ > b.value_; }
  friend constexpr bool operator>=(StrongId a, StrongId b) { return a.value_ >= b.value_; }
  friend std::ostream& operator<<(std::ostream& out, StrongId id) { return out << +id.value_; }
  template <typename H>
  friend H AbslHashValue(H h, StrongId id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  T value_ = T{};
};

using TableId = StrongId<struct TableIdTag, uint32_t>;
using ServerIndex = StrongId<struct ServerIndexTag, uint32_t>;
using WorkerRank = StrongId<struct WorkerRankTag, uint32_t>;

// The number of a global batch. Steps start at 0; kNoStep stands for "before the first".
using Step = StrongId<struct StepTag, int64_t>;
inline constexpr Step kNoStep{-1};

constexpr Step operator+(Step step, int64_t n) { return Step(step.value() + n); }
constexpr Step operator-(Step step, int64_t n) { return Step(step.value() - n); }
constexpr int64_t operator-(Step a, Step b) { return a.value() - b.value(); }

// The last step that a job may reach: rows keep the step of their last change, plus 1, in 32 bits.
inline constexpr Step kLastStep{(int64_t{1} << 32) - 2};

// Lookups of one table in one worker's batch: they are numbered with int32.
inline constexpr int64_t kMaxTableLookups = (int64_t{1} << 30) - 1;

// A job's id travels in every request and stands in every error: at most this many printable ASCII
// characters. A server without a job has the empty id.
inline constexpr size_t kMaxJobIdBytes = 256;

inline bool IsJobId(absl::string_view id) {
  return id.size() <= kMaxJobIdBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_BASE_IDS_H_
