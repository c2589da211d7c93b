#include "common/model/model_spec.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/dlrm_spec.h"

namespace thermocline {
namespace {

// The models that a job may name, each by a stanza of its own. worker/model/make_model.cc has those
// that build them.
struct Preset {
  const char* name;
  bool (*is_set)(const Job& job);
  std::optional<ModelError> (*check)(const Job& job, const ModelInputs& inputs);
  ModelSpec (*describe)(const Job& job, const ModelInputs& inputs);
};

std::optional<ModelError> CheckScript(const Job& job, const ModelInputs&) {
  if (job.worker().command_size() > 0 && !job.worker().command(0).empty()) return std::nullopt;
  return ModelError{"worker.command",
                    "is empty; write a program, such as [\"python3\", \"train.py\"]"};
}

// A script has its tensors itself.
ModelSpec DescribeScript(const Job&, const ModelInputs&) {
  ModelSpec spec;
  spec.is_script = true;
  return spec;
}

constexpr Preset kPresets[] = {
    {"dlrm", [](const Job& job) { return job.has_dlrm(); }, CheckDlrm, DescribeDlrm},
    {"worker", [](const Job& job) { return job.has_worker(); }, CheckScript, DescribeScript},
};

std::vector<const Preset*> PresetsOf(const Job& job) {
  std::vector<const Preset*> presets;
  for (const Preset& preset : kPresets) {
    if (preset.is_set(job)) presets.push_back(&preset);
  }
  return presets;
}

// Above it a width is a typo, not a wish.
constexpr uint32_t kMaxLayerWidth = 65536;

// Columns of an activation: of a GPU's leading dimensions (kernels/matrix.h), and of the CPU's
// panels (kernels/cpu/gemm.h).
constexpr int64_t kGpuAlignment = 8;
constexpr int64_t kCpuPanel = 64;
// Partial sums of a bias gradient on a GPU (kernels/cuda/operations.h).
constexpr int64_t kBiasPartials = 128;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

DenseTensor MlpShape::WeightOf(int layer) const {
  return {absl::StrCat(name, ".", layer, ".weight"), widths[layer], widths[layer + 1], false};
}

DenseTensor MlpShape::BiasOf(int layer) const {
  return {absl::StrCat(name, ".", layer, ".bias"), widths[layer], widths[layer + 1], true};
}

ActivationFloats operator+(const ActivationFloats& a, const ActivationFloats& b) {
  return {a.per_sample + b.per_sample, a.fixed + b.fixed};
}

uint64_t ModelSpec::ActivationBytes(int64_t max_batch, ComputeOn where) const {
  const ActivationFloats& floats = where == ComputeOn::kGpu ? on_gpu : on_cpu;
  return sizeof(float) * (max_batch * floats.per_sample + floats.fixed) + sizeof(double);
}

std::optional<ModelError> CheckModel(const Job& job, const ModelInputs& inputs) {
  const std::vector<const Preset*> presets = PresetsOf(job);
  if (presets.empty()) return ModelError{kPresets[0].name, "is missing; a job needs a model"};
  if (presets.size() > 1) {
    return ModelError{presets[1]->name,
                      absl::StrCat("is set, and ", presets[0]->name, " as well; choose one")};
  }
  return presets[0]->check(job, inputs);
}

ModelSpec DescribeModel(const Job& job, const ModelInputs& inputs) {
  const std::vector<const Preset*> presets = PresetsOf(job);
  CHECK(!presets.empty());
  ModelSpec spec = presets[0]->describe(job, inputs);
  spec.preset = presets[0]->name;
  spec.inputs = inputs;
  return spec;
}

void AddTensors(const MlpShape& mlp, std::vector<DenseTensor>* tensors) {
  for (int layer = 0; layer < mlp.num_layers(); ++layer) {
    tensors->push_back(mlp.WeightOf(layer));
    tensors->push_back(mlp.BiasOf(layer));
  }
}

ActivationFloats HiddenFloats(const MlpShape& mlp, ComputeOn where) {
  const bool on_gpu = where == ComputeOn::kGpu;
  ActivationFloats floats;
  for (int i = 1; i < mlp.num_layers(); ++i) {
    floats.per_sample += 2 * RoundUp(mlp.widths[i], on_gpu ? kGpuAlignment : kCpuPanel);
  }
  // The CPU copies a wide input.
  if (!on_gpu && !mlp.widths.empty() && mlp.widths[0] > kCpuPanel) {
    floats.per_sample += RoundUp(mlp.widths[0], kCpuPanel);
  }
  for (int i = 1; on_gpu && i <= mlp.num_layers(); ++i) {
    floats.fixed += kBiasPartials * mlp.widths[i];
  }
  return floats;
}

int64_t PaddedFloats(int64_t columns) { return RoundUp(columns, kGpuAlignment); }

std::optional<ModelError> CheckWidths(const std::string& field,
                                      const google::protobuf::RepeatedField<uint32_t>& widths) {
  for (int i = 0; i < widths.size(); ++i) {
    if (widths[i] >= 1 && widths[i] <= kMaxLayerWidth) continue;
    const std::string limit =
        widths[i] < 1 ? "at least 1" : absl::StrCat("at most ", kMaxLayerWidth);
    return ModelError{absl::StrCat(field, "[", i, "]"),
                      absl::StrCat("is ", widths[i], "; it must be ", limit)};
  }
  return std::nullopt;
}

}  // namespace thermocline
