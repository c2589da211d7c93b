// A model as a list of operations on columns of activation buffers, in the order of the forward
// pass, and where each of them leaves the gradients of its inputs in the backward pass.
// GraphBuilder (graph_builder.h) makes it of a job's layers; worker/model/model.h runs it.
//
// All is decided here that depends on the layers alone: which values lie beside each other, so that
// a layer over several inputs reads them where they are, and which gradients are added to others.
#ifndef THERMOCLINE_COMMON_MODEL_MODEL_GRAPH_H_
#define THERMOCLINE_COMMON_MODEL_MODEL_GRAPH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/dense_tensor.h"

namespace thermocline {

// The values of the numeric features, which lie in the batch's own memory.
inline constexpr int kNumericBuffer = -1;
inline constexpr int kNoBuffer = -2;

// A model has at most so many tasks.
inline constexpr int kMaxTasks = 64;

// Neighbouring columns of a buffer.
struct Columns {
  int buffer = kNoBuffer;
  int first = 0;
  int width = 0;

  friend bool operator==(const Columns& a, const Columns& b) {
    return a.buffer == b.buffer && a.first == b.first && a.width == b.width;
  }
};

// What a matrix of activations has a row for: each sample, or each step of a sequence, which is one
// of ModelInputs::sequences.
inline constexpr int kSamples = -1;

// A matrix of activations with a row for each sample or step, and one of their gradients, or one of
// both alone.
struct GraphBuffer {
  int sequence = kSamples;
  int columns = 0;
  int64_t ld = 0;  // Floats of a row.
  bool has_value = true, has_gradient = true;
};

// How many samples a model has memory for: those of the largest batch that it computes, and of the
// largest that it trains, which alone has gradients. trained: 0: the model only scores.
struct BatchRoom {
  int64_t computed = 0;
  int64_t trained = 0;
};

// The pooled rows of the features of one dim, or those of a sequence's features of one dim, which a
// step has one of. `vectors` has for each sample (or step) `leading` vectors of another origin (or
// none), then one of each feature, and `first_order` as many numbers.
struct PooledFeatures {
  int dim = 0;  // 0: no layer reads these features as vectors.
  int sequence = kSamples;
  int leading = 0;
  std::vector<int32_t> features;  // Indices of ModelInputs::features.
  int vectors = kNoBuffer;        // [leading + features, dim]
  int first_order = kNoBuffer;    // [leading + features]
};

// Columns that are copied or added to others of the same width.
struct ColumnCopy {
  Columns from, to;
  bool adds = false;
};

// Where a node leaves the gradient of one of its inputs.
struct InputGradient {
  bool is_wanted = false;
  // It is written to these columns: those of the input itself, or of a scratch buffer. kNoBuffer:
  // the output's gradient is the input's.
  Columns target;
  bool adds = false;               // It is added to what is there: the node can do that itself.
  std::vector<ColumnCopy> copies;  // After that, gradients go on to these columns.
};

// Shares of units that a step drops are multiples of one in so many.
inline constexpr int kDropoutUnits = 65536;

struct GraphNode {
  enum class Op {
    kConcat,      // Copies columns beside each other.
    kOnes,        // One column of ones, written once.
    kMlp,         // Fully connected layers with a ReLU after each but perhaps the last.
    kActivation,  // tensors: {slopes} for PRELU
    kLayerNorm,   // tensors: {gain, bias}; aux: moments
    kDropout,
    kNormalize,     // aux: lengths
    kSumVectors,    // scale
    kFm,            // aux: the sums of the vectors
    kEmbed,         // tensors: {vectors}
    kDot,           // The first vector, then the products of all pairs.
    kAdd,           // a + b
    kMultiply,      // scale * a * b
    kCross,         // x0 * u + x
    kRowDot,        // a . b
    kProductLogit,  // The logit of sigmoid(a) * sigmoid(b).
    kSoftmax,       // of a row's numbers
    kMix,           // shares, and as many vectors
    // Between samples and steps, and among the steps of a sample.
    kRepeat,        // A sample's row, at each of its steps.
    kPoolSteps,     // step_pooling
    kStepSoftmax,   // without_last
    kClearLast,     // The last step's row is 0.
    kPoolWeighted,  // The sum of steps times their weights: weights, steps.
    kCompare,       // [q, x, q - x, q * x] of a sample's q and each of its steps x: queries, steps.
    kSelfAttention,  // queries, keys, values; heads; aux: statistics
    kAddPositions,   // tensors: {positions}
  };
  Op op = Op::kConcat;
  std::string layer;            // The layer that it belongs to.
  std::vector<Columns> inputs;  // For kConcat those that are copied.
  Columns output;
  Columns aux;
  std::vector<DenseTensor> tensors;  // For kMlp the weights of its layers, first to last.
  std::vector<DenseTensor> biases;   // [layers] of kMlp; empty: it has none.
  bool relu_after_last = false;      // kMlp
  int width = 0;  // The floats of a vector, where the operation works on vectors.
  int heads = 1;
  Layer::Pool::Mode step_pooling = Layer::Pool::SUM;
  bool without_last = false;
  float scale = 1;
  float epsilon = 0;
  float dropout = 0;
  Layer::Activation activation = Layer::RELU;

  std::vector<ColumnCopy> copies;  // kConcat

  // The backward pass.
  bool has_gradient = false;             // Whether anything before it, or it itself, learns.
  bool leads_to_rows = false;            // Whether gradients of rows go through it.
  std::vector<InputGradient> gradients;  // [inputs]
};

struct ModelGraph {
  std::vector<GraphBuffer> buffers;
  std::vector<PooledFeatures> pooled;
  std::vector<GraphNode> nodes;
  std::vector<Columns> logits;  // [tasks] one column each, of which no two are the same
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_MODEL_GRAPH_H_
