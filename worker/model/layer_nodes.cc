// The operations of each node, forward and backward.
#include "common/base/check.h"
#include "worker/model/model.h"

namespace thermocline {
namespace {

ActivationKind KindOf(Layer::Activation activation) {
  switch (activation) {
    case Layer::SIGMOID:
      return ActivationKind::kSigmoid;
    case Layer::TANH:
      return ActivationKind::kTanh;
    case Layer::PRELU:
      return ActivationKind::kPrelu;
    default:
      return ActivationKind::kRelu;
  }
}

StepPooling PoolingOf(Layer::Pool::Mode mode) {
  switch (mode) {
    case Layer::Pool::MEAN:
      return StepPooling::kMean;
    case Layer::Pool::LAST:
      return StepPooling::kLast;
    default:
      return StepPooling::kSum;
  }
}

DeviceSpan<const float> SlopesOf(const std::vector<DeviceSpan<float>>& parameters) {
  return parameters.empty() ? DeviceSpan<const float>{} : parameters[0].AsConst();
}

}  // namespace

void Model::Forward(const Node& node) {
  using Op = GraphNode::Op;
  const GraphNode& graph = *node.graph;
  std::vector<Matrix> x;
  for (const Columns& input : graph.inputs) x.push_back(ValueOf(input));
  const Matrix y = ValueOf(graph.output);
  switch (graph.op) {
    case Op::kConcat:
      for (const ColumnCopy& copy : graph.copies) Bring(copy, &Model::ValueOf);
      return;
    case Op::kOnes:
      return;
    case Op::kMlp:
      return node.mlp->Forward(parameters_.weights().AsConst(), x[0], y);
    case Op::kActivation:
      return device_->layers().ActivationForward(KindOf(graph.activation),
                                                 SlopesOf(node.parameters), x[0], y);
    case Op::kLayerNorm:
      return device_->layers().LayerNormForward(x[0], node.parameters[0].AsConst(),
                                                node.parameters[1].AsConst(), graph.epsilon, y,
                                                ValueOf(graph.aux));
    case Op::kDropout:
      return Dropout(node, x[0], y);
    case Op::kNormalize:
      return device_->layers().NormalizeForward(x[0], graph.width, graph.epsilon, y,
                                                ValueOf(graph.aux));
    case Op::kSumVectors:
      return device_->layers().SumVectors(x[0], graph.scale, y);
    case Op::kFm:
      return device_->layers().FmForward(x[0], graph.width, ValueOf(graph.aux), y);
    case Op::kEmbed:
      return device_->layers().EmbedForward(x[0], node.parameters[0].AsConst(), y);
    case Op::kDot:
      return device_->InteractionForward(x[0], x[0].cols / graph.width, y);
    case Op::kAdd:
      return device_->layers().Add(x[0], x[1], y);
    case Op::kMultiply:
      return device_->layers().MultiplyAdd(graph.scale, x[0], x[1], Matrix(), y);
    case Op::kCross:
      return device_->layers().MultiplyAdd(1, x[0], x[1], x[2], y);
    case Op::kRowDot:
      return device_->layers().RowDot(x[0], x[1], y);
    case Op::kProductLogit:
      return device_->layers().ProductLogitForward(x[0], x[1], y);
    case Op::kSoftmax:
      return device_->layers().SoftmaxForward(x[0], y);
    case Op::kMix:
      return device_->layers().MixForward(x[0], x[1], y);
    case Op::kRepeat:
      return device_->steps().Repeat(RangesOf(node), x[0], y);
    case Op::kPoolSteps:
      return device_->steps().Pool(RangesOf(node), PoolingOf(graph.step_pooling), x[0], y);
    case Op::kStepSoftmax:
      return device_->steps().SoftmaxForward(RangesOf(node), graph.without_last, x[0], y);
    case Op::kClearLast:
      return device_->steps().ClearLast(RangesOf(node), x[0], y);
    case Op::kPoolWeighted:
      return device_->steps().PoolWeighted(RangesOf(node), x[0], x[1], y);
    case Op::kCompare:
      return device_->steps().Compare(RangesOf(node), x[0], x[1], y);
    case Op::kSelfAttention:
      return device_->steps().AttentionForward(RangesOf(node), graph.heads, x[0], x[1], x[2], y,
                                               ValueOf(graph.aux));
    case Op::kAddPositions:
      return device_->steps().AddPositions(RangesOf(node), node.parameters[0].AsConst(), x[0], y);
  }
}

void Model::Dropout(const Node& node, Matrix x, Matrix y) {
  if (place_.empty()) return device_->layers().Copy(x, y);
  if (node.sequence == kSamples) return device_->layers().Dropout(node.mask, place_, x, y);
  device_->steps().Dropout(RangesOf(node), node.mask, place_, x, y);
}

// All three gradients at once: nothing else reads queries, keys and values.
void Model::BackwardToAttention(const Node& node) {
  const GraphNode& graph = *node.graph;
  const auto gradient = [&](size_t i) { return GradientOf(graph.gradients[i].target); };
  device_->steps().AttentionBackward(
      RangesOf(node), graph.heads, ValueOf(graph.inputs[0]), ValueOf(graph.inputs[1]),
      ValueOf(graph.inputs[2]), ValueOf(graph.output), ValueOf(graph.aux), GradientOf(graph.output),
      gradient(0), gradient(1), gradient(2));
}

// Both gradients at once, with the first that is computed.
void Model::BackwardToCompared(const Node& node, size_t i) {
  const GraphNode& graph = *node.graph;
  const auto gradient = [&](size_t input) {
    const Columns& target = graph.gradients[input].target;
    return target.buffer == kNoBuffer ? Matrix() : GradientOf(target);
  };
  const Matrix of_query = gradient(0);
  if (i == 1 && of_query.data != nullptr) return;
  device_->steps().CompareBackward(RangesOf(node), ValueOf(graph.inputs[0]),
                                   ValueOf(graph.inputs[1]), GradientOf(graph.output), of_query,
                                   graph.gradients[1].adds, gradient(1));
}

void Model::BackwardTo(const Node& node, size_t i) {
  using Op = GraphNode::Op;
  const GraphNode& graph = *node.graph;
  const InputGradient& gradient = graph.gradients[i];
  const bool has_target = gradient.target.buffer != kNoBuffer;
  const Matrix dx = has_target ? GradientOf(gradient.target) : Matrix();
  const Matrix dy = GradientOf(graph.output);
  const Matrix x = ValueOf(graph.inputs[i]);
  // Where a node has two factors: the other one.
  const Matrix other = i < 2 && graph.inputs.size() > 1 ? ValueOf(graph.inputs[1 - i]) : Matrix();
  switch (graph.op) {
    case Op::kMlp:
      return node.mlp->BackwardData(parameters_.weights().AsConst(), ValueOf(graph.output), dy, dx);
    case Op::kActivation:
      return device_->layers().ActivationBackward(
          KindOf(graph.activation), SlopesOf(node.parameters), x, ValueOf(graph.output), dy, dx,
          node.gradients.empty() ? DeviceSpan<float>{} : node.gradients[0]);
    case Op::kLayerNorm:
      return device_->layers().LayerNormBackward(x, ValueOf(graph.aux),
                                                 node.parameters[0].AsConst(), dy, dx,
                                                 node.gradients[0], node.gradients[1]);
    case Op::kDropout:
      return Dropout(node, dy, dx);
    case Op::kNormalize:
      return device_->layers().NormalizeBackward(ValueOf(graph.output), graph.width, graph.epsilon,
                                                 ValueOf(graph.aux), dy, dx);
    case Op::kSumVectors:
      return device_->layers().RepeatVector(dy, graph.scale, dx);
    case Op::kFm:
      return device_->layers().FmBackward(x, graph.width, ValueOf(graph.aux), dy, dx);
    case Op::kEmbed:
      return device_->layers().EmbedBackward(x, node.parameters[0].AsConst(), dy, dx,
                                             node.gradients[0]);
    case Op::kDot:
      return device_->InteractionBackward(x, x.cols / graph.width, dy, dx);
    case Op::kMultiply:
    case Op::kCross:
      return device_->layers().MultiplyAdd(graph.scale, other, dy, Matrix(), dx);
    case Op::kRowDot:
      return device_->layers().ScaleRows(dy, other, dx);
    case Op::kProductLogit:
      return device_->layers().ProductLogitBackward(x, other, dy, dx);
    case Op::kSoftmax:
      return device_->layers().SoftmaxBackward(ValueOf(graph.output), dy, dx);
    case Op::kMix:
      return device_->layers().MixBackward(ValueOf(graph.inputs[0]), ValueOf(graph.inputs[1]), dy,
                                           i == 0 ? dx : Matrix(), i == 0 ? Matrix() : dx);
    case Op::kRepeat:
      return device_->steps().Pool(RangesOf(node), StepPooling::kSum, dy, dx);
    case Op::kPoolSteps:
      return device_->steps().PoolBackward(RangesOf(node), PoolingOf(graph.step_pooling), dy, dx);
    case Op::kStepSoftmax:
      return device_->steps().SoftmaxBackward(RangesOf(node), ValueOf(graph.output), dy, dx);
    case Op::kClearLast:
      return device_->steps().ClearLast(RangesOf(node), dy, dx);
    case Op::kPoolWeighted:
      return device_->steps().PoolWeightedBackward(RangesOf(node), ValueOf(graph.inputs[0]),
                                                   ValueOf(graph.inputs[1]), dy,
                                                   i == 0 ? dx : Matrix(), i == 0 ? Matrix() : dx);
    case Op::kCompare:
      return BackwardToCompared(node, i);
    case Op::kSelfAttention:
      if (i == 0) BackwardToAttention(node);
      return;
    case Op::kAddPositions:
      return device_->steps().PositionGradients(RangesOf(node), dy, node.gradients[0]);
    case Op::kConcat:
    case Op::kOnes:
    case Op::kAdd:
      CHECK(false);  // The gradients of their inputs are copies of the output's.
  }
}

void Model::Backward(const Node& node) {
  const GraphNode& graph = *node.graph;
  for (size_t i = 0; i < graph.gradients.size(); ++i) {
    const InputGradient& gradient = graph.gradients[i];
    const bool computes = gradient.target.buffer != kNoBuffer;
    // A node's parameters have gradients even where none of its input is computed.
    if (computes || !graph.tensors.empty()) BackwardTo(node, i);
    for (const ColumnCopy& copy : gradient.copies) Bring(copy, &Model::GradientOf);
  }
}

}  // namespace thermocline
