// What a model is made of, as its job describes it and before any of it exists: its dense tensors,
// the memory that its activations take, and the graph that is computed. The resolved job makes
// tables of the tensors, `thermocline plan` adds up the memory, an export writes names and shapes,
// and worker/model computes the graph, all from this one description. It stands in common/ because
// programs with a device and programs without one need it.
#ifndef THERMOCLINE_COMMON_MODEL_MODEL_SPEC_H_
#define THERMOCLINE_COMMON_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/model/dense_tensor.h"
#include "common/model/model_graph.h"
#include "proto/job.pb.h"

namespace thermocline {

enum class ComputeOn { kCpu, kGpu };

// What a table's rows have beside, or in place of, the vectors of its features.
struct FirstOrderRows {
  Optimizer optimizer;      // No kind: the table's.
  Initializer initializer;  // No kind: all are 0.
  bool has_vectors = true;  // Else rows are first-order weights alone.
};

// What the model learns: a label, from a logit of its own.
struct TaskSpec {
  std::string label;
  float weight = 1;  // Multiplies its loss.
};

struct ModelSpec {
  bool is_script = false;  // A script of the user's computes it, and has its tensors.
  ModelInputs inputs;
  std::vector<TaskSpec> tasks;       // In the job's order; a script's has none.
  std::vector<DenseTensor> tensors;  // In the order of their tables.
  ModelGraph graph;
  std::map<std::string, FirstOrderRows> first_order;  // By table.

  // What a GPU multiplies matrices with.
  Precision precision = FLOAT32;

  // Outputs and gradients of all layers, and the sum of each task's losses. steps: how many of each
  // sequence a sample has; empty: none, since there is memory for them when a batch has them.
  uint64_t ActivationBytes(const BatchRoom& room, ComputeOn where,
                           const std::vector<double>& steps = {}) const;
};

// A wrong value in the job's words for its model.
struct ModelError {
  std::string field;  // "dlrm.top[1]", "layer[2].cross.layers"
  std::string what;   // "is 0; it must be at least 1"
};

// The first wrong value; nullopt: the model can be described. A job without a model is wrong, too.
std::optional<ModelError> CheckModel(const Job& job, const ModelInputs& inputs);

// REQUIRES: CheckModel finds nothing.
ModelSpec DescribeModel(const Job& job, const ModelInputs& inputs);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_MODEL_SPEC_H_
