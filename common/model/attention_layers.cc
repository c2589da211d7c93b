// The layers that weigh vectors by others: attention among the steps of a sequence, and gates.
#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/model/layer_reader.h"
#include "common/model/layers.h"

namespace thermocline {
namespace {

constexpr uint32_t kMaxHeads = 256;
constexpr uint32_t kMaxBlocks = 64;
constexpr float kFirstPositions = 0.01f;  // They begin uniform within it, as rows do.

}  // namespace

// Sequences
// ------------------------------------------------------------------------------------------------

std::optional<ModelError> LayerReader::AddAttention(int layer) {
  const Layer::Attention& attention = job_.layer(layer).attention();
  const std::string& name = NameOf(layer);
  const std::string words = Field(layer, "attention.");
  const StepSequence& sequence = inputs_.sequences[sequence_];
  const LayerValue step = InputOf(layer);
  const int width = step.width();
  for (const Item& item : layer_inputs_[layer].context) {
    if (SequenceOf(item) == kSamples) continue;
    return ModelError{words + "query", "has steps; what steps are compared with is of the sample"};
  }
  if (layer_inputs_[layer].context.empty()) {
    return ModelError{words + "query", "is empty; steps are compared with something"};
  }
  const LayerValue asks = ValueOf(layer_inputs_[layer].context);
  if (asks.width() != width) {
    return ModelError{words + "query",
                      absl::StrCat("has ", asks.width(), " numbers, and a step of '", sequence.name,
                                   "' has ", width,
                                   "; each part of a step is compared with one of "
                                   "the query")};
  }
  if (attention.without_last() && !sequence.ends_with_sample) {
    return ModelError{words + "without_last",
                      absl::StrCat("is set, but '", sequence.name,
                                   "' has no `then`: its last step is one like others")};
  }
  const bool is_mlp = attention.score() == Layer::Attention::MLP;
  if (!is_mlp && !attention.units().empty()) {
    return ModelError{words + "units", "is set, but only the score MLP has hidden layers"};
  }
  Error error = CheckWidths(words + "units", attention.units());
  if (error.has_value()) return error;
  LayerValue score;
  if (is_mlp) {
    Layer::Mlp mlp;
    *mlp.mutable_units() = attention.units();
    mlp.add_units(1);
    mlp.set_activation(attention.activation());
    mlp.set_last(Layer::LINEAR);
    *mlp.mutable_initializer() = attention.initializer();
    score = MakeMlp(mlp, name, graph_.Compare(asks, step));
  } else {
    const bool is_dot = attention.score() == Layer::Attention::DOT;
    const LayerValue query =
        is_dot ? asks
               : Linear(name, asks, width, name + ".weight", "", false, attention.initializer());
    GraphNode node;
    node.op = GraphNode::Op::kRowDot;
    score = Apply(node, {graph_.Repeat(query, sequence_), step}, 1);
    if (is_dot) {
      node.op = GraphNode::Op::kSumVectors;
      node.scale = 1 / std::sqrt(static_cast<float>(width));
      score = Apply(node, {score}, 1);
    }
  }
  GraphNode node;
  node.layer = name;
  node.without_last = attention.without_last();
  node.op = attention.softmax() ? GraphNode::Op::kStepSoftmax : GraphNode::Op::kClearLast;
  if (attention.softmax() || node.without_last) score = Apply(node, {score}, 1);
  values_.push_back(graph_.PoolWeighted(score, step));
  return std::nullopt;
}

std::optional<ModelError> LayerReader::AddSelfAttention(int layer) {
  const Layer::SelfAttention& attention = job_.layer(layer).self_attention();
  const std::string& name = NameOf(layer);
  const std::string words = Field(layer, "self_attention.");
  LayerValue step = InputOf(layer);
  step.widths = {step.width()};
  const int width = step.width();
  const auto heads = static_cast<int>(std::max(attention.heads(), 1u));
  if (attention.heads() > kMaxHeads || width % heads != 0) {
    return ModelError{words + "heads", absl::StrCat("is ", attention.heads(),
                                                    ", which must divide the step's width, ", width,
                                                    ", and be at most ", kMaxHeads)};
  }
  if (attention.blocks() > kMaxBlocks) {
    return ModelError{words + "blocks",
                      absl::StrCat("is ", attention.blocks(), "; it must be at most ", kMaxBlocks)};
  }
  if (attention.units() > kMaxLayerWidth) {
    return ModelError{words + "units", absl::StrCat("is ", attention.units(),
                                                    "; it must be at most ", kMaxLayerWidth)};
  }
  Error error = CheckDropout(words + "dropout", attention.dropout());
  if (error.has_value()) return error;
  const LayerInitializer& initializer = attention.initializer();
  GraphNode node;
  node.layer = name;
  if (attention.positions() > 0) {
    Initializer begin;
    begin.mutable_uniform()->set_scale(kFirstPositions);
    node.op = GraphNode::Op::kAddPositions;
    // No sample has a step for those beyond.
    const auto count = static_cast<int>(
        std::min<int64_t>(attention.positions(), inputs_.sequences[sequence_].max_steps));
    node.tensors = {AddTensor({name + ".positions", count, width, false, initializer, begin})};
    step = Apply(node, {step}, width);
    node.tensors.clear();
  }
  node.op = GraphNode::Op::kSelfAttention;
  node.heads = heads;
  const int units = attention.units() > 0 ? static_cast<int>(attention.units()) : 4 * width;
  for (uint32_t block = 0; block < std::max(attention.blocks(), 1u); ++block) {
    const std::string prefix = absl::StrCat(name, ".", block, ".");
    const auto linear = [&](const char* part, const LayerValue& input, int out, bool relu) {
      return Linear(prefix + part, input, out, absl::StrCat(prefix, part, ".weight"),
                    absl::StrCat(prefix, part, ".bias"), relu, initializer);
    };
    const auto add = [&](const char* part, const char* norm, const LayerValue& output) {
      const LayerValue kept = Drop(prefix + part, attention.dropout(), output);
      step = Normalized(prefix + norm, prefix + norm, SumOf({step, kept}));
    };
    node.layer = absl::StrCat(name, ".", block);
    const LayerValue mixed =
        Apply(node,
              {linear("query", step, width, false), linear("key", step, width, false),
               linear("value", step, width, false)},
              width, /*aux_columns=*/2 * heads);
    add("output", "first_norm", linear("output", mixed, width, false));
    add("down", "second_norm", linear("down", linear("up", step, units, true), width, false));
  }
  values_.push_back(step);
  return std::nullopt;
}

// Gates
// ------------------------------------------------------------------------------------------------

std::optional<ModelError> LayerReader::AddGate(int layer) {
  const std::string& name = NameOf(layer);
  const LayerValue input = InputOf(layer);
  const int vectors = static_cast<int>(input.widths.size());
  int width = 0;
  Error error = OneWidth(layer, "gate", input, &width);
  if (error.has_value()) return error;
  if (vectors < 2) {
    return ModelError{Field(layer, "input"),
                      absl::StrCat("is one vector; the gate of layer '", name,
                                   "' mixes two or more, such as "
                                   "those of an mlp with `copies`")};
  }
  if (layer_inputs_[layer].context.empty()) {
    return ModelError{Field(layer, "gate.by"), "is empty; something decides the shares"};
  }
  GraphNode node;
  node.layer = name;
  node.op = GraphNode::Op::kSoftmax;
  const LayerValue shares =
      Apply(node,
            {Linear(name, ContextOf(layer), vectors, name + ".weight", name + ".bias", false,
                    job_.layer(layer).gate().initializer())},
            vectors);
  node.op = GraphNode::Op::kMix;
  values_.push_back(Apply(node, {shares, input}, width));
  return std::nullopt;
}

}  // namespace thermocline
