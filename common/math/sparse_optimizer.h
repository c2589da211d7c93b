// The optimizers of rows: their settings, their state, and the update of one row. Servers apply it
// to pushes, workers to the rows that they hold. It is a pure function that gives the same bits
// with every compiler and on every CPU (row_update.h has the arithmetic).
#ifndef THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_
#define THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace thermocline {

class Optimizer;  // proto/job.proto

enum class OptimizerKind { kSgd, kAdagrad, kRowWiseAdagrad, kAdam };

absl::string_view OptimizerKindName(OptimizerKind kind);

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdagrad;
  float learning_rate_scale = 1.0f;
  float initial_accumulator = 0.0f;  // Adagrad, row-wise Adagrad
  float epsilon = 1e-10f;
  float beta1 = 0.9f;    // Adam
  float beta2 = 0.999f;  // Adam

  friend bool operator==(const OptimizerConfig& a, const OptimizerConfig& b) {
    return a.kind == b.kind && a.learning_rate_scale == b.learning_rate_scale &&
           a.initial_accumulator == b.initial_accumulator && a.epsilon == b.epsilon &&
           a.beta1 == b.beta1 && a.beta2 == b.beta2;
  }
};

// Reads the message that a user wrote, and fills in defaults.
// Errors: kInvalidArgument (no kind is set, or a value is out of its range; names the value).
absl::StatusOr<OptimizerConfig> OptimizerFromProto(const Optimizer& proto);
Optimizer OptimizerToProto(const OptimizerConfig& config);

// How many floats of optimizer state follow a row's weights.
//   SGD: 0 · Adagrad: dim (sum of squared gradients) · row-wise Adagrad: 1 · Adam: 2 dim (m, then
//   v)
int StateFloats(const OptimizerConfig& config, int dim);

// Fills the state of a new row. REQUIRES: state.size() == StateFloats(config, dim)
void InitState(const OptimizerConfig& config, absl::Span<float> state);

// The arguments of an update that are the same for every row of a table in one step.
struct UpdateScalars {
  // The job's rate times the table's scale; for Adam divided by the first moment's bias correction.
  float learning_rate = 0;
  float epsilon = 0;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float sqrt_bias2 = 1;  // sqrt(1 - beta2^(step + 1))
};

// Adam's bias correction depends on the step, never on the number of updates of a row.
UpdateScalars ScalarsForStep(const OptimizerConfig& config, float job_learning_rate, Step step);

// Updates one row in place.
//   gradient, weights: [dim]; state: [StateFloats(config, dim)]; none overlap, no alignment needed.
using RowUpdate = void (*)(const UpdateScalars& scalars, const float* gradient, float* weights,
                           float* state, int dim);

// Returns the update of `kind`. Callers choose once a batch, so that there is no branch per row.
RowUpdate SelectRowUpdate(OptimizerKind kind);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_
