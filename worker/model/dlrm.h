// DLRM (Naumov et al. 2019, "Deep Learning Recommendation Model"): a bottom MLP over the numeric
// features, pairwise dot products of its output and the pooled embeddings, a top MLP over both.
// Without numeric features there is no bottom MLP, and the first feature's pooled embedding stands
// where its output does; without embedded ones there are no products, and the two MLPs are one.
// (The message `Dlrm` of proto/job.proto describes it to users, common/model/dlrm_spec.h its
// tensors.)
//
// Where a batch's numeric values and labels lie in the same few places again and again, a device
// with memory of its own is given all but the pooling and the sums over lookups as three graphs.
// Nothing allocates after construction, but for captures in the first steps.
#ifndef THERMOCLINE_WORKER_MODEL_DLRM_H_
#define THERMOCLINE_WORKER_MODEL_DLRM_H_

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/graph_cache.h"
#include "worker/model/activation.h"
#include "worker/model/model.h"
#include "worker/model/pooled_vectors.h"

namespace thermocline {

class DlrmModel : public Model {
 public:
  // REQUIRES: `spec` is DescribeDlrm's.
  DlrmModel(const ModelSpec& spec, const ModelParts& parts);

  const std::vector<VectorPlace>& vector_places() const override { return places_; }
  Matrix Forward(Matrix numeric, const SparseBatch& batch) override;
  void BackwardToRows(const BatchLabels& labels, absl::Span<const Matrix> row_gradients) override;
  void BackwardDense() override;

 private:
  // The bottom MLP's output for each sample, or its gradient.
  Matrix BottomPart(Matrix z) const { return FloatMatrix(z.floats(), z.rows, dim_, z.ld); }

  // Constant after construction.
  Device* const device_;
  const DenseArena& parameters_;
  const DeviceSpan<double> loss_sum_;
  const int32_t max_batch_, numeric_, num_features_, dim_;
  std::unique_ptr<Mlp> bottom_, top_;  // bottom_: null without numeric features.

  PooledVectors z_;                            // The bottom's output, then the features' vectors.
  Activation top_input_, top_input_gradient_;  // [max_batch, dim + pairs]
  Activation logits_, logits_gradient_;        // [max_batch, 1]
  const std::vector<VectorPlace> places_;

  // By part of the step, samples of the batch, the inputs that aren't the model's own, their
  // leading dimension, and the gradient's scale.
  GraphCache<std::tuple<int, int32_t, const void*, const void*, int64_t, float>> graphs_;

  // The batch under way.
  Matrix numeric_values_;
  int32_t batch_size_ = 0;
};

std::unique_ptr<Model> MakeDlrm(const ModelSpec& spec, const ModelParts& parts);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_DLRM_H_
