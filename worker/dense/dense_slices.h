// The dense parameters of a job whose workers exchange blocks (worker/exchange): each rank owns a
// slice of them, the blocks that ClusterMap(num_ranks) gives its rank. In every step it gets the
// gradients of its slice from all ranks, adds them up as a server does, gives each block the update
// that a server would, and sends the weights to all. So the bits are those of parameters that live
// on the servers, and a step moves each float (num_ranks - 1) / num_ranks times in and out of a
// worker, twice.
//
// What travels, little-endian:
//   dense gradients   uint32: 1 where the sender's data end with this step; uint32: a checksum of
//                     what it trains on; then, to other ranks, float32 [blocks of the receiver's
//                     slice, 256]
//   dense weights     float32 [blocks of the sender's slice, 256]
//
// Arrays are arenas (dense_blocks.h), on the host; optimizer state is valid in the own slice alone.
// Not thread-safe.
#ifndef THERMOCLINE_WORKER_DENSE_DENSE_SLICES_H_
#define THERMOCLINE_WORKER_DENSE_DENSE_SLICES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/job/resolved_job.h"
#include "common/math/sparse_optimizer.h"
#include "worker/dense/dense_blocks.h"
#include "worker/exchange/exchange.h"

namespace thermocline {

class DenseSlices {
 public:
  // `exchange` outlives it. data: names the pack that this rank trains on, if any: the same at all
  // ranks. (A worker compares its files with the job's, Job.data_files, as it opens them.)
  DenseSlices(const std::vector<DenseTable>& tensors, const ClusterMap& servers, Exchange* exchange,
              std::string data = "");

  // This rank's slice, for the servers.
  const DenseBlocks& own() const { return own_; }

  // Sends this rank's gradients to the owners of their blocks. ends_data: no step comes behind it
  // in this rank's data. Those of the own slice stay where they are. REQUIRES: they are finite.
  // Errors: the exchange's.
  //   gradients: [arena_floats]
  absl::Status PostGradients(Step step, bool ends_data, absl::Span<const float> gradients);
  // Waits for the other ranks' gradients of the own slice, updates it in place with the sums of
  // all, and sends its weights to the others. Errors: the exchange's; kInvalidArgument (a sum is
  // not finite: names step and tensor; some ranks train on other data than others, or theirs end
  // elsewhere: names two); kInternal (a block of the wrong size).
  //   gradients: [arena_floats], as posted; weights: [arena_floats];
  //   state: [arena blocks, state_floats]
  absl::Status UpdateOwn(Step step, const UpdateScalars& scalars, absl::Span<const float> gradients,
                         absl::Span<float> weights, absl::Span<float> state);
  // Waits for the weights that every rank has sent after `step`. Errors: the exchange's; kInternal
  // (a block of the wrong size).
  absl::Status ReceiveWeights(Step step, absl::Span<float> weights);

 private:
  int64_t blocks_of(uint32_t rank) const {
    return by_rank_.end_of(ServerIndex(rank)) - by_rank_.begin_of(ServerIndex(rank));
  }
  absl::Status CheckSizes(BlockId id, const ReceivedBlocks& received) const;
  absl::Status CheckData(Step step, const ReceivedBlocks& received) const;

  Exchange* const exchange_;
  const std::string data_;
  const DenseBlocks by_rank_;  // Ranks in place of servers.
  const DenseBlocks own_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DENSE_DENSE_SLICES_H_
