// Checks the order of a rank's waits while it runs. A worker with a bug that could make it wait for
// itself ends with an error that says what it owes, instead of hanging once in a while.
//
// A rank waits for other ranks' blocks only after it has posted all blocks that they may need to
// send theirs. Before a wait for a block of step t it has posted:
//
//   keys        keys through t, and the plans of steps for which these keys are not needed
//   plans       keys and plans through t
//   the others  keys and plans through t; phases up to its own through t, later ones through t - 1
//
// Planning needs no block of training. Training waits for planning only between two steps: before
// the training thread waits for a planned batch, or for rows from servers, it has posted and pushed
// all of the steps before (CheckOwesNothing). So ranks never wait for each other in a circle. Take
// the first by (step, phase) of all blocks that a rank waits for: its sender waits for no block
// before it, and so has posted that block.
//
// A rank has room for a block that it waits for: it holds fewer blocks of that phase than its
// credit.
//
// A violation is a bug of this rank, whatever other ranks do. A check costs a few comparisons a
// wait.
#ifndef THERMOCLINE_WORKER_EXCHANGE_WAIT_ORDER_H_
#define THERMOCLINE_WORKER_EXCHANGE_WAIT_ORDER_H_

#include <array>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "worker/exchange/block.h"

namespace thermocline {

// Not thread-safe.
class WaitOrder {
 public:
  // `options` must outlive this object.
  explicit WaitOrder(const ExchangeOptions& options);

  // These note blocks; in every phase steps come in order.
  void NotePosted(BlockId id);
  void NoteReleased(BlockId id);
  // Notes that all of the step's push is with threads that wait for neither training nor planning.
  // Steps come in order.
  void NotePushed(Step step);

  // Called before a wait for a block. Errors: kInternal (names the block, and what is owed or
  // held).
  absl::Status CheckWait(BlockId id) const;
  // Called before the training thread waits for anything else in which other ranks have a part.
  // Errors: kInternal (names what is owed).
  absl::Status CheckOwesNothing() const;

 private:
  bool Owes(BlockId id) const;

  const ExchangeOptions& options_;
  std::array<Step, kNumPhases> posted_;    // [phases] The last step posted.
  std::array<Step, kNumPhases> released_;  // [phases] The last step released.
  Step pushed_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_WAIT_ORDER_H_
