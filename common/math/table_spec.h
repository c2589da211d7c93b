// A table's layout, the values of its new rows, and the check of rows for NaN and infinity (at the
// speed of memory). A row is `dim` weights, then their optimizer's state, all float32. Where the
// table has first-order weights, the last of a row's weights is that, with an optimizer and an
// initial distribution of its own: [vector | first-order weight | vector's state | its state].
#ifndef THERMOCLINE_COMMON_MATH_TABLE_SPEC_H_
#define THERMOCLINE_COMMON_MATH_TABLE_SPEC_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/initial_weights.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {

class TableSpec;  // proto/parameter_server.proto

// The largest dim of a table. A row is far smaller than a message.
inline constexpr int kMaxDim = 4096;
// The dim of a dense tensor's table: its rows are blocks of this many floats of the tensor.
inline constexpr int kDenseBlockFloats = 256;

enum class TableRole { kSparse, kDense };

// The last weight of each row, which first_order layers read (Layer.FirstOrder).
struct FirstOrderWeight {
  OptimizerConfig optimizer;
  InitialDistribution distribution = InitialDistribution::kConstant;
  float init_scale = 0;

  friend bool operator==(const FirstOrderWeight& a, const FirstOrderWeight& b) {
    return a.optimizer == b.optimizer && a.distribution == b.distribution &&
           a.init_scale == b.init_scale;
  }
};

struct TableLayout {
  TableId id;
  std::string name;
  int dim = 0;  // All weights of a row, the first-order weight among them.
  OptimizerConfig optimizer;
  InitialDistribution distribution = InitialDistribution::kUniform;
  float init_scale = 0;  // The distribution's parameter.
  // With it, `optimizer` and `distribution` are those of the other dim - 1 weights.
  std::optional<FirstOrderWeight> first_order;
  TableRole role = TableRole::kSparse;
  // Each server spills rows beyond this much memory (index included) to disk. 0: it keeps all in
  // memory.
  uint64_t memory_budget_bytes = 0;
  // A key gets its row after this many lookups in training. Until then it is a candidate: servers
  // keep its count alone. 0: the first lookup makes the row.
  uint32_t min_count = 0;
  // Servers forget rows and candidates that no push has reached for this many steps. 0: none.
  uint64_t unused_steps = 0;
  // The table has at most this many rows, over all servers (row_limit.h). 0: no limit.
  uint64_t max_rows = 0;
  // In a table that was read from a checkpoint: OldestKept of the rows that it has forgotten up to
  // its step. It is no part of the layout, and operator== does not compare it.
  uint32_t forgotten_before = 0;

  // Servers forget unused rows each time the number of applied steps is a multiple of this.
  uint64_t forget_period() const { return unused_steps < 8 ? 1 : unused_steps / 8; }
  // Once `step` is applied (kNoStep: before the first), rows with RowMeta::changed below this are
  // forgotten: no step from this minus 1 on has changed them. 0: no row is forgotten.
  uint32_t OldestKept(Step step) const;

  // Servers count rows for max_rows each time the number of applied steps is a multiple of this:
  // the larger max_rows, the more seldom. The next step forgets the rows that the counts show to be
  // too many.
  uint64_t count_period() const { return std::clamp<uint64_t>(max_rows / 4096, 4, 1024); }
  // Whether servers count rows once `step` is applied.
  bool CountsAfter(Step step) const {
    return max_rows > 0 && static_cast<uint64_t>(step.value() + 1) % count_period() == 0 &&
           step != kNoStep;
  }

  RowOptimizer row_optimizer() const {
    return first_order.has_value() ? RowOptimizer(optimizer, first_order->optimizer)
                                   : RowOptimizer(optimizer);
  }
  int vector_dim() const { return first_order.has_value() ? dim - 1 : dim; }
  int state_floats() const { return StateFloats(row_optimizer(), dim); }
  int row_floats() const { return dim + state_floats(); }

  friend bool operator==(const TableLayout& a, const TableLayout& b) {
    return a.id == b.id && a.name == b.name && a.dim == b.dim && a.optimizer == b.optimizer &&
           a.distribution == b.distribution && a.init_scale == b.init_scale &&
           a.first_order == b.first_order && a.role == b.role &&
           a.memory_budget_bytes == b.memory_budget_bytes && a.min_count == b.min_count &&
           a.unused_steps == b.unused_steps && a.max_rows == b.max_rows;
  }
};

// Errors: kInvalidArgument (names the table and the value).
absl::StatusOr<TableLayout> TableLayoutFromProto(const TableSpec& proto);
TableSpec TableLayoutToProto(const TableLayout& layout);

// Writes a new row: initial weights and optimizer state. REQUIRES: row.size() ==
// layout.row_floats()
void InitialRow(const TableLayout& layout, uint64_t seed, Key key, absl::Span<float> row);
// The weights alone. REQUIRES: weights.size() == layout.dim
void InitialRowWeights(const TableLayout& layout, uint64_t seed, Key key,
                       absl::Span<float> weights);

// Names the first field in which two layouts of one table differ, or "" where they are equal:
// "table 'C3': dim is 32 here, 16 there".
std::string DescribeDifference(const TableLayout& here, const TableLayout& there);

// The index of the first value that is NaN or infinite; values.size() where all are finite.
size_t FindNonFinite(absl::Span<const float> values);

// The same for rows with their optimizer state: the index of the first weight that is NaN or
// infinite, or of the first state that is NaN. State may be infinite: the sum of squares of finite
// gradients can overflow, and then the row's updates are 0 from there on.
//   rows: [n, row_floats], of which the first `dim` are weights
size_t FindBadInRows(absl::Span<const float> rows, size_t dim, size_t row_floats);

// The end of the error message for a loss or gradient that is not finite.
inline constexpr char kRateHint[] =
    " (is train.learning_rate too high? a lower base or some warmup_steps may help)";

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_TABLE_SPEC_H_
