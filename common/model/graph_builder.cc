#include "common/model/graph_builder.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace thermocline {
namespace {

// Leading dimensions are multiples of this many floats, which is what a GPU loads at once
// (kernels/matrix.h); a single column has none.
constexpr int64_t kAlignment = 8;

int64_t PaddedColumns(int columns) {
  return columns == 1 ? 1 : (columns + kAlignment - 1) / kAlignment * kAlignment;
}

// Which columns of gradients have been written, in the order of the backward pass.
class WrittenColumns {
 public:
  explicit WrittenColumns(const std::vector<GraphBuffer>& buffers) {
    for (const GraphBuffer& buffer : buffers) written_.emplace_back(buffer.columns);
  }

  bool HasAny(const Columns& columns) const {
    const auto begin = written_[columns.buffer].begin() + columns.first;
    return std::any_of(begin, begin + columns.width, [](bool written) { return written; });
  }
  bool HasAll(const Columns& columns) const {
    const auto begin = written_[columns.buffer].begin() + columns.first;
    return std::all_of(begin, begin + columns.width, [](bool written) { return written; });
  }
  void Mark(const Columns& columns) {
    std::fill_n(written_[columns.buffer].begin() + columns.first, columns.width, true);
  }

  // Brings `from` to `to`: runs of columns that were written before are added to.
  void Bring(const Columns& from, const Columns& to, std::vector<ColumnCopy>* copies) {
    const std::vector<bool>& written = written_[to.buffer];
    for (int begin = 0, end = 0; begin < to.width; begin = end) {
      const bool adds = written[to.first + begin];
      while (end < to.width && written[to.first + end] == adds) ++end;
      copies->push_back({{from.buffer, from.first + begin, end - begin},
                         {to.buffer, to.first + begin, end - begin},
                         adds});
    }
    Mark(to);
  }

 private:
  std::vector<std::vector<bool>> written_;  // [buffers][columns]
};

// Whether the gradient of input `i` is that of the output.
bool IsIdentity(GraphNode::Op op, size_t i) {
  using Op = GraphNode::Op;
  return op == Op::kAdd || op == Op::kAddPositions || (op == Op::kCross && i == 2);
}

// Whether the node can add the gradient of input `i` to what is there.
bool CanAdd(GraphNode::Op op, size_t i) { return op == GraphNode::Op::kCompare && i == 1; }

}  // namespace

int64_t LayerValue::all_numbers() const {
  int64_t numbers = 0;
  for (const int vector : widths) numbers += vector;
  return numbers;
}

void LayerValue::Append(const LayerValue& other) {
  slices.insert(slices.end(), other.slices.begin(), other.slices.end());
  widths.insert(widths.end(), other.widths.begin(), other.widths.end());
  names.insert(names.end(), other.names.begin(), other.names.end());
}

int GraphBuilder::AddValue(Value value) {
  values_.push_back(std::move(value));
  return static_cast<int>(values_.size()) - 1;
}

LayerValue GraphBuilder::Numeric(int numeric) {
  if (numeric_ < 0) {
    Value value;
    value.origin = Origin::kNumeric;
    value.width = numeric;
    value.home = {kNumericBuffer, 0, numeric};
    numeric_ = AddValue(value);
  }
  return {{{numeric_, 0, numeric}}, {numeric}, {"numeric"}};
}

void GraphBuilder::AddPooled(int dim, int sequence, std::vector<int32_t> features) {
  Value vectors;
  vectors.origin = Origin::kVectors;
  vectors.sequence = sequence;
  vectors.width = dim * static_cast<int>(features.size());
  vectors.group = static_cast<int>(graph_.pooled.size());
  vectors.has_gradient = vectors.leads_to_rows = true;
  vectors_.push_back(dim > 0 ? AddValue(vectors) : -1);
  first_order_.push_back(-1);
  PooledFeatures pooled;
  pooled.dim = dim;
  pooled.sequence = sequence;
  pooled.features = std::move(features);
  graph_.pooled.push_back(std::move(pooled));
}

ValueSlice GraphBuilder::VectorOf(int group, int index) const {
  const int dim = graph_.pooled[group].dim;
  return {vectors_[group], index * dim, dim};
}

ValueSlice GraphBuilder::FirstOrderOf(int group, int index) {
  if (first_order_[group] < 0) {
    Value value;
    value.origin = Origin::kFirstOrder;
    value.width = static_cast<int>(graph_.pooled[group].features.size());
    value.group = group;
    value.has_gradient = value.leads_to_rows = true;
    first_order_[group] = AddValue(value);
  }
  return {first_order_[group], index, 1};
}

std::vector<ValueSlice> GraphBuilder::Merged(const std::vector<ValueSlice>& slices) const {
  std::vector<ValueSlice> merged;
  for (const ValueSlice& slice : slices) {
    ValueSlice* const last = merged.empty() ? nullptr : &merged.back();
    if (last != nullptr && last->value == slice.value && last->first + last->width == slice.first) {
      last->width += slice.width;
    } else {
      merged.push_back(slice);
    }
  }
  return merged;
}

ValueSlice GraphBuilder::InOne(const std::vector<ValueSlice>& slices) {
  std::vector<ValueSlice> merged = Merged(slices);
  if (merged.size() == 1) return merged[0];
  const auto known = concats_.find(merged);
  if (known != concats_.end()) return {known->second, 0, values_[known->second].width};
  Value value;
  value.origin = Origin::kConcat;
  value.sequence = values_[merged[0].value].sequence;
  for (const ValueSlice& slice : merged) {
    CHECK_EQ(values_[slice.value].sequence, value.sequence);
    value.width += slice.width;
    value.has_gradient = value.has_gradient || values_[slice.value].has_gradient;
    value.leads_to_rows = value.leads_to_rows || values_[slice.value].leads_to_rows;
  }
  value.parts = merged;
  const int width = value.width;
  Pending pending;
  pending.output = AddValue(std::move(value));
  pending.node.op = GraphNode::Op::kConcat;
  pending_.push_back(pending);
  concats_[std::move(merged)] = pending.output;
  return {pending.output, 0, width};
}

int GraphBuilder::SequenceOf(const LayerValue& value) const {
  CHECK(!value.slices.empty());
  return values_[value.slices[0].value].sequence;
}

LayerValue GraphBuilder::AddNode(GraphNode node, const std::vector<LayerValue>& inputs,
                                 int output_width, int aux_columns) {
  const int sequence = inputs.empty() ? kSamples : SequenceOf(inputs[0]);
  for (const LayerValue& input : inputs) CHECK_EQ(SequenceOf(input), sequence);
  return AddNodeOf(sequence, std::move(node), inputs, output_width, aux_columns);
}

LayerValue GraphBuilder::Repeat(const LayerValue& value, int sequence) {
  std::pair<int, std::vector<ValueSlice>> key = {sequence, Merged(value.slices)};
  const auto known = repeated_.find(key);
  LayerValue repeated = value;
  if (known != repeated_.end()) {
    repeated.slices = known->second.slices;
    return repeated;
  }
  GraphNode node;
  node.op = GraphNode::Op::kRepeat;
  const LayerValue at_steps = AddNodeOf(sequence, std::move(node), {value}, value.width(), 0);
  repeated.slices = at_steps.slices;
  repeated_[std::move(key)] = at_steps;
  return repeated;
}

LayerValue GraphBuilder::PoolSteps(const LayerValue& value, Layer::Pool::Mode mode) {
  GraphNode node;
  node.op = GraphNode::Op::kPoolSteps;
  node.step_pooling = mode;
  LayerValue pooled = value;
  pooled.slices = AddNodeOf(kSamples, std::move(node), {value}, value.width(), 0).slices;
  return pooled;
}

LayerValue GraphBuilder::PoolWeighted(const LayerValue& weights, const LayerValue& steps) {
  GraphNode node;
  node.op = GraphNode::Op::kPoolWeighted;
  LayerValue pooled = AddNodeOf(kSamples, std::move(node), {weights, steps}, steps.width(), 0);
  pooled.widths = steps.widths;
  return pooled;
}

LayerValue GraphBuilder::Compare(const LayerValue& query, const LayerValue& steps) {
  GraphNode node;
  node.op = GraphNode::Op::kCompare;
  return AddNodeOf(SequenceOf(steps), std::move(node), {query, steps}, 4 * steps.width(), 0);
}

LayerValue GraphBuilder::AddNodeOf(int sequence, GraphNode node,
                                   const std::vector<LayerValue>& inputs, int output_width,
                                   int aux_columns) {
  Pending pending;
  Value output;
  output.width = output_width;
  output.sequence = sequence;
  output.has_gradient = !node.tensors.empty();
  for (const LayerValue& input : inputs) {
    pending.inputs.push_back(InOne(input.slices));
    const Value& value = values_[pending.inputs.back().value];
    output.has_gradient = output.has_gradient || value.has_gradient;
    output.leads_to_rows = output.leads_to_rows || value.leads_to_rows;
  }
  pending.node = std::move(node);
  pending.output = AddValue(output);
  pending.aux_columns = aux_columns;
  pending_.push_back(pending);
  return {{{pending.output, 0, output_width}}, {output_width}, {}};
}

bool GraphBuilder::IsComputed(const LayerValue& value) const {
  return std::all_of(value.slices.begin(), value.slices.end(), [this](const ValueSlice& slice) {
    return values_[slice.value].origin == Origin::kNode;
  });
}

int GraphBuilder::AddBuffer(GraphBuffer buffer) {
  graph_.buffers.push_back(buffer);
  return static_cast<int>(graph_.buffers.size()) - 1;
}

bool GraphBuilder::IsWhole(const ValueSlice& slice) const {
  return slice.first == 0 && slice.width == values_[slice.value].width;
}

bool GraphBuilder::HasNoHome(const ValueSlice& slice) const {
  return IsWhole(slice) && values_[slice.value].home.buffer == kNoBuffer;
}

void GraphBuilder::PlacePooled(int v, int leading_floats) {
  Value& value = values_[v];
  PooledFeatures& group = graph_.pooled[value.group];
  const int dim = group.dim;
  group.leading = (leading_floats + dim - 1) / dim;
  const int columns = group.leading * dim + value.width;
  group.vectors = AddBuffer({value.sequence, columns, columns});
  value.home = {group.vectors, group.leading * dim, value.width};
}

void GraphBuilder::PlaceConcat(int v) {
  const std::vector<ValueSlice> parts = values_[v].parts;
  const int width = values_[v].width;
  const auto may_move = [this](const ValueSlice& part) {
    return HasNoHome(part) && values_[part.value].origin == Origin::kNode;
  };
  const bool joins_pooled =
      values_[parts.back().value].origin == Origin::kVectors && HasNoHome(parts.back()) &&
      std::all_of(parts.begin(), parts.end() - 1, [&](const ValueSlice& part) {
        return may_move(part) || values_[part.value].origin == Origin::kNumeric;
      });
  int buffer = 0, first = 0;
  if (joins_pooled) {
    PlacePooled(parts.back().value, width - parts.back().width);
    const Columns& vectors = values_[parts.back().value].home;
    buffer = vectors.buffer;
    first = vectors.first + vectors.width - width;
  } else {
    buffer = AddBuffer({values_[v].sequence, width, PaddedColumns(width)});
  }
  values_[v].home = {buffer, first, width};
  for (const ValueSlice& part : parts) {
    if (may_move(part)) values_[part.value].home = {buffer, first, part.width};
    first += part.width;
  }
}

void GraphBuilder::PlaceValues() {
  const int num_values = static_cast<int>(values_.size());
  for (int v = 0; v < num_values; ++v) {
    if (values_[v].origin == Origin::kConcat) PlaceConcat(v);
  }
  for (int v = 0; v < num_values; ++v) {
    if (values_[v].home.buffer != kNoBuffer) continue;
    if (values_[v].origin == Origin::kVectors) {
      PlacePooled(v, 0);
    } else if (values_[v].origin == Origin::kNode) {
      const int width = values_[v].width;
      const int buffer = AddBuffer({values_[v].sequence, width, PaddedColumns(width)});
      values_[v].home = {buffer, 0, width};
    }
  }
  // A feature's vector and first-order weight have one place in both buffers.
  for (Value& value : values_) {
    if (value.origin != Origin::kFirstOrder) continue;
    PooledFeatures& group = graph_.pooled[value.group];
    const int columns = group.leading + value.width;
    group.first_order = AddBuffer({kSamples, columns, columns});
    value.home = {group.first_order, group.leading, value.width};
  }
}

Columns GraphBuilder::PlaceOf(const ValueSlice& slice) const {
  const Columns& home = values_[slice.value].home;
  return {home.buffer, home.first + slice.first, slice.width};
}

void GraphBuilder::MakeCopies(const Value& concat, GraphNode* node) const {
  int first = concat.home.first;
  for (const ValueSlice& part : concat.parts) {
    const Columns from = PlaceOf(part), to = {concat.home.buffer, first, part.width};
    first += part.width;
    if (!(from == to)) node->copies.push_back({from, to, false});
  }
}

void GraphBuilder::PlanBackward(const std::vector<Pending>& pending) {
  std::map<int, int> scratch_of;  // By sequence.
  WrittenColumns written(graph_.buffers);
  for (const Columns& logit : graph_.logits) written.Mark(logit);
  const auto plan_input = [&](GraphNode* node, size_t i, const Value& value) {
    InputGradient gradient;
    const Columns& input = node->inputs[i];
    gradient.is_wanted = value.has_gradient;
    if (gradient.is_wanted && IsIdentity(node->op, i)) {
      written.Bring(node->output, input, &gradient.copies);
    } else if (gradient.is_wanted && !written.HasAny(input)) {
      gradient.target = input;
      written.Mark(input);
    } else if (gradient.is_wanted && CanAdd(node->op, i) && written.HasAll(input)) {
      gradient.target = input;
      gradient.adds = true;
    } else if (gradient.is_wanted) {
      const int sequence = graph_.buffers[input.buffer].sequence;
      const auto [place, is_new] = scratch_of.emplace(sequence, kNoBuffer);
      if (is_new) place->second = AddBuffer({sequence, 0, 0, /*has_value=*/false});
      const int scratch = place->second;
      GraphBuffer& buffer = graph_.buffers[scratch];
      buffer.columns = std::max(buffer.columns, input.width);
      buffer.ld = PaddedColumns(buffer.columns);
      gradient.target = {scratch, 0, input.width};
      written.Bring(gradient.target, input, &gradient.copies);
    }
    node->gradients.push_back(std::move(gradient));
  };
  // Nodes that gradients of rows go through are first; the others may wait until the rows'
  // gradients are on their way.
  for (const bool to_rows : {true, false}) {
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      GraphNode& node = graph_.nodes[n];
      if (!node.has_gradient || node.leads_to_rows != to_rows) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        plan_input(&node, i, values_[pending[n].inputs[i].value]);
      }
      for (const ColumnCopy& copy : node.copies) {
        if (node.gradients.empty()) node.gradients.emplace_back();
        if (copy.from.buffer == kNumericBuffer) continue;
        written.Bring(copy.to, copy.from, &node.gradients[0].copies);
      }
    }
  }
}

ModelGraph GraphBuilder::Finish(const std::vector<LayerValue>& logits) {
  PlaceValues();
  for (const LayerValue& logit : logits) {
    CHECK_EQ(logit.width(), 1);
    CHECK_EQ(logit.slices.size(), size_t{1});
    graph_.logits.push_back(PlaceOf(logit.slices[0]));
  }
  for (Pending& pending : pending_) {
    GraphNode& node = pending.node;
    const Value& output = values_[pending.output];
    for (const ValueSlice& input : pending.inputs) node.inputs.push_back(PlaceOf(input));
    node.output = output.home;
    node.has_gradient = output.has_gradient;
    node.leads_to_rows = output.leads_to_rows;
    if (pending.aux_columns > 0) {
      const int aux = AddBuffer({output.sequence, pending.aux_columns,
                                 PaddedColumns(pending.aux_columns), /*has_value=*/true,
                                 /*has_gradient=*/false});
      node.aux = {aux, 0, pending.aux_columns};
    }
    if (output.origin == Origin::kConcat) MakeCopies(output, &node);
    graph_.nodes.push_back(node);
  }
  PlanBackward(pending_);
  return std::move(graph_);
}

}  // namespace thermocline
