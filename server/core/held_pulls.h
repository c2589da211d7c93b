// Pulls that wait for a step to be applied, without a thread each.
//
// Not thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_HELD_PULLS_H_
#define THERMOCLINE_SERVER_CORE_HELD_PULLS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

struct HeldPull {
  wire::PullKind kind = wire::PullKind::kTrain;
  WorkerRank rank;
  Step step;
  Step after_step = kNoStep;     // The puller's own push that must be in the rows.
  Step needs_through = kNoStep;  // The step that must be complete.
  int64_t held_since_us = 0;
  std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
};

class HeldPulls {
 public:
  // At most `capacity` are held, each for `hold_us`.
  HeldPulls(size_t capacity, int64_t hold_us) : capacity_(capacity), hold_us_(hold_us) {}

  bool full() const { return pulls_.size() >= capacity_; }
  size_t size() const { return pulls_.size(); }

  // REQUIRES: !full(); held_since_us is no less than that of the pull before.
  void Hold(HeldPull pull);

  // Each moves some pulls out, in the order in which they came.
  std::vector<HeldPull> TakeReady(absl::FunctionRef<bool(const HeldPull&)> is_ready);
  std::vector<HeldPull> TakeExpired(int64_t now_us);
  std::vector<HeldPull> TakeAll();

  // When the oldest expires. REQUIRES: size() > 0
  int64_t next_expiry_us() const { return pulls_.front().held_since_us + hold_us_; }

 private:
  size_t capacity_;
  int64_t hold_us_;
  std::deque<HeldPull> pulls_;  // by held_since_us
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_HELD_PULLS_H_
