// The pooled rows of features with one dim: their vectors side by side for each sample (or step),
// and likewise their first-order weights, with the gradients of both. A model has one of these for
// each arena of gradients (activations.h).
#ifndef THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_
#define THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_graph.h"
#include "kernels/device.h"
#include "worker/model/activations.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

class PooledVectors {
 public:
  // The features of one arena. All outlive this.
  PooledVectors(Device* device, const ModelGraph& graph, const Activations& activations,
                size_t arena);

  // Pools the features' rows. `batch` stays valid through Backward.
  void Forward(const SparseBatch& batch);

  // Sums the gradients of the buffers to those of the rows (Model::BackwardToRows); the gradients
  // of the tables that other features read stay as they are. Changes the buffers' gradients.
  void Backward(absl::Span<const Matrix> row_gradients);

 private:
  // Columns of rows that are pooled to one buffer.
  struct Part {
    const PooledFeatures* group = nullptr;
    int buffer = kNoBuffer;
    int32_t dim = 0;
    int32_t first_column = 0;            // Columns of the rows begin here.
    std::vector<PoolInput> pool_inputs;  // [features] of the batch under way
  };

  // Sums the gradients of these columns of the rows.
  void SumRows(Matrix gradients, int32_t first_column, absl::Span<const Matrix> row_gradients);

  Device* const device_;
  const Activations& activations_;
  const size_t arena_;
  std::vector<Part> parts_;  // For each group the vectors, the first-order weights: what there is.

  // The batch under way.
  const SparseBatch* batch_ = nullptr;
  std::vector<int32_t> tables_;               // The features' tables, ascending.
  std::vector<SegmentGroup> segment_groups_;  // [tables]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_
