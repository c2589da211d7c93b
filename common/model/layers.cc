#include "common/model/layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/text.h"
#include "common/model/graph_builder.h"

namespace thermocline {
namespace {

using google::protobuf::RepeatedPtrField;

// Above it a width is a typo, not a wish.
constexpr uint32_t kMaxLayerWidth = 65536;
constexpr uint32_t kMaxCrossLayers = 64;
constexpr float kLayerNormEpsilon = 1e-5f;
constexpr float kNormalizeEpsilon = 1e-12f;
constexpr float kFirstSlope = 0.25f;  // Of PReLU, as PyTorch's.

using Error = std::optional<ModelError>;

// One of the things that an input's name stands for.
struct Item {
  enum class Kind { kNumeric, kFeature, kLayer };
  Kind kind = Kind::kNumeric;
  int index = 0;
};

std::string FieldOf(const char* list, int index, const std::string& field) {
  return absl::StrCat(list, "[", index, "].", field);
}

bool IsName(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

// The columns first .. first + width - 1 of a value, as one vector.
LayerValue ColumnsOf(const LayerValue& value, int first, int width) {
  LayerValue part;
  part.widths = {width};
  for (const ValueSlice& slice : value.slices) {
    const int begin = std::max(first, 0), end = std::min(first + width, slice.width);
    if (begin < end) part.slices.push_back({slice.value, slice.first + begin, end - begin});
    first -= slice.width;
  }
  return part;
}

class LayerReader {
 public:
  LayerReader(const Job& job, ModelSpec* spec) : job_(job), spec_(*spec), inputs_(spec->inputs) {}

  Error Run() {
    Error error = ReadGroups();
    if (!error.has_value()) error = ReadInputs();
    if (!error.has_value()) error = PoolFeatures();
    for (int i = 0; i < job_.layer_size() && !error.has_value(); ++i) error = AddLayer(i);
    if (!error.has_value()) error = AddTask();
    return error.has_value() ? error : CheckTensorNames();
  }

 private:
  // A layer's inputs, before the layers have values.
  struct Inputs {
    std::vector<std::vector<Item>> items;  // [inputs by name]
    std::vector<Item> context;             // Of FeatureGate.by.
  };
  // Where the vectors of a feature are among the pooled ones.
  struct PooledPlace {
    int group = 0, index = 0;
  };

  // Names and inputs
  // ----------------------------------------------------------------------------------------------

  Error ReadGroups();
  Error ReadInputs();
  Error ResolveNames(const std::string& field, const RepeatedPtrField<std::string>& names,
                     int before_layer, std::vector<std::vector<Item>>* items) const;
  Error ResolveName(const std::string& field, const std::string& name, int before_layer,
                    std::vector<Item>* items) const;
  ModelError UnknownName(const std::string& field, const std::string& name) const;
  int LayerNamed(const std::string& name) const;

  // Features
  // ----------------------------------------------------------------------------------------------

  Error PoolFeatures();
  Error CheckReads(const std::set<int>& vectors, const std::map<int, int>& first_order) const;

  LayerValue ValueOf(const Item& item);
  LayerValue ValueOf(const std::vector<Item>& items);
  // All inputs, one after the other.
  LayerValue InputOf(int layer);

  // Layers
  // ----------------------------------------------------------------------------------------------

  Error AddLayer(int layer);
  Error AddMlp(int layer);
  Error AddDot(int layer);
  Error AddFm(int layer);
  Error AddFirstOrder(int layer);
  Error AddCross(int layer);
  Error AddBilinear(int layer);
  Error AddFeatureGate(int layer);
  Error AddEmbed(int layer);
  Error AddElementwise(int layer, GraphNode::Op op);
  Error AddNormalize(int layer);
  Error AddPool(int layer);
  Error AddTask();
  Error CheckTensorNames() const;

  // The one width of the vectors of a value; 0, and an error, where they differ.
  Error OneWidth(int layer, const std::string& kind, const LayerValue& value, int* width) const;

  // Nodes
  // ----------------------------------------------------------------------------------------------

  LayerValue Apply(GraphNode node, const std::vector<LayerValue>& inputs, int width,
                   int aux_columns = 0);
  // A linear layer, from `input` to `width` numbers. bias: the tensor's name; "": it has none.
  LayerValue Linear(const std::string& layer, const LayerValue& input, int width,
                    const std::string& weight, const std::string& bias, bool relu,
                    const LayerInitializer& initializer);
  // Linear layers with a ReLU after each, or each but the last.
  LayerValue Stack(const std::string& name, const LayerValue& input, const std::vector<int>& units,
                   bool relu_after_last, const LayerInitializer& initializer);
  LayerValue Constant(const std::string& name);
  LayerValue SumOf(const std::vector<LayerValue>& values);
  DenseTensor Tensor(const std::string& name, int in, int out, DenseTensor::Begin begin,
                     const LayerInitializer& initializer, float constant = 0);

  std::string Field(int layer, const std::string& field) const {
    return FieldOf("layer", layer, field);
  }
  const std::string& NameOf(int layer) const { return job_.layer(layer).name(); }

  const Job& job_;
  ModelSpec& spec_;
  const ModelInputs& inputs_;
  GraphBuilder graph_;
  std::map<std::string, std::vector<Item>> groups_;
  std::vector<Inputs> layer_inputs_;  // [layers]
  std::vector<Item> task_inputs_;     //
  std::vector<PooledPlace> places_;   // [features]
  std::vector<LayerValue> values_;    // [layers] so far
};

// Names and inputs
// ------------------------------------------------------------------------------------------------

int LayerReader::LayerNamed(const std::string& name) const {
  for (int i = 0; i < job_.layer_size(); ++i) {
    if (NameOf(i) == name) return i;
  }
  return -1;
}

ModelError LayerReader::UnknownName(const std::string& field, const std::string& name) const {
  std::vector<std::string> names = {"numeric", "categorical", "fields"};
  for (const Layer& layer : job_.layer()) names.push_back(layer.name());
  for (const EmbeddedFeature& feature : inputs_.features) names.push_back(feature.name);
  for (const auto& [group, items] : groups_) names.push_back(group);
  return {field, absl::StrCat("is '", name, "', but no layer, feature or group has this name",
                              DidYouMean(name, names))};
}

Error LayerReader::ResolveName(const std::string& field, const std::string& name, int before_layer,
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
    if (all || (fields && !feature.is_sequence) || (!all && !fields && feature.name == name)) {
      items->push_back({Item::Kind::kFeature, f});
    }
  }
  if (items->size() > before) return std::nullopt;
  if (!all && !fields) return UnknownName(field, name);
  return ModelError{field, absl::StrCat("is '", name, "', but the job has no such features")};
}

Error LayerReader::ResolveNames(const std::string& field,
                                const RepeatedPtrField<std::string>& names, int before_layer,
                                std::vector<std::vector<Item>>* items) const {
  for (int i = 0; i < names.size(); ++i) {
    items->emplace_back();
    Error error =
        ResolveName(absl::StrCat(field, "[", i, "]"), names[i], before_layer, &items->back());
    if (error.has_value()) return error;
  }
  return std::nullopt;
}

Error LayerReader::ReadGroups() {
  for (int g = 0; g < job_.group_size(); ++g) {
    const FeatureGroup& group = job_.group(g);
    std::vector<Item> items;
    if (!IsName(group.name()) || groups_.count(group.name()) > 0) {
      return ModelError{
          FieldOf("group", g, "name"),
          absl::StrCat("is '", group.name(),
                       "'; it must be a name of its own, of letters, digits and '_'")};
    }
    if (group.feature().empty()) {
      return ModelError{FieldOf("group", g, "feature"), "is empty; a group names features"};
    }
    for (int i = 0; i < group.feature_size(); ++i) {
      const std::string field = FieldOf("group", g, absl::StrCat("feature[", i, "]"));
      const std::string& name = group.feature(i);
      if (LayerNamed(name) >= 0) return ModelError{field, absl::StrCat("is '", name, "', a layer")};
      Error error = ResolveName(field, name, job_.layer_size(), &items);
      if (error.has_value()) return error;
    }
    groups_[group.name()] = std::move(items);
  }
  return std::nullopt;
}

Error LayerReader::ReadInputs() {
  std::set<std::string> names;
  std::set<int> read;
  const auto mark = [&read](const std::vector<Item>& items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kLayer) read.insert(item.index);
    }
  };
  for (int i = 0; i < job_.layer_size(); ++i) {
    const Layer& layer = job_.layer(i);
    if (!IsName(layer.name())) {
      return ModelError{Field(i, "name"), absl::StrCat("is '", layer.name(),
                                                       "'; it must have letters, digits and '_'")};
    }
    if (!names.insert(layer.name()).second) {
      return ModelError{Field(i, "name"), absl::StrCat("is '", layer.name(), "' a second time")};
    }
    if (layer.input().empty())
      return ModelError{Field(i, "input"), "is empty; a layer reads something"};
    Inputs inputs;
    Error error = ResolveNames(Field(i, "input"), layer.input(), i, &inputs.items);
    if (!error.has_value()) {
      std::vector<std::vector<Item>> context;
      error = ResolveNames(Field(i, "feature_gate.by"), layer.feature_gate().by(), i, &context);
      for (const auto& items : context) {
        inputs.context.insert(inputs.context.end(), items.begin(), items.end());
      }
    }
    if (error.has_value()) return error;
    for (const auto& items : inputs.items) mark(items);
    mark(inputs.context);
    layer_inputs_.push_back(std::move(inputs));
  }
  if (job_.task_size() != 1) {
    return ModelError{"task", job_.task().empty()
                                  ? "is missing; a model of layers has a task"
                                  : "is there more than once; a model has one task"};
  }
  if (job_.task(0).input().empty())
    return ModelError{"task[0].input", "is empty; a task reads layers"};
  std::vector<std::vector<Item>> items;
  Error error = ResolveNames("task[0].input", job_.task(0).input(), job_.layer_size(), &items);
  if (error.has_value()) return error;
  for (const auto& of_name : items) {
    mark(of_name);
    task_inputs_.insert(task_inputs_.end(), of_name.begin(), of_name.end());
  }
  for (int i = 0; i < job_.layer_size(); ++i) {
    if (read.count(i) > 0) continue;
    return ModelError{Field(i, "name"),
                      absl::StrCat("is '", NameOf(i), "', which no other layer and no task reads")};
  }
  return std::nullopt;
}

// Features
// ------------------------------------------------------------------------------------------------

// Features of one table are read alike, since their gradients are summed by key.
Error LayerReader::CheckReads(const std::set<int>& vectors,
                              const std::map<int, int>& first_order) const {
  for (int f = 0; f < inputs_.num_vectors(); ++f) {
    const EmbeddedFeature& feature = inputs_.features[f];
    if (vectors.count(f) == 0 && first_order.count(f) == 0) {
      return ModelError{"layer", absl::StrCat("has none that reads the feature '", feature.name,
                                              "'; leave the feature out, or let a layer read it")};
    }
    for (int other = 0; other < f; ++other) {
      const EmbeddedFeature& before = inputs_.features[other];
      if (before.table != feature.table) continue;
      const bool same_vectors = vectors.count(f) == vectors.count(other);
      const auto mine = first_order.find(f), theirs = first_order.find(other);
      const bool same_weights = mine == first_order.end()
                                    ? theirs == first_order.end()
                                    : theirs != first_order.end() && mine->second == theirs->second;
      if (same_vectors && same_weights) continue;
      return ModelError{
          "layer",
          absl::StrCat("has one that reads ", same_vectors ? "first-order weights" : "the vectors",
                       " of only one of the features '", before.name, "' and '", feature.name,
                       "', which share the table '", feature.table, "'; a layer must read both")};
    }
  }
  return std::nullopt;
}

Error LayerReader::PoolFeatures() {
  std::set<int> vectors;
  std::map<int, int> first_order;  // Feature: the layer that reads its first-order weight.
  const auto add_vectors = [&vectors](const std::vector<Item>& items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kFeature) vectors.insert(item.index);
    }
  };
  for (int i = 0; i < job_.layer_size(); ++i) {
    add_vectors(layer_inputs_[i].context);
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
        if (item.kind == Item::Kind::kFeature && !first_order.emplace(item.index, i).second) {
          return ModelError{field,
                            absl::StrCat("is the feature '", inputs_.features[item.index].name,
                                         "', whose first-order weights are read already")};
        }
      }
    }
  }
  add_vectors(task_inputs_);
  Error error = CheckReads(vectors, first_order);
  if (error.has_value()) return error;
  std::vector<int> dims;
  std::map<int, std::vector<int32_t>> by_dim;
  for (int f = 0; f < inputs_.num_vectors(); ++f) {
    const int dim = vectors.count(f) > 0 ? inputs_.features[f].dim : 0;
    if (by_dim.count(dim) == 0) dims.push_back(dim);
    by_dim[dim].push_back(f);
  }
  places_.resize(inputs_.features.size());
  for (size_t group = 0; group < dims.size(); ++group) {
    const std::vector<int32_t>& features = by_dim[dims[group]];
    for (size_t i = 0; i < features.size(); ++i) {
      places_[features[i]] = {static_cast<int>(group), static_cast<int>(i)};
    }
    graph_.AddPooled(dims[group], features);
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
  const PooledPlace place = places_[item.index];
  const EmbeddedFeature& feature = inputs_.features[item.index];
  return {{graph_.VectorOf(place.group, place.index)}, {feature.dim}, {feature.name}};
}

LayerValue LayerReader::ValueOf(const std::vector<Item>& items) {
  LayerValue value;
  for (const Item& item : items) value.Append(ValueOf(item));
  return value;
}

LayerValue LayerReader::InputOf(int layer) {
  LayerValue value;
  for (const std::vector<Item>& items : layer_inputs_[layer].items) value.Append(ValueOf(items));
  return value;
}

// Nodes
// ------------------------------------------------------------------------------------------------

LayerValue LayerReader::Apply(GraphNode node, const std::vector<LayerValue>& inputs, int width,
                              int aux_columns) {
  return graph_.AddNode(std::move(node), inputs, width, aux_columns);
}

DenseTensor LayerReader::Tensor(const std::string& name, int in, int out, DenseTensor::Begin begin,
                                const LayerInitializer& initializer, float constant) {
  DenseTensor tensor;
  tensor.name = name;
  tensor.in = in;
  tensor.out = out;
  tensor.begin = begin;
  tensor.constant = constant;
  tensor.initializer = initializer;
  spec_.tensors.push_back(tensor);
  return tensor;
}

LayerValue LayerReader::Linear(const std::string& layer, const LayerValue& input, int width,
                               const std::string& weight, const std::string& bias, bool relu,
                               const LayerInitializer& initializer) {
  GraphNode node;
  node.op = GraphNode::Op::kMlp;
  node.layer = layer;
  node.relu_after_last = relu;
  const int in = input.width();
  node.tensors.push_back(Tensor(weight, in, width, DenseTensor::Begin::kWeight, initializer));
  if (!bias.empty()) {
    node.biases.push_back(Tensor(bias, in, width, DenseTensor::Begin::kBias, initializer));
  }
  return Apply(std::move(node), {input}, width);
}

LayerValue LayerReader::Stack(const std::string& name, const LayerValue& input,
                              const std::vector<int>& units, bool relu_after_last,
                              const LayerInitializer& initializer) {
  GraphNode node;
  node.op = GraphNode::Op::kMlp;
  node.layer = name;
  node.relu_after_last = relu_after_last;
  int in = input.width();
  for (size_t i = 0; i < units.size(); ++i) {
    const std::string prefix = absl::StrCat(name, ".", i, ".");
    node.tensors.push_back(
        Tensor(prefix + "weight", in, units[i], DenseTensor::Begin::kWeight, initializer));
    node.biases.push_back(
        Tensor(prefix + "bias", in, units[i], DenseTensor::Begin::kBias, initializer));
    in = units[i];
  }
  return Apply(std::move(node), {input}, in);
}

LayerValue LayerReader::Constant(const std::string& name) {
  GraphNode node;
  node.op = GraphNode::Op::kOnes;
  node.layer = name;
  return Apply(std::move(node), {}, 1);
}

LayerValue LayerReader::SumOf(const std::vector<LayerValue>& values) {
  LayerValue sum = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    GraphNode node;
    node.op = GraphNode::Op::kAdd;
    sum = Apply(node, {sum, values[i]}, sum.width());
  }
  return sum;
}

// Layers
// ------------------------------------------------------------------------------------------------

Error LayerReader::OneWidth(int layer, const std::string& kind, const LayerValue& value,
                            int* width) const {
  *width = value.widths[0];
  const auto other =
      std::find_if(value.widths.begin(), value.widths.end(), [&](int w) { return w != *width; });
  if (other == value.widths.end()) return std::nullopt;
  const std::string& name = value.names[other - value.widths.begin()];
  return ModelError{Field(layer, "input"),
                    absl::StrCat("has '", value.names[0], "' with vectors of ", *width,
                                 " numbers and '", name, "' with ", *other, "; the ", kind,
                                 " of layer '", NameOf(layer), "' needs one width for all")};
}

Error LayerReader::AddMlp(int layer) {
  const Layer::Mlp& mlp = job_.layer(layer).mlp();
  const std::string& name = NameOf(layer);
  if (mlp.units().empty())
    return ModelError{Field(layer, "mlp.units"), "is empty; give each layer's width"};
  Error error = CheckWidths(Field(layer, "mlp.units"), mlp.units());
  if (!error.has_value()) error = CheckDropout(Field(layer, "mlp.dropout"), mlp.dropout());
  if (error.has_value()) return error;
  const std::vector<int> units(mlp.units().begin(), mlp.units().end());
  const Layer::Activation last = mlp.has_last() ? mlp.last() : mlp.activation();
  LayerValue value = InputOf(layer);
  const bool is_stack = mlp.activation() == Layer::RELU && !mlp.layer_norm() &&
                        mlp.dropout() == 0 && (last == Layer::RELU || last == Layer::LINEAR);
  if (is_stack) {
    values_.push_back(Stack(name, value, units, last == Layer::RELU, mlp.initializer()));
    return std::nullopt;
  }
  const LayerInitializer initializer = mlp.initializer();
  for (int i = 0; i < mlp.units_size(); ++i) {
    const std::string prefix = absl::StrCat(name, ".", i, ".");
    const bool is_last = i + 1 == mlp.units_size();
    const Layer::Activation activation = is_last ? last : mlp.activation();
    const bool is_plain = is_last && mlp.has_last() && last == Layer::LINEAR;
    const bool has_norm = mlp.layer_norm() && !is_plain;
    GraphNode node;
    node.layer = absl::StrCat(name, ".", i);
    value = Linear(node.layer, value, units[i], prefix + "weight", prefix + "bias",
                   activation == Layer::RELU && !has_norm, initializer);
    if (has_norm) {
      node.op = GraphNode::Op::kLayerNorm;
      node.epsilon = kLayerNormEpsilon;
      node.tensors = {
          Tensor(prefix + "norm.weight", units[i], units[i], DenseTensor::Begin::kConstant, {}, 1),
          Tensor(prefix + "norm.bias", units[i], units[i], DenseTensor::Begin::kConstant, {}, 0)};
      value = Apply(node, {value}, units[i], /*aux_columns=*/2);
      node.tensors.clear();
    }
    if (activation != Layer::LINEAR && (activation != Layer::RELU || has_norm)) {
      node.op = GraphNode::Op::kActivation;
      node.activation = activation;
      if (activation == Layer::PRELU) {
        node.tensors = {Tensor(prefix + "slope", units[i], units[i], DenseTensor::Begin::kConstant,
                               {}, kFirstSlope)};
      }
      value = Apply(node, {value}, units[i]);
      node.tensors.clear();
    }
    if (mlp.dropout() > 0 && !is_plain) {
      node.op = GraphNode::Op::kDropout;
      node.dropout = mlp.dropout();
      value = Apply(node, {value}, units[i]);
    }
  }
  values_.push_back(std::move(value));
  return std::nullopt;
}

Error LayerReader::AddDot(int layer) {
  const LayerValue input = InputOf(layer);
  GraphNode node;
  node.op = GraphNode::Op::kDot;
  node.layer = NameOf(layer);
  Error error = OneWidth(layer, "dot product", input, &node.width);
  if (error.has_value()) return error;
  const int vectors = static_cast<int>(input.widths.size()), dim = node.width;
  const bool keeps_first = job_.layer(layer).dot().keep_first();
  const int pairs = vectors * (vectors - 1) / 2;
  if (pairs == 0 && !keeps_first) {
    return ModelError{Field(layer, "input"), "is one vector; dot products need two"};
  }
  const LayerValue all = Apply(std::move(node), {input}, dim + pairs);
  values_.push_back(keeps_first ? all : ColumnsOf(all, dim, pairs));
  return std::nullopt;
}

Error LayerReader::AddFm(int layer) {
  const LayerValue input = InputOf(layer);
  GraphNode node;
  node.op = GraphNode::Op::kFm;
  node.layer = NameOf(layer);
  Error error = OneWidth(layer, "factorization machine", input, &node.width);
  if (error.has_value()) return error;
  if (input.widths.size() < 2) {
    return ModelError{Field(layer, "input"), "is one vector; a factorization machine needs two"};
  }
  const int dim = node.width;
  values_.push_back(Apply(std::move(node), {input}, 1, /*aux_columns=*/dim));
  return std::nullopt;
}

Error LayerReader::AddFirstOrder(int layer) {
  const std::string& name = NameOf(layer);
  std::vector<LayerValue> sums;
  std::map<int, LayerValue> by_group;
  for (const std::vector<Item>& items : layer_inputs_[layer].items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kNumeric) {
        sums.push_back(Linear(name, ValueOf(item), 1, name + ".weight", "", false, {}));
        continue;
      }
      const PooledPlace place = places_[item.index];
      by_group[place.group].Append({{graph_.FirstOrderOf(place.group, place.index)}, {1}, {}});
    }
  }
  for (const auto& [group, weights] : by_group) {
    GraphNode node;
    node.op = GraphNode::Op::kSumVectors;
    node.layer = name;
    sums.push_back(Apply(std::move(node), {weights}, 1));
  }
  values_.push_back(SumOf(sums));
  return std::nullopt;
}

Error LayerReader::AddCross(int layer) {
  const Layer::Cross& cross = job_.layer(layer).cross();
  const LayerValue first = InputOf(layer);
  const int width = first.width(), rank = static_cast<int>(cross.rank());
  if (cross.layers() < 1 || cross.layers() > kMaxCrossLayers) {
    return ModelError{
        Field(layer, "cross.layers"),
        absl::StrCat("is ", cross.layers(), "; it must be in [1, ", kMaxCrossLayers, "]")};
  }
  if (rank > width) {
    return ModelError{Field(layer, "cross.rank"),
                      absl::StrCat("is ", rank, "; the input of layer '", NameOf(layer), "' has ",
                                   width, " numbers, and the rank is at most that")};
  }
  LayerValue value = first;
  for (uint32_t i = 0; i < cross.layers(); ++i) {
    const std::string name = absl::StrCat(NameOf(layer), ".", i);
    LayerValue product = value;
    if (rank > 0) {
      product = Linear(name, value, rank, name + ".down", "", false, cross.initializer());
      product =
          Linear(name, product, width, name + ".up", name + ".bias", false, cross.initializer());
    } else {
      product =
          Linear(name, value, width, name + ".weight", name + ".bias", false, cross.initializer());
    }
    GraphNode node;
    node.op = GraphNode::Op::kCross;
    node.layer = name;
    value = Apply(std::move(node), {first, product, value}, width);
  }
  values_.push_back(std::move(value));
  return std::nullopt;
}

Error LayerReader::AddBilinear(int layer) {
  const std::string& name = NameOf(layer);
  const Layer::Bilinear& bilinear = job_.layer(layer).bilinear();
  if (layer_inputs_[layer].items.size() != 2) {
    return ModelError{Field(layer, "input"), absl::StrCat("has ", layer_inputs_[layer].items.size(),
                                                          " names; a bilinear product reads two")};
  }
  const LayerValue x = ValueOf(layer_inputs_[layer].items[0]);
  const LayerValue y = ValueOf(layer_inputs_[layer].items[1]);
  const int heads = std::max<int>(1, static_cast<int>(std::min(bilinear.heads(), kMaxLayerWidth)));
  if (x.width() % heads != 0 || y.width() % heads != 0) {
    return ModelError{Field(layer, "bilinear.heads"),
                      absl::StrCat("is ", heads, ", which must divide both widths, ", x.width(),
                                   " and ", y.width())};
  }
  const LayerInitializer& initializer = bilinear.initializer();
  const LayerValue first = Linear(name, x, 1, name + ".first.weight", "", false, initializer);
  const LayerValue second =
      Linear(name, y, 1, name + ".second.weight", name + ".bias", false, initializer);
  LayerValue products;
  const int in = x.width() / heads, out = y.width() / heads;
  for (int h = 0; h < heads; ++h) {
    products.Append(Linear(name, ColumnsOf(x, h * in, in), out,
                           absl::StrCat(name, ".", h, ".weight"), "", false, initializer));
  }
  GraphNode node;
  node.op = GraphNode::Op::kRowDot;
  node.layer = name;
  values_.push_back(SumOf({first, second, Apply(std::move(node), {products, y}, 1)}));
  return std::nullopt;
}

Error LayerReader::AddFeatureGate(int layer) {
  const std::string& name = NameOf(layer);
  const Layer::FeatureGate& gate = job_.layer(layer).feature_gate();
  Error error = CheckWidths(Field(layer, "feature_gate.units"), gate.units());
  if (error.has_value()) return error;
  const LayerValue input = InputOf(layer);
  const std::vector<Item>& by = layer_inputs_[layer].context;
  std::vector<int> units(gate.units().begin(), gate.units().end());
  units.push_back(input.width());
  const LayerValue context = by.empty() ? Constant(name) : ValueOf(by);
  const LayerValue weights = Stack(name, context, units, false, gate.initializer());
  GraphNode node;
  node.layer = name;
  node.op = GraphNode::Op::kActivation;
  node.activation = Layer::SIGMOID;
  const LayerValue shares = Apply(node, {weights}, input.width());
  node.op = GraphNode::Op::kMultiply;
  node.scale = 2;
  LayerValue value = Apply(node, {shares, input}, input.width());
  value.widths = input.widths;
  values_.push_back(std::move(value));
  return std::nullopt;
}

Error LayerReader::AddEmbed(int layer) {
  const Layer::Embed& embed = job_.layer(layer).embed();
  if (embed.dim() < 1 || embed.dim() > kMaxLayerWidth) {
    return ModelError{
        Field(layer, "embed.dim"),
        absl::StrCat("is ", embed.dim(), "; it must be in [1, ", kMaxLayerWidth, "]")};
  }
  const LayerValue input = InputOf(layer);
  const int numbers = input.width(), dim = static_cast<int>(embed.dim());
  GraphNode node;
  node.op = GraphNode::Op::kEmbed;
  node.layer = NameOf(layer);
  DenseTensor vectors = Tensor(node.layer + ".weight", numbers, dim, DenseTensor::Begin::kWeight,
                               embed.initializer());
  node.tensors = {vectors};
  LayerValue value = Apply(std::move(node), {input}, numbers * dim);
  value.widths.assign(numbers, dim);
  values_.push_back(std::move(value));
  return std::nullopt;
}

Error LayerReader::AddElementwise(int layer, GraphNode::Op op) {
  const std::vector<std::vector<Item>>& items = layer_inputs_[layer].items;
  if (items.size() < 2) {
    return ModelError{Field(layer, "input"),
                      absl::StrCat("has one name; layer '", NameOf(layer), "' needs two or more")};
  }
  LayerValue value = ValueOf(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    const LayerValue other = ValueOf(items[i]);
    if (other.width() != value.width()) {
      return ModelError{
          Field(layer, absl::StrCat("input[", i, "]")),
          absl::StrCat("has ", other.width(), " numbers, and input[0] has ", value.width(),
                       "; the inputs of layer '", NameOf(layer), "' have one width")};
    }
    GraphNode node;
    node.op = op;
    node.layer = NameOf(layer);
    std::vector<int> widths = value.widths;
    value = Apply(std::move(node), {value, other}, other.width());
    value.widths = std::move(widths);
  }
  values_.push_back(std::move(value));
  return std::nullopt;
}

Error LayerReader::AddNormalize(int layer) {
  const LayerValue input = InputOf(layer);
  const Layer::Normalize& normalize = job_.layer(layer).normalize();
  GraphNode node;
  node.op = GraphNode::Op::kNormalize;
  node.layer = NameOf(layer);
  node.epsilon = normalize.has_epsilon() ? normalize.epsilon() : kNormalizeEpsilon;
  if (!(node.epsilon > 0) || node.epsilon > 1) {
    return ModelError{Field(layer, "normalize.epsilon"),
                      absl::StrCat("is ", node.epsilon, "; it must be more than 0 and at most 1")};
  }
  Error error = OneWidth(layer, "normalization", input, &node.width);
  if (error.has_value()) return error;
  LayerValue value = Apply(std::move(node), {input}, input.width(),
                           /*aux_columns=*/static_cast<int>(input.widths.size()));
  value.widths = input.widths;
  values_.push_back(std::move(value));
  return std::nullopt;
}

Error LayerReader::AddPool(int layer) {
  const LayerValue input = InputOf(layer);
  const Layer::Pool::Mode mode = job_.layer(layer).pool().mode();
  const int vectors = static_cast<int>(input.widths.size());
  GraphNode node;
  node.op = GraphNode::Op::kSumVectors;
  node.layer = NameOf(layer);
  if (mode == Layer::Pool::LAST) {
    const int width = input.widths.back();
    values_.push_back(ColumnsOf(input, input.width() - width, width));
    return std::nullopt;
  }
  Error error = OneWidth(layer, "pooling", input, &node.width);
  if (error.has_value()) return error;
  if (mode == Layer::Pool::MEAN) node.scale = 1.0f / static_cast<float>(vectors);
  const int width = node.width;
  values_.push_back(Apply(std::move(node), {input}, width));
  return std::nullopt;
}

Error LayerReader::AddLayer(int layer) {
  switch (job_.layer(layer).kind_case()) {
    case Layer::kMlp:
      return AddMlp(layer);
    case Layer::kDot:
      return AddDot(layer);
    case Layer::kFm:
      return AddFm(layer);
    case Layer::kFirstOrder:
      return AddFirstOrder(layer);
    case Layer::kCross:
      return AddCross(layer);
    case Layer::kBilinear:
      return AddBilinear(layer);
    case Layer::kFeatureGate:
      return AddFeatureGate(layer);
    case Layer::kEmbed:
      return AddEmbed(layer);
    case Layer::kConcat: {
      LayerValue value = InputOf(layer);
      value.widths = {value.width()};
      values_.push_back(std::move(value));
      return std::nullopt;
    }
    case Layer::kAdd:
      return AddElementwise(layer, GraphNode::Op::kAdd);
    case Layer::kMultiply:
      return AddElementwise(layer, GraphNode::Op::kMultiply);
    case Layer::kNormalize:
      return AddNormalize(layer);
    case Layer::kPool:
      return AddPool(layer);
    case Layer::KIND_NOT_SET:
      break;
  }
  return ModelError{
      absl::StrCat("layer[", layer, "]"),
      absl::StrCat("('", NameOf(layer), "') says not what it computes (mlp, dot, fm, ...)")};
}

Error LayerReader::AddTask() {
  const Task& task = job_.task(0);
  std::vector<LayerValue> logits;
  LayerValue wide;
  for (const Item& item : task_inputs_) {
    const LayerValue value = ValueOf(item);
    if (value.width() == 1 && graph_.IsComputed(value)) {
      logits.push_back(value);
    } else {
      wide.Append(value);
    }
  }
  if (!wide.slices.empty()) {
    logits.push_back(
        Linear(task.label(), wide, 1, task.label() + ".weight", task.label() + ".bias", false, {}));
  }
  const LayerValue sum = SumOf(logits);
  spec_.graph = graph_.Finish(sum);
  return std::nullopt;
}

Error LayerReader::CheckTensorNames() const {
  std::set<std::string> names;
  for (const DenseTensor& tensor : spec_.tensors) {
    if (names.insert(tensor.name).second) continue;
    return ModelError{"layer",
                      absl::StrCat("has two with a tensor '", tensor.name,
                                   "'; give one of them (or the task's label) another name")};
  }
  return std::nullopt;
}

}  // namespace

Error AddLayers(const Job& job, ModelSpec* spec) { return LayerReader(job, spec).Run(); }

Error CheckWidths(const std::string& field,
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

Error CheckDropout(const std::string& field, float dropout) {
  if (dropout >= 0 && dropout < 1) return std::nullopt;
  return ModelError{field, absl::StrCat("is ", dropout, "; it must be in [0, 1)")};
}

}  // namespace thermocline
