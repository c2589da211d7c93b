// What a model is made of, as its job describes it and before any of it exists: its dense tensors
// and the memory that its activations take. The resolved job makes tables of the tensors,
// `thermocline plan` adds up the memory, an export writes names and shapes, and worker/model builds
// the model, all from this one description. It stands in common/ because programs with a device and
// programs without one need it.
#ifndef THERMOCLINE_COMMON_MODEL_MODEL_SPEC_H_
#define THERMOCLINE_COMMON_MODEL_MODEL_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace thermocline {

// What the features of a job give its model.
struct ModelInputs {
  int numeric = 0;               // Values of numeric features in a sample.
  std::vector<int> vector_dims;  // [embedded features] in the job's order
  int default_dim = 0;           // The dim of default_table.

  int num_vectors() const { return static_cast<int>(vector_dims.size()); }
};

// A weight matrix or a bias of a layer from `in` to `out` values: [rows, cols] floats, row-major.
struct DenseTensor {
  std::string name;  // As checkpoints and exports have it: "top.0.weight".
  int in = 0, out = 0;
  bool is_bias = false;

  int rows() const { return is_bias ? 1 : in; }
  int cols() const { return out; }
};

// A stack of fully connected layers: layer i maps widths[i] values to widths[i + 1].
struct MlpShape {
  std::string name;         // The names of its tensors begin so.
  std::vector<int> widths;  // Input first. Empty: the model has no such MLP.

  int num_layers() const { return widths.empty() ? 0 : static_cast<int>(widths.size()) - 1; }
  DenseTensor WeightOf(int layer) const;  // "NAME.LAYER.weight"
  DenseTensor BiasOf(int layer) const;    // "NAME.LAYER.bias"
};

enum class ComputeOn { kCpu, kGpu };

// Floats of activations and their gradients: for each sample of the largest batch, and besides.
struct ActivationFloats {
  int64_t per_sample = 0;
  int64_t fixed = 0;
};
ActivationFloats operator+(const ActivationFloats& a, const ActivationFloats& b);

struct ModelSpec {
  std::string preset;      // The job's stanza: "dlrm".
  bool is_script = false;  // A script of the user's computes it, and has its tensors.
  ModelInputs inputs;
  // In the order of their tables.
  std::vector<DenseTensor> tensors;
  // The MLPs among the tensors. An export describes the model by them.
  std::vector<MlpShape> mlps;
  ActivationFloats on_cpu, on_gpu;

  LayerInitializer initializer;  // How the tensors begin.
  // What a GPU multiplies matrices with.
  Precision precision = FLOAT32;

  // For messages: the job's fields that make the tensors large, and the one of the precision.
  std::string size_fields, precision_field;
  // The part of the model that needs one dim for all tables; empty: dims may differ.
  std::string one_dim_for;

  // Whether only a GPU has products of this precision.
  bool needs_gpu() const { return precision != FLOAT32; }
  const std::string& precision_name() const { return Precision_Name(precision); }

  // Outputs and gradients of all layers, and the sum of the losses, for batches of at most
  // `max_batch` samples.
  uint64_t ActivationBytes(int64_t max_batch, ComputeOn where) const;
};

// A wrong value in the stanza of a model.
struct ModelError {
  std::string field;  // "dlrm.top[1]"
  std::string what;   // "is 0; it must be at least 1"
};

// The first wrong value; nullopt: the model can be described. A job without a model is wrong, too.
std::optional<ModelError> CheckModel(const Job& job, const ModelInputs& inputs);

// REQUIRES: CheckModel finds nothing.
ModelSpec DescribeModel(const Job& job, const ModelInputs& inputs);

// For descriptions of models.
void AddTensors(const MlpShape& mlp, std::vector<DenseTensor>* tensors);
// Outputs of the hidden layers, their gradients, and what the MLP's own operations need.
ActivationFloats HiddenFloats(const MlpShape& mlp, ComputeOn where);
// Floats of a row of an activation whose rows begin where a GPU loads at once.
int64_t PaddedFloats(int64_t columns);
// Looks for a width that no layer may have. field: of the job, "dlrm.top".
std::optional<ModelError> CheckWidths(const std::string& field,
                                      const google::protobuf::RepeatedField<uint32_t>& widths);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_MODEL_SPEC_H_
