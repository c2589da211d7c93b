#include "worker/model/model.h"

#include <vector>

#include "common/base/check.h"
#include "common/base/hash.h"

namespace thermocline {
namespace {

// The parts of a step that are captured. Between them come the operations on embeddings, whose
// shapes change with the data.
enum Part { kForward, kInference, kBackwardData, kBackwardParameters };

// Three parts for each place that a batch may come to lie in: as many as there are steps under way,
// and some for what comes rarely, a shorter last batch and those of evaluation.
constexpr size_t kMaxGraphs = 3 * 64;

constexpr float kDropoutUnits = 65536;

MlpPrecision PrecisionOf(const ModelSpec& spec) {
  switch (spec.precision) {
    case TF32:
      return MlpPrecision::kTf32;
    case BFLOAT16:
      return MlpPrecision::kBfloat16;
    default:
      return MlpPrecision::kFloat32;
  }
}

DropoutMask MaskOf(const GraphNode& node, const ModelParts& parts) {
  DropoutMask mask;
  mask.key = Mix64(parts.seed);
  mask.steps_before = parts.steps_before;
  for (const unsigned char c : node.layer) mask.key = Mix64(mask.key ^ c);
  mask.threshold = static_cast<uint32_t>(node.dropout * kDropoutUnits);
  mask.scale = kDropoutUnits / (kDropoutUnits - static_cast<float>(mask.threshold));
  return mask;
}

}  // namespace

Model::Model(const ModelSpec& spec, const ModelParts& parts)
    : device_(parts.device),
      parameters_(*parts.parameters),
      loss_sum_(parts.loss_sum),
      max_batch_(parts.max_batch),
      spec_(spec),
      graphs_(device_, kMaxGraphs) {
  CHECK_GE(max_batch_, 1);
  const auto add = [this](const GraphBuffer& buffer) {
    return std::make_unique<Activation>(device_, max_batch_, buffer.columns, buffer.ld);
  };
  for (const GraphBuffer& buffer : spec_.graph.buffers) {
    values_.push_back(add(buffer));
    gradients_.push_back(buffer.has_gradient ? add(buffer) : nullptr);
  }
  const auto buffer_of = [this](int buffer) {
    return buffer == kNoBuffer ? PooledBuffer{}
                               : PooledBuffer{values_[buffer].get(), gradients_[buffer].get()};
  };
  places_.resize(spec_.inputs.features.size());
  for (const PooledFeatures& features : spec_.graph.pooled) {
    pooled_.emplace_back(device_, features, buffer_of(features.vectors),
                         buffer_of(features.first_order));
    const std::vector<VectorPlace> places = pooled_.back().places();
    for (size_t i = 0; i < places.size(); ++i) places_[features.features[i]] = places[i];
  }
  for (const GraphNode& node : spec_.graph.nodes) {
    nodes_.push_back(MakeNode(node, parts));
  }
  FillOnes();
}

void Model::MakeMlp(const GraphNode& graph, Node* node) {
  MlpConfig config;
  config.widths.push_back(graph.tensors[0].in);
  for (const DenseTensor& weight : graph.tensors) {
    config.widths.push_back(weight.out);
    config.weight_offsets.push_back(parameters_.OffsetOf(weight));
  }
  for (const DenseTensor& bias : graph.biases) {
    config.bias_offsets.push_back(parameters_.OffsetOf(bias));
  }
  config.bias_offsets.resize(graph.tensors.size(), kNoBias);
  config.relu_after_last = graph.relu_after_last;
  config.input_gradient = graph.gradients[0].is_wanted;
  config.max_batch = max_batch_;
  config.precision = PrecisionOf(spec_);
  node->mlp = device_->CreateMlp(config);
}

Model::Node Model::MakeNode(const GraphNode& graph, const ModelParts& parts) {
  Node node;
  node.graph = &graph;
  if (graph.op == GraphNode::Op::kMlp) {
    MakeMlp(graph, &node);
    return node;
  }
  if (graph.op == GraphNode::Op::kDropout) node.mask = MaskOf(graph, parts);
  for (const DenseTensor& tensor : graph.tensors) {
    const int64_t offset = parameters_.OffsetOf(tensor);
    const int64_t floats = int64_t{tensor.rows()} * tensor.cols();
    node.parameters.push_back({parameters_.weights().data + offset, floats});
    node.gradients.push_back({parameters_.gradients().data + offset, floats});
  }
  return node;
}

void Model::FillOnes() {
  for (const Node& node : nodes_) {
    if (node.graph->op != GraphNode::Op::kOnes) continue;
    const std::vector<float> ones(max_batch_, 1.0f);
    batch_size_ = max_batch_;
    device_->CopyToDevice(ValueOf(node.graph->output).data, ones.data(),
                          ones.size() * sizeof(float), Stream::kCompute);
  }
}

Matrix Model::ValueOf(const Columns& columns) const {
  const Matrix all =
      columns.buffer == kNumericBuffer ? numeric_ : values_[columns.buffer]->Rows(batch_size_);
  return ColumnsOf(all, columns.first, columns.width);
}

Matrix Model::GradientOf(const Columns& columns) const {
  if (gradients_[columns.buffer] == nullptr) return ValueOf(columns);  // Scratch.
  const Matrix all = gradients_[columns.buffer]->Rows(batch_size_);
  return ColumnsOf(all, columns.first, columns.width);
}

void Model::Bring(const ColumnCopy& copy, Matrix (Model::*matrix)(const Columns&) const) {
  const Matrix from = (this->*matrix)(copy.from), to = (this->*matrix)(copy.to);
  if (copy.adds) {
    device_->layers().Add(to, from, to);
  } else {
    device_->layers().Copy(from, to);
  }
}

void Model::Forward(Matrix numeric, const SparseBatch& batch, DeviceSpan<const SamplePlace> place) {
  CHECK_LE(batch.batch_size, max_batch_);
  CHECK_EQ(numeric.rows, batch.batch_size);
  CHECK_EQ(numeric.cols, spec_.inputs.numeric);
  CHECK_EQ(static_cast<int32_t>(batch.features.size()), spec_.inputs.num_vectors());
  numeric_ = numeric;
  batch_size_ = batch.batch_size;
  place_ = place;
  for (PooledVectors& pooled : pooled_) pooled.Forward(batch);
  const int part = place.empty() ? kInference : kForward;
  graphs_.Run({part, numeric.rows, numeric.data, place.data, numeric.ld, 0}, [&] {
    for (const Node& node : nodes_) Forward(node);
  });
}

void Model::BackwardOf(bool leads_to_rows) {
  for (size_t n = nodes_.size(); n-- > 0;) {
    const GraphNode& graph = *nodes_[n].graph;
    if (graph.has_gradient && graph.leads_to_rows == leads_to_rows) Backward(nodes_[n]);
  }
}

void Model::BackwardToRows(const BatchLabels& labels, absl::Span<const Matrix> row_gradients) {
  // The numbers, labels, weights and place of a batch lie one after the other (step_context.h):
  // where labels and weights are the same, so are the others.
  const auto key =
      std::make_tuple(int{kBackwardData}, batch_size_, static_cast<const void*>(labels.labels.data),
                      static_cast<const void*>(labels.weights.data),
                      reinterpret_cast<int64_t>(numeric_.data), labels.scale);
  graphs_.Run(key, [&] {
    for (size_t t = 0; t < spec_.tasks.size(); ++t) {
      const auto of_task = [&](DeviceSpan<const float> all) {
        if (all.empty()) return all;
        return DeviceSpan<const float>{all.data + t * batch_size_, batch_size_};
      };
      device_->BceWithLogits(ValueOf(spec_.graph.logits[t]), of_task(labels.labels),
                             of_task(labels.weights), labels.scale * spec_.tasks[t].weight,
                             GradientOf(spec_.graph.logits[t]), {loss_sum_.data + t, 1});
    }
    BackwardOf(/*leads_to_rows=*/true);
  });
  for (PooledVectors& pooled : pooled_) pooled.Backward(row_gradients);
}

void Model::BackwardDense() {
  const auto key = std::make_tuple(int{kBackwardParameters}, batch_size_,
                                   static_cast<const void*>(numeric_.data),
                                   static_cast<const void*>(place_.data), numeric_.ld, 0.0f);
  graphs_.Run(key, [&] {
    BackwardOf(/*leads_to_rows=*/false);
    for (size_t n = nodes_.size(); n-- > 0;) {
      const Node& node = nodes_[n];
      if (node.mlp == nullptr) continue;
      node.mlp->BackwardParameters(ValueOf(node.graph->inputs[0]), GradientOf(node.graph->output),
                                   parameters_.gradients());
    }
  });
}

}  // namespace thermocline
