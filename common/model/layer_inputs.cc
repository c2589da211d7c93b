#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/model/layer_reader.h"
#include "common/model/sequences.h"

namespace thermocline {
namespace {

using google::protobuf::RepeatedPtrField;

std::string FieldOf(const char* list, int index, const std::string& field) {
  return absl::StrCat(list, "[", index, "].", field);
}

}  // namespace

std::string LayerReader::Field(int layer, const std::string& field) {
  return FieldOf("layer", layer, field);
}

// Names and inputs
// ------------------------------------------------------------------------------------------------

int LayerReader::LayerNamed(const std::string& name) const {
  for (int i = 0; i < job_.layer_size(); ++i) {
    if (NameOf(i) == name) return i;
  }
  return -1;
}

int LayerReader::SequenceNamed(const std::string& name) const {
  const auto named =
      std::find_if(inputs_.sequences.begin(), inputs_.sequences.end(),
                   [&](const StepSequence& sequence) { return sequence.name == name; });
  return named == inputs_.sequences.end() ? -1
                                          : static_cast<int>(named - inputs_.sequences.begin());
}

bool LayerReader::IsTaken(const std::string& name) const {
  return IsReservedName(name) || SequenceNamed(name) >= 0 ||
         std::any_of(inputs_.features.begin(), inputs_.features.end(),
                     [&](const auto& feature) { return feature.name == name; });
}

ModelError LayerReader::UnknownName(const std::string& field, const std::string& name) const {
  std::vector<std::string> names = {"numeric", "categorical", "fields"};
  for (const Layer& layer : job_.layer()) names.push_back(layer.name());
  for (const EmbeddedFeature& feature : inputs_.features) {
    if (feature.sequence < 0) names.push_back(feature.name);
  }
  for (const StepSequence& sequence : inputs_.sequences) names.push_back(sequence.name);
  for (const auto& [group, items] : groups_) names.push_back(group);
  if (inputs_.numeric_names.count(name) > 0) {
    return {field,
            absl::StrCat("is '", name, "', a number; layers read all numbers, as 'numeric'")};
  }
  return {field,
          absl::StrCat("is '", name, "', but no layer, feature, sequence or group has this name",
                       DidYouMean(name, names))};
}

std::optional<ModelError> LayerReader::ResolveName(const std::string& field,
                                                   const std::string& name, int before_layer,
                                                   std::vector<Item>* items) const {
  const int layer = LayerNamed(name);
  if (layer >= before_layer) {
    return ModelError{field,
                      absl::StrCat("is '", name, "', which is ",
                                   layer == before_layer ? "the layer itself" : "a later layer",
                                   "; a layer reads layers before it alone")};
  }
  if (layer >= 0) {
    items->push_back({Item::Kind::kLayer, layer});
    return std::nullopt;
  }
  const int sequence = SequenceNamed(name);
  if (sequence >= 0) {
    items->push_back({Item::Kind::kSequence, sequence});
    return std::nullopt;
  }
  const auto group = groups_.find(name);
  if (group != groups_.end()) {
    items->insert(items->end(), group->second.begin(), group->second.end());
    return std::nullopt;
  }
  if (name == "numeric") {
    if (inputs_.numeric == 0) {
      return ModelError{field, "is 'numeric', but the job has no numeric features"};
    }
    items->push_back({Item::Kind::kNumeric, 0});
    return std::nullopt;
  }
  const bool all = name == "categorical", fields = name == "fields";
  const size_t before = items->size();
  for (int f = 0; f < inputs_.num_vectors(); ++f) {
    const EmbeddedFeature& feature = inputs_.features[f];
    if (feature.sequence != kSamples) continue;
    if (all || (fields && !feature.is_sequence) || (!all && !fields && feature.name == name)) {
      items->push_back({Item::Kind::kFeature, f});
    }
  }
  if (items->size() > before) return std::nullopt;
  if (!all && !fields) return UnknownName(field, name);
  return ModelError{field, absl::StrCat("is '", name, "', but the job has no such features")};
}

std::optional<ModelError> LayerReader::ResolveNames(const std::string& field,
                                                    const RepeatedPtrField<std::string>& names,
                                                    int before_layer,
                                                    std::vector<std::vector<Item>>* items) const {
  for (int i = 0; i < names.size(); ++i) {
    items->emplace_back();
    Error error =
        ResolveName(absl::StrCat(field, "[", i, "]"), names[i], before_layer, &items->back());
    if (error.has_value()) return error;
  }
  return std::nullopt;
}

std::optional<ModelError> LayerReader::ReadGroups() {
  for (int g = 0; g < job_.group_size(); ++g) {
    const FeatureGroup& group = job_.group(g);
    std::vector<Item> items;
    const bool is_taken =
        IsTaken(group.name()) || LayerNamed(group.name()) >= 0 || groups_.count(group.name()) > 0;
    Error error = CheckInputName(FieldOf("group", g, "name"), group.name());
    if (error.has_value()) return error;
    if (is_taken) {
      return ModelError{FieldOf("group", g, "name"),
                        absl::StrCat("is '", group.name(),
                                     "', as something else is; name one of them otherwise")};
    }
    if (group.feature().empty()) {
      return ModelError{FieldOf("group", g, "feature"), "is empty; a group names features"};
    }
    for (int i = 0; i < group.feature_size(); ++i) {
      const std::string field = FieldOf("group", g, absl::StrCat("feature[", i, "]"));
      const std::string& name = group.feature(i);
      if (LayerNamed(name) >= 0) return ModelError{field, absl::StrCat("is '", name, "', a layer")};
      if (SequenceNamed(name) >= 0) {
        return ModelError{field, absl::StrCat("is '", name, "', a sequence")};
      }
      Error error = ResolveName(field, name, job_.layer_size(), &items);
      if (error.has_value()) return error;
    }
    groups_[group.name()] = std::move(items);
  }
  return std::nullopt;
}

std::optional<ModelError> LayerReader::ReadInputs() {
  std::set<std::string> names;
  for (const EmbeddedFeature& feature : inputs_.features) {
    if (IsReservedName(feature.name)) {
      return ModelError{"feature",
                        absl::StrCat("has one that is named '", feature.name,
                                     "', a word for several of them; name it otherwise")};
    }
  }
  std::set<int> read, read_sequences;
  const auto mark = [&](const std::vector<Item>& items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kLayer) read.insert(item.index);
      if (item.kind == Item::Kind::kSequence) read_sequences.insert(item.index);
      if (item.kind == Item::Kind::kNumeric) reads_numeric_ = true;
    }
  };
  for (int i = 0; i < job_.layer_size(); ++i) {
    const Layer& layer = job_.layer(i);
    Error error = CheckInputName(Field(i, "name"), layer.name());
    if (error.has_value()) return error;
    if (IsTaken(layer.name())) {
      return ModelError{Field(i, "name"),
                        absl::StrCat("is '", layer.name(), "', the name of a ",
                                     SequenceNamed(layer.name()) >= 0 ? "sequence" : "feature",
                                     "; name one of them otherwise")};
    }
    if (!names.insert(layer.name()).second) {
      return ModelError{Field(i, "name"), absl::StrCat("is '", layer.name(), "' a second time")};
    }
    if (layer.input().empty()) {
      return ModelError{Field(i, "input"), "is empty; a layer reads something"};
    }
    Inputs inputs;
    error = ResolveNames(Field(i, "input"), layer.input(), i, &inputs.items);
    if (!error.has_value()) {
      std::vector<std::vector<Item>> context;
      const ContextNames by = ContextNamesOf(layer);
      error = ResolveNames(Field(i, by.field), by.names, i, &context);
      for (const auto& items : context) {
        inputs.context.insert(inputs.context.end(), items.begin(), items.end());
      }
    }
    if (error.has_value()) return error;
    for (const auto& items : inputs.items) mark(items);
    mark(inputs.context);
    layer_inputs_.push_back(std::move(inputs));
  }
  Error error = ReadTasks();
  if (error.has_value()) return error;
  for (const std::vector<Item>& items : task_inputs_) mark(items);
  for (int i = 0; i < job_.layer_size(); ++i) {
    if (read.count(i) > 0) continue;
    return ModelError{Field(i, "name"),
                      absl::StrCat("is '", NameOf(i), "', which no other layer and no task reads")};
  }
  for (size_t i = 0; i < inputs_.sequences.size(); ++i) {
    if (read_sequences.count(static_cast<int>(i)) > 0) continue;
    return ModelError{FieldOf("sequence", static_cast<int>(i), "name"),
                      absl::StrCat("is '", inputs_.sequences[i].name, "', which no layer reads")};
  }
  return std::nullopt;
}

std::optional<ModelError> LayerReader::ReadTasks() {
  if (job_.task().empty()) return ModelError{"task", "is missing; a model of layers has a task"};
  if (job_.task_size() > kMaxTasks) {
    return ModelError{"task", absl::StrCat("is there ", job_.task_size(),
                                           " times; a model has at most ", kMaxTasks, " tasks")};
  }
  std::vector<std::string> labels;
  float sum = 0;
  for (int t = 0; t < job_.task_size(); ++t) {
    const Task& task = job_.task(t);
    const auto has = [&labels](const std::string& label) {
      return std::find(labels.begin(), labels.end(), label) != labels.end();
    };
    if (has(task.label())) {
      return ModelError{FieldOf("task", t, "label"),
                        absl::StrCat("is '", task.label(), "' a second time")};
    }
    if (!task.times().empty() && !has(task.times())) {
      return ModelError{FieldOf("task", t, "times"),
                        absl::StrCat("is '", task.times(), "', but no earlier task has this label",
                                     DidYouMean(task.times(), labels))};
    }
    const float weight = task.has_weight() ? task.weight() : 1;
    if (!(weight >= 0 && std::isfinite(weight))) {
      return ModelError{FieldOf("task", t, "weight"),
                        absl::StrCat("is ", weight, "; it must be a number, at least 0")};
    }
    sum += weight;
    if (task.input().empty()) {
      return ModelError{FieldOf("task", t, "input"), "is empty; a task reads layers"};
    }
    std::vector<std::vector<Item>> items;
    Error error =
        ResolveNames(FieldOf("task", t, "input"), task.input(), job_.layer_size(), &items);
    if (error.has_value()) return error;
    task_inputs_.emplace_back();
    for (const auto& of_name : items) {
      task_inputs_.back().insert(task_inputs_.back().end(), of_name.begin(), of_name.end());
    }
    labels.push_back(task.label());
  }
  if (sum > 0) return std::nullopt;
  return ModelError{"task[0].weight", "is 0, as of all tasks; nothing would be learned"};
}

// Features
// ------------------------------------------------------------------------------------------------

// Features of one table are read alike, since their gradients are summed by key.
std::optional<ModelError> LayerReader::CheckReads(const std::set<int>& vectors,
                                                  const std::map<int, int>& first_order) const {
  if (inputs_.numeric > 0 && !reads_numeric_) {
    return ModelError{"layer",
                      "has none that reads 'numeric'; leave the numeric features out "
                      "(data.num_dense: 0 in the short form), or let a layer read them"};
  }
  std::map<std::string, int> sequence_of_table, first_of_table;
  for (const EmbeddedFeature& feature : inputs_.features) {
    if (feature.sequence != kSamples) sequence_of_table.emplace(feature.table, feature.sequence);
  }
  for (const auto& [f, layer] : first_order) {
    const EmbeddedFeature& feature = inputs_.features[f];
    const auto sequence = sequence_of_table.find(feature.table);
    if (sequence == sequence_of_table.end()) continue;
    return ModelError{
        Field(layer, "input"),
        absl::StrCat(
            "has '", feature.name, "', whose table '", feature.table, "' the sequence '",
            inputs_.sequences[sequence->second].name,
            "' reads step by step; rows of sequences have no first-order "
            "weights: leave '",
            feature.name, "' out of this layer",
            feature.is_sequence ? "" : ", or give the lists of the sequence a table of their own")};
  }
  for (int f = 0; f < inputs_.num_vectors(); ++f) {
    const EmbeddedFeature& feature = inputs_.features[f];
    if (vectors.count(f) == 0 && first_order.count(f) == 0) {
      return ModelError{"layer", absl::StrCat("has none that reads the feature '", feature.name,
                                              "'; leave the feature out, or let a layer read it")};
    }
    const int other = first_of_table.emplace(feature.table, f).first->second;
    const bool same_vectors = vectors.count(f) == vectors.count(other);
    const auto mine = first_order.find(f), theirs = first_order.find(other);
    const bool same_weights = mine == first_order.end()
                                  ? theirs == first_order.end()
                                  : theirs != first_order.end() && mine->second == theirs->second;
    if (same_vectors && same_weights) continue;
    return ModelError{
        "layer",
        absl::StrCat("has one that reads ", same_vectors ? "first-order weights" : "the vectors",
                     " of only one of the features '", inputs_.features[other].name, "' and '",
                     feature.name, "', which share the table '", feature.table,
                     "'; a layer must read both")};
  }
  return std::nullopt;
}

std::optional<ModelError> LayerReader::PoolFeatures() {
  std::set<int> vectors;
  std::map<int, int> first_order;  // Feature: the layer that reads its first-order weight.
  const auto add_vectors = [&vectors, this](const std::vector<Item>& items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kFeature) vectors.insert(item.index);
      if (item.kind != Item::Kind::kSequence) continue;
      const StepSequence& sequence = inputs_.sequences[item.index];
      for (int i = 0; i < sequence.features; ++i) vectors.insert(sequence.first_feature + i);
    }
  };
  for (int i = 0; i < job_.layer_size(); ++i) {
    add_vectors(layer_inputs_[i].context);
    bool reads_numbers = false;  // A first_order layer has one weight for each of them.
    for (size_t input = 0; input < layer_inputs_[i].items.size(); ++input) {
      if (!job_.layer(i).has_first_order()) {
        add_vectors(layer_inputs_[i].items[input]);
        continue;
      }
      for (const Item& item : layer_inputs_[i].items[input]) {
        const std::string field = Field(i, absl::StrCat("input[", input, "]"));
        if (item.kind == Item::Kind::kLayer) {
          return ModelError{field, absl::StrCat("is the layer '", NameOf(item.index),
                                                "'; first_order reads features alone")};
        }
        if (item.kind == Item::Kind::kSequence) {
          return ModelError{field,
                            absl::StrCat("is the sequence '", inputs_.sequences[item.index].name,
                                         "'; first_order reads features alone")};
        }
        if (item.kind == Item::Kind::kNumeric && std::exchange(reads_numbers, true)) {
          return ModelError{field, "is 'numeric', whose first-order weights are read already"};
        }
        if (item.kind == Item::Kind::kFeature && !first_order.emplace(item.index, i).second) {
          return ModelError{field,
                            absl::StrCat("is the feature '", inputs_.features[item.index].name,
                                         "', whose first-order weights are read already")};
        }
      }
    }
  }
  for (const std::vector<Item>& items : task_inputs_) add_vectors(items);
  Error error = CheckReads(vectors, first_order);
  if (error.has_value()) return error;
  // Rows of one form are pooled together: of so many weights for a vector, with or without another,
  // for samples or for the steps of one sequence.
  using RowForm = std::tuple<int, bool, int>;
  std::vector<RowForm> forms;
  std::map<RowForm, std::vector<int32_t>> by_form;
  for (int f = 0; f < inputs_.num_vectors(); ++f) {
    const RowForm form = {vectors.count(f) > 0 ? inputs_.features[f].dim : 0,
                          first_order.count(f) > 0, inputs_.features[f].sequence};
    if (by_form.count(form) == 0) forms.push_back(form);
    by_form[form].push_back(f);
  }
  places_.resize(inputs_.features.size());
  for (size_t group = 0; group < forms.size(); ++group) {
    const std::vector<int32_t>& features = by_form[forms[group]];
    for (size_t i = 0; i < features.size(); ++i) {
      places_[features[i]] = {static_cast<int>(group), static_cast<int>(i)};
    }
    graph_.AddPooled(std::get<0>(forms[group]), std::get<2>(forms[group]), features);
  }
  for (const auto& [feature, layer] : first_order) {
    const Layer::FirstOrder& weights = job_.layer(layer).first_order();
    spec_.first_order[inputs_.features[feature].table] = {
        weights.optimizer(), weights.initializer(), vectors.count(feature) > 0};
  }
  return std::nullopt;
}

LayerValue LayerReader::ValueOf(const Item& item) {
  if (item.kind == Item::Kind::kNumeric) return graph_.Numeric(inputs_.numeric);
  if (item.kind == Item::Kind::kLayer) {
    LayerValue value = values_[item.index];
    value.names.assign(value.widths.size(), NameOf(item.index));
    return value;
  }
  const bool is_sequence = item.kind == Item::Kind::kSequence;
  const int first = is_sequence ? inputs_.sequences[item.index].first_feature : item.index;
  const int count = is_sequence ? inputs_.sequences[item.index].features : 1;
  LayerValue value;
  for (int f = first; f < first + count; ++f) {
    const PooledPlace place = places_[f];
    const EmbeddedFeature& feature = inputs_.features[f];
    value.Append({{graph_.VectorOf(place.group, place.index)}, {feature.dim}, {feature.name}});
  }
  return value;
}

LayerValue LayerReader::ValueOf(const std::vector<Item>& items, int sequence) {
  LayerValue value, of_samples;
  const auto repeat = [&] {
    if (!of_samples.slices.empty()) value.Append(graph_.Repeat(of_samples, sequence));
    of_samples = LayerValue();
  };
  for (const Item& item : items) {
    if (SequenceOf(item) == sequence) {
      repeat();
      value.Append(ValueOf(item));
    } else {
      of_samples.Append(ValueOf(item));
    }
  }
  repeat();
  return value;
}

int LayerReader::SequenceOf(const Item& item) {
  if (item.kind == Item::Kind::kSequence) return item.index;
  return item.kind == Item::Kind::kLayer ? graph_.SequenceOf(values_[item.index]) : kSamples;
}

std::optional<ModelError> LayerReader::FindSequence(int layer) {
  sequence_ = kSamples;
  Error error;
  const auto find = [&](const std::vector<Item>& items) {
    for (const Item& item : items) {
      const int sequence = SequenceOf(item);
      if (sequence == kSamples || sequence == sequence_) continue;
      if (sequence_ != kSamples) {
        error = ModelError{Field(layer, "input"),
                           absl::StrCat("has the steps of '", inputs_.sequences[sequence_].name,
                                        "' and of '", inputs_.sequences[sequence].name,
                                        "'; a layer reads the steps of one sequence")};
      }
      sequence_ = sequence;
    }
  };
  for (const std::vector<Item>& items : layer_inputs_[layer].items) find(items);
  if (!job_.layer(layer).has_attention()) find(layer_inputs_[layer].context);
  if (error.has_value() || sequence_ != kSamples) return error;
  const Layer& words = job_.layer(layer);
  if (!words.has_attention() && !words.has_self_attention()) return std::nullopt;
  return ModelError{Field(layer, "input"),
                    absl::StrCat("has no steps; the attention of layer '", NameOf(layer),
                                 "' reads a sequence, or layers over one")};
}

LayerValue LayerReader::InputOf(int layer) {
  std::vector<Item> all;
  for (const std::vector<Item>& items : layer_inputs_[layer].items) {
    all.insert(all.end(), items.begin(), items.end());
  }
  return ValueOf(all, sequence_);
}

LayerValue LayerReader::InputOf(int layer, size_t name) {
  return ValueOf(layer_inputs_[layer].items[name], sequence_);
}

LayerValue LayerReader::ContextOf(int layer) {
  return ValueOf(layer_inputs_[layer].context, sequence_);
}

}  // namespace thermocline
