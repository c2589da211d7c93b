// Pushes that were accepted and wait to be applied, and which step is the next that can be.
//
// Step t can be applied when the pushes of all workers for t are accepted.
//
// Not thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_ACCEPTED_PUSHES_H_
#define THERMOCLINE_SERVER_CORE_ACCEPTED_PUSHES_H_

#include <cstdint>
#include <deque>
#include <vector>

#include "common/base/ids.h"
#include "server/core/push_assembly.h"

namespace thermocline {

class AcceptedPushes {
 public:
  // Begins behind step `base`, which is applied.
  explicit AcceptedPushes(uint32_t num_workers, Step base = kNoStep);

  // REQUIRES: push.step follows that of the worker's push before.
  void Add(AssembledPush push);

  // The step that is applied next; everything before it was taken.
  Step next_step() const { return next_step_; }
  // Whether every worker's push for next_step() is accepted.
  bool NextIsComplete() const { return num_waiting_ == queues_.size(); }
  // Of the pushes for next_step().
  uint64_t bytes_of_next() const;
  // Moves the pushes for next_step() out, in rank order, and goes on to the step after.
  // REQUIRES: NextIsComplete()
  std::vector<AssembledPush> TakeNext();

 private:
  Step next_step_;
  std::vector<std::deque<AssembledPush>> queues_;  // [num_workers], each from next_step_ on
  size_t num_waiting_ = 0;                         // Queues that are not empty.
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_ACCEPTED_PUSHES_H_
