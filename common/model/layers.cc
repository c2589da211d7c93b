#include "common/model/layers.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/layer_reader.h"

namespace thermocline {
namespace {

constexpr uint32_t kMaxCrossLayers = 64;
constexpr int64_t kMaxNumbers = 1 << 24;
constexpr int64_t kMaxTensorFloats = int64_t{1} << 32;
constexpr float kLayerNormEpsilon = 1e-5f;
constexpr float kNormalizeEpsilon = 1e-12f;
constexpr float kFirstSlope = 0.25f;  // PReLU's, as PyTorch's.
constexpr uint32_t kMaxCopies = 1024;

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

}  // namespace

// Nodes
// ------------------------------------------------------------------------------------------------

LayerValue LayerReader::Apply(GraphNode node, const std::vector<LayerValue>& inputs, int width,
                              int aux_columns) {
  return graph_.AddNode(std::move(node), inputs, width, aux_columns);
}

DenseTensor LayerReader::AddTensor(DenseTensor tensor) {
  spec_.tensors.push_back(tensor);
  return tensor;
}

DenseTensor LayerReader::AddVector(const std::string& name, int size, float value) {
  Initializer constant;
  constant.mutable_constant()->set_value(value);
  return AddTensor({name, size, size, true, {}, constant});
}

LayerValue LayerReader::Linear(const std::string& layer, const LayerValue& input, int width,
                               const std::string& weight, const std::string& bias, bool relu,
                               const LayerInitializer& initializer,
                               const std::optional<Initializer>& own_init) {
  GraphNode node;
  node.op = GraphNode::Op::kMlp;
  node.layer = layer;
  node.relu_after_last = relu;
  const int in = input.width();
  node.tensors.push_back(AddTensor({weight, in, width, false, initializer, own_init}));
  if (!bias.empty()) {
    node.biases.push_back(AddTensor({bias, in, width, true, initializer, {}}));
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
    node.tensors.push_back(AddTensor({prefix + "weight", in, units[i], false, initializer, {}}));
    node.biases.push_back(AddTensor({prefix + "bias", in, units[i], true, initializer, {}}));
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
    sum = Apply(std::move(node), {sum, values[i]}, sum.width());
  }
  return sum;
}

LayerValue LayerReader::Activate(const std::string& layer, Layer::Activation activation,
                                 const std::string& slope, const LayerValue& value) {
  GraphNode node;
  node.op = GraphNode::Op::kActivation;
  node.layer = layer;
  node.activation = activation;
  if (activation == Layer::PRELU) node.tensors = {AddVector(slope, value.width(), kFirstSlope)};
  return Apply(std::move(node), {value}, value.width());
}

LayerValue LayerReader::Drop(const std::string& layer, float share, const LayerValue& value) {
  if (share == 0) return value;
  GraphNode node;
  node.op = GraphNode::Op::kDropout;
  node.layer = layer;
  node.dropout = share;
  return Apply(std::move(node), {value}, value.width());
}

LayerValue LayerReader::Normalized(const std::string& layer, const std::string& tensors,
                                   const LayerValue& value) {
  GraphNode node;
  node.op = GraphNode::Op::kLayerNorm;
  node.layer = layer;
  node.epsilon = kLayerNormEpsilon;
  node.tensors = {AddVector(tensors + ".weight", value.width(), 1),
                  AddVector(tensors + ".bias", value.width(), 0)};
  return Apply(std::move(node), {value}, value.width(), /*aux_columns=*/2);
}

// Layers
// ------------------------------------------------------------------------------------------------

std::optional<ModelError> LayerReader::OneWidth(int layer, const std::string& kind,
                                                const LayerValue& value, int* width) const {
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

std::optional<ModelError> LayerReader::AddMlp(int layer) {
  const Layer::Mlp& mlp = job_.layer(layer).mlp();
  if (mlp.units().empty()) {
    return ModelError{Field(layer, "mlp.units"), "is empty; give each layer's width"};
  }
  Error error = CheckWidths(Field(layer, "mlp.units"), mlp.units());
  if (!error.has_value()) error = CheckDropout(Field(layer, "mlp.dropout"), mlp.dropout());
  if (error.has_value()) return error;
  const std::string& name = NameOf(layer);
  const uint32_t copies = job_.layer(layer).copies();
  if (copies > kMaxCopies) {
    return ModelError{Field(layer, "copies"),
                      absl::StrCat("is ", copies, "; it must be at most ", kMaxCopies)};
  }
  const LayerValue input = InputOf(layer);
  if (copies == 0) {
    values_.push_back(MakeMlp(mlp, name, input));
    return std::nullopt;
  }
  LayerValue all;
  for (uint32_t i = 0; i < copies; ++i) {
    LayerValue copy = MakeMlp(mlp, absl::StrCat(name, ".", i), input);
    copy.names = {name};
    all.Append(copy);
  }
  values_.push_back(std::move(all));
  return std::nullopt;
}

LayerValue LayerReader::MakeMlp(const Layer::Mlp& mlp, const std::string& name, LayerValue value) {
  const Layer::Activation last = mlp.has_last() ? mlp.last() : mlp.activation();
  const bool is_stack = mlp.activation() == Layer::RELU && !mlp.layer_norm() &&
                        mlp.dropout() == 0 && (last == Layer::RELU || last == Layer::LINEAR);
  if (is_stack) {
    const std::vector<int> units(mlp.units().begin(), mlp.units().end());
    return Stack(name, value, units, last == Layer::RELU, mlp.initializer());
  }
  for (int i = 0; i < mlp.units_size(); ++i) {
    const std::string prefix = absl::StrCat(name, ".", i, ".");
    const std::string node = absl::StrCat(name, ".", i);
    const bool is_last = i + 1 == mlp.units_size();
    const Layer::Activation activation = is_last ? last : mlp.activation();
    const bool is_plain = is_last && mlp.has_last() && last == Layer::LINEAR;
    const bool has_norm = mlp.layer_norm() && !is_plain;
    value = Linear(node, value, static_cast<int>(mlp.units(i)), prefix + "weight", prefix + "bias",
                   activation == Layer::RELU && !has_norm, mlp.initializer());
    if (has_norm) value = Normalized(node, prefix + "norm", value);
    if (activation != Layer::LINEAR && (activation != Layer::RELU || has_norm)) {
      value = Activate(node, activation, prefix + "slope", value);
    }
    if (!is_plain) value = Drop(node, mlp.dropout(), value);
  }
  return value;
}

std::optional<ModelError> LayerReader::AddDot(int layer) {
  const LayerValue input = InputOf(layer);
  GraphNode node;
  node.op = GraphNode::Op::kDot;
  node.layer = NameOf(layer);
  Error error = OneWidth(layer, "dot product", input, &node.width);
  if (error.has_value()) return error;
  const auto vectors = static_cast<int64_t>(input.widths.size());
  const int dim = node.width;
  const bool keeps_first = job_.layer(layer).dot().keep_first();
  error = CheckNumbers(layer, vectors * (vectors - 1) / 2);
  if (error.has_value()) return error;
  const int pairs = static_cast<int>(vectors * (vectors - 1) / 2);
  if (pairs == 0 && !keeps_first) {
    return ModelError{Field(layer, "input"), "is one vector; dot products need two"};
  }
  const LayerValue all = Apply(std::move(node), {input}, dim + pairs);
  values_.push_back(keeps_first ? all : ColumnsOf(all, dim, pairs));
  return std::nullopt;
}

std::optional<ModelError> LayerReader::AddFm(int layer) {
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

std::optional<ModelError> LayerReader::AddFirstOrder(int layer) {
  const std::string& name = NameOf(layer);
  Initializer begin = job_.layer(layer).first_order().initializer();
  if (begin.kind_case() == Initializer::KIND_NOT_SET) begin.mutable_constant()->set_value(0);
  std::vector<LayerValue> sums;
  std::map<int, LayerValue> by_group;
  for (const std::vector<Item>& items : layer_inputs_[layer].items) {
    for (const Item& item : items) {
      if (item.kind == Item::Kind::kNumeric) {
        sums.push_back(Linear(name, ValueOf(item), 1, name + ".weight", "", false, {}, begin));
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

std::optional<ModelError> LayerReader::AddCross(int layer) {
  const Layer::Cross& cross = job_.layer(layer).cross();
  const LayerValue first = InputOf(layer);
  const int width = first.width();
  if (cross.layers() < 1 || cross.layers() > kMaxCrossLayers) {
    return ModelError{
        Field(layer, "cross.layers"),
        absl::StrCat("is ", cross.layers(), "; it must be in [1, ", kMaxCrossLayers, "]")};
  }
  if (cross.rank() > static_cast<uint32_t>(width)) {
    return ModelError{Field(layer, "cross.rank"),
                      absl::StrCat("is ", cross.rank(), "; the input of layer '", NameOf(layer),
                                   "' has ", width, " numbers, and the rank is at most that")};
  }
  const int rank = static_cast<int>(cross.rank());
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

std::optional<ModelError> LayerReader::AddBilinear(int layer) {
  const std::string& name = NameOf(layer);
  const Layer::Bilinear& bilinear = job_.layer(layer).bilinear();
  if (layer_inputs_[layer].items.size() != 2) {
    return ModelError{Field(layer, "input"), absl::StrCat("has ", layer_inputs_[layer].items.size(),
                                                          " names; a bilinear product reads two")};
  }
  const LayerValue x = InputOf(layer, 0), y = InputOf(layer, 1);
  const auto in_both = static_cast<uint32_t>(std::min(x.width(), y.width()));
  const uint32_t wanted = std::max(bilinear.heads(), 1u);
  const auto heads = static_cast<int>(std::min(wanted, in_both));
  if (wanted > in_both || x.width() % heads != 0 || y.width() % heads != 0) {
    return ModelError{Field(layer, "bilinear.heads"),
                      absl::StrCat("is ", wanted, ", which must divide both widths, ", x.width(),
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

std::optional<ModelError> LayerReader::AddFeatureGate(int layer) {
  const std::string& name = NameOf(layer);
  const Layer::FeatureGate& gate = job_.layer(layer).feature_gate();
  Error error = CheckWidths(Field(layer, "feature_gate.units"), gate.units());
  if (error.has_value()) return error;
  const LayerValue input = InputOf(layer);
  std::vector<int> units(gate.units().begin(), gate.units().end());
  units.push_back(input.width());
  const LayerValue context = gate.by().empty() ? Constant(name) : ContextOf(layer);
  const LayerValue weights = Stack(name, context, units, false, gate.initializer());
  GraphNode node;
  node.layer = name;
  node.op = GraphNode::Op::kActivation;
  node.activation = Layer::SIGMOID;
  LayerValue shares = Apply(node, {weights}, input.width());
  // A learned vector is the same at each step.
  if (graph_.SequenceOf(shares) != sequence_) shares = graph_.Repeat(shares, sequence_);
  node.op = GraphNode::Op::kMultiply;
  node.scale = 2;
  LayerValue value = Apply(node, {shares, input}, input.width());
  value.widths = input.widths;
  values_.push_back(std::move(value));
  return std::nullopt;
}

std::optional<ModelError> LayerReader::AddEmbed(int layer) {
  const Layer::Embed& embed = job_.layer(layer).embed();
  if (embed.dim() < 1 || embed.dim() > kMaxLayerWidth) {
    return ModelError{
        Field(layer, "embed.dim"),
        absl::StrCat("is ", embed.dim(), "; it must be in [1, ", kMaxLayerWidth, "]")};
  }
  const LayerValue input = InputOf(layer);
  const int numbers = input.width(), dim = static_cast<int>(embed.dim());
  if (Error error = CheckNumbers(layer, int64_t{numbers} * dim); error.has_value()) return error;
  GraphNode node;
  node.op = GraphNode::Op::kEmbed;
  node.layer = NameOf(layer);
  node.tensors = {
      AddTensor({node.layer + ".weight", numbers, dim, false, embed.initializer(), {}})};
  LayerValue value = Apply(std::move(node), {input}, numbers * dim);
  value.widths.assign(numbers, dim);
  values_.push_back(std::move(value));
  return std::nullopt;
}

std::optional<ModelError> LayerReader::AddElementwise(int layer, GraphNode::Op op) {
  const std::vector<std::vector<Item>>& items = layer_inputs_[layer].items;
  if (items.size() < 2) {
    return ModelError{Field(layer, "input"),
                      absl::StrCat("has one name; layer '", NameOf(layer), "' needs two or more")};
  }
  LayerValue value = InputOf(layer, 0);
  for (size_t i = 1; i < items.size(); ++i) {
    const LayerValue other = InputOf(layer, i);
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

std::optional<ModelError> LayerReader::AddNormalize(int layer) {
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

std::optional<ModelError> LayerReader::AddPool(int layer) {
  const LayerValue input = InputOf(layer);
  const Layer::Pool::Mode mode = job_.layer(layer).pool().mode();
  const int vectors = static_cast<int>(input.widths.size());
  GraphNode node;
  node.op = GraphNode::Op::kSumVectors;
  node.layer = NameOf(layer);
  if (sequence_ != kSamples) {
    values_.push_back(graph_.PoolSteps(input, mode));
    return std::nullopt;
  }
  Error error = OneWidth(layer, "pooling", input, &node.width);
  if (error.has_value()) return error;
  if (mode == Layer::Pool::LAST) {
    values_.push_back(ColumnsOf(input, input.width() - node.width, node.width));
    return std::nullopt;
  }
  if (mode == Layer::Pool::MEAN) node.scale = 1.0f / static_cast<float>(vectors);
  const int width = node.width;
  values_.push_back(Apply(std::move(node), {input}, width));
  return std::nullopt;
}

int64_t LayerReader::NumbersOf(int layer) {
  int64_t numbers = 0;
  for (const std::vector<Item>& items : layer_inputs_[layer].items) {
    for (const Item& item : items) numbers += ValueOf(item).all_numbers();
  }
  return numbers;
}

// Each layer's input and output have so few numbers that no sum of widths overflows.
std::optional<ModelError> LayerReader::CheckNumbers(int layer, int64_t numbers) const {
  if (numbers <= kMaxNumbers) return std::nullopt;
  return ModelError{
      absl::StrCat("layer[", layer, "]"),
      absl::StrCat("('", NameOf(layer), "') has ", numbers, " numbers for each sample; at most ",
                   kMaxNumbers, " are possible")};
}

std::optional<ModelError> LayerReader::AddLayer(int layer) {
  const Layer& words = job_.layer(layer);
  if (Error error = FindSequence(layer); error.has_value()) return error;
  if (Error error = CheckNumbers(layer, NumbersOf(layer)); error.has_value()) return error;
  if (words.copies() > 0 && !words.has_mlp()) {
    return ModelError{Field(layer, "copies"), "is set, but only an mlp has copies"};
  }
  switch (words.kind_case()) {
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
    case Layer::kAttention:
      return AddAttention(layer);
    case Layer::kSelfAttention:
      return AddSelfAttention(layer);
    case Layer::kGate:
      return AddGate(layer);
    case Layer::KIND_NOT_SET:
      break;
  }
  return ModelError{
      absl::StrCat("layer[", layer, "]"),
      absl::StrCat("('", NameOf(layer), "') says not what it computes (mlp, dot, fm, ...)")};
}

LayerValue LayerReader::OwnLogit(int t) {
  const Task& task = job_.task(t);
  std::vector<LayerValue> logits;
  LayerValue wide;
  for (const Item& item : task_inputs_[t]) {
    const LayerValue value = ValueOf(item);
    if (value.width() == 1 && item.kind == Item::Kind::kLayer) {
      logits.push_back(value);
    } else {
      wide.Append(value);
    }
  }
  if (!wide.slices.empty()) {
    logits.push_back(
        Linear(task.label(), wide, 1, task.label() + ".weight", task.label() + ".bias", false, {}));
  }
  return SumOf(logits);
}

std::optional<ModelError> LayerReader::CheckTasks() {
  for (int t = 0; t < job_.task_size(); ++t) {
    for (const Item& item : task_inputs_[t]) {
      const int sequence = SequenceOf(item);
      if (sequence == kSamples) continue;
      return ModelError{
          absl::StrCat("task[", t, "].input"),
          absl::StrCat("has steps of '", inputs_.sequences[sequence].name,
                       "'; a task reads what is of the sample, such as a `pool` over them")};
    }
  }
  return std::nullopt;
}

void LayerReader::AddTasks() {
  std::vector<LayerValue> logits;
  std::set<std::vector<ValueSlice>> taken;
  for (int t = 0; t < job_.task_size(); ++t) {
    const Task& task = job_.task(t);
    LayerValue logit = OwnLogit(t);
    GraphNode node;
    if (!task.times().empty()) {
      int other = 0;
      while (job_.task(other).label() != task.times()) ++other;
      node.op = GraphNode::Op::kProductLogit;
      logit = Apply(std::move(node), {logit, logits[other]}, 1);
    } else if (!graph_.IsComputed(logit) || taken.count(logit.slices) > 0) {
      // A number of a feature is no buffer of the model's, and each task's loss writes a gradient
      // of its own: the logit is a sum that has a buffer.
      node.op = GraphNode::Op::kSumVectors;
      logit = Apply(std::move(node), {logit}, 1);
    }
    taken.insert(logit.slices);
    logits.push_back(std::move(logit));
    spec_.tasks.push_back({task.label(), task.has_weight() ? task.weight() : 1});
  }
  spec_.graph = graph_.Finish(logits);
}

std::optional<ModelError> LayerReader::CheckTensors() const {
  std::set<std::string> names;
  for (const DenseTensor& tensor : spec_.tensors) {
    if (int64_t{tensor.rows()} * tensor.cols() > kMaxTensorFloats) {
      return ModelError{"layer",
                        absl::StrCat("has one whose tensor '", tensor.name, "' is [", tensor.rows(),
                                     ", ", tensor.cols(), "]; it may have 2^32 numbers")};
    }
    if (names.insert(tensor.name).second) continue;
    return ModelError{"layer",
                      absl::StrCat("has two with a tensor '", tensor.name,
                                   "'; give one of them (or the task's label) another name")};
  }
  return std::nullopt;
}

std::optional<ModelError> LayerReader::Run() {
  Error error = ReadGroups();
  if (!error.has_value()) error = ReadInputs();
  if (!error.has_value()) error = PoolFeatures();
  for (int i = 0; i < job_.layer_size() && !error.has_value(); ++i) error = AddLayer(i);
  if (error.has_value()) return error;
  error = CheckTasks();
  if (error.has_value()) return error;
  AddTasks();
  return CheckTensors();
}

std::optional<ModelError> AddLayers(const Job& job, ModelSpec* spec) {
  return LayerReader(job, spec).Run();
}

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

std::optional<ModelError> CheckDropout(const std::string& field, float dropout) {
  if (dropout >= 0 && dropout < 1) return std::nullopt;
  return ModelError{field, absl::StrCat("is ", dropout, "; it must be in [0, 1)")};
}

}  // namespace thermocline
