// Builds a ModelGraph: takes nodes over values, whatever layer they come from, and decides where
// each value lies and where each gradient goes.
#ifndef THERMOCLINE_COMMON_MODEL_GRAPH_BUILDER_H_
#define THERMOCLINE_COMMON_MODEL_GRAPH_BUILDER_H_

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/dense_tensor.h"
#include "common/model/model_graph.h"

namespace thermocline {

// Columns of a value.
struct ValueSlice {
  int value = 0;
  int first = 0;
  int width = 0;

  friend bool operator<(const ValueSlice& a, const ValueSlice& b) {
    return std::tie(a.value, a.first, a.width) < std::tie(b.value, b.first, b.width);
  }
};

// What a layer gives: a list of vectors, of each sample or of each step of one sequence. They are
// the columns of the slices, one after the other.
struct LayerValue {
  std::vector<ValueSlice> slices;
  std::vector<int> widths;         // [vectors]
  std::vector<std::string> names;  // [vectors] for messages: whose they are; or none

  int64_t all_numbers() const;
  // REQUIRES: all_numbers() is an int.
  int width() const { return static_cast<int>(all_numbers()); }
  void Append(const LayerValue& other);
};

class GraphBuilder {
 public:
  // The numbers of all numeric features: one vector. REQUIRES: numeric > 0
  LayerValue Numeric(int numeric);
  // The pooled vectors of features that have one dim; and their first-order weights, a vector of
  // width 1 each. dim: 0 where the features have first-order weights alone. sequence: whose steps
  // the vectors are of. The group that has been added is the `group`th.
  void AddPooled(int dim, int sequence, std::vector<int32_t> features);
  ValueSlice VectorOf(int group, int index) const;
  ValueSlice FirstOrderOf(int group, int index);

  // Adds a node whose inputs are all vectors of each of `inputs`, and whose output has one vector.
  // The caller fills the node's operation and its parameters, no columns. `aux_columns`: 0: the
  // node has no aux. REQUIRES: the inputs are all of samples, or of steps of one sequence.
  LayerValue AddNode(GraphNode node, const std::vector<LayerValue>& inputs, int output_width,
                     int aux_columns = 0);
  // Returns whose steps the value is of, or kSamples. REQUIRES: a value of one kind.
  int SequenceOf(const LayerValue& value) const;
  // A sample's value at each step of the sequence. REQUIRES: a value of samples.
  LayerValue Repeat(const LayerValue& value, int sequence);
  // One value for each sample, of the steps'. REQUIRES: a value of steps.
  LayerValue PoolSteps(const LayerValue& value, Layer::Pool::Mode mode);

  // The sum of a sample's steps, each times its weight. REQUIRES: values of steps of one sequence
  LayerValue PoolWeighted(const LayerValue& weights, const LayerValue& steps);
  // Each step x beside its sample's query q: [q, x, q - x, q * x]. REQUIRES: a value of samples,
  // and one of steps with as many numbers
  LayerValue Compare(const LayerValue& query, const LayerValue& steps);

  // Whether the value comes from nodes, and not from features as they are.
  bool IsComputed(const LayerValue& value) const;

  // logits: [tasks]
  // REQUIRES: each has width 1, is computed, and no two are the same. Adds no more afterwards.
  ModelGraph Finish(const std::vector<LayerValue>& logits);

 private:
  enum class Origin { kNumeric, kVectors, kFirstOrder, kNode, kConcat };
  struct Value {
    Origin origin = Origin::kNode;
    int width = 0;
    int sequence = kSamples;
    int group = 0;  // kVectors, kFirstOrder
    bool has_gradient = false, leads_to_rows = false;
    std::vector<ValueSlice> parts;  // kConcat
    Columns home;
  };
  // A node of the graph, before its values have places.
  struct Pending {
    GraphNode node;
    std::vector<ValueSlice> inputs;
    int output = 0;
    int aux_columns = 0;
  };

  int AddValue(Value value);
  // The node's output is of `sequence`, whatever its inputs are of.
  LayerValue AddNodeOf(int sequence, GraphNode node, const std::vector<LayerValue>& inputs,
                       int output_width, int aux_columns);
  // The columns as slices of as few values as possible.
  std::vector<ValueSlice> Merged(const std::vector<ValueSlice>& slices) const;
  // The columns as those of one value; a node that copies them beside each other is added where
  // they are of several.
  ValueSlice InOne(const std::vector<ValueSlice>& slices);

  int AddBuffer(GraphBuffer buffer);
  bool IsWhole(const ValueSlice& slice) const;
  bool HasNoHome(const ValueSlice& slice) const;
  // Gives homes to a concatenation and those of its parts that may lie in it.
  void PlaceConcat(int value);
  void PlacePooled(int value, int leading_floats);
  void PlaceValues();

  Columns PlaceOf(const ValueSlice& slice) const;
  void MakeCopies(const Value& concat, GraphNode* node) const;
  void PlanBackward(const std::vector<Pending>& pending);

  ModelGraph graph_;
  std::vector<Value> values_;
  std::vector<Pending> pending_;
  std::vector<int> vectors_, first_order_;  // [groups] their values; -1: none
  int numeric_ = -1;
  std::map<std::vector<ValueSlice>, int> concats_;
  std::map<std::pair<int, std::vector<ValueSlice>>, LayerValue> repeated_;  // By sequence.
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_GRAPH_BUILDER_H_
