// The arithmetic of one row's update, for servers (which apply pushes) and workers (which apply to
// rows they hold). Pure functions: no FMA contraction, no libm beyond the exactly rounded sqrt, so
// that every compiler and CPU gives the same bits.
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

// Reads the message a user wrote, filling in defaults.
// Errors: kInvalidArgument (no kind is set, or a value is out of its range; names the value).
absl::StatusOr<OptimizerConfig> OptimizerFromProto(const Optimizer& proto);
Optimizer OptimizerToProto(const OptimizerConfig& config);

// Floats of optimizer state that follow a row's weights.
//   SGD: 0 · Adagrad: dim (sum of squared gradients) · row-wise Adagrad: 1 · Adam: 2 dim (m, then
//   v)
int StateFloats(const OptimizerConfig& config, int dim);

// Fills the state of a new row. REQUIRES: state.size() == StateFloats(config, dim)
void InitState(const OptimizerConfig& config, absl::Span<float> state);

// What is the same for every row of a table in one step.
struct UpdateScalars {
  float learning_rate =
      0;  // the job's rate times the table's scale; Adam: over its bias correction
  float epsilon = 0;
  float beta1 = 0, one_minus_beta1 = 0;
  float beta2 = 0, one_minus_beta2 = 0;
  float sqrt_bias2 = 1;  // sqrt(1 - beta2^(step + 1))
};

// Adam's bias correction uses the step, never the number of updates a row has seen.
UpdateScalars ScalarsForStep(const OptimizerConfig& config, float job_learning_rate, Step step);

// Updates one row in place.
//   gradient, weights: [dim]; state: [StateFloats(config, dim)]; none overlap, no alignment needed.
using RowUpdate = void (*)(const UpdateScalars& scalars, const float* gradient, float* weights,
                           float* state, int dim);

// The update of `kind`; chosen once a batch, so that there is no branch per row.
RowUpdate SelectRowUpdate(OptimizerKind kind);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_
