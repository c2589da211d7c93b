// Pulls that wait for pushes. Each has a time at which it is answered anyway.
//
// Not thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_HELD_PULLS_H_
#define THERMOCLINE_SERVER_CORE_HELD_PULLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/wire/messages.h"

namespace thermocline {

// Names a held pull; 0 names none.
using PullTicket = uint64_t;
inline constexpr PullTicket kNoTicket = 0;

struct HeldPull {
  wire::PullKind kind = wire::PullKind::kTrain;
  bool reads_rows = false;  // Else it only tells what the worker knows.
  Step step;
  Step needs_through = kNoStep;  // The step that must be complete, the puller's own push included.
  int64_t held_since_us = 0;
  int64_t expires_us = 0;
  std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
};

class HeldPulls {
 public:
  explicit HeldPulls(size_t capacity) : capacity_(capacity) {}

  bool full() const { return pulls_.size() >= capacity_; }
  size_t size() const { return pulls_.size(); }

  // Never gives a ticket twice. REQUIRES: !full()
  PullTicket Hold(HeldPull pull);

  // Each moves some pulls out, in the order in which they came.
  std::vector<HeldPull> TakeReady(absl::FunctionRef<bool(const HeldPull&)> is_ready);
  std::vector<HeldPull> TakeExpired(int64_t now_us);
  std::vector<HeldPull> TakeAll();
  // None where the pull was taken before.
  std::optional<HeldPull> Take(PullTicket ticket);

  // When the first of them expires. REQUIRES: size() > 0
  int64_t next_expiry_us() const { return expiries_.begin()->first; }

 private:
  using Pulls = std::map<PullTicket, HeldPull>;
  // Moves one pull out; gives the one behind it.
  Pulls::iterator MoveOut(Pulls::iterator pull, std::vector<HeldPull>* out);

  const size_t capacity_;
  PullTicket last_ticket_ = kNoTicket;
  Pulls pulls_;                                        // In the order in which they came.
  std::set<std::pair<int64_t, PullTicket>> expiries_;  // Of all of them.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_HELD_PULLS_H_
