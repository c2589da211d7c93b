// Which pushes a server has accepted: one number per worker, the last step. The steps of one
// worker are contiguous, so that number tells of any push whether it is new, known or early.
//
// Not thread-safe.
#ifndef THERMOCLINE_SERVER_CORE_PUSH_LEDGER_H_
#define THERMOCLINE_SERVER_CORE_PUSH_LEDGER_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"

namespace thermocline {

class PushLedger {
 public:
  // Every worker's pushes up to `base` count as accepted.
  explicit PushLedger(uint32_t num_workers, Step base = kNoStep)
      : accepted_through_(num_workers, base) {}

  // What to do with a push.
  enum class Verdict {
    kNext,       // It follows what was accepted: take it.
    kDuplicate,  // It was accepted before: acknowledge it again.
    kEarly,      // A push before it is missing: NOT_READY.
  };
  // REQUIRES: rank is a worker's.
  Verdict Judge(WorkerRank rank, Step step) const;

  // kDataLoss where the worker holds an acknowledgement that this ledger knows nothing of.
  absl::Status CheckAcknowledged(WorkerRank rank, Step acked_through) const;

  // Accepts a push. REQUIRES: Judge(rank, step) == kNext
  void Accept(WorkerRank rank, Step step);

  // The last step accepted from a worker; kNoStep before the first.
  Step accepted_through(WorkerRank rank) const { return accepted_through_[rank.value()]; }
  uint32_t num_workers() const { return static_cast<uint32_t>(accepted_through_.size()); }

 private:
  std::vector<Step> accepted_through_;  // [num_workers]
};

}  // namespace thermocline

#endif  // THERMOCLINE_SERVER_CORE_PUSH_LEDGER_H_
