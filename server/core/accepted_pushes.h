// Pushes that were accepted and wait to be applied, and which step is the next that can be.
//
// Step t can be applied when, of every worker, the push that covers t is accepted. A push that
// covers several steps is applied with its first one, so that it is in the rows from then on.
//
// Not thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_ACCEPTED_PUSHES_H_
#define THERMOCLINE_SERVER_CORE_ACCEPTED_PUSHES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/ids.h"
#include "server/core/push_assembly.h"

namespace thermocline {

class AcceptedPushes {
 public:
  // Begins behind step `base`, which is applied.
  explicit AcceptedPushes(uint32_t num_workers, Step base = kNoStep);

  // REQUIRES: push.first_step follows the last_step of the worker's push before.
  void Add(AssembledPush push);

  // The step that is applied next; everything before it was taken.
  Step next_step() const { return next_step_; }
  // Whether every worker's push that covers next_step() is accepted.
  bool NextIsComplete() const { return num_covering_ == queues_.size(); }
  // Of the pushes that begin with next_step().
  uint64_t bytes_of_next() const;
  // Whether a push that waits covers both `step` and the step after it.
  bool Span(Step step) const;
  // Moves the pushes that begin with next_step() out, in rank order (maybe none), and goes on to
  // the step after. REQUIRES: NextIsComplete()
  std::vector<AssembledPush> TakeNext();

 private:
  bool Covers(uint32_t rank) const { return accepted_through_[rank] >= next_step_; }

  Step next_step_;
  std::vector<std::deque<AssembledPush>> queues_;  // [num_workers], by step
  std::vector<Step> accepted_through_;             // [num_workers]
  size_t num_covering_ = 0;                        // Workers with accepted_through >= next_step_.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_ACCEPTED_PUSHES_H_
