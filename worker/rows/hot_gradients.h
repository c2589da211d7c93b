// The gradients of hot rows, which several workers hold each: in a hot step every rank sends its
// own to all ranks, and all of them make the same sums, in rank order, as a server does. So their
// rows stay the same, bit by bit.
//
// What travels in phase kGradients, little-endian:
//   hot step     uint32 [tables] distinct keys of the sender's batch; then of each table
//                uint32 [keys] number of the hot row in its table (hot_rows.h)
//                uint32 [keys] lookups
//                float32 [keys, dim] gradients
//   other steps  nothing: an empty block
//
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_ROWS_HOT_GRADIENTS_H_
#define THERMOCLINE_WORKER_ROWS_HOT_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/uninitialized_vector.h"
#include "common/math/gradient_merge.h"
#include "worker/exchange/exchange.h"
#include "worker/rows/hot_rows.h"
#include "worker/rows/step_context.h"

namespace thermocline {

class HotGradients {
 public:
  // Both outlive it.
  HotGradients(const HotRows* rows, Exchange* exchange);

  // Sends this rank's gradients of a hot step. Errors: kInvalidArgument (one is not finite: names
  // step, table and key), the exchange's.
  //   gradients: [tables][num_unique, dim] in the plan's staging order
  absl::Status Post(const StepContext& context,
                    absl::Span<const absl::Span<const float>> gradients);
  // Waits for every rank's, and adds them up. Errors: kInvalidArgument (a sum is not finite: names
  // step, table and key); kInternal (a rank's block is none of this step: names it); the
  // exchange's.
  absl::Status Merge(Step step);
  // The sums of a table, until the next Merge; its keys are numbers of hot rows.
  const GradientBlock& merged(size_t t) const { return merges_[t].result(); }

  // In other steps. Errors: kInternal (a rank's block is not empty), the exchange's.
  absl::Status PostNone(Step step);
  absl::Status ReceiveNone(Step step);

 private:
  // One rank's, of one table.
  struct Received {
    UninitializedVector<Key> keys;
    GradientBlock block;
  };

  absl::Status PostBlock(Step step, BlockBytes bytes);
  absl::Status Parse(Step step, uint32_t rank, absl::Span<const uint8_t> block);

  const HotRows* const rows_;
  Exchange* const exchange_;
  std::vector<std::vector<Received>> received_;  // [tables][ranks]
  std::vector<GradientMerge> merges_;            // [tables]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_ROWS_HOT_GRADIENTS_H_
