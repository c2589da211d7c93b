// The dense tensors of a model as rows of tables, grouped by the server that holds them.
//
// The model keeps its parameters in one flat arena (bottom MLP, then top MLP, each tensor from a
// multiple of 256 floats on); a server gets the blocks that its partitions hold. "Staging" is the
// same blocks in wire order: by server, then tensor, then block. (dense_slices.h takes ranks for
// the servers.)
//
// Immutable after construction.
#ifndef THERMOCLINE_WORKER_DENSE_DENSE_BLOCKS_H_
#define THERMOCLINE_WORKER_DENSE_DENSE_BLOCKS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/hash.h"
#include "common/base/ids.h"
#include "common/job/resolved_job.h"
#include "worker/session/transport.h"

namespace thermocline {

class DenseBlocks {
 public:
  // The blocks that one of `of` ranks owns: those that a server of this index would hold.
  struct Slice {
    uint32_t rank = 0;
    uint32_t of = 1;
  };

  // tensors: maybe none; a model of first-order weights alone has none. slice: only its blocks are
  // staged, in pushes and in pulls; arenas have all blocks. REQUIRES: all tensors have the same
  // optimizer.
  DenseBlocks(const std::vector<DenseTable>& tensors, const ClusterMap& cluster)
      : DenseBlocks(tensors, cluster, Slice{}) {}
  DenseBlocks(const std::vector<DenseTable>& tensors, const ClusterMap& cluster, Slice slice);

  const std::vector<DenseTable>& tensors() const { return tensors_; }
  const OptimizerConfig& optimizer() const { return optimizer_; }  // of all tensors
  uint32_t num_servers() const { return static_cast<uint32_t>(ranges_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(keys_.size()); }  // staged ones
  int64_t arena_floats() const { return arena_num_blocks_ * kDenseBlockFloats; }
  int state_floats() const { return state_floats_; }  // of one block
  int row_floats() const { return kDenseBlockFloats + state_floats_; }

  // Writes the initial parameters, and optimizer state, of every block.
  //   weights: [arena_floats]; state: [num_blocks, state_floats]
  void Initialize(uint64_t seed, absl::Span<float> weights, absl::Span<float> state) const;

  // [num_servers] slices over staging, for PullWork and PushWork. The staging buffers must outlive
  // them.
  PullsByServer PullSlices(absl::Span<float> staged_weights) const;
  PullsByServer PullRowSlices(absl::Span<float> staged_rows) const;
  PushesByServer GradientSlices(absl::Span<const float> staged_gradients) const;
  PushesByServer AssignSlices(absl::Span<const float> staged_rows) const;

  // Staging positions of a server's blocks: [begin, end).
  int64_t begin_of(ServerIndex server) const { return server_begin_[server.value()]; }
  int64_t end_of(ServerIndex server) const { return server_begin_[server.value() + 1]; }
  // The block's place in the arena.
  int64_t arena_block(int64_t staging_position) const { return arena_blocks_[staging_position]; }
  // The tensor that a block of the arena belongs to.
  const DenseTable& TensorOf(int64_t arena_block) const;

  // Between arena and staging.
  //   staged_weights, staged_gradients: [num_blocks, 256]; staged_rows: [num_blocks, row_floats]
  void UnstageWeights(absl::Span<const float> staged_weights, absl::Span<float> weights) const;
  void UnstageRows(absl::Span<const float> staged_rows, absl::Span<float> weights,
                   absl::Span<float> state) const;
  void StageGradients(absl::Span<const float> gradients, absl::Span<float> staged_gradients) const;
  void StageRows(absl::Span<const float> weights, absl::Span<const float> state,
                 absl::Span<float> staged_rows) const;

 private:
  // One tensor's blocks on one server: positions [begin, begin + count) of staging.
  struct Range {
    TableId table;
    int64_t begin = 0;
    int64_t count = 0;
  };

  PullsByServer Slices(absl::Span<float> rows, int floats_per_block) const;
  PushesByServer Slices(wire::PushKind kind, absl::Span<const float> values,
                        int floats_per_block) const;

  std::vector<DenseTable> tensors_;
  OptimizerConfig optimizer_;
  int state_floats_ = 0;
  int64_t arena_num_blocks_ = 0;
  std::vector<Key> keys_;                   // [num_blocks] of staging position
  std::vector<int64_t> arena_blocks_;       // [num_blocks] of staging position
  std::vector<uint32_t> no_lookups_;        // [num_blocks] zeros
  std::vector<std::vector<Range>> ranges_;  // [num_servers]
  std::vector<int64_t> server_begin_;       // [num_servers + 1]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_DENSE_DENSE_BLOCKS_H_
