// Pulls that wait for pushes: which may be answered, which wait, and for how long.
//
// Nothing here is thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_WAITING_PULLS_H_
#define THERMOCLINE_SERVER_CORE_WAITING_PULLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/timing.h"
#include "common/wire/messages.h"
#include "server/core/push_state.h"

namespace thermocline {

class ServerStats;  // proto/parameter_server.proto

// Names a held pull; 0 names none.
using PullTicket = uint64_t;
inline constexpr PullTicket kNoTicket = 0;

struct HeldPull {
  wire::PullKind kind = wire::PullKind::kTrain;
  bool reads_rows = false;  // False: the pull asks only what is acknowledged.
  Step step;
  Step needs_through = kNoStep;  // This step must be complete, the puller's own push included.
  int64_t held_since_us = 0;
  int64_t expires_us = 0;
  std::function<void(absl::StatusOr<wire::PullAnswer>)> done;
};

// The pulls of one kind that wait. Each has a time by which it is answered anyway.
class HeldPulls {
 public:
  explicit HeldPulls(size_t capacity) : capacity_(capacity) {}

  bool full() const { return pulls_.size() >= capacity_; }
  size_t size() const { return pulls_.size(); }

  // Returns a new ticket. REQUIRES: !full()
  PullTicket Hold(HeldPull pull);

  // Each of these moves some pulls out, in the order in which they came.
  std::vector<HeldPull> TakeReady(absl::FunctionRef<bool(const HeldPull&)> is_ready);
  std::vector<HeldPull> TakeExpired(int64_t now_us);
  std::vector<HeldPull> TakeAll();
  // Moves one pull out; nullopt where it was taken before.
  std::optional<HeldPull> Take(PullTicket ticket);

  // When the next pull expires. REQUIRES: size() > 0
  int64_t next_expiry_us() const { return expiries_.begin()->first; }

 private:
  using Pulls = std::map<PullTicket, HeldPull>;
  // Moves one pull out, and returns the next one.
  Pulls::iterator MoveOut(Pulls::iterator pull, std::vector<HeldPull>* out);

  const size_t capacity_;
  PullTicket last_ticket_ = kNoTicket;
  Pulls pulls_;                                        // In the order in which they came.
  std::set<std::pair<int64_t, PullTicket>> expiries_;  // One for each pull.
};

// All pulls that wait. Pulls of training and of readers have separate places and counters.
//
// The server core's mutex makes each call one critical section. Nothing here calls a pull's `done`;
// the caller does, with the mutex free.
class WaitingPulls {
 public:
  using Done = std::function<void(absl::StatusOr<wire::PullAnswer>)>;

  // The time left of a caller without a deadline.
  static constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

  // Holds at most `capacity` pulls of each kind, each for at most `hold_us`, and for at most half
  // of its caller's remaining time: so NOT_READY reaches the caller before its deadline, which
  // would be an error.
  WaitingPulls(size_t capacity, int64_t hold_us);

  // A pull is answered at once, or held under a ticket.
  struct Admitted {
    std::optional<wire::PullAnswer> answer;
    PullTicket ticket = kNoTicket;
  };
  // Moves from `done` where the pull is held. REQUIRES: the request is valid.
  // Errors: kDataLoss (as PushState::CheckAcknowledged; a READ that names no acknowledgement is not
  // checked), kResourceExhausted (no place).
  absl::StatusOr<Admitted> Admit(const wire::PullRequest& request, const PushState& pushes,
                                 int64_t now_us, int64_t time_left_us, Done* done);

  struct Released {
    Done done;
    wire::PullAnswer answer;
  };
  // Pulls that may read the rows now, training's first, each kind in the order in which they came.
  std::vector<Released> TakeReady(const PushState& pushes, int64_t now_us);
  // Pulls whose hold time is over, with NOT_READY.
  std::vector<Released> TakeExpired(const PushState& pushes, int64_t now_us);
  // Takes a pull whose caller has gone. Empty where it was taken before.
  Done Drop(PullTicket ticket);
  std::vector<Done> TakeAll();

  // The caller must call TakeExpired so many microseconds from now; nullopt where ArmTimer asked
  // for a call by then before.
  std::optional<int64_t> ArmTimer(int64_t now_us);

  size_t num_held() const { return train_.held.size() + read_.held.size(); }
  void FillStats(ServerStats* stats) const;

 private:
  // The pulls of one kind.
  struct Lane {
    explicit Lane(size_t capacity) : held(capacity) {}

    HeldPulls held;
    uint64_t num_held = 0;  // Since the start.
    uint64_t not_ready = 0;
    uint64_t refused = 0;
  };
  struct Staleness {
    uint64_t pulls = 0;
    uint64_t sum = 0;
    uint64_t max = 0;
  };

  Lane& LaneOf(wire::PullKind kind) { return kind == wire::PullKind::kTrain ? train_ : read_; }
  static bool IsReady(const HeldPull& pull, const PushState& pushes);
  wire::PullAnswer ReadyAnswer(const HeldPull& pull, const PushState& pushes);

  const int64_t hold_us_;
  Lane train_;
  Lane read_;
  std::set<int64_t> timers_us_;  // The times at which TakeExpired will be called.
  Staleness staleness_;
  LatencyHistogram hold_time_;  // How long training's pulls were held.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_WAITING_PULLS_H_
