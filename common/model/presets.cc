#include "common/model/presets.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/layers.h"

namespace thermocline {
namespace {

using Error = std::optional<ModelError>;
using Widths = google::protobuf::RepeatedField<uint32_t>;

struct Preset {
  const char* name;
  bool (*is_set)(const Job& job);
  Error (*check)(const Job& job, const ModelInputs& inputs);
  void (*expand)(const ModelInputs& inputs, Job* job);
};

Layer* AddLayer(const char* name, const std::vector<std::string>& inputs, Job* job) {
  Layer* const layer = job->add_layer();
  layer->set_name(name);
  for (const std::string& input : inputs) layer->add_input(input);
  return layer;
}

Layer* AddMlp(const char* name, const std::vector<std::string>& inputs, const Widths& units,
              float dropout, Job* job) {
  Layer* const layer = AddLayer(name, inputs, job);
  *layer->mutable_mlp()->mutable_units() = units;
  layer->mutable_mlp()->set_dropout(dropout);
  return layer;
}

void AddTask(const std::vector<std::string>& inputs, Job* job) {
  Task* const task = job->add_task();
  task->set_label(job->data().label().column().empty() ? "label" : job->data().label().column(0));
  for (const std::string& input : inputs) task->add_input(input);
}

// All features: numbers, then pooled vectors.
std::vector<std::string> AllFeatures(const ModelInputs& inputs) {
  std::vector<std::string> all;
  if (inputs.numeric > 0) all.push_back("numeric");
  if (inputs.num_vectors() > 0) all.push_back("categorical");
  return all;
}

Error CheckMlp(const std::string& field, const Widths& units) {
  if (units.empty()) return ModelError{field, "is empty; give the widths of the MLP's layers"};
  return CheckWidths(field, units);
}

Error NeedsVectors(const char* name, const ModelInputs& inputs) {
  if (inputs.num_vectors() > 0) return std::nullopt;
  return ModelError{name, "needs categorical features, and the job has none"};
}

// DLRM
// ------------------------------------------------------------------------------------------------

Error CheckDlrm(const Job& job, const ModelInputs& inputs) {
  if (inputs.numeric == 0 && job.dlrm().bottom_size() > 0) {
    return ModelError{"dlrm.bottom[0]", "is set, but data.num_dense is 0: it has no input"};
  }
  Error error = CheckWidths("dlrm.bottom", job.dlrm().bottom());
  return error.has_value() ? error : CheckWidths("dlrm.top", job.dlrm().top());
}

void ExpandDlrm(const ModelInputs& inputs, Job* job) {
  const Dlrm dlrm = job->dlrm();
  std::vector<std::string> vectors;
  if (inputs.numeric > 0) {
    Layer* const bottom = AddMlp("bottom", {"numeric"}, dlrm.bottom(), 0, job);
    bottom->mutable_mlp()->add_units(inputs.features.empty() ? inputs.default_dim
                                                             : inputs.features[0].dim);
    vectors.push_back("bottom");
  }
  if (inputs.num_vectors() > 0) {
    vectors.push_back("categorical");
    AddLayer("pairs", vectors, job)->mutable_dot()->set_keep_first(true);
    vectors = {"pairs"};
  }
  Layer* const top = AddMlp("top", vectors, dlrm.top(), 0, job);
  top->mutable_mlp()->add_units(1);
  top->mutable_mlp()->set_last(Layer::LINEAR);
  AddTask({"top"}, job);
  if (dlrm.precision() != FLOAT32) job->set_precision(dlrm.precision());
  if (dlrm.has_initializer()) *job->mutable_initializer() = dlrm.initializer();
}

// Wide & Deep, DeepFM
// ------------------------------------------------------------------------------------------------

Error CheckWideDeep(const Job& job, const ModelInputs&) {
  Error error = CheckMlp("wide_deep.deep", job.wide_deep().deep());
  return error.has_value() ? error : CheckDropout("wide_deep.dropout", job.wide_deep().dropout());
}

void ExpandWideDeep(const ModelInputs& inputs, Job* job) {
  const WideDeep preset = job->wide_deep();
  Layer* const wide = AddLayer("wide", AllFeatures(inputs), job);
  wide->mutable_first_order();
  if (preset.has_wide_optimizer()) {
    *wide->mutable_first_order()->mutable_optimizer() = preset.wide_optimizer();
  }
  AddMlp("deep", AllFeatures(inputs), preset.deep(), preset.dropout(), job);
  AddTask({"wide", "deep"}, job);
}

Error CheckDeepFm(const Job& job, const ModelInputs& inputs) {
  Error error = CheckMlp("deepfm.deep", job.deepfm().deep());
  if (!error.has_value()) error = CheckDropout("deepfm.dropout", job.deepfm().dropout());
  return error.has_value() ? error : NeedsVectors("deepfm", inputs);
}

void ExpandDeepFm(const ModelInputs& inputs, Job* job) {
  const DeepFm preset = job->deepfm();
  AddLayer("wide", AllFeatures(inputs), job)->mutable_first_order();
  AddLayer("fm", {"categorical"}, job)->mutable_fm();
  AddMlp("deep", AllFeatures(inputs), preset.deep(), preset.dropout(), job);
  AddTask({"wide", "fm", "deep"}, job);
}

// DCNv2
// ------------------------------------------------------------------------------------------------

Error CheckDcnv2(const Job& job, const ModelInputs&) {
  const Dcnv2& preset = job.dcnv2();
  if (preset.cross_layers() < 1) {
    return ModelError{"dcnv2.cross_layers", "is 0; it must be at least 1"};
  }
  if (preset.stacked() && preset.deep().empty()) {
    return ModelError{"dcnv2.deep", "is empty; with `stacked` an MLP follows the cross layers"};
  }
  Error error = CheckWidths("dcnv2.deep", preset.deep());
  return error.has_value() ? error : CheckDropout("dcnv2.dropout", preset.dropout());
}

void ExpandDcnv2(const ModelInputs& inputs, Job* job) {
  const Dcnv2 preset = job->dcnv2();
  Layer::Cross* const cross = AddLayer("cross", AllFeatures(inputs), job)->mutable_cross();
  cross->set_layers(preset.cross_layers());
  cross->set_rank(preset.cross_rank());
  if (preset.deep().empty()) return AddTask({"cross"}, job);
  const std::vector<std::string> below =
      preset.stacked() ? std::vector<std::string>{"cross"} : AllFeatures(inputs);
  AddMlp("deep", below, preset.deep(), preset.dropout(), job);
  if (preset.stacked()) return AddTask({"deep"}, job);
  AddTask({"cross", "deep"}, job);
}

// FinalMLP
// ------------------------------------------------------------------------------------------------

Error CheckFinalMlp(const Job& job, const ModelInputs&) {
  const FinalMlp& preset = job.finalmlp();
  Error error = CheckMlp("finalmlp.first", preset.first());
  if (!error.has_value()) error = CheckMlp("finalmlp.second", preset.second());
  if (!error.has_value()) error = CheckWidths("finalmlp.gate", preset.gate());
  if (!error.has_value()) error = CheckDropout("finalmlp.dropout", preset.dropout());
  if (error.has_value()) return error;
  const bool gate_by = !preset.first_gate_by().empty() || !preset.second_gate_by().empty();
  if (preset.gate().empty() && gate_by) {
    return ModelError{"finalmlp.gate", "is empty, but the features of a gate are given"};
  }
  const uint32_t heads = std::max<uint32_t>(preset.heads(), 1);
  const uint32_t first = preset.first(preset.first_size() - 1);
  const uint32_t second = preset.second(preset.second_size() - 1);
  if (first % heads == 0 && second % heads == 0) return std::nullopt;
  return ModelError{"finalmlp.heads", absl::StrCat("is ", heads,
                                                   "; it must divide the last widths of "
                                                   "both streams, ",
                                                   first, " and ", second)};
}

void ExpandFinalMlp(const ModelInputs& inputs, Job* job) {
  const FinalMlp preset = job->finalmlp();
  const auto add_stream = [&](const char* gate_name, const char* name,
                              const google::protobuf::RepeatedPtrField<std::string>& by,
                              const Widths& units) {
    std::vector<std::string> below = AllFeatures(inputs);
    if (!preset.gate().empty()) {
      Layer::FeatureGate* const gate = AddLayer(gate_name, below, job)->mutable_feature_gate();
      *gate->mutable_by() = by;
      *gate->mutable_units() = preset.gate();
      below = {gate_name};
    }
    AddMlp(name, below, units, preset.dropout(), job);
  };
  add_stream("first_gate", "first", preset.first_gate_by(), preset.first());
  add_stream("second_gate", "second", preset.second_gate_by(), preset.second());
  AddLayer("fusion", {"first", "second"}, job)->mutable_bilinear()->set_heads(preset.heads());
  AddTask({"fusion"}, job);
}

constexpr Preset kPresets[] = {
    {"dlrm", [](const Job& job) { return job.has_dlrm(); }, CheckDlrm, ExpandDlrm},
    {"wide_deep", [](const Job& job) { return job.has_wide_deep(); }, CheckWideDeep,
     ExpandWideDeep},
    {"deepfm", [](const Job& job) { return job.has_deepfm(); }, CheckDeepFm, ExpandDeepFm},
    {"dcnv2", [](const Job& job) { return job.has_dcnv2(); }, CheckDcnv2, ExpandDcnv2},
    {"finalmlp", [](const Job& job) { return job.has_finalmlp(); }, CheckFinalMlp, ExpandFinalMlp},
};

const Preset* FindPreset(const Job& job) {
  for (const Preset& preset : kPresets) {
    if (preset.is_set(job)) return &preset;
  }
  return nullptr;
}

}  // namespace

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

std::vector<std::string> PresetsOf(const Job& job) {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) {
    if (preset.is_set(job)) names.push_back(preset.name);
  }
  return names;
}

Error CheckPreset(const Job& job, const ModelInputs& inputs) {
  const Preset* const preset = FindPreset(job);
  CHECK(preset != nullptr);
  return preset->check(job, inputs);
}

void ExpandPreset(const ModelInputs& inputs, Job* job) {
  const Preset* const preset = FindPreset(*job);
  if (preset == nullptr) return;
  preset->expand(inputs, job);
  job->clear_dlrm();
  job->clear_wide_deep();
  job->clear_deepfm();
  job->clear_dcnv2();
  job->clear_finalmlp();
}

}  // namespace thermocline
