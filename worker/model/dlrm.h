// DLRM (Naumov et al. 2019, "Deep Learning Recommendation Model"): a bottom MLP over the dense
// features, pairwise dot products of its output and the pooled embeddings, a top MLP over both.
// Without dense features there is no bottom MLP, and the first feature's pooled embedding stands
// where its output does; without sparse ones there are no products, and the two MLPs are one.
// (`Dlrm` is the message that describes it to users.) Written once against Device; one object holds
// the parameters and the activations of one batch.
//
// A training step is Forward, BackwardToEmbeddings, BackwardDense, in this order, and the caller's
// update of weights() with gradients(); the sums that BackwardToEmbeddings leaves may be pushed
// while the rest runs. Forward alone is inference.
//
// Not thread-safe. Nothing allocates after construction, but for captures in the first steps.
#ifndef THERMOCLINE_WORKER_MODEL_DLRM_H_
#define THERMOCLINE_WORKER_MODEL_DLRM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/sparse_optimizer.h"
#include "kernels/device.h"
#include "kernels/graph_cache.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

struct DlrmShape {
  int32_t num_dense = 0;               // dense features, and
  int32_t num_features = 0;            // sparse ones; one of both may be 0
  int32_t dim = 0;                     // of every table
  std::vector<int32_t> bottom_hidden;  // widths before the last layer, whose width is dim
  std::vector<int32_t> top_hidden;     // widths before the last layer, whose width is 1
};

// One weight matrix or bias. It stands at `offset` floats in the arenas of weights and gradients,
// padded to whole blocks of kDenseBlockFloats; gradients of the padding are zero.
struct DenseTensor {
  std::string name;    // "bottom.0.weight", "bottom.0.bias", ..., "top.0.weight", ...
  int64_t offset = 0;  // a multiple of kDenseBlockFloats
  int64_t size = 0;    // floats
  int64_t num_blocks() const;
};

class DlrmModel {
 public:
  // `device` outlives the model. Weights and gradients are zero at first.
  DlrmModel(Device* device, const DlrmShape& shape, const OptimizerConfig& dense_optimizer,
            int32_t max_batch, MlpPrecision precision = MlpPrecision::kFloat32);
  ~DlrmModel();

  const std::vector<DenseTensor>& tensors() const { return tensors_; }
  // The arenas, in device memory; the optimizer state lie block by block.
  DeviceSpan<float> weights();    // [blocks, 256]
  DeviceSpan<float> state();      // [blocks, StateFloats(dense_optimizer, 256)]
  DeviceSpan<float> gradients();  // [blocks, 256]

  // logits of a batch, in device memory. `dense` and `batch` stay valid through BackwardDense.
  // Where `dense` and `labels` lie in the same few places again and again, a device with memory of
  // its own is given all but the sparse operations as three graphs.
  // REQUIRES: batch.batch_size <= max_batch; shapes as in DlrmShape
  Matrix Forward(Matrix dense,  // [batch, num_dense] float32, device
                 const SparseBatch& batch);

  // Loss of the batch (device.h: BceWithLogits), then the gradients of the embeddings:
  // embedding_gradients[t] = per unique key of batch.tables[t] the sum over its lookups, in staging
  // order.
  void BackwardToEmbeddings(DeviceSpan<const float> labels,          // [batch] 0 or 1
                            DeviceSpan<const float> sample_weights,  // [batch], or none: each is 1
                            float inverse_global_batch,
                            absl::Span<const Matrix> embedding_gradients);  // [num_unique, dim]

  // All that is left of the backward pass; fills gradients().
  void BackwardDense();

  // Sum over the last batch of the loss, in device memory; written by BackwardToEmbeddings.
  DeviceSpan<double> loss_sum();

 private:
  void LayOutTensors(MlpConfig* bottom, MlpConfig* top);
  void LayOutMlp(const std::string& name, MlpConfig* config, int64_t* next_offset);
  void AllocateBuffers();
  int32_t dense_vectors() const { return shape_.num_dense > 0 ? 1 : 0; }
  int32_t vectors() const { return dense_vectors() + shape_.num_features; }

  // Constant after construction.
  Device* const device_;
  const DlrmShape shape_;
  const OptimizerConfig optimizer_;
  const int32_t max_batch_;
  std::vector<DenseTensor> tensors_;
  int64_t arena_floats_ = 0;
  std::unique_ptr<Mlp> bottom_, top_;

  std::unique_ptr<DeviceBuffer> weights_, state_, gradients_, loss_sum_;
  // Activations and their gradients, [max_batch, columns].
  struct Activation {
    std::unique_ptr<DeviceBuffer> buffer;
    int32_t columns = 0;
    int64_t ld = 0;
    Matrix Rows(int32_t rows) const;
  };
  Activation MakeActivation(int32_t columns, int64_t ld);
  Activation z_, z_gradient_;                  // [max_batch, vectors * dim]
  Activation top_input_, top_input_gradient_;  // [max_batch, dim + pairs]
  Activation logits_, logits_gradient_;        // [max_batch, 1]

  // By part of the step, samples of the batch, the inputs that aren't the model's own, their
  // leading dimension, and the gradient's scale.
  GraphCache<std::tuple<int, int32_t, const void*, const void*, int64_t, float>> graphs_;

  // The batch under way.
  Matrix dense_;
  const SparseBatch* batch_ = nullptr;
  std::vector<PoolInput> pool_inputs_;        // [num_features]
  std::vector<SegmentGroup> segment_groups_;  // [tables]
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_DLRM_H_
