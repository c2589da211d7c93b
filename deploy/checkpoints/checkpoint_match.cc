#include "deploy/checkpoints/checkpoint_match.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/process.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_manifest.h"
#include "common/job/job_data.h"
#include "common/job/job_source.h"
#include "common/job/resolved_job.h"
#include "common/math/table_spec.h"
#include "common/model/presets.h"
#include "common/model/sequences.h"

namespace thermocline {
namespace {

using Message = google::protobuf::Message;
using FieldDescriptor = google::protobuf::FieldDescriptor;

absl::Status Differs(const std::string& what) { return absl::FailedPreconditionError(what); }

const TableLayout* Find(const std::vector<TableLayout>& tables, const std::string& name) {
  const auto found = std::find_if(tables.begin(), tables.end(),
                                  [&](const TableLayout& table) { return table.name == name; });
  return found == tables.end() ? nullptr : &*found;
}

std::string ValueText(const Message& message, const FieldDescriptor& field) {
  std::vector<std::string> values;
  const int count = field.is_repeated() ? message.GetReflection()->FieldSize(message, &field) : 1;
  for (int i = 0; i < count; ++i) {
    google::protobuf::TextFormat::Printer printer;
    printer.SetSingleLineMode(true);
    values.emplace_back();
    printer.PrintFieldValueToString(message, &field, field.is_repeated() ? i : -1, &values.back());
  }
  std::string text = absl::StrJoin(values, ", ");
  const bool is_many = field.is_repeated() || field.message_type() != nullptr;
  return is_many ? absl::StrCat("{", absl::StripAsciiWhitespace(text), "}") : text;
}

// The first field that differs, but for those of `ignored`: new fields matter. REQUIRES: of one
// type
absl::Status CheckFields(const Message& here, const Message& there,
                         const std::set<std::string>& ignored, const std::string& prefix) {
  const auto* type = here.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor& field = *type->field(i);
    const std::string name(field.name());
    if (ignored.count(name) != 0) continue;
    const std::string value = ValueText(here, field), before = ValueText(there, field);
    if (value == before) continue;
    return Differs(
        absl::StrCat(prefix, name, " is ", value, ", and the checkpoint was made with ", before));
  }
  return absl::OkStatus();
}

// The index of `feature`, which is one of the job's.
int IndexOf(const Job& job, const Feature* feature) {
  int index = 0;
  while (&job.feature(index) != feature) ++index;
  return index;
}

bool HasFeature(const std::vector<const Feature*>& features, const std::string& name) {
  return std::any_of(features.begin(), features.end(),
                     [&name](const Feature* feature) { return feature->name() == name; });
}

// Compares features of one kind: those that read tables, or the numeric ones. `here`: features of
// `job`.
absl::Status CheckFeatures(const Job& job, const std::vector<const Feature*>& here,
                           const std::vector<const Feature*>& before, absl::string_view kind,
                           const std::set<std::string>& ignored) {
  for (const Feature* feature : here) {
    if (HasFeature(before, feature->name())) continue;
    return Differs(absl::StrCat("the checkpoint has no", kind, " feature '", feature->name(), "'"));
  }
  for (const Feature* feature : before) {
    if (HasFeature(here, feature->name())) continue;
    return Differs(absl::StrCat("the checkpoint has a", kind, " feature '", feature->name(),
                                "', the job has none"));
  }
  if (here.size() != before.size()) return Differs("the checkpoint has a feature twice");
  for (size_t i = 0; i < before.size(); ++i) {
    RETURN_IF_ERROR(CheckFields(*here[i], *before[i], ignored,
                                absl::StrCat("feature[", IndexOf(job, here[i]), "].")));
  }
  return absl::OkStatus();
}

// As this program resolves it: older programs listed fewer features, and had a preset for layers.
Job JobOf(const CheckpointManifest& manifest) {
  Job job = manifest.job();
  ResolveJob(&job);
  ExpandPreset(InputsOf(job), &job);
  return job;
}

// So that equal data compare equal, whichever form they were written in.
Data WithoutPaths(const Job& job, bool described) {
  Data data = described ? DescribeData(job.data()) : job.data();
  data.clear_path();
  data.clear_test_path();
  if (data.has_train()) data.mutable_train()->clear_path();
  if (data.has_test()) data.mutable_test()->clear_path();
  data.clear_group();  // Only evaluations read it.
  data.clear_max_bad_lines();
  data.clear_read_ahead_batches();
  data.clear_parser_threads();
  data.clear_s3();                        // Where the same rows are reached.
  if (described) data.clear_num_dense();  // The features imply it.
  if (described) data.clear_num_categorical();
  return data;
}

// All of `fae` but later changes of the rate decides which samples are hot, and so the samples of
// every step. The rate itself is in the checkpoint, or is still the first.
absl::Status CheckFae(const Job& job, const Job& before) {
  if (job.has_fae() != before.has_fae()) {
    return Differs(absl::StrCat(
        "the job has ", job.has_fae() ? "" : "no ", "`fae`, and the checkpoint was made with",
        job.has_fae() ? "out it" : " it", ": a step would be other samples"));
  }
  if (!job.has_fae()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFields(job.fae(), before.fae(), {"schedule"}, "fae."));
  RETURN_IF_ERROR(CheckFields(job.fae().schedule(), before.fae().schedule(),
                              {"min_rate", "max_rate", "falls_to_double", "scored_rows"},
                              "fae.schedule."));
  return CheckFields(job.calibration(), before.calibration(), {"directory"}, "calibration.");
}

// As CheckFeatures() of those that both have. Whether there are others, of which `notices` gets a
// line each.
absl::StatusOr<bool> CheckKeptFeatures(const Job& job, const std::vector<const Feature*>& here,
                                       const std::vector<const Feature*>& before,
                                       absl::string_view kind, const std::set<std::string>& ignored,
                                       std::vector<std::string>* notices) {
  std::vector<const Feature*> kept, kept_before;
  for (const Feature* feature : here) {
    if (HasFeature(before, feature->name())) {
      kept.push_back(feature);
    } else {
      notices->push_back(absl::StrCat("the", kind, " feature '", feature->name(), "' is new"));
    }
  }
  for (const Feature* feature : before) {
    if (HasFeature(here, feature->name())) {
      kept_before.push_back(feature);
    } else {
      notices->push_back(absl::StrCat("the", kind, " feature '", feature->name(),
                                      "' of the checkpoint is left out: the job has none"));
    }
  }
  RETURN_IF_ERROR(CheckFeatures(job, kept, kept_before, kind, ignored));
  return kept.size() != here.size() || kept_before.size() != before.size();
}

// The layers that the tensors are of
// ------------------------------------------------------------------------------------------------

// "top" of "top.0.weight"; a task's label may have dots of its own.
std::string LayerOf(const Job& job, const std::string& tensor) {
  for (const Task& task : job.task()) {
    if (absl::StartsWith(tensor, task.label() + ".")) return task.label();
  }
  return tensor.substr(0, tensor.find('.'));
}

const Layer* FindLayer(const Job& job, const std::string& name) {
  const auto found = std::find_if(job.layer().begin(), job.layer().end(),
                                  [&](const Layer& layer) { return layer.name() == name; });
  return found == job.layer().end() ? nullptr : &*found;
}

// Whether a layer only rearranges or combines its inputs, without tensors.
bool HasNoTensors(const Layer& layer) {
  return layer.has_dot() || layer.has_fm() || layer.has_concat() || layer.has_add() ||
         layer.has_multiply() || layer.has_normalize() || layer.has_pool();
}

// Whether number i of the layer's value is about number i of its input.
bool KeepsPlaces(const Layer& layer) {
  return layer.has_feature_gate() || layer.has_cross() || layer.has_embed() ||
         layer.has_attention() || layer.has_self_attention();
}

// Whether a tensor of `layer` reads the layer's inputs. In an mlp those of the first of its fully
// connected layers do, in each of its copies: "deep.0.weight", "experts.3.0.weight".
bool ReadsInputs(const Layer& layer, const std::string& tensor) {
  if (!layer.has_mlp()) return true;
  const std::vector<std::string> parts =
      absl::StrSplit(absl::StripPrefix(tensor, layer.name() + "."), '.');
  return parts[layer.copies() > 0 ? 1 : 0] == "0";
}

// Adds what `inputs` stand for: features, and the layers with tensors that are read directly or
// through layers without.
void AddSources(const Job& job, const google::protobuf::RepeatedPtrField<std::string>& inputs,
                std::vector<std::string>* sources) {
  for (const std::string& input : inputs) {
    const auto group =
        std::find_if(job.group().begin(), job.group().end(),
                     [&](const FeatureGroup& group) { return group.name() == input; });
    const Layer* const layer = FindLayer(job, input);
    const auto sequence =
        std::find_if(job.sequence().begin(), job.sequence().end(),
                     [&](const Sequence& sequence) { return sequence.name() == input; });
    if (sequence != job.sequence().end()) {
      for (const std::string& list : sequence->of()) sources->push_back(list + " by step");
    } else if (input == "numeric") {
      for (const Feature* feature : NumericFeatures(job)) sources->push_back(feature->name());
    } else if (input == "categorical" || input == "fields") {
      for (const Feature* feature : EmbeddedFeatures(job)) {
        if (input == "categorical" || !feature->has_sequence()) sources->push_back(feature->name());
      }
    } else if (group != job.group().end()) {
      AddSources(job, group->feature(), sources);
    } else if (layer != nullptr && HasNoTensors(*layer)) {
      AddSources(job, layer->input(), sources);
    } else {
      sources->push_back(input);
      if (layer != nullptr && KeepsPlaces(*layer)) AddSources(job, layer->input(), sources);
    }
  }
}

// What a layer or a task reads.
std::vector<std::string> SourcesOf(const Job& job, const std::string& name) {
  std::vector<std::string> sources;
  if (const Layer* const layer = FindLayer(job, name); layer != nullptr) {
    AddSources(job, layer->input(), &sources);
    AddSources(job, ContextNamesOf(*layer).names, &sources);
  }
  for (const Task& task : job.task()) {
    if (task.label() == name) AddSources(job, task.input(), &sources);
  }
  return sources;
}

// Which dense tensors are taken from a checkpoint.
struct KeptTensors {
  std::vector<std::string> kept;
  std::vector<std::string> anew;     // The checkpoint has them, with other inputs.
  std::vector<std::string> resized;  // Begin anew, too: they have more rows, or fewer.
  std::vector<std::string> missing;  // The checkpoint has none.
  std::set<std::string> lost_layers;
};

// Compares tensors by their names and shapes. A tensor whose layer reads others than before begins
// anew, even if it has the same shape: its rows may say nothing of these. Of a stack of fully
// connected layers that is the first one. Errors: kFailedPrecondition (one has another width).
absl::StatusOr<KeptTensors> CompareTensors(const Job& job, const Job& before) {
  KeptTensors tensors;
  const std::vector<DenseTable> there = ResolveTables(before).dense;
  std::set<std::string> layers;
  for (const DenseTable& tensor : ResolveTables(job).dense) {
    const std::string& name = tensor.layout.name;
    const std::string layer = LayerOf(job, name);
    layers.insert(layer);
    const auto old = std::find_if(there.begin(), there.end(), [&](const DenseTable& table) {
      return table.layout.name == name;
    });
    if (old == there.end()) {
      tensors.missing.push_back(name);
      continue;
    }
    const Layer* const stanza = FindLayer(job, layer);
    const bool is_mlp = stanza != nullptr && stanza->has_mlp();
    const bool reads_inputs = stanza == nullptr || ReadsInputs(*stanza, name);
    const bool has_other_inputs = reads_inputs && SourcesOf(job, layer) != SourcesOf(before, layer);
    if (tensor.cols != old->cols && (is_mlp || !has_other_inputs)) {
      return Differs(absl::StrCat("the MLPs differ: a layer is '", name, "' of ", tensor.rows,
                                  " x ", tensor.cols, " here, and was of ", old->rows, " x ",
                                  old->cols,
                                  " in the checkpoint; a layer of another name begins "
                                  "anew"));
    }
    (has_other_inputs           ? tensors.anew
     : tensor.rows != old->rows ? tensors.resized
                                : tensors.kept)
        .push_back(name);
  }
  for (const DenseTable& tensor : there) {
    const std::string layer = LayerOf(before, tensor.layout.name);
    if (layers.count(layer) == 0) tensors.lost_layers.insert(layer);
  }
  return tensors;
}

// "tables u, v", or "no tables".
std::string Names(const char* what, const std::vector<std::string>& names) {
  return names.empty() ? absl::StrCat("no ", what)
                       : absl::StrCat(what, " ", absl::StrJoin(names, ", "));
}

void AddTensorNotices(const std::vector<std::string>& kept_tables, const KeptTensors& tensors,
                      bool features_change, std::vector<std::string>* notices) {
  for (const std::string& layer : tensors.lost_layers) {
    notices->push_back(
        absl::StrCat("layer '", layer, "' of the checkpoint is left out: the job has none"));
  }
  const bool is_whole = tensors.anew.empty() && tensors.resized.empty() && tensors.missing.empty();
  if (is_whole && tensors.lost_layers.empty() && !features_change) return;
  std::string text = absl::StrCat("kept of the checkpoint: ", Names("tables", kept_tables), "; ",
                                  Names("layers", tensors.kept));
  if (!tensors.anew.empty()) {
    absl::StrAppend(&text, ". These begin anew, since their inputs are ",
                    features_change ? "other features" : "others", ": ",
                    absl::StrJoin(tensors.anew, ", "));
  }
  if (!tensors.resized.empty()) {
    absl::StrAppend(&text, ". These begin anew, since they have another size here: ",
                    absl::StrJoin(tensors.resized, ", "));
  }
  if (!tensors.missing.empty()) {
    absl::StrAppend(&text, ". The checkpoint has none of these, which begin anew: ",
                    absl::StrJoin(tensors.missing, ", "));
  }
  notices->push_back(text);
}

// A field of a layer as it stands in a job: "[400, 400]".
std::string FieldText(const Message& message, const FieldDescriptor& field) {
  const std::string text = ValueText(message, field);
  if (!field.is_repeated()) return text;
  return absl::StrCat("[", text.substr(1, text.size() - 2), "]");
}

// The first field in which two layers, or parts of them, differ: "units [400, 400] here, [256]".
// How much a layer drops and how much a task weighs may change, as the learning rate may; how
// tensors begin is compared by table.
std::string LayerDifference(const Message& here, const Message& there) {
  const auto* type = here.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor& field = *type->field(i);
    const std::string name(field.name());
    const bool is_of_training = name == "dropout" || name == "weight";
    if (is_of_training || name == "initializer" || name == "optimizer") continue;
    if (ValueText(here, field) == ValueText(there, field)) continue;
    const auto* reflection = here.GetReflection();
    const bool is_part = !field.is_repeated() && field.message_type() != nullptr;
    if (!is_part) {
      return absl::StrCat(name, " ", FieldText(here, field), " here, ", FieldText(there, field));
    }
    if (reflection->HasField(here, &field) != there.GetReflection()->HasField(there, &field)) {
      return absl::StrCat(reflection->HasField(here, &field) ? "" : "no ", name, " here, ",
                          reflection->HasField(here, &field) ? "none" : "one");
    }
    const std::string part = LayerDifference(reflection->GetMessage(here, &field),
                                             there.GetReflection()->GetMessage(there, &field));
    if (!part.empty()) return part;
  }
  return "";
}

// Compares what has a name: layers, groups, tasks. `kind`: "layer".
template <typename Stanza, typename Name>
absl::Status CheckStanzas(const google::protobuf::RepeatedPtrField<Stanza>& here,
                          const google::protobuf::RepeatedPtrField<Stanza>& there, const char* kind,
                          Name name_of) {
  const auto find = [&](const auto& stanzas, const std::string& name) {
    return std::find_if(stanzas.begin(), stanzas.end(),
                        [&](const Stanza& stanza) { return name_of(stanza) == name; });
  };
  for (const Stanza& stanza : there) {
    if (find(here, name_of(stanza)) != here.end()) continue;
    return Differs(
        absl::StrCat("the checkpoint has a ", kind, " '", name_of(stanza), "', the job has none"));
  }
  for (const Stanza& stanza : here) {
    const auto before = find(there, name_of(stanza));
    if (before == there.end()) {
      return Differs(absl::StrCat("the checkpoint has no ", kind, " '", name_of(stanza), "'"));
    }
    const std::string difference = LayerDifference(stanza, *before);
    if (difference.empty()) continue;
    return Differs(absl::StrCat("the ", kind, " '", name_of(stanza), "' has ", difference,
                                " in the checkpoint"));
  }
  return absl::OkStatus();
}

absl::Status CheckTables(const std::vector<TableLayout>& here,
                         const std::vector<TableLayout>& there) {
  for (const TableLayout& table : here) {
    if (Find(there, table.name) != nullptr) continue;
    return Differs(absl::StrCat("the checkpoint has no table '", table.name, "'"));
  }
  for (const TableLayout& table : there) {
    if (Find(here, table.name) != nullptr) continue;
    return Differs(absl::StrCat("the checkpoint has a table '", table.name, "', the job has none"));
  }
  for (const TableLayout& table : here) {
    const std::string difference = DescribeRowDifference(table, *Find(there, table.name));
    if (!difference.empty()) return Differs(difference + ", in the checkpoint");
  }
  return absl::OkStatus();
}

// Leaves out dense tables, and tables of which one has first-order weights and the other doesn't.
void KeepComparable(std::vector<TableLayout>* here, std::vector<TableLayout>* there) {
  std::set<std::string> left_out;
  for (const TableLayout& table : *there) {
    const TableLayout* const same = Find(*here, table.name);
    const bool differ =
        same != nullptr && same->first_order.has_value() != table.first_order.has_value();
    if (differ || table.role == TableRole::kDense) left_out.insert(table.name);
  }
  const auto remove = [&](std::vector<TableLayout>* tables) {
    const auto is_left_out = [&](const TableLayout& t) { return left_out.count(t.name) != 0; };
    tables->erase(std::remove_if(tables->begin(), tables->end(), is_left_out), tables->end());
  };
  remove(here);
  remove(there);
}

// Whether both jobs have the same layers.
absl::Status CheckGraph(const Job& job, const Job& before) {
  const auto by_name = [](const auto& stanza) { return stanza.name(); };
  RETURN_IF_ERROR(CheckStanzas(job.layer(), before.layer(), "layer", by_name));
  RETURN_IF_ERROR(CheckStanzas(job.group(), before.group(), "group", by_name));
  RETURN_IF_ERROR(CheckStanzas(job.sequence(), before.sequence(), "sequence", by_name));
  return CheckStanzas(job.task(), before.task(), "task",
                      [](const Task& task) { return task.label(); });
}

// A script's model is its own: it gets the state that a script has saved, and no layers. `kept`:
// tables. REQUIRES: one of the jobs has a script
void AddScriptNotices(const Job& job, const Job& before, const std::vector<std::string>& kept,
                      bool features_change, std::vector<std::string>* notices) {
  if (!before.has_worker()) {
    notices->push_back(
        "the layers of the checkpoint's model are left out: the job's model is a script, which "
        "begins without a state");
  } else if (!job.has_worker()) {
    notices->push_back(
        "the state of the checkpoint's script is left out: the job has none, so that its layers "
        "begin anew");
  }
  if (!features_change) return;
  notices->push_back(absl::StrCat(
      "kept of the checkpoint: ", kept.empty() ? "no table" : "tables ", absl::StrJoin(kept, ", "),
      job.has_worker() && before.has_worker()
          ? ", and the script's state, which was made for the other features"
          : ""));
}

using FileList = google::protobuf::RepeatedPtrField<DataFile>;

// The place in `files` of one that is `file`, wherever it lies; -1: there is none.
int PlaceOf(const DataFile& file, const FileList& files) {
  for (int i = 0; i < files.size(); ++i) {
    if (files[i].has_bytes() == file.has_bytes() && DescribeChange(files[i], file).empty())
      return i;
  }
  return -1;
}

// Describes how file `i` of `now` differs from that of `before`. `kind`: "training".
std::string DescribeOther(const FileList& now, const FileList& before, int i, const char* kind) {
  const std::string& path = now[i].path();
  if (path == before[i].path()) {
    return absl::StrCat(path, " ", DescribeChange(now[i], before[i]));
  }
  const std::string place = absl::StrCat(" is ", kind, " file ", i + 1);
  if (const int was = PlaceOf(now[i], before); was >= 0) {
    return absl::StrCat(path, place, " now, and was file ", was + 1);
  }
  if (PlaceOf(before[i], now) >= 0) {
    return absl::StrCat(path, place, ", where ", before[i].path(), " was");
  }
  return absl::StrCat(path, place, ", in place of ", before[i].path(), ", and is another: it ",
                      DescribeChange(now[i], before[i]));
}

absl::Status CheckFiles(const FileList& now, const FileList& before, const char* kind,
                        std::vector<std::string>* added) {
  for (int i = 0; i < before.size(); ++i) {
    if (i >= now.size()) {
      return Differs(absl::StrCat(before[i].path(), ", ", kind, " file ", i + 1,
                                  ", is gone: there are ", now.size(), " now"));
    }
    if (DescribeChange(now[i], before[i]).empty()) continue;
    return Differs(DescribeOther(now, before, i, kind));
  }
  for (int i = before.size(); i < now.size(); ++i) added->push_back(now[i].path());
  return absl::OkStatus();
}

// "a.csv, b.csv and 3 more"
std::string ListSome(const std::vector<std::string>& paths) {
  constexpr size_t kMost = 5;
  if (paths.size() <= kMost) return absl::StrJoin(paths, ", ");
  return absl::StrCat(absl::StrJoin(paths.begin(), paths.begin() + kMost, ", "), " and ",
                      paths.size() - kMost, " more");
}

}  // namespace

absl::Status CheckModel(const Job& job, const CheckpointManifest& manifest) {
  if (job.seed() != manifest.seed()) {
    return Differs(absl::StrCat("seed is ", job.seed(), ", and the checkpoint was made with ",
                                manifest.seed(), ": rows that it lacks would begin otherwise"));
  }
  if (job.has_worker() != manifest.job().has_worker()) {
    return Differs(job.has_worker() ? "the job has a script (`worker`), and the checkpoint's job "
                                      "has layers"
                                    : "the job has layers, and the checkpoint's job has a script "
                                      "(`worker`)");
  }
  const Job before = JobOf(manifest);
  const std::vector<TableLayout> there = TablesOf(manifest);
  // Layers explain the tables that they have.
  if (!job.has_worker()) {
    std::vector<TableLayout> here = ResolveTables(job).sparse;
    std::vector<TableLayout> sparse_there = there;
    KeepComparable(&here, &sparse_there);
    RETURN_IF_ERROR(CheckTables(here, sparse_there));
    RETURN_IF_ERROR(CheckGraph(job, before));
  }
  RETURN_IF_ERROR(CheckTables(ResolveTables(job).AllLayouts(), there));
  // The source of a feature's ids belongs to the data, which CheckData compares.
  return CheckFeatures(job, EmbeddedFeatures(job), EmbeddedFeatures(before), "",
                       {"columns", "padding_id", "column", "categorical", "sequence", "cross"});
}

absl::Status CheckData(const Job& job, const CheckpointManifest& manifest) {
  const uint32_t before = manifest.job().train().batch_size();
  if (before != job.train().batch_size()) {
    return Differs(absl::StrCat("train.batch_size is ", job.train().batch_size(),
                                ", and the checkpoint was made with ", before,
                                ": a step would be other samples"));
  }
  const Job there = JobOf(manifest);
  RETURN_IF_ERROR(CheckFae(job, there));
  const bool described = job.data().has_train() || there.data().has_train();
  RETURN_IF_ERROR(
      CheckFields(WithoutPaths(job, described), WithoutPaths(there, described), {}, "data."));
  const std::vector<std::string> labels = LearnedLabels(job), before_labels = LearnedLabels(there);
  if (labels != before_labels) {
    return Differs(absl::StrCat("the model learns '", absl::StrJoin(labels, "', '"),
                                "' (task.label), and the checkpoint's learned '",
                                absl::StrJoin(before_labels, "', '"), "'"));
  }
  RETURN_IF_ERROR(CheckFeatures(job, EmbeddedFeatures(job), EmbeddedFeatures(there), "", {}));
  return CheckFeatures(job, NumericFeatures(job), NumericFeatures(there), " numeric", {});
}

absl::Status CheckDataFiles(const Job& job, const CheckpointManifest& manifest,
                            std::vector<std::string>* notices) {
  if (!manifest.job().has_data_files()) {
    notices->push_back(
        "the checkpoint does not know its data files: whether the data are the same is not "
        "checked");
    return absl::OkStatus();
  }
  if (!job.has_data_files()) return Differs("the data can't be compared with the checkpoint's");
  const DataFiles& now = job.data_files();
  const DataFiles& before = manifest.job().data_files();
  std::vector<std::string> train, test;
  RETURN_IF_ERROR(CheckFiles(now.train(), before.train(), "training", &train));
  RETURN_IF_ERROR(CheckFiles(now.test(), before.test(), "held-out", &test));
  const bool has_share = before.test().empty() && DescribeData(job.data()).split().last_share() > 0;
  if (!train.empty()) {
    notices->push_back(absl::StrCat(
        "added behind the files that the checkpoint was made with, and trained from now on: ",
        ListSome(train),
        has_share ? "; the last share of all rows is held out, so rows that were are trained"
                  : ""));
  }
  if (!test.empty()) {
    notices->push_back(absl::StrCat("added to the held-out files: ", ListSome(test)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> CheckInit(const Job& job,
                                                   const CheckpointManifest& manifest,
                                                   std::vector<std::string>* notices) {
  const Job before = JobOf(manifest);
  ASSIGN_OR_RETURN(const bool tables_change,
                   CheckKeptFeatures(job, EmbeddedFeatures(job), EmbeddedFeatures(before), "",
                                     {"columns", "padding_id", "column", "categorical", "sequence",
                                      "cross", "table"},
                                     notices));
  ASSIGN_OR_RETURN(const bool numbers_change,
                   CheckKeptFeatures(job, NumericFeatures(job), NumericFeatures(before), " numeric",
                                     {"column", "numeric"}, notices));
  std::vector<std::string> kept;
  const std::vector<TableLayout> here = ResolveTables(job).sparse, there = TablesOf(manifest);
  for (const TableLayout& table : ResolveTables(job).AllLayouts()) {
    const TableLayout* const old = Find(there, table.name);
    if (old == nullptr) continue;
    const std::string difference = DescribeInitDifference(table, *old);
    if (!difference.empty()) return Differs(difference + ", in the checkpoint");
  }
  for (const TableLayout& table : here) {
    if (const TableLayout* const old = Find(there, table.name); old != nullptr) {
      kept.push_back(table.name);
      if (table.first_order.has_value() != old->first_order.has_value()) {
        notices->push_back(absl::StrCat("the first-order weights of table '", table.name, "' ",
                                        table.first_order.has_value()
                                            ? "begin anew: the checkpoint has none"
                                            : "are left out: the job has none"));
      }
      continue;
    }
    notices->push_back(
        absl::StrCat("table '", table.name, "' is not in the checkpoint: its rows begin anew"));
  }
  for (const TableLayout& table : ResolveTables(before).sparse) {
    if (Find(here, table.name) != nullptr) continue;
    notices->push_back(
        absl::StrCat("table '", table.name, "' of the checkpoint is left out: the job has none"));
  }
  if (job.has_worker() || before.has_worker()) {
    AddScriptNotices(job, before, kept, numbers_change || tables_change, notices);
    return std::vector<std::string>();
  }
  ASSIGN_OR_RETURN(KeptTensors tensors, CompareTensors(job, before));
  AddTensorNotices(kept, tensors, numbers_change || tables_change, notices);
  tensors.anew.insert(tensors.anew.end(), tensors.resized.begin(), tensors.resized.end());
  return std::move(tensors.anew);
}

std::string ResolvedCpuIsa(const Job& job) {
  const CpuIsa wish = job.cluster().cpu_isa();
  if (wish != AUTO) return CpuIsa_Name(wish);
  return CpuIsa_Name(CpuHasAvx512() ? AVX512 : AVX2);
}

CheckpointManifest ManifestOf(const Job& job, const std::string& build) {
  CheckpointManifest manifest;
  manifest.set_format_version(kCheckpointFormatVersion);
  manifest.set_job_id(job.name());
  manifest.set_num_servers(NumServers(job.cluster()));
  manifest.set_num_workers(job.cluster().workers());
  manifest.set_seed(job.seed());
  for (const TableLayout& layout : ResolveTables(job).AllLayouts()) {
    *manifest.add_tables() = TableLayoutToProto(layout);
  }
  *manifest.mutable_job() = job;
  manifest.set_cpu_isa(ResolvedCpuIsa(job));
  manifest.set_build(build);
  return manifest;
}

std::string DescribeOrigin(const Job& job, const std::string& build, const std::string& name,
                           const CheckpointManifest& manifest) {
  std::vector<std::string> differences;
  const auto compare = [&](const char* what, const std::string& before, const std::string& here) {
    if (before.empty() || before == here) return;
    differences.push_back(absl::StrCat(what, " ", before, " (this run: ", here, ")"));
  };
  // Older checkpoints hold the value of the job file.
  if (manifest.cpu_isa() != CpuIsa_Name(AUTO)) {
    compare("cpu_isa", manifest.cpu_isa(), ResolvedCpuIsa(job));
  }
  compare("build", manifest.build(), build);
  if (differences.empty()) return "";
  return absl::StrCat("checkpoint ", name, " was made with ", absl::StrJoin(differences, ", "));
}

}  // namespace thermocline
