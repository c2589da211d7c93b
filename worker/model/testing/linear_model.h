// A logistic regression over numeric values and pooled vectors: a second Model, which has nothing
// in common with DLRM. Its tables may differ in dim; vectors of one dim stand in a buffer of their
// own.
#ifndef THERMOCLINE_WORKER_MODEL_TESTING_LINEAR_MODEL_H_
#define THERMOCLINE_WORKER_MODEL_TESTING_LINEAR_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/model_spec.h"
#include "worker/model/activation.h"
#include "worker/model/model.h"
#include "worker/model/pooled_vectors.h"

namespace thermocline {

// Tensors "numeric.weight" (with numeric features), "vectors.weight" and "bias".
ModelSpec DescribeLinear(const ModelInputs& inputs);

// Computes on the host, so the device must be a CPU's.
class LinearModel : public Model {
 public:
  LinearModel(const ModelSpec& spec, const ModelParts& parts);

  const std::vector<VectorPlace>& vector_places() const override { return places_; }
  Matrix Forward(Matrix numeric, const SparseBatch& batch) override;
  void BackwardToRows(const BatchLabels& labels, absl::Span<const Matrix> row_gradients) override;
  void BackwardDense() override;

  // Where the weights of a feature's vector stand in "vectors.weight".
  int64_t first_weight_of(int32_t feature) const { return first_weights_[feature]; }

 private:
  // The values that "vectors.weight" multiplies, in its order, and their gradients.
  template <typename Use>
  void ForEachValue(int32_t sample, const Use& use) const;

  Device* const device_;
  const DenseArena& parameters_;
  const DeviceSpan<double> loss_sum_;
  const Activation logits_, logits_gradient_;                   // [max_batch, 1]
  int64_t numeric_weight_ = 0, vectors_weight_ = 0, bias_ = 0;  // Offsets in the arena.
  std::vector<std::unique_ptr<PooledVectors>> buffers_;         // [distinct dims]
  std::vector<VectorPlace> places_;
  std::vector<int64_t> first_weights_;  // [features]

  // The batch under way.
  Matrix numeric_;
};

std::unique_ptr<Model> MakeLinear(const ModelSpec& spec, const ModelParts& parts);

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_TESTING_LINEAR_MODEL_H_
