// A model as a training step computes it: logits from numeric values and rows of tables, and the
// gradients of both the rows and the dense parameters. Implementations: DlrmModel (dlrm.h);
// LinearModel (testing/linear_model.h) for tests.
//
// A training step is Forward, BackwardToRows, BackwardDense, in this order, and the caller's
// updates of rows and dense parameters. The gradients that BackwardToRows leaves may be pushed
// while the rest runs. Forward alone is inference.
//
// Not thread-safe. All calls queue work on the device and return.
#ifndef THERMOCLINE_WORKER_MODEL_MODEL_H_
#define THERMOCLINE_WORKER_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "kernels/device.h"
#include "worker/model/dense_arena.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

// What a model is made with. All that is pointed to outlives it.
struct ModelParts {
  Device* device = nullptr;
  const DenseArena* parameters = nullptr;  // It has the tensors of the model's ModelSpec.
  int32_t max_batch = 0;                   // Samples of the largest batch.
  DeviceSpan<double> loss_sum;             // [1] See Model::BackwardToRows.
};

// The labels of a batch, and what each sample counts.
struct BatchLabels {
  DeviceSpan<const float> labels;   // [batch] 0 or 1
  DeviceSpan<const float> weights;  // [batch]; empty: each is 1
  float scale = 1;                  // Multiplies every gradient: 1 / samples of the global batch.
};

class Model {
 public:
  virtual ~Model() = default;

  // Where the model has the vectors of each feature, and so which rows `segment_bags` of a batch
  // must name. Constant.
  virtual const std::vector<VectorPlace>& vector_places() const = 0;  // [features]

  // The logits of a batch, in device memory, until the next call. `numeric` and `batch` stay valid
  // through BackwardDense.
  // REQUIRES: batch.batch_size <= max_batch; shapes as in ModelSpec::inputs
  virtual Matrix Forward(Matrix numeric,  // [batch, inputs.numeric] float32, device
                         const SparseBatch& batch) = 0;

  // Writes the sum of the samples' losses (device.h: BceWithLogits) to ModelParts::loss_sum, and
  // the gradients of the rows that were looked up: row_gradients[t] has for each unique key of
  // batch.tables[t] the canonical sum over its lookups, in staging order.
  virtual void BackwardToRows(const BatchLabels& labels,
                              absl::Span<const Matrix> row_gradients) = 0;  // [num_unique, dim]

  // The rest of the backward pass: writes the gradients of the dense parameters.
  virtual void BackwardDense() = 0;
};

// The model that `spec` describes.
std::unique_ptr<Model> MakeModel(const ModelSpec& spec, const ModelParts& parts);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_MODEL_H_
