// The pooled vectors of features with one dim, side by side for each sample, and their gradients:
// what a model's layers read of its embeddings. A model whose tables have several dims has one of
// these for each dim.
#ifndef THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_
#define THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/device.h"
#include "worker/model/activation.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

class PooledVectors {
 public:
  // features: indices into the batch's features; no other feature reads their tables. leading:
  // vectors of each sample before them, which are the caller's to fill. `device` outlives this.
  PooledVectors(Device* device, std::vector<int32_t> features, int32_t dim, int32_t leading,
                int32_t max_batch);

  int32_t vectors() const { return leading_ + static_cast<int32_t>(features_.size()); }
  std::vector<VectorPlace> places() const;  // [features]

  Matrix values(int32_t batch) const { return values_.Rows(batch); }  // [batch, vectors * dim]
  Matrix gradients(int32_t batch) const { return gradients_.Rows(batch); }  // like values

  // Pools the features' rows into values(). `batch` stays valid through Backward.
  void Forward(const SparseBatch& batch);

  // Sums gradients() to those of the rows (Model::BackwardToRows); the gradients of the tables that
  // other features read stay as they are. Changes gradients().
  void Backward(absl::Span<const Matrix> row_gradients);

 private:
  Device* const device_;
  const std::vector<int32_t> features_;
  const int32_t dim_, leading_;
  const Activation values_, gradients_;

  // The batch under way.
  const SparseBatch* batch_ = nullptr;
  std::vector<int32_t> tables_;               // The features' tables, ascending.
  std::vector<PoolInput> pool_inputs_;        // [features]
  std::vector<SegmentGroup> segment_groups_;  // [tables]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_
