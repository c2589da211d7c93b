// Reads the layers and the tasks of a job: what their inputs name (layer_inputs.cc), and the nodes
// that each kind of layer means (layers.cc).
#ifndef THERMOCLINE_COMMON_MODEL_LAYER_READER_H_
#define THERMOCLINE_COMMON_MODEL_LAYER_READER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/model/graph_builder.h"
#include "common/model/model_spec.h"
#include "proto/job.pb.h"

namespace thermocline {

class LayerReader {
 public:
  // Both outlive this; spec->inputs is set.
  LayerReader(const Job& job, ModelSpec* spec) : job_(job), spec_(*spec), inputs_(spec->inputs) {}

  // Fills the spec. Returns the first error instead.
  std::optional<ModelError> Run();

 private:
  using Error = std::optional<ModelError>;
  // One of the things that an input's name stands for.
  struct Item {
    enum class Kind { kNumeric, kFeature, kSequence, kLayer };
    Kind kind = Kind::kNumeric;
    int index = 0;
  };
  // A layer's inputs, before the layers have values.
  struct Inputs {
    std::vector<std::vector<Item>> items;  // [inputs by name]
    std::vector<Item> context;             // What FeatureGate.by, Gate.by or Attention.query names.
  };
  // Where the vectors of a feature are among the pooled ones.
  struct PooledPlace {
    int group = 0, index = 0;
  };

  // Names and inputs
  // ----------------------------------------------------------------------------------------------

  Error ReadGroups();
  Error ReadInputs();
  Error ResolveNames(const std::string& field,
                     const google::protobuf::RepeatedPtrField<std::string>& names, int before_layer,
                     std::vector<std::vector<Item>>* items) const;
  Error ResolveName(const std::string& field, const std::string& name, int before_layer,
                    std::vector<Item>* items) const;
  ModelError UnknownName(const std::string& field, const std::string& name) const;
  int LayerNamed(const std::string& name) const;
  int SequenceNamed(const std::string& name) const;  // -1: none
  // Whether the name stands for something beside layers and groups: a feature, a sequence, numeric.
  bool IsTaken(const std::string& name) const;

  // Features
  // ----------------------------------------------------------------------------------------------

  Error PoolFeatures();
  Error CheckReads(const std::set<int>& vectors, const std::map<int, int>& first_order) const;

  LayerValue ValueOf(const Item& item);
  // sequence: at whose steps the value is taken, where samples' vectors are repeated; kSamples:
  // none.
  LayerValue ValueOf(const std::vector<Item>& items, int sequence = kSamples);
  // Returns whose steps the item is of, or kSamples.
  int SequenceOf(const Item& item);
  // Fills sequence_ with whose steps the layer works at: those of its inputs and its context.
  Error FindSequence(int layer);
  // All inputs, one after the other; the input of one name; the context. At the steps of sequence_.
  LayerValue InputOf(int layer);
  LayerValue InputOf(int layer, size_t name);
  LayerValue ContextOf(int layer);

  // Layers
  // ----------------------------------------------------------------------------------------------

  Error AddLayer(int layer);
  // Returns how many numbers the layer reads for each sample or step.
  int64_t NumbersOf(int layer);
  Error CheckNumbers(int layer, int64_t numbers) const;
  Error AddMlp(int layer);
  LayerValue MakeMlp(const Layer::Mlp& mlp, const std::string& name, LayerValue value);
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
  Error ReadTasks();
  // The task's own logit; that of a product is of it and the other task's.
  LayerValue OwnLogit(int task);
  Error CheckTasks();
  void AddTasks();
  Error AddAttention(int layer);
  Error AddSelfAttention(int layer);
  Error AddGate(int layer);
  LayerValue Activate(const std::string& layer, Layer::Activation activation,
                      const std::string& slope, const LayerValue& value);
  LayerValue Drop(const std::string& layer, float share, const LayerValue& value);
  LayerValue Normalized(const std::string& layer, const std::string& tensors,
                        const LayerValue& value);
  Error CheckTensors() const;

  // The one width of the vectors of a value; 0, and an error, where they differ.
  Error OneWidth(int layer, const std::string& kind, const LayerValue& value, int* width) const;

  // Nodes
  // ----------------------------------------------------------------------------------------------

  LayerValue Apply(GraphNode node, const std::vector<LayerValue>& inputs, int width,
                   int aux_columns = 0);
  // A linear layer, from `input` to `width` numbers. bias: the tensor's name; "": it has none.
  LayerValue Linear(const std::string& layer, const LayerValue& input, int width,
                    const std::string& weight, const std::string& bias, bool relu,
                    const LayerInitializer& initializer,
                    const std::optional<Initializer>& own_init = std::nullopt);
  // Linear layers with a ReLU after each, or each but the last.
  LayerValue Stack(const std::string& name, const LayerValue& input, const std::vector<int>& units,
                   bool relu_after_last, const LayerInitializer& initializer);
  LayerValue Constant(const std::string& name);
  LayerValue SumOf(const std::vector<LayerValue>& values);
  // Adds a tensor to the spec; a vector of which each number begins as `value`.
  DenseTensor AddTensor(DenseTensor tensor);
  DenseTensor AddVector(const std::string& name, int size, float value);

  // "layer[LAYER].FIELD"
  static std::string Field(int layer, const std::string& field);
  const std::string& NameOf(int layer) const { return job_.layer(layer).name(); }

  const Job& job_;
  ModelSpec& spec_;
  const ModelInputs& inputs_;
  GraphBuilder graph_;
  std::map<std::string, std::vector<Item>> groups_;
  std::vector<Inputs> layer_inputs_;            // [layers]
  bool reads_numeric_ = false;                  // A layer or a task does.
  std::vector<std::vector<Item>> task_inputs_;  // [tasks]
  std::vector<PooledPlace> places_;             // [features]
  std::vector<LayerValue> values_;              // [layers] so far
  int sequence_ = kSamples;                     // The layer at hand works at these steps.
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_LAYER_READER_H_
