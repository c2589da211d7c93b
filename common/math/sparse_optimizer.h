// The optimizers of rows: their settings, their state, and the update of one row. Servers apply it
// to pushes, workers to the rows that they hold. It is a pure function that gives the same bits
// with every compiler and on every CPU (optimizer_rules.h has the arithmetic).
#ifndef THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_
#define THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/host_device.h"
#include "common/base/ids.h"

namespace thermocline {

class Optimizer;  // proto/job.proto

enum class OptimizerKind : uint8_t {
  kSgd,
  kAdagrad,
  kRowWiseAdagrad,
  kAdam,
  kMomentum,
  kFtrl,
  kRmsProp,
  kAdamW,  // For dense parameters alone.
};

inline constexpr OptimizerKind kAllOptimizerKinds[] = {
    OptimizerKind::kSgd,     OptimizerKind::kAdagrad,  OptimizerKind::kRowWiseAdagrad,
    OptimizerKind::kAdam,    OptimizerKind::kMomentum, OptimizerKind::kFtrl,
    OptimizerKind::kRmsProp, OptimizerKind::kAdamW};
// The rows of sparse tables may have these.
inline constexpr OptimizerKind kRowOptimizerKinds[] = {
    OptimizerKind::kSgd,    OptimizerKind::kAdagrad,  OptimizerKind::kRowWiseAdagrad,
    OptimizerKind::kAdam,   OptimizerKind::kMomentum, OptimizerKind::kFtrl,
    OptimizerKind::kRmsProp};

// Returns "sgd", "row_wise_adagrad", ...: the name of the field in Optimizer.
absl::string_view OptimizerKindName(OptimizerKind kind);

// Plain data. What an optimizer doesn't use keeps its default.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdagrad;
  bool nesterov = false;  // Momentum
  float learning_rate_scale = 1.0f;
  float initial_accumulator = 0.0f;  // Adagrad, row-wise Adagrad, FTRL
  float epsilon = 1e-10f;
  float beta1 = 0.9f;    // Adam, AdamW; Momentum's momentum
  float beta2 = 0.999f;  // Adam, AdamW; RMSProp's decay
  float l1 = 0, l2 = 0;  // FTRL
  float weight_decay = 0;
  // What follows is 0 where gradients are not clipped so.
  float clip_value = 0;
  float clip_norm = 0;
  float cow_clip_ratio = 0, cow_clip_floor = 0;
  float clip_global_norm = 0;

  bool has_cow_clip() const { return cow_clip_ratio > 0 || cow_clip_floor > 0; }

  friend bool operator==(const OptimizerConfig& a, const OptimizerConfig& b) {
    return a.kind == b.kind && a.nesterov == b.nesterov &&
           a.learning_rate_scale == b.learning_rate_scale &&
           a.initial_accumulator == b.initial_accumulator && a.epsilon == b.epsilon &&
           a.beta1 == b.beta1 && a.beta2 == b.beta2 && a.l1 == b.l1 && a.l2 == b.l2 &&
           a.weight_decay == b.weight_decay && a.clip_value == b.clip_value &&
           a.clip_norm == b.clip_norm && a.cow_clip_ratio == b.cow_clip_ratio &&
           a.cow_clip_floor == b.cow_clip_floor && a.clip_global_norm == b.clip_global_norm;
  }
};

// Reads the message that a user wrote, and fills in defaults.
// Errors: kInvalidArgument (no kind is set, or a value is out of its range; names the value).
absl::StatusOr<OptimizerConfig> OptimizerFromProto(const Optimizer& proto);
Optimizer OptimizerToProto(const OptimizerConfig& config);

// Errors: kInvalidArgument (names a field of Optimizer that is for dense parameters alone, or for
// rows alone).
absl::Status CheckForRows(const OptimizerConfig& config);
absl::Status CheckForDense(const OptimizerConfig& config);

// The optimizers of a row's weights. Where the row has a first-order weight, it is the last of the
// row's weights and has an optimizer of its own; `vector` is that of the others.
struct RowOptimizer {
  OptimizerConfig vector;
  OptimizerConfig first_order;  // Only with has_first_order.
  bool has_first_order = false;

  RowOptimizer() = default;
  RowOptimizer(const OptimizerConfig& of_all) : vector(of_all) {}  // NOLINT: each row has one.
  RowOptimizer(const OptimizerConfig& vector, const OptimizerConfig& first_order)
      : vector(vector), first_order(first_order), has_first_order(true) {}

  friend bool operator==(const RowOptimizer& a, const RowOptimizer& b) {
    return a.vector == b.vector && a.has_first_order == b.has_first_order &&
           (!a.has_first_order || a.first_order == b.first_order);
  }
};

// How many floats of state an optimizer has for `dim` weights. dim 0: none.
//   SGD: 0 · Adagrad: dim (sums of squared gradients) · row-wise Adagrad: 1 · Adam, AdamW: 2 dim
//   (m, then v) · Momentum: dim (velocities) · FTRL: 2 dim (sums of squared gradients, then linear
//   terms) · RMSProp: dim (mean squares)
int StateFloats(OptimizerKind kind, int dim);
// How many follow a row's `dim` weights: the vector's, then the first-order weight's.
int StateFloats(const RowOptimizer& optimizer, int dim);

// Fills the state of a new row. REQUIRES: state.size() == StateFloats(optimizer, dim)
void InitState(const RowOptimizer& optimizer, int dim, absl::Span<float> state);

// The arguments of an update that are the same for every row of a table in one step. Kernels get
// one for each table: a few bytes more would be a second launch (kernels/cuda/slice.h).
struct UpdateScalars {
  OptimizerKind kind = OptimizerKind::kAdagrad;
  bool nesterov = false;
  // The job's rate times the table's scale; for Adam divided by the first moment's bias correction.
  float learning_rate = 0;
  float epsilon = 0;
  float beta1 = 0, beta2 = 0;  // As in OptimizerConfig.
  float sqrt_bias2 = 1;        // sqrt(1 - beta2^(step + 1))
  float l1 = 0, twice_l2 = 0;
  float weight_decay = 0;  // AdamW: times the rate.
  float clip_value = 0, clip_norm = 0;
  float cow_clip_ratio = 0, cow_clip_floor = 0;

  THERMOCLINE_HOST_DEVICE bool has_cow_clip() const {
    return cow_clip_ratio > 0 || cow_clip_floor > 0;
  }
  // Whether gradients are clipped, or weights decay through them.
  THERMOCLINE_HOST_DEVICE bool changes_gradients() const {
    return clip_value > 0 || clip_norm > 0 || has_cow_clip() ||
           (weight_decay > 0 && kind != OptimizerKind::kAdamW);
  }
};

// Adam's bias correction depends on the step, never on the number of updates of a row.
UpdateScalars ScalarsForStep(const OptimizerConfig& config, float job_learning_rate, Step step);

// The same for both optimizers of a row.
struct RowScalars {
  UpdateScalars vector;
  UpdateScalars first_order;
  bool has_first_order = false;

  RowScalars() = default;
  RowScalars(const UpdateScalars& of_all) : vector(of_all) {}  // NOLINT: each row has one.
};
RowScalars ScalarsForStep(const RowOptimizer& optimizer, float job_learning_rate, Step step);

// Updates one row in place.
//   gradient, weights: [dim]; lookups: of the row in this step, for cow_clip alone;
//   state: [StateFloats(optimizer, dim)]; none overlap, no alignment needed.
void UpdateRow(const RowScalars& scalars, const float* gradient, uint32_t lookups, float* weights,
               float* state, int dim);

// The same for weights of one optimizer, whose clipped gradients are multiplied with `scale`, too.
void UpdateScaled(const UpdateScalars& scalars, float scale, const float* gradient, float* weights,
                  float* state, int dim);

// Returns a function that does what UpdateRow does for these scalars. Callers choose once a batch,
// so that there is no branch per row.
using RowUpdate = void (*)(const RowScalars& scalars, const float* gradient, uint32_t lookups,
                           float* weights, float* state, int dim);
RowUpdate SelectRowUpdate(const RowScalars& scalars);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_SPARSE_OPTIMIZER_H_
