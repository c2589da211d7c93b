#include "common/model/presets.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/model/layers.h"
#include "common/model/sequences.h"

namespace thermocline {
namespace {

using Error = std::optional<ModelError>;
using Widths = google::protobuf::RepeatedField<uint32_t>;

constexpr uint32_t kMaxLevels = 64;

struct Preset {
  const char* name;
  bool (*is_set)(const Job& job);
  Error (*check)(const Job& job, const ModelInputs& inputs);
  void (*expand)(const ModelInputs& inputs, Job* job);
};

Layer* AddLayer(const std::string& name, const std::vector<std::string>& inputs, Job* job) {
  Layer* const layer = job->add_layer();
  layer->set_name(name);
  for (const std::string& input : inputs) layer->add_input(input);
  return layer;
}

Layer* AddMlp(const std::string& name, const std::vector<std::string>& inputs, const Widths& units,
              float dropout, Job* job) {
  Layer* const layer = AddLayer(name, inputs, job);
  *layer->mutable_mlp()->mutable_units() = units;
  layer->mutable_mlp()->set_dropout(dropout);
  return layer;
}

std::vector<std::string> LabelsOf(const Job& job) {
  const auto& columns = job.data().label().column();
  if (columns.empty()) return {"label"};
  return {columns.begin(), columns.end()};
}

void AddTask(const std::string& label, const std::vector<std::string>& inputs, Job* job) {
  Task* const task = job->add_task();
  task->set_label(label);
  for (const std::string& input : inputs) task->add_input(input);
}
void AddTask(const std::vector<std::string>& inputs, Job* job) {
  AddTask(LabelsOf(*job)[0], inputs, job);
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

// DIN, BST, TBSM
// ------------------------------------------------------------------------------------------------

Error NeedsSequences(const char* name, const ModelInputs& inputs) {
  if (!inputs.sequences.empty()) return std::nullopt;
  return ModelError{name, "needs a `sequence`, and the job has none"};
}

// The sample's own features that the steps of a sequence are compared with: those that end it, or
// those that read the tables of its parts, of which one each has one key. Where that isn't so,
// fills `why`. A bag is taken where there is nothing else, since earlier programs took it.
std::vector<std::string> QueryOf(const Job& job, const ModelInputs& inputs, size_t sequence,
                                 std::string* why) {
  const auto& then = job.sequence(static_cast<int>(sequence)).then();
  if (!then.empty()) return {then.begin(), then.end()};
  std::vector<std::string> query;
  const StepSequence& steps = inputs.sequences[sequence];
  for (int i = 0; i < steps.features; ++i) {
    const std::string& list = job.sequence(static_cast<int>(sequence)).of(i);
    const std::string& table = inputs.features[steps.first_feature + i].table;
    std::vector<std::string> own;
    for (const bool is_bag : {false, true}) {
      if (!own.empty()) break;
      for (const EmbeddedFeature& feature : inputs.features) {
        if (!feature.is_sequence && feature.is_bag == is_bag && feature.table == table) {
          own.push_back(feature.name);
        }
      }
    }
    if (own.empty()) {
      *why = absl::StrCat("for '", list,
                          "' there is no feature in the same table that is no list; set its "
                          "`table` to the name of the feature that has one such value in each row");
    } else if (own.size() > 1) {
      *why = absl::StrCat("for '", list, "' there are '", own[0], "' and '", own[1],
                          "' in the same table; `then` of the sequence says which one");
    }
    query.push_back(own.empty() ? "" : own[0]);
  }
  return query;
}

// The numbers and the features that are no lists.
std::vector<std::string> OwnFeatures(const ModelInputs& inputs) {
  std::vector<std::string> own;
  if (inputs.numeric > 0) own.push_back("numeric");
  const bool has_fields = std::any_of(inputs.features.begin(), inputs.features.end(),
                                      [](const auto& feature) { return !feature.is_sequence; });
  if (has_fields) own.push_back("fields");
  return own;
}

// A name for a layer over the sequence.
std::string NameFor(const char* what, const ModelInputs& inputs, size_t sequence) {
  return inputs.sequences.size() == 1 ? what
                                      : absl::StrCat(what, "_", inputs.sequences[sequence].name);
}

Error CheckDin(const Job& job, const ModelInputs& inputs) {
  const Din& preset = job.din();
  Error error = NeedsSequences("din", inputs);
  if (!error.has_value()) error = CheckWidths("din.attention", preset.attention());
  if (!error.has_value()) error = CheckMlp("din.deep", preset.deep());
  if (!error.has_value()) error = CheckDropout("din.dropout", preset.dropout());
  for (size_t s = 0; s < inputs.sequences.size() && !error.has_value(); ++s) {
    std::string why;
    QueryOf(job, inputs, s, &why);
    if (why.empty()) continue;
    error = ModelError{"din", absl::StrCat("compares each step of '", inputs.sequences[s].name,
                                           "' with the sample's own features, and ", why)};
  }
  return error;
}

void ExpandDin(const ModelInputs& inputs, Job* job) {
  const Din preset = job->din();
  std::vector<std::string> below = OwnFeatures(inputs);
  for (size_t s = 0; s < inputs.sequences.size(); ++s) {
    const std::string name = NameFor("interest", inputs, s);
    Layer::Attention* const attention =
        AddLayer(name, {inputs.sequences[s].name}, job)->mutable_attention();
    std::string why;
    for (const std::string& own : QueryOf(*job, inputs, s, &why)) attention->add_query(own);
    *attention->mutable_units() = preset.attention();
    attention->set_activation(Layer::PRELU);
    attention->set_softmax(preset.softmax());
    attention->set_without_last(inputs.sequences[s].ends_with_sample);
    below.push_back(name);
  }
  AddMlp("deep", below, preset.deep(), preset.dropout(), job);
  AddTask({"deep"}, job);
}

Error CheckBst(const Job& job, const ModelInputs& inputs) {
  const Bst& preset = job.bst();
  Error error = NeedsSequences("bst", inputs);
  if (!error.has_value()) error = CheckMlp("bst.deep", preset.deep());
  return error.has_value() ? error : CheckDropout("bst.dropout", preset.dropout());
}

void ExpandBst(const ModelInputs& inputs, Job* job) {
  const Bst preset = job->bst();
  std::vector<std::string> below = OwnFeatures(inputs);
  for (size_t s = 0; s < inputs.sequences.size(); ++s) {
    const std::string mixed = NameFor("transformer", inputs, s);
    Layer::SelfAttention* const attention =
        AddLayer(mixed, {inputs.sequences[s].name}, job)->mutable_self_attention();
    attention->set_heads(preset.heads());
    attention->set_blocks(preset.blocks());
    attention->set_units(preset.units());
    attention->set_dropout(preset.dropout());
    attention->set_positions(preset.positions());
    below.push_back(NameFor("mean", inputs, s));
    AddLayer(below.back(), {mixed}, job)->mutable_pool()->set_mode(Layer::Pool::MEAN);
  }
  AddMlp("deep", below, preset.deep(), preset.dropout(), job);
  AddTask({"deep"}, job);
}

Error CheckTbsm(const Job& job, const ModelInputs& inputs) {
  const Tbsm& preset = job.tbsm();
  if (inputs.sequences.size() != 1 || !inputs.sequences[0].ends_with_sample) {
    return ModelError{"tbsm", "needs one `sequence`, with `then`"};
  }
  Error error = CheckWidths("tbsm.bottom", preset.bottom());
  if (!error.has_value() && inputs.numeric == 0 && !preset.bottom().empty()) {
    error = ModelError{"tbsm.bottom[0]", "is set, but the job has no numeric features"};
  }
  if (!error.has_value()) error = CheckMlp("tbsm.top", preset.top());
  return error.has_value() ? error : CheckMlp("tbsm.head", preset.head());
}

void ExpandTbsm(const ModelInputs& inputs, Job* job) {
  const Tbsm preset = job->tbsm();
  const StepSequence& steps = inputs.sequences[0];
  std::vector<std::string> vectors;
  if (inputs.numeric > 0) {
    Layer* const bottom = AddMlp("bottom", {"numeric"}, preset.bottom(), 0, job);
    bottom->mutable_mlp()->add_units(inputs.features[steps.first_feature].dim);
    vectors.push_back("bottom");
  }
  vectors.push_back(steps.name);
  // What ends the sequence is its last step already.
  const auto& then = job->sequence(0).then();
  for (const EmbeddedFeature& feature : inputs.features) {
    const bool is_last_step = std::find(then.begin(), then.end(), feature.name) != then.end();
    if (!feature.is_sequence && !is_last_step) vectors.push_back(feature.name);
  }
  AddLayer("pairs", vectors, job)->mutable_dot()->set_keep_first(true);
  AddMlp("step", {"pairs"}, preset.top(), 0, job);
  AddLayer("vector", {"step"}, job)->mutable_normalize();
  AddLayer("last", {"vector"}, job)->mutable_pool()->set_mode(Layer::Pool::LAST);
  Layer::Attention* const context = AddLayer("context", {"vector"}, job)->mutable_attention();
  context->add_query("last");
  context->set_score(Layer::Attention::BILINEAR);
  context->set_without_last(true);
  AddMlp("head", {"context", "last"}, preset.head(), 0, job);
  AddTask({"head"}, job);
}

// MMoE, PLE
// ------------------------------------------------------------------------------------------------

// What the layers of each task are named by: the labels, or where they can't be, numbers.
std::vector<std::string> TaskNames(const std::vector<std::string>& labels) {
  if (std::all_of(labels.begin(), labels.end(), IsInputName)) return labels;
  std::vector<std::string> names;
  for (size_t i = 0; i < labels.size(); ++i) names.push_back(absl::StrCat(i));
  return names;
}

void AddExperts(const std::string& name, const std::vector<std::string>& inputs, uint32_t copies,
                const Widths& units, float dropout, Job* job) {
  AddMlp(name, inputs, units, dropout, job)->set_copies(copies);
}

void AddGate(const std::string& name, const std::vector<std::string>& experts,
             const std::vector<std::string>& by, Job* job) {
  Layer::Gate* const gate = AddLayer(name, experts, job)->mutable_gate();
  for (const std::string& input : by) gate->add_by(input);
}

// An MLP for the task, and the task.
void AddTower(const std::string& label, const std::string& task, const std::string& input,
              const Widths& units, float dropout, Job* job) {
  if (units.empty()) return AddTask(label, {input}, job);
  const std::string tower = "tower_" + task;
  AddMlp(tower, {input}, units, dropout, job);
  AddTask(label, {tower}, job);
}

Error CheckMmoe(const Job& job, const ModelInputs&) {
  const Mmoe& preset = job.mmoe();
  if (preset.experts() < 2) {
    return ModelError{"mmoe.experts",
                      absl::StrCat("is ", preset.experts(), "; it must be at least 2")};
  }
  Error error = CheckMlp("mmoe.expert", preset.expert());
  if (!error.has_value()) error = CheckWidths("mmoe.tower", preset.tower());
  return error.has_value() ? error : CheckDropout("mmoe.dropout", preset.dropout());
}

void ExpandMmoe(const ModelInputs& inputs, Job* job) {
  const Mmoe preset = job->mmoe();
  const std::vector<std::string> all = AllFeatures(inputs);
  const std::vector<std::string> labels = LabelsOf(*job);
  AddExperts("experts", all, preset.experts(), preset.expert(), preset.dropout(), job);
  const std::vector<std::string> tasks = TaskNames(labels);
  for (size_t i = 0; i < labels.size(); ++i) {
    const std::string& task = tasks[i];
    AddGate("mix_" + task, {"experts"}, all, job);
    AddTower(labels[i], task, "mix_" + task, preset.tower(), preset.dropout(), job);
  }
}

Error CheckPle(const Job& job, const ModelInputs&) {
  const Ple& preset = job.ple();
  for (const auto& [field, experts] : {std::pair("ple.shared_experts", preset.shared_experts()),
                                       std::pair("ple.task_experts", preset.task_experts())}) {
    if (experts < 1) return ModelError{field, "is 0; it must be at least 1"};
  }
  if (preset.levels() > kMaxLevels) {
    return ModelError{"ple.levels",
                      absl::StrCat("is ", preset.levels(), "; it must be at most ", kMaxLevels)};
  }
  Error error = CheckMlp("ple.expert", preset.expert());
  if (!error.has_value()) error = CheckWidths("ple.tower", preset.tower());
  return error.has_value() ? error : CheckDropout("ple.dropout", preset.dropout());
}

void ExpandPle(const ModelInputs& inputs, Job* job) {
  const Ple preset = job->ple();
  const std::vector<std::string> labels = LabelsOf(*job);
  const uint32_t levels = std::max(preset.levels(), 1u);
  const std::vector<std::string> tasks = TaskNames(labels);
  // What the experts and the gates of each task read at a level, and the shared ones.
  std::vector<std::vector<std::string>> of_task(labels.size(), AllFeatures(inputs));
  std::vector<std::string> of_all = AllFeatures(inputs);
  for (uint32_t level = 0; level < levels; ++level) {
    const std::string suffix = levels == 1 ? "" : absl::StrCat("_", level);
    const auto experts_of = [&](const std::string& task) {
      return absl::StrCat("experts_", task, suffix);
    };
    const std::string shared = absl::StrCat("shared", suffix);
    std::vector<std::string> all_experts;
    for (size_t i = 0; i < tasks.size(); ++i) {
      AddExperts(experts_of(tasks[i]), of_task[i], preset.task_experts(), preset.expert(),
                 preset.dropout(), job);
      all_experts.push_back(experts_of(tasks[i]));
    }
    AddExperts(shared, of_all, preset.shared_experts(), preset.expert(), preset.dropout(), job);
    all_experts.push_back(shared);
    for (size_t i = 0; i < tasks.size(); ++i) {
      const std::string mix = absl::StrCat("mix_", tasks[i], suffix);
      AddGate(mix, {experts_of(tasks[i]), shared}, of_task[i], job);
      of_task[i] = {mix};
    }
    if (level + 1 == levels) break;
    AddGate("shared_mix" + suffix, all_experts, of_all, job);
    of_all = {"shared_mix" + suffix};
  }
  for (size_t i = 0; i < tasks.size(); ++i) {
    AddTower(labels[i], tasks[i], of_task[i][0], preset.tower(), preset.dropout(), job);
  }
}

constexpr Preset kPresets[] = {
    {"dlrm", [](const Job& job) { return job.has_dlrm(); }, CheckDlrm, ExpandDlrm},
    {"wide_deep", [](const Job& job) { return job.has_wide_deep(); }, CheckWideDeep,
     ExpandWideDeep},
    {"deepfm", [](const Job& job) { return job.has_deepfm(); }, CheckDeepFm, ExpandDeepFm},
    {"dcnv2", [](const Job& job) { return job.has_dcnv2(); }, CheckDcnv2, ExpandDcnv2},
    {"finalmlp", [](const Job& job) { return job.has_finalmlp(); }, CheckFinalMlp, ExpandFinalMlp},
    {"din", [](const Job& job) { return job.has_din(); }, CheckDin, ExpandDin},
    {"bst", [](const Job& job) { return job.has_bst(); }, CheckBst, ExpandBst},
    {"tbsm", [](const Job& job) { return job.has_tbsm(); }, CheckTbsm, ExpandTbsm},
    {"mmoe", [](const Job& job) { return job.has_mmoe(); }, CheckMmoe, ExpandMmoe},
    {"ple", [](const Job& job) { return job.has_ple(); }, CheckPle, ExpandPle},
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
  job->clear_din();
  job->clear_bst();
  job->clear_tbsm();
  job->clear_mmoe();
  job->clear_ple();
}

}  // namespace thermocline
