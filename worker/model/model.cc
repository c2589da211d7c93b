#include "worker/model/model.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
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
// Batches with steps have a few sizes more.
constexpr size_t kSizesOfSteps = 8;
size_t MaxGraphs(const ModelSpec& spec) {
  return kMaxGraphs * (1 + kSizesOfSteps * spec.inputs.sequences.size());
}

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
      max_batch_(parts.room.computed),
      spec_(spec),
      activations_(device_, spec_.graph, static_cast<int>(spec_.inputs.sequences.size()),
                   parts.room),
      places_(activations_.PlacesOf(spec_.inputs.num_vectors())),
      graphs_(std::make_unique<GraphCache<GraphKey>>(device_, MaxGraphs(spec_))),
      ranges_(spec_.inputs.sequences.size()),
      kept_(spec_.inputs.sequences.size()) {
  for (size_t arena = 0; arena < activations_.arenas().size(); ++arena) {
    pooled_.emplace_back(device_, spec_.graph, activations_, arena);
  }
  for (const GraphNode& node : spec_.graph.nodes) {
    nodes_.push_back(MakeNode(node, parts));
  }
  FillOnes();
}

void Model::MakeMlp(Node* node) {
  const GraphNode& graph = *node->graph;
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
  const BatchRoom room = activations_.RoomOf(node->sequence);
  config.max_batch = static_cast<int32_t>(room.computed);
  config.max_trained = static_cast<int32_t>(room.trained);
  config.precision = PrecisionOf(spec_);
  node->mlp.reset();  // Its memory may be needed.
  node->mlp = device_->CreateMlp(config);
}

Model::Node Model::MakeNode(const GraphNode& graph, const ModelParts& parts) {
  Node node;
  node.graph = &graph;
  node.sequence = activations_.SequenceOf(graph.output);
  if (graph.op == GraphNode::Op::kMlp) {
    MakeMlp(&node);
    return node;
  }
  if (graph.op == GraphNode::Op::kDropout) node.mask = MaskOf(graph, parts);
  for (const DenseTensor& tensor : graph.tensors) {
    const int64_t offset = parameters_.OffsetOf(tensor);
    const int64_t floats = int64_t{tensor.rows()} * tensor.cols();
    node.parameters.push_back(parameters_.weights().Part(offset, floats));
    node.gradients.push_back(parameters_.gradients().Part(offset, floats));
  }
  return node;
}

void Model::FillOnes() {
  for (const Node& node : nodes_) {
    if (node.graph->op != GraphNode::Op::kOnes) continue;
    const std::vector<float> ones(max_batch_, 1.0f);
    device_->CopyToDevice(ValueOf(node.graph->output).data, ones.data(),
                          ones.size() * sizeof(float), Stream::kCompute);
  }
}

void Model::Begin(Matrix numeric, const SparseBatch& batch, DeviceSpan<const SamplePlace> place) {
  CHECK_EQ(numeric.rows, batch.batch_size);
  CHECK_EQ(numeric.cols, spec_.inputs.numeric);
  CHECK_EQ(static_cast<int32_t>(batch.features.size()), spec_.inputs.num_vectors());
  numeric_ = numeric;
  place_ = place;
  grown_ = activations_.Begin(batch, /*is_trained=*/!place.empty());
  if (!grown_.empty()) {
    graphs_ = std::make_unique<GraphCache<GraphKey>>(device_, MaxGraphs(spec_));
    for (Node& node : nodes_) {
      if (node.mlp != nullptr && node.sequence != kSamples) MakeMlp(&node);
    }
  }
  rows_ = {batch.batch_size};
  for (size_t s = 0; s < ranges_.size(); ++s) {
    rows_.push_back(activations_.RowsOf(static_cast<int>(s)));
    const SequenceBatch& sequence = batch.sequences[s];
    CHECK_EQ(sequence.offsets.size, batch.batch_size + 1);
    ranges_[s] = {sequence.offsets, sequence.samples};
    if (!device_->is_host_memory()) KeepRanges(s);
  }
}

std::string Model::DescribeGrowth() const {
  const ComputeOn where = device_->is_host_memory() ? ComputeOn::kCpu : ComputeOn::kGpu;
  std::string text;
  for (const int s : grown_) {
    const BatchRoom room = activations_.RoomOf(s);
    std::vector<double> steps(ranges_.size());
    steps[s] = 1;  // As many samples take as much, and besides as much without steps.
    absl::StrAppend(&text, text.empty() ? "" : ", ", "room for ", room.computed,
                    " steps of sequence '", spec_.inputs.sequences[s].name, "' takes ",
                    spec_.ActivationBytes(room, where, steps) - spec_.ActivationBytes(room, where),
                    " bytes");
  }
  return text;
}

// The numbers are copied bit by bit.
void Model::KeepRanges(size_t s) {
  const auto keep = [this](DeviceSpan<const int32_t> from, int64_t room, KeptNumbers* kept) {
    if (kept->room < room) {
      kept->memory.reset();
      kept->memory = device_->Allocate(sizeof(int32_t) * room);
      kept->room = room;
    }
    auto* const data = reinterpret_cast<float*>(const_cast<int32_t*>(from.data));
    const auto size = static_cast<int32_t>(from.size);
    device_->layers().Copy(FloatMatrix(data, 1, size),
                           FloatMatrix(kept->memory->floats(), 1, size));
    return static_cast<const int32_t*>(kept->memory->data());
  };
  StepRanges& ranges = ranges_[s];
  ranges.offsets.data = keep(ranges.offsets, max_batch_ + 1, &kept_[s].offsets);
  ranges.samples.data =
      keep(ranges.samples, activations_.RoomOf(static_cast<int>(s)).computed, &kept_[s].samples);
  ranges.samples.size = rows_[s + 1];
}

StepRanges Model::RangesOf(const Node& node) const {
  const int sequence =
      node.sequence != kSamples ? node.sequence : activations_.SequenceOf(node.graph->inputs[0]);
  return ranges_[sequence];
}

Matrix Model::ValueOf(const Columns& columns) const {
  return columns.buffer == kNumericBuffer ? ColumnsOf(numeric_, columns.first, columns.width)
                                          : activations_.ValueOf(columns);
}

Matrix Model::GradientOf(const Columns& columns) const { return activations_.GradientOf(columns); }

void Model::Bring(const ColumnCopy& copy, Matrix (Model::*matrix)(const Columns&) const) {
  const Matrix from = (this->*matrix)(copy.from), to = (this->*matrix)(copy.to);
  if (copy.adds) {
    device_->layers().Add(to, from, to);
  } else {
    device_->layers().Copy(from, to);
  }
}

void Model::Forward(Matrix numeric, const SparseBatch& batch, DeviceSpan<const SamplePlace> place) {
  Begin(numeric, batch, place);
  for (PooledVectors& pooled : pooled_) pooled.Forward(batch);
  const int part = place.empty() ? kInference : kForward;
  graphs_->Run({part, rows_, numeric.data, place.data, numeric.ld, 0}, [&] {
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
      std::make_tuple(int{kBackwardData}, rows_, static_cast<const void*>(labels.labels.data),
                      static_cast<const void*>(labels.weights.data),
                      reinterpret_cast<int64_t>(numeric_.data), labels.scale);
  graphs_->Run(key, [&] {
    for (size_t t = 0; t < spec_.tasks.size(); ++t) {
      const auto of_task = [&](DeviceSpan<const float> all) {
        return all.empty() ? all : all.Part(t * rows_[0], rows_[0]);
      };
      device_->BceWithLogits(ValueOf(spec_.graph.logits[t]), of_task(labels.labels),
                             of_task(labels.weights), labels.scale * spec_.tasks[t].weight,
                             GradientOf(spec_.graph.logits[t]), loss_sum_.Part(t, 1));
    }
    BackwardOf(/*leads_to_rows=*/true);
  });
  for (PooledVectors& pooled : pooled_) pooled.Backward(row_gradients);
}

void Model::BackwardDense() {
  const auto key =
      std::make_tuple(int{kBackwardParameters}, rows_, static_cast<const void*>(numeric_.data),
                      static_cast<const void*>(place_.data), numeric_.ld, 0.0f);
  graphs_->Run(key, [&] {
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
