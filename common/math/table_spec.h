// What a table is, for everybody who handles its rows. A row is `dim` weights, then its optimizer's
// state, all float32.
#ifndef THERMOCLINE_COMMON_MATH_TABLE_SPEC_H_
#define THERMOCLINE_COMMON_MATH_TABLE_SPEC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/math/sparse_optimizer.h"

namespace thermocline {

class TableSpec;  // proto/parameter_server.proto

// Largest dim of a table; keeps one row far below a message.
inline constexpr int kMaxDim = 4096;
// Initial weights beyond this are a mistake, not a model.
inline constexpr float kMaxInitScale = 1e6f;
// Floats in one row of a dense tensor's table.
inline constexpr int kDenseBlockFloats = 256;

enum class TableRole { kSparse, kDense };

struct TableLayout {
  TableId id;
  std::string name;
  int dim = 0;
  OptimizerConfig optimizer;
  float init_scale = 0;
  TableRole role = TableRole::kSparse;
  // On each server: rows beyond so much memory (index included) are spilled. 0: all stay there.
  uint64_t memory_budget_bytes = 0;

  int state_floats() const { return StateFloats(optimizer, dim); }
  int row_floats() const { return dim + state_floats(); }

  friend bool operator==(const TableLayout& a, const TableLayout& b) {
    return a.id == b.id && a.name == b.name && a.dim == b.dim && a.optimizer == b.optimizer &&
           a.init_scale == b.init_scale && a.role == b.role &&
           a.memory_budget_bytes == b.memory_budget_bytes;
  }
};

// Errors: kInvalidArgument (names the table and the value).
absl::StatusOr<TableLayout> TableLayoutFromProto(const TableSpec& proto);
TableSpec TableLayoutToProto(const TableLayout& layout);

// Writes a new row: initial weights and optimizer state. REQUIRES: row.size() ==
// layout.row_floats()
void InitialRow(const TableLayout& layout, uint64_t seed, Key key, absl::Span<float> row);

// Names the first field in which two layouts of one table differ, or "" where they are equal:
// "table 'C3': dim is 32 here, 16 there".
std::string DescribeDifference(const TableLayout& here, const TableLayout& there);

}  // namespace thermocline

#endif  // THERMOCLINE_COMMON_MATH_TABLE_SPEC_H_
