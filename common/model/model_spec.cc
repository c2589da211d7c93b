#include "common/model/model_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/model/layers.h"
#include "common/model/presets.h"
#include "common/model/sequences.h"

namespace thermocline {
namespace {

// Columns of an MLP's hidden activations: of a GPU's leading dimensions (kernels/matrix.h), and of
// the CPU's panels (kernels/cpu/gemm.h).
constexpr int64_t kGpuAlignment = 8;
constexpr int64_t kCpuPanel = 64;
// Partial sums of a bias gradient on a GPU (kernels/cuda/operations.h).
constexpr int64_t kBiasPartials = 128;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Floats of activations and of their gradients, for each sample or step of a batch.
struct RowFloats {
  int64_t values = 0, gradients = 0;
};

// Outputs of the hidden layers, their gradients, and what the MLP's own operations need.
RowFloats HiddenFloats(const GraphNode& mlp, ComputeOn where, Precision precision) {
  const bool on_gpu = where == ComputeOn::kGpu;
  RowFloats floats;
  if (!on_gpu && precision == BFLOAT16) {
    // The CPU keeps each layer's input and the gradient of its output, in half as much.
    for (const DenseTensor& weight : mlp.tensors) {
      floats.values += RoundUp(weight.in, kCpuPanel) / 2;
      floats.gradients += RoundUp(weight.out, kCpuPanel) / 2;
    }
    return floats;
  }
  for (size_t i = 0; i + 1 < mlp.tensors.size(); ++i) {
    floats.values += RoundUp(mlp.tensors[i].out, on_gpu ? kGpuAlignment : kCpuPanel);
  }
  floats.gradients = floats.values;
  // The CPU copies a wide input.
  const int input = mlp.tensors[0].in;
  if (!on_gpu && input > kCpuPanel) floats.values += RoundUp(input, kCpuPanel);
  return floats;
}

std::optional<ModelError> CheckScript(const Job& job) {
  if (job.worker().command_size() > 0 && !job.worker().command(0).empty()) return std::nullopt;
  return ModelError{"worker.command",
                    "is empty; write a program, such as [\"python3\", \"train.py\"]"};
}

bool HasLayers(const Job& job) {
  return job.layer_size() > 0 || job.task_size() > 0 || job.group_size() > 0;
}

// The ways in which the job describes a model: there must be one.
std::vector<std::string> ModelsOf(const Job& job) {
  std::vector<std::string> models = PresetsOf(job);
  if (HasLayers(job)) {
    models.push_back(job.layer_size() > 0 ? "layer" : job.task_size() > 0 ? "task" : "group");
  }
  if (job.has_worker()) models.push_back("worker");
  return models;
}

// The layers of a job without a preset.
std::optional<ModelError> ReadLayers(const Job& job, const ModelInputs& inputs, ModelSpec* spec) {
  std::optional<ModelError> error = CheckSequenceNames(job);
  if (error.has_value()) return error;
  spec->inputs = WithoutUnpooled(job, inputs);
  return AddLayers(job, spec);
}

}  // namespace

uint64_t ModelSpec::ActivationBytes(const BatchRoom& room, ComputeOn where,
                                    const std::vector<double>& steps) const {
  int64_t floats = 0;
  const auto add = [&](int sequence, const RowFloats& row) {
    const double rows_of_sample = sequence == kSamples ? 1 : steps.empty() ? 0 : steps[sequence];
    floats += static_cast<int64_t>(rows_of_sample * room.computed) * row.values +
              static_cast<int64_t>(rows_of_sample * room.trained) * row.gradients;
  };
  for (const GraphBuffer& buffer : graph.buffers) {
    add(buffer.sequence, {buffer.has_value ? buffer.ld : 0, buffer.has_gradient ? buffer.ld : 0});
  }
  for (const GraphNode& node : graph.nodes) {
    if (node.op != GraphNode::Op::kMlp) continue;
    add(graph.buffers[node.output.buffer].sequence, HiddenFloats(node, where, precision));
    if (where != ComputeOn::kGpu || room.trained == 0) continue;
    for (const DenseTensor& bias : node.biases) floats += kBiasPartials * bias.out;
  }
  return sizeof(float) * floats + sizeof(double) * std::max<size_t>(tasks.size(), 1);
}

std::optional<ModelError> CheckModel(const Job& job, const ModelInputs& inputs) {
  const std::vector<std::string> models = ModelsOf(job);
  if (models.empty()) {
    return ModelError{"layer", absl::StrCat("is missing; a job needs a model: ",
                                            absl::StrJoin(PresetNames(), ", "),
                                            ", or layers and a task of its own")};
  }
  if (models.size() > 1) {
    return ModelError{models[1], absl::StrCat("is set, and ", models[0], " as well; choose one")};
  }
  if (job.has_worker()) return CheckScript(job);
  ModelSpec spec;
  if (HasLayers(job)) return ReadLayers(job, inputs, &spec);
  std::optional<ModelError> error = CheckPreset(job, inputs);
  if (error.has_value()) return error;
  Job expanded = job;
  ExpandPreset(inputs, &expanded);
  error = ReadLayers(expanded, inputs, &spec);
  // The user's own stanza, not one that the preset means.
  if (!error.has_value() || absl::StartsWith(error->field, "sequence[")) return error;
  return ModelError{
      models[0],
      absl::StrCat("means layers of which one can't be made: ", error->field, " ", error->what)};
}

ModelSpec DescribeModel(const Job& job, const ModelInputs& inputs) {
  ModelSpec spec;
  spec.is_script = job.has_worker();
  if (spec.is_script) {
    spec.inputs = inputs;
    return spec;
  }
  spec.precision = job.precision();
  Job expanded = job;
  ExpandPreset(inputs, &expanded);
  const std::optional<ModelError> error = ReadLayers(expanded, inputs, &spec);
  CHECK(!error.has_value());
  for (DenseTensor& tensor : spec.tensors) {
    if (tensor.initializer.kind_case() == LayerInitializer::KIND_NOT_SET) {
      tensor.initializer = job.initializer();
    }
  }
  return spec;
}

}  // namespace thermocline
