// The order of a rank's waits, checked while it runs: so a worker that could wait for itself ends
// and says what it owes, instead of hanging once in a while.
//
// A rank waits for other ranks' blocks only when all is posted that they may need before they can
// send them. Before a wait for a block of step t that is:
//
//   keys        keys through t, and the plans of steps for which these keys are not needed
//   plans       keys and plans through t
//   the others  keys and plans through t; phases up to its own through t, later ones through t - 1
//
// Planning owes nothing of training, which waits for it only between two steps: before the training
// thread waits for a planned batch, or for rows from servers, all of the steps before is posted and
// pushed (CheckOwesNothing). So no ranks wait for each other in a circle: of all blocks that are
// waited for, take the first by (step, phase). Its sender waits for none before it, so it has
// posted that block.
//
// A rank has room for what it waits for: of that phase it holds less than its credit.
//
// A violation is a bug of this rank, whatever the others do. It costs a few comparisons a wait.
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
  // `options` outlives it.
  explicit WaitOrder(const ExchangeOptions& options);

  // In every phase steps come in order.
  void NotePosted(BlockId id);
  void NoteReleased(BlockId id);
  // All of the step's push is with threads that wait for neither training nor planning. Steps come
  // in order.
  void NotePushed(Step step);

  // Before a wait for a block. Errors: kInternal (names it, and what is owed or held).
  absl::Status CheckWait(BlockId id) const;
  // Before a wait of the training thread for anything else that other ranks have a part in. Errors:
  // kInternal (names what is owed).
  absl::Status CheckOwesNothing() const;

 private:
  bool Owes(BlockId id) const;

  const ExchangeOptions& options_;
  std::array<Step, kNumPhases> posted_;    // The last step.
  std::array<Step, kNumPhases> released_;  // The last step.
  Step pushed_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_EXCHANGE_WAIT_ORDER_H_
