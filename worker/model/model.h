// A model as a training step computes it, on one device: logits from numeric values and rows of
// tables, and the gradients of both the rows and the dense parameters. It runs the graph that
// common/model made of the job's layers; layer_nodes.cc has the operations of each node.
//
// A training step is Forward, BackwardToRows, BackwardDense, in this order, and the caller's
// updates of rows and dense parameters. The gradients that BackwardToRows leaves may be pushed
// while the rest runs. Forward alone is inference.
//
// Where a batch's numeric values and labels lie in the same few places again and again, a device
// with memory of its own is given all but the pooling and the sums over lookups as three graphs.
// Nothing allocates after construction, but for captures in the first steps, and where a batch has
// more steps than any before.
//
// Not thread-safe. All calls queue work on the device and return.
#ifndef THERMOCLINE_WORKER_MODEL_MODEL_H_
#define THERMOCLINE_WORKER_MODEL_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "kernels/device.h"
#include "kernels/graph_cache.h"
#include "worker/model/activations.h"
#include "worker/model/dense_arena.h"
#include "worker/model/pooled_vectors.h"
#include "worker/model/sparse_batch.h"

namespace thermocline {

// What a model is made with. All that is pointed to outlives it.
struct ModelParts {
  Device* device = nullptr;
  const DenseArena* parameters = nullptr;  // It has the tensors of the model's ModelSpec.
  BatchRoom room;
  DeviceSpan<double> loss_sum;  // [tasks] See Model::BackwardToRows.
  // What dropout depends on beside the place of a batch: the job's seed, and the steps that the
  // optimizers had made before step 0.
  uint64_t seed = 0;
  int64_t steps_before = 0;
};

// The labels of a batch, and what each sample counts.
struct BatchLabels {
  DeviceSpan<const float> labels;   // [tasks, batch] 0 or 1
  DeviceSpan<const float> weights;  // [tasks, batch]; empty: each is 1
  float scale = 1;                  // Multiplies every gradient: 1 / samples of the global batch.
};

class Model {
 public:
  Model(const ModelSpec& spec, const ModelParts& parts);

  // Where the model has the vectors of each feature, and so which rows `segment_bags` of a batch
  // must name. Constant.
  const std::vector<VectorPlace>& vector_places() const { return places_; }  // [features]

  // Computes the logits of a batch. `numeric` and `batch` stay valid through BackwardDense. place:
  // what dropout depends on, for a batch that is trained; empty: inference, and nothing is dropped.
  // REQUIRES: ModelParts::room for the batch; shapes as in ModelSpec::inputs
  void Forward(Matrix numeric,  // [batch, inputs.numeric] float32, device
               const SparseBatch& batch, DeviceSpan<const SamplePlace> place = {});  // [1] device

  // Why Forward took more device memory: the batch has more steps of a sequence than any before;
  // "": it didn't.
  std::string DescribeGrowth() const;

  // The logits of a task, in device memory, until the next call of Forward.
  Matrix Logits(int task) const { return ValueOf(spec_.graph.logits[task]); }  // [batch, 1]

  // Writes the sum of the samples' losses (device.h: BceWithLogits) of each task to
  // ModelParts::loss_sum, and, of the sum of the tasks' losses times their weights, the gradients
  // of the rows that were looked up: row_gradients[t] has for each unique key of batch.tables[t]
  // the canonical sum over its lookups, in staging order.
  void BackwardToRows(const BatchLabels& labels,
                      absl::Span<const Matrix> row_gradients);  // [num_unique, dim]

  // The rest of the backward pass: writes the gradients of the dense parameters.
  void BackwardDense();

 private:
  // A node of the graph with what it needs of the device.
  struct Node {
    const GraphNode* graph = nullptr;
    int sequence = kSamples;                    // Its output has rows for these steps.
    std::unique_ptr<Mlp> mlp;                   // kMlp
    std::vector<DeviceSpan<float>> parameters;  // The tensors, but for kMlp.
    std::vector<DeviceSpan<float>> gradients;   // The same.
    DropoutMask mask;                           // kDropout
  };

  // Numbers of a batch in memory of the model's own.
  struct KeptNumbers {
    std::unique_ptr<DeviceBuffer> memory;
    int64_t room = 0;
  };
  struct KeptRanges {
    KeptNumbers offsets, samples;
  };

  Node MakeNode(const GraphNode& graph, const ModelParts& parts);
  void MakeMlp(Node* node);
  void FillOnes();

  // Makes the model's memory ready for the batch.
  void Begin(Matrix numeric, const SparseBatch& batch, DeviceSpan<const SamplePlace> place);
  void KeepRanges(size_t sequence);
  // The steps that the node reads or gives.
  StepRanges RangesOf(const Node& node) const;

  Matrix ValueOf(const Columns& columns) const;     // [batch or steps, width]
  Matrix GradientOf(const Columns& columns) const;  // likewise
  void Bring(const ColumnCopy& copy, Matrix (Model::*matrix)(const Columns&) const);

  // layer_nodes.cc
  void Forward(const Node& node);
  // Writes the gradient of input `i` to InputGradient::target, and those of the node's parameters.
  void BackwardTo(const Node& node, size_t i);
  // Copies where nothing is trained.
  void Dropout(const Node& node, Matrix x, Matrix y);
  void BackwardToAttention(const Node& node);
  void BackwardToCompared(const Node& node, size_t i);
  void Backward(const Node& node);
  void BackwardOf(bool leads_to_rows);

  // Constant after construction.
  Device* const device_;
  const DenseArena& parameters_;
  const DeviceSpan<double> loss_sum_;
  const int64_t max_batch_;
  const ModelSpec spec_;
  Activations activations_;
  std::vector<Node> nodes_;
  std::vector<PooledVectors> pooled_;
  const std::vector<VectorPlace> places_;

  // By part of the step, rows of samples and of each sequence's steps, the inputs that aren't the
  // model's own, their leading dimension, and the gradient's scale.
  using GraphKey = std::tuple<int, std::vector<int32_t>, const void*, const void*, int64_t, float>;
  std::unique_ptr<GraphCache<GraphKey>> graphs_;

  // The steps of the batch, where graphs read them: on a device with memory of its own, copies
  // whose places don't change.
  std::vector<StepRanges> ranges_;  // [sequences]
  std::vector<KeptRanges> kept_;    // [sequences]
  std::vector<int> grown_;          // The sequences whose buffers the batch under way made grow.

  // The batch under way.
  Matrix numeric_;
  std::vector<int32_t> rows_;  // [1 + sequences] samples, then steps.
  DeviceSpan<const SamplePlace> place_;
};

}  // namespace thermocline

#endif  // THERMOCLINE_WORKER_MODEL_MODEL_H_
