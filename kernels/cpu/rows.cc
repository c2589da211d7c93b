#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/math/row_update.h"
#include "kernels/cpu/cpu_operations.h"

namespace thermocline {
namespace {

// Rows of one cell of the grid.
constexpr int64_t kRowsPerCell = 512;
// Rows fetched ahead of their use; they are scattered over a slab larger than any cache.
constexpr int64_t kPrefetchDistance = 12;
// Below that, the work is done before another thread has woken up.
constexpr int64_t kFloatsWorthThreads = 256 << 10;

void PrefetchRow(const Matrix& matrix, int64_t row, int32_t floats) {
  const float* begin = matrix.row(row);
  for (int32_t i = 0; i < floats; i += kFloatsPerLine) __builtin_prefetch(begin + i, 1);
}

void UpdateRows(const RowUpdateGroup& group, int64_t begin, int64_t end) {
  const RowUpdate update = SelectRowUpdate(group.scalars);
  const RowScalars scalars = group.scalars;
  const int32_t* targets = group.targets.data;
  for (int64_t i = begin; i < end; ++i) {
    if (i + kPrefetchDistance < end && targets[i + kPrefetchDistance] < group.rows.rows) {
      PrefetchRow(group.rows, targets[i + kPrefetchDistance], group.rows.cols);
    }
    if (targets[i] >= group.rows.rows) continue;
    float* row = group.rows.row(targets[i]);
    update(scalars, group.gradients.row(i), /*lookups=*/0, row + group.weight_column,
           row + group.state_column, group.gradients.cols);
  }
}

// Calls visit(item, begin, end) for cells of the count(item) rows of every item, of `width(item)`
// floats each; in parallel if there are enough.
template <typename Item, typename Count, typename Width, typename Visit>
void ForEachCell(absl::Span<const Item> items, ThreadPool* pool, Count count, Width width,
                 Visit visit) {
  int64_t floats = 0;
  for (const Item& item : items) floats += count(item) * width(item);
  if (floats < kFloatsWorthThreads) {
    for (const Item& item : items) visit(item, int64_t{0}, count(item));
    return;
  }
  const auto cells_of = [&](const Item& item) {
    return (count(item) + kRowsPerCell - 1) / kRowsPerCell;
  };
  int64_t num_cells = 0;
  for (const Item& item : items) num_cells += cells_of(item);
  pool->ParallelFor(num_cells, [&](int64_t cell, int) {
    const Item* item = items.data();
    for (; cell >= cells_of(*item); ++item) cell -= cells_of(*item);
    const int64_t begin = cell * kRowsPerCell;
    visit(*item, begin, std::min(begin + kRowsPerCell, count(*item)));
  });
}

template <bool kGather>
void CopyRows(absl::Span<const RowCopy> copies, ThreadPool* pool) {
  for (const RowCopy& copy : copies) {
    CHECK_EQ(copy.rows.size, int64_t{copy.packed.rows});
    CHECK_LE(copy.packed.cols, copy.scattered.cols);
  }
  ForEachCell(
      copies, pool, [](const RowCopy& copy) { return copy.rows.size; },
      [](const RowCopy& copy) { return copy.packed.cols; },
      [](const RowCopy& copy, int64_t begin, int64_t end) {
        const size_t bytes = sizeof(float) * copy.packed.cols;
        for (int64_t i = begin; i < end; ++i) {
          if (i + kPrefetchDistance < end) {
            PrefetchRow(copy.scattered, copy.rows[i + kPrefetchDistance], copy.packed.cols);
          }
          float* scattered = copy.scattered.row(copy.rows[i]);
          std::memcpy(kGather ? copy.packed.row(i) : scattered,
                      kGather ? scattered : copy.packed.row(i), bytes);
        }
      });
}

}  // namespace

void CpuSparseUpdate(absl::Span<const RowUpdateGroup> groups, ThreadPool* pool) {
  for (const RowUpdateGroup& group : groups) CHECK(IsValid(group));
  ForEachCell(
      groups, pool, [](const RowUpdateGroup& group) { return group.targets.size; },
      [](const RowUpdateGroup& group) { return group.rows.cols; }, UpdateRows);
}

void CpuGatherRows(absl::Span<const RowCopy> copies, ThreadPool* pool) {
  CopyRows<true>(copies, pool);
}

void CpuScatterRows(absl::Span<const RowCopy> copies, ThreadPool* pool) {
  CopyRows<false>(copies, pool);
}

}  // namespace thermocline
