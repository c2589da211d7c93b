// The dense tensors of a model, and what its features give it.
#ifndef THERMOCLINE_COMMON_MODEL_DENSE_TENSOR_H_
#define THERMOCLINE_COMMON_MODEL_DENSE_TENSOR_H_

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace thermocline {

// A feature whose keys look rows up.
struct EmbeddedFeature {
  std::string name;
  std::string table;
  int dim = 0;  // The floats of a vector.
  bool is_sequence = false;
  // The one of ModelInputs::sequences whose steps have a vector of it each. -1: it is pooled, to
  // one vector for a sample.
  int sequence = -1;
  bool is_bag = false;  // It has no `sequence`, but a sample may have several keys of it.
};

// Features that are read step by step: `features` neighbours among ModelInputs::features.
struct StepSequence {
  std::string name;
  int first_feature = 0;
  int features = 0;
  bool ends_with_sample = false;  // The last step is the sample's own (Sequence.then).
  int64_t max_steps = 0;          // A sample has at most so many.
};

// What the features of a job give its model.
struct ModelInputs {
  int numeric = 0;                        // Values of numeric features in a sample.
  std::set<std::string> numeric_names;    // The names of these features.
  std::vector<EmbeddedFeature> features;  // In the job's order.
  std::vector<StepSequence> sequences;    // In the job's order. Their features come last.
  int default_dim = 0;                    // The dim of default_table.

  int num_vectors() const { return static_cast<int>(features.size()); }
};

// A weight matrix of a layer from `in` to `out` values, or a vector of `out` values, such as its
// biases: [rows, cols] floats, row-major.
struct DenseTensor {
  std::string name;  // As checkpoints and exports have it: "top.0.weight".
  int in = 0, out = 0;
  bool is_vector = false;
  LayerInitializer initializer;         // No kind: the job's.
  std::optional<Initializer> own_init;  // How it begins in place of that.

  int rows() const { return is_vector ? 1 : in; }
  int cols() const { return out; }
};

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MODEL_DENSE_TENSOR_H_
