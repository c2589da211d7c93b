// The pooled rows of features with one dim: their vectors side by side for each sample, and
// likewise their first-order weights, with the gradients of both. A model has one of these for each
// dim.
#ifndef THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_
#define THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_graph.h"
#include "kernels/device.h"
#include "worker/model/activation.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

// Values and gradients of a buffer of the model's.
struct PooledBuffer {
  const Activation* values = nullptr;  // Null: there is none.
  const Activation* gradients = nullptr;
};

class PooledVectors {
 public:
  // `device` and the buffers outlive this. The buffers are described at PooledFeatures.
  PooledVectors(Device* device, const PooledFeatures& features, PooledBuffer vectors,
                PooledBuffer first_order);

  std::vector<VectorPlace> places() const;  // [features]

  // Pools the features' rows. `batch` stays valid through Backward.
  void Forward(const SparseBatch& batch);

  // Sums the gradients of the buffers to those of the rows (Model::BackwardToRows); the gradients
  // of the tables that other features read stay as they are. Changes the buffers' gradients.
  void Backward(absl::Span<const Matrix> row_gradients);

 private:
  // Columns of rows that are pooled to one buffer.
  struct Part {
    PooledBuffer buffer;
    int32_t dim = 0;
    int32_t first_column = 0;            // Columns of the rows begin here.
    std::vector<PoolInput> pool_inputs;  // [features] of the batch under way
  };

  Device* const device_;
  const PooledFeatures features_;
  std::vector<Part> parts_;  // The vectors, the first-order weights: those that there are.

  // The batch under way.
  const SparseBatch* batch_ = nullptr;
  std::vector<int32_t> tables_;               // The features' tables, ascending.
  std::vector<SegmentGroup> segment_groups_;  // [tables]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_POOLED_VECTORS_H_
